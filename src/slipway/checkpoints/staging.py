"""Folders for what is not finished: one per fetch, with its owner's name on it, removed when the owner is gone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.checkpoints.publish import write_durably
from slipway.errors import from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipway.checkpoints.pins import Progress

_OWNER = "owner.json"
_ABANDONED_S = 24 * 3600
"""A staging folder of another host in which nothing was written for so long has no owner any more."""

_SWAP_S = 3600
"""A link that was not moved to its place for so long never will be."""


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """An empty folder `tree` on the file system of `root`, gone after the `with` block unless it was renamed away.

    Raises: DiskFailure.
    """
    place = root / ".store" / ".staging" / uuid.uuid4().hex
    try:
        place.mkdir(parents=True, mode=0o700)
        write_durably(place / _OWNER, json.dumps(_self()).encode())
        (place / "tree").mkdir(mode=0o755)
    except OSError as error:
        raise from_os_error(error, place, "creating the staging folder") from error
    try:
        yield place / "tree"
    finally:
        remove_tree(place)


def remove_litter(root: Path, progress: Progress) -> None:
    """Nothing; staging folders whose owner is gone are removed, with a note.

    Raises: DiskFailure.
    """
    place = root / ".store" / ".staging"
    try:
        for left in sorted(place.iterdir()) if place.is_dir() else ():
            if left.is_symlink():
                if time.time() - left.lstat().st_mtime > _SWAP_S:
                    left.unlink()
            elif not _is_owned(left):
                remove_tree(left)
                progress.note(f"removed what an interrupted fetch left in {left}")
    except OSError as error:
        raise from_os_error(error, place, "removing what an interrupted fetch left") from error


@contextmanager
def one_at_a_time(root: Path, repo: str, progress: Progress) -> Iterator[None]:
    """Nothing; other fetchers of `repo` wait while the `with` block runs.

    This saves doubled work and nothing else: where locks do not work, unique names keep the result right.

    Raises: DiskFailure.
    """
    path = root / ".store" / f".{repo.replace('/', '--')}.lock"
    try:
        # lockf, not flock: on GPFS and NFS flock is known to one node only.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise from_os_error(error, path, "opening the lock file") from error
    try:
        _acquire(descriptor, repo, progress)
        yield
    finally:
        os.close(descriptor)


def remove_tree(folder: Path) -> None:
    """Nothing; `folder` and all in it are gone, read-only folders included. A folder that is not there is no error."""
    if not folder.is_dir():
        return
    for parent, _, _ in os.walk(folder):
        os.chmod(parent, 0o700)  # noqa: PTH101 -- os.walk speaks text
    shutil.rmtree(folder)


def _acquire(descriptor: int, repo: str, progress: Progress) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            progress.note(f"another process is fetching {repo}; waiting for it")
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            return
        progress.note(f"this file system has no locks ({error.strerror}); going on without")


def _is_owned(place: Path) -> bool:
    """Whether the fetch that made `place` may still be running."""
    try:
        owner = json.loads((place / _OWNER).read_bytes())
    except (OSError, ValueError):
        owner = None
    me = _self()
    if not isinstance(owner, dict) or any(owner.get(key) != me[key] for key in ("host", "pid_namespace")):
        # A process elsewhere cannot be looked up; its files can.
        return time.time() - _newest_s(place) < _ABANDONED_S
    if owner.get("boot") != me["boot"]:
        return False
    pid = owner.get("pid")
    return isinstance(pid, int) and _started(pid) == owner.get("started") is not None


def _self() -> dict[str, Any]:
    """Who this process is, well enough to tell it from a later one with the same number."""
    pid = os.getpid()
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        namespace = ""
    return {
        "host": socket.gethostname(),
        "pid_namespace": namespace,
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "pid": pid,
        "started": _started(pid),
    }


def _started(pid: int) -> str | None:
    """When process `pid` began, in the kernel's clock ticks; None when it is not running."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] not in {"Z", "X"} else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _newest_s(place: Path) -> float:
    newest = place.stat().st_mtime
    for parent, _, files in os.walk(place):
        for name in files:
            try:
                newest = max(newest, os.lstat(os.path.join(parent, name)).st_mtime)  # noqa: PTH118
            except FileNotFoundError:
                continue  # its owner is at work
    return newest
