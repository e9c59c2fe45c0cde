"""A bare cache of one upstream repository, read and filled by the system's `git` and nothing of the user's configuration.

Nothing that a repository holds is ever run or checked out: no hooks, no filters, no submodules, no working tree.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from slipway.errors import (
    AuthFailure,
    IntegrityMismatch,
    LockDrift,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
    from_os_error,
)
from slipway.images.allowed import COMMIT
from slipway.progress import Progress, silent

FETCH_TIMEOUT_S = 3600.0
"""A first fetch of a large history takes minutes; a server that sends nothing for longer than this is given up."""

READ_TIMEOUT_S = 300.0

PROTOCOLS = "https:http:ssh:git:file"
"""What may carry a fetch. Not `ext`, which runs a command, nor any helper that happens to be installed."""

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.fsmonitor=false",
    "protocol.version=2",
    "gc.auto=0",
    "maintenance.auto=false",
    # A server that stalls is an error, not a wait without end.
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
_KEPT = re.compile(
    r"PATH|HOME|TMPDIR|SSH_AUTH_SOCK|SSL_CERT_(FILE|DIR)|GIT_SSL_CAINFO|CURL_CA_BUNDLE|(https?|all|no)_proxy",
    re.IGNORECASE,
)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]*@")

# What git says (in English: LC_ALL=C), and which error that is. Source: git 2.39 and 2.47, tried against each case.
_MISSING = ("not our ref", "couldn't find remote ref", "unadvertised object", "no such remote ref")
_NO_REPOSITORY = (
    "does not appear to be a git repository",
    "repository not exported",
    "not found",
    "not a git repository",
)
_REFUSED = ("authentication failed", "could not read username", "could not read password", "permission denied", " 403")


@dataclass(frozen=True)
class Repository:
    """The cache in `folder` of the repository at `url`. `url` may hold a token: show `shown` instead."""

    folder: Path
    url: str

    @property
    def shown(self) -> str:
        """The URL with user name and token masked."""
        return masked(self.url)

    def holds(self, commit: str) -> bool:
        """Whether `commit` was fetched or made here, with its whole history."""
        return self.run("rev-parse", "--verify", "--quiet", _pin(commit), allowed=(0, 1)).returncode == 0

    def fetch(self, commit: str, progress: Progress = silent) -> None:
        """Fetch exactly `commit` and its history, unless the cache holds it.

        Raises: UsageError when `commit` is not 40 hex digits or no commit; MissingFile when the server does not give it;
        LockDrift when its history is cut off; AuthFailure; NetworkFailure.
        """
        require_commit(commit, self.shown)
        if self.holds(commit):
            return
        fetched = f"refs/slipway/fetched/{commit}"
        self._fetch(f"{commit}:{fetched}", f"commit {commit}", progress)
        kind = self.text("cat-file", "-t", commit)
        if kind != "commit":
            raise UsageError(
                f"{self.shown} {commit}",
                f"is a {kind}, not a commit",
                "an annotated tag has a SHA of its own",
                "pin the commit that it points to: `git rev-parse TAG^{commit}`",
            )
        # From a shallow server git takes the objects and leaves the ref out, without calling it an error.
        if self.run("rev-parse", "--verify", "--quiet", fetched, allowed=(0, 1)).returncode:
            why = "what it contains can only be proved by its whole history"
            raise LockDrift(f"{self.shown} {commit}", "the server's history is cut off", why, "fetch from a full clone")
        self.keep(commit)

    def fetch_pull_request(self, number: int, progress: Progress = silent) -> str:
        """The commit that `refs/pull/N/head` names on the server now, fetched with its history.

        Raises: MissingFile when the server has no such ref; AuthFailure; NetworkFailure.
        """
        ref = f"refs/slipway/pulls/{number}"
        self._fetch(f"+refs/pull/{number}/head:{ref}", f"pull request {number}", progress)
        return self.text("rev-parse", ref)

    def keep(self, commit: str) -> None:
        """Note that the cache holds `commit` with all it needs; kept from then on."""
        self.text("update-ref", _pin(commit), commit)

    def is_ancestor(self, commit: str, of: str) -> bool:
        """Whether `commit` is contained in the history of `of`. A commit that the cache lacks is contained in none."""
        if self.run("cat-file", "-e", f"{commit}^{{commit}}", allowed=(0, 1, 128)).returncode:
            return False
        return self.run("merge-base", "--is-ancestor", commit, of, allowed=(0, 1)).returncode == 0

    def text(self, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        """What `git WORDS` prints, without the last newline. Raises: as `run`."""
        ran = self.run(*words, stdin=stdin, env=env)
        return ran.stdout.decode(errors="replace").rstrip("\n")

    def run(
        self, *words: str, stdin: bytes = b"", env: Mapping[str, str] | None = None, allowed: Sequence[int] = (0,)
    ) -> subprocess.CompletedProcess[bytes]:
        """The finished `git WORDS`. Raises: UsageError where git is missing; IntegrityMismatch for another exit code."""
        ran = _finished(_argv(self.folder, words), stdin, {**_environment(), **(env or {})}, READ_TIMEOUT_S, self.shown)
        if ran.returncode not in allowed:
            said = masked(ran.stderr.decode(errors="replace")).strip()
            why = "the cache may be damaged, or git too old (2.38 is needed)"
            raise IntegrityMismatch(
                self.folder, f"git {words[0]} failed ({said})", why, "remove the cache and run again"
            )
        return ran

    @contextmanager
    def blobs(self) -> Iterator[BlobReader]:
        """A reader of file contents by object id, for as long as the `with` block runs."""
        argv = _argv(self.folder, ("cat-file", "--batch"))
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()) as process:
            if process.stdin is None or process.stdout is None:
                raise UsageError(self.shown, "git cat-file has no pipes")
            try:
                yield BlobReader(process.stdin, process.stdout)
            finally:
                process.stdin.close()

    def _fetch(self, refspec: str, what: str, progress: Progress) -> None:
        options = ("--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--quiet", "--no-auto-maintenance")
        argv = _argv(self.folder, ("fetch", *options, "--", self.url, refspec))
        with progress.track(f"fetch {what} of {self.shown}"):
            ran = _finished(argv, b"", _environment(), FETCH_TIMEOUT_S, self.shown)
        if ran.returncode:
            raise _failure(self.shown, f"fetching {what}", ran.stderr)
        progress.note(f"fetched {what} of {self.shown}")


class BlobReader:
    """Contents by object id, from one `git cat-file --batch`."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers = requests, answers

    def read(self, object_id: str) -> bytes:
        """The bytes of one blob. Raises: MissingFile."""
        self._requests.write(f"{object_id}\n".encode())
        self._requests.flush()
        header = self._answers.readline().split()
        if len(header) != 3:
            raise MissingFile(
                object_id, "is not in the cache of the repository", "", "remove the cache and fetch again"
            )
        data = self._answers.read(int(header[2]))
        self._answers.read(1)
        return data


def open_repository(repository: str, cache_dir: Path) -> Repository:
    """The cache below `cache_dir` of the repository at a URL or a local path; made when it is not there yet.

    Raises: UsageError for what is neither, and where git is missing; DiskFailure.
    """
    url = repository if _is_url(repository) else str(Path(repository).absolute())
    if repository.startswith("-") or not repository:
        raise UsageError(repository or "repository", "is no repository", "a URL or a path", "correct it")
    bare = _USER_INFO.sub("", url)
    name = re.sub(r"[^\w.-]", "", bare.rstrip("/").rpartition("/")[2].removesuffix(".git")) or "repository"
    folder = cache_dir.absolute() / f"{name}-{hashlib.sha256(bare.encode()).hexdigest()[:12]}.git"
    found = Repository(folder, url)
    if not (folder / "HEAD").is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, folder, "making the cache of a repository") from error
        # An empty template: the system's holds sample hooks.
        found.run("init", "--quiet", "--bare", "--template=", str(folder))
    return found


def require_commit(text: str, place: object) -> None:
    """Raises: UsageError unless `text` is a full commit SHA; branches and tags move, short SHAs may come to mean two."""
    if not COMMIT.fullmatch(text):
        why = "a commit of 40 hex digits: branches and tags move"
        remedy = "`git rev-parse REF^{commit}` prints it"
        raise UsageError(place, f"not a commit (got {masked(text)!r})", why, remedy)


def masked(text: str) -> str:
    """`text` with the user names and tokens of its URLs replaced by ***."""
    return _USER_INFO.sub("***@", text)


def _pin(commit: str) -> str:
    return f"refs/slipway/pins/{commit}"


def _is_url(text: str) -> bool:
    # `host:path` is ssh, as git reads it: a colon before the first slash.
    return "://" in text or "::" in text or bool(re.match(r"[^/]+:", text))


def _argv(folder: Path, words: Sequence[str]) -> tuple[str, ...]:
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    return ("git", f"--git-dir={folder}", *settings, *words)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
    return {
        **kept,
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "",
        "SSH_ASKPASS": "",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_ALLOW_PROTOCOL": PROTOCOLS,
        "XDG_CONFIG_HOME": os.devnull,
    }


def _finished(
    argv: tuple[str, ...], stdin: bytes, env: Mapping[str, str], timeout_s: float, shown: str
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(argv, input=stdin, env=env, capture_output=True, check=False, timeout=timeout_s)
    except FileNotFoundError:
        raise UsageError("git", "is not installed", "sources are fetched with it", "install git >= 2.38") from None
    except subprocess.TimeoutExpired:
        raise NetworkFailure(shown, f"git did not finish within {timeout_s:.0f} s", "", "run it again") from None


def _failure(shown: str, doing: str, stderr: bytes) -> SlipwayError:
    lines = [line for line in masked(stderr.decode(errors="replace")).splitlines() if line.strip()]
    said = "; ".join(lines[:3]) or "no reason given"
    low = "\n".join(lines).lower()
    place = f"{shown}: {doing}"
    if any(words in low for words in _MISSING):
        why = "commits that no branch reaches any more are dropped by the server in time"
        return MissingFile(
            place, f"the server does not give it ({said})", why, "pin a commit that the server has, or mirror it"
        )
    if "not allowed" in low and "transport" in low:
        return UsageError(place, said, f"allowed protocols: {PROTOCOLS.replace(':', ', ')}", "use an https URL")
    if any(words in low for words in _REFUSED):
        return AuthFailure(place, said, "", "check the token or key; git is not allowed to ask for one here")
    if any(words in low for words in _NO_REPOSITORY):
        return MissingFile(place, said, "", "check the URL")
    if "no space left" in low:
        return from_os_error(OSError(28, "No space left on device"), place, "fetching")
    return NetworkFailure(place, said, "", "check the URL and the network, then run the same command again")
