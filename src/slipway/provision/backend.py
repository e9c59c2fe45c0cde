"""Where a stack's state is kept, and the passphrase that locks its secrets."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from slipway.durable import write_durably
from slipway.errors import AuthFailure, DiskFailure, MissingFile, UsageError, from_os_error
from slipway.provision.failures import masked

PASSPHRASE_VARIABLES = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")
PASSPHRASE_BYTES = 32
LEAST_FREE_BYTES = 32_000_000
"""A state of m1-pd is 0.2 MB; Pulumi keeps several copies and a history."""


@dataclass(frozen=True)
class Backend:
    """A state backend: its URL (None: the one that Pulumi is logged in to) and what the CLI is told of it."""

    url: str | None
    env: Mapping[str, str]

    @property
    def folder(self) -> Path | None:
        """The folder of a `file://` backend."""
        if not self.url or not self.url.startswith("file://"):
            return None
        # As Pulumi reads it: a query says how to open the folder, the rest is percent-encoded. `~` is the home.
        path = re.split("[?#]", self.url.removeprefix("file://"), maxsplit=1)[0]
        return Path(unquote(path)).expanduser()

    def __str__(self) -> str:
        return masked(self.url) if self.url else "the backend that Pulumi is logged in to"


def choose(root: Path, state: Path, stack: str) -> Backend:
    """The backend of `stack`, with its passphrase ready.

    PULUMI_BACKEND_URL, else the one this stack was made in, else the one Pulumi is logged in to, else a folder of ours:
    a stack must not wander to another backend, because that one knows nothing of the hosts that run.

    Raises: UsageError when PULUMI_BACKEND_URL names another backend than the stack was made in; MissingFile, DiskFailure.
    """
    record = state / "pulumi" / "backends.json"
    known = _recorded(record).get(stack)
    asked = os.environ.get("PULUMI_BACKEND_URL")
    if asked and known and not _same(asked, known):
        why = f"the stack was made in {masked(known)}; a second state would make every host a second time"
        remedy = f"unset PULUMI_BACKEND_URL, or move the state (`pulumi stack export`, `import`) and remove {stack} from {record}"
        raise UsageError("PULUMI_BACKEND_URL", f"names another backend (got {masked(asked)})", why, remedy)
    url = asked or known or (None if _logged_in(root) else (state / "pulumi").absolute().as_uri())
    if url is None:
        return Backend(None, _passphrase(root, state, stack))
    backend = Backend(url, {"PULUMI_BACKEND_URL": url, **_passphrase(root, state, stack)})
    if backend.folder and not asked:
        _make_private(backend.folder)
    return backend


def refuse_full_disk(backend: Backend) -> None:
    """Nothing while the disk of a `file://` backend has room for the state.

    Where it fills up on the way, Pulumi hangs and leaves a state that nobody can read. Seen by filling one.

    Raises: DiskFailure.
    """
    if backend.folder is not None and backend.folder.is_dir():
        _refuse_full(backend.folder)


def remember(state: Path, stack: str, backend: Backend) -> None:
    """Write down where `stack` was made.

    Raises: DiskFailure.
    """
    record = state / "pulumi" / "backends.json"
    known = _recorded(record)
    if backend.url is None or known.get(stack) == backend.url:
        return
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, record, "writing down the stack's backend") from error
    # Only its owner reads it: a URL may hold a password.
    write_durably(record, (json.dumps({**known, stack: backend.url}, indent=1) + "\n").encode(), mode=0o600)


def _same(url: str, other: str) -> bool:
    """Whether two URLs name one backend: a folder may be written with and without percent signs."""
    folder = Backend(url, {}).folder
    return url == other or (folder is not None and folder == Backend(other, {}).folder)


def _refuse_full(folder: Path) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < LEAST_FREE_BYTES:
        problem = f"has {free_bytes / 1e6:.1f} MB free"
        why = f"the state of a stack needs up to {LEAST_FREE_BYTES / 1e6:.0f} MB, and is lost when the disk fills up on the way"
        raise DiskFailure(folder, problem, why, "free space, then run the same command again")


def _passphrase(root: Path, state: Path, stack: str) -> dict[str, str]:
    """The variable that tells Pulumi its passphrase, unless the user has set one; it is never on a command line."""
    if any(name in os.environ for name in PASSPHRASE_VARIABLES):
        return {}
    path = state / "pulumi" / "passphrase"
    if not path.exists():
        _refuse_new_passphrase(root / "stacks" / f"Pulumi.{stack}.yaml", path)
        _write_passphrase(path)
    _refuse_empty_passphrase(path)
    return {"PULUMI_CONFIG_PASSPHRASE_FILE": str(path)}


def _refuse_new_passphrase(stack_file: Path, path: Path) -> None:
    """A stack that was locked with another passphrase cannot be opened with a new one."""
    if stack_file.is_file() and "\nencryptionsalt:" in "\n" + stack_file.read_text(encoding="utf-8"):
        why = f"{stack_file} was locked with a passphrase (encryptionsalt), and a new one cannot open it"
        remedy = (
            "bring the file back or set PULUMI_CONFIG_PASSPHRASE_FILE; for a new state, remove the encryptionsalt line"
        )
        raise MissingFile(path, "no passphrase", why, remedy)


def _write_passphrase(path: Path) -> None:
    _make_private(path.parent)
    _refuse_full(path.parent)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A rename replaces: of two commands at a time the second must not take the first one's passphrase away.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if not path.exists():
            write_durably(path, secrets.token_urlsafe(PASSPHRASE_BYTES).encode("ascii"), mode=0o600)
    except OSError as error:
        raise from_os_error(error, path, "making the passphrase") from error
    finally:
        os.close(descriptor)


def _refuse_empty_passphrase(path: Path) -> None:
    """A full disk once left an empty file; Pulumi would lock the secrets with it and say nothing."""
    try:
        empty = not path.read_bytes().strip()
    except OSError as error:
        raise from_os_error(error, path, "reading the passphrase") from error
    if empty:
        why = "secrets that are locked with it are open to everybody"
        remedy = (
            "bring a copy of the file back; where no stack was made with it, remove it and run the same command again; where one "
            "was, set PULUMI_CONFIG_PASSPHRASE to nothing, which opens it as before"
        )
        raise AuthFailure(path, "the passphrase is empty", why, remedy)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise from_os_error(error, folder, "making the state folder") from error


def _recorded(record: Path) -> dict[str, str]:
    try:
        read = json.loads(record.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(record, str(error)) from error
    if not isinstance(read, dict):
        raise _unreadable(record, "it is no mapping of stacks to URLs")
    return {str(stack): str(url) for stack, url in read.items()}


def _unreadable(record: Path, why: str) -> UsageError:
    remedy = 'write the URL of each stack\'s state into it, as {"m1-pd": "file:///…"}'
    return UsageError(record, f"cannot be read ({why})", "it says where each stack's state is", remedy)


def _logged_in(root: Path) -> bool:
    """Whether the project or a login names a backend already."""
    project = root / "Pulumi.yaml"
    if project.is_file() and "\nbackend:" in "\n" + project.read_text(encoding="utf-8"):
        return True
    home = Path(os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi")
    try:
        return bool(json.loads((home / "credentials.json").read_text(encoding="utf-8")).get("current"))
    except (OSError, ValueError):
        return False  # never logged in
