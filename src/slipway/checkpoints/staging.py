"""Folders for what is not finished: one per fetch, with its owner's name on it, removed when the owner is gone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import socket
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.checkpoints.part import JOURNAL, PART, Donor, read_journal
from slipway.checkpoints.pins import plain_bytes
from slipway.durable import write_durably
from slipway.errors import DiskFailure, from_os_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from slipway.checkpoints.pins import PinnedFile, Progress

_OWNER = "owner.json"
_SPARE = 0.02
"""Part of the bytes that must stay free besides: blocks, folders, other writers."""

_ABANDONED_S = 24 * 3600
"""A staging folder of another host in which nothing was written for so long has no owner any more."""

_NAMING_S = 60
"""A fetch writes its name into its staging folder within this time."""

_KEPT_S = 7 * 24 * 3600
"""Proved parts that no fetch has asked for in so long belong to a revision that nobody wants any more."""

_SWAP_S = 3600
"""A link that was not moved to its place for so long never will be."""


@dataclass(frozen=True)
class Place:
    """One fetch's own folder: `tree` becomes the checkpoint, `parts` holds files that are not in it yet, by digest."""

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    @property
    def parts(self) -> Path:
        return self.folder / "parts"


@contextmanager
def staging(root: Path) -> Iterator[Place]:
    """An empty place on the file system of `root`.

    After the `with` block it is gone, but for parts with proved chunks: those wait there for the next fetch.

    Raises: DiskFailure.
    """
    place = Place(root / ".store" / ".staging" / uuid.uuid4().hex)
    try:
        place.folder.mkdir(parents=True, mode=0o700)
        write_durably(place.folder / _OWNER, json.dumps(_self()).encode())
        place.tree.mkdir(mode=0o755)
        place.parts.mkdir(mode=0o700)
    except OSError as error:
        raise from_os_error(error, place.folder, "creating the staging folder") from error
    try:
        yield place
    finally:
        if _proved(place):
            _keep_proved(place)
        else:
            remove_tree(place.folder)


def claim(root: Path, place: Place, names: Collection[str]) -> dict[str, list[Donor]]:
    """Per name of a part, what earlier fetches proved of it. Parts whose owner is gone have moved to `place`.

    Parts that another host's fetch may still be writing are only read: chunks are proved again when they are taken.
    A rename succeeds for one claimer only, so none is ever written by two.

    Raises: DiskFailure.
    """
    found: dict[str, list[Donor]] = {}
    try:
        for other in sorted((root / ".store" / ".staging").glob("*/parts")):
            if other.parent != place.folder:
                with suppress(FileNotFoundError):  # its owner has just finished
                    _claim(Place(other.parent), place, names, found)
    except OSError as error:
        raise from_os_error(error, place.folder, "taking over what an interrupted fetch left") from error
    return found


def _claim(left: Place, place: Place, names: Collection[str], found: dict[str, list[Donor]]) -> None:
    owned, here = is_owned(left.folder), _is_here(_owner(left.folder))
    if owned and here:
        return  # a living process of this host: the lock, where it works, makes us wait for it
    for part in _proved(left):
        if part.name in names:
            digests = read_journal(part)
            path = part if owned or part.name in found else _take(part, place)
            if path:
                found.setdefault(part.name, []).append(Donor(path, digests))


def refuse_without_room(place: Place, wanted: Sequence[PinnedFile]) -> None:
    """Nothing, where there is room for `wanted` besides the parts that `place` has already.

    Raises: DiskFailure with the numbers.
    """
    root = place.folder.parents[2]
    space = os.statvfs(root)
    had = sum(part.stat().st_blocks * 512 for part in place.parts.iterdir())
    needed, free = max(sum(file.size_bytes for file in wanted) - had, 0), space.f_bavail * space.f_frsize
    needed += int(needed * _SPARE)
    advice = f"free {needed - free} bytes, or fetch into another folder with --dest"
    if needed > free:
        raise DiskFailure(
            root, f"{free} bytes are free, {needed} are needed", "bytes of all missing files and 2 %", advice
        )
    inodes = len(wanted) + 16
    if space.f_files and space.f_favail < inodes:
        raise DiskFailure(root, f"{space.f_favail} inodes are free, {inodes} are needed", "", "remove small files")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    largest = max((file.size_bytes for file in wanted), default=0)
    if limit != resource.RLIM_INFINITY and largest > limit:
        text = f"files may have {limit} bytes here (ulimit -f), one has {largest}"
        raise DiskFailure(root, text, "", "raise it: ulimit -f unlimited")


def refuse_without_links(place: Place) -> None:
    """Nothing, where the file system has symbolic links; better told before hundreds of gigabytes than after.

    Raises: DiskFailure.
    """
    probe = place.folder / "probe"
    try:
        os.symlink("tree", probe)  # noqa: PTH211
        probe.unlink()
    except OSError as error:
        raise DiskFailure(
            place.folder.parents[2],
            f"cannot hold symbolic links ({(error.strerror or '').lower()})",
            "a finished checkpoint becomes visible by a link, so that it is whole or not there",
            "fetch into a folder on another file system with --dest",
        ) from error


def remove_litter(root: Path, progress: Progress) -> None:
    """Nothing; staging folders whose owner is gone are removed, with a note. Proved parts are kept for a week.

    Raises: DiskFailure.
    """
    place = root / ".store" / ".staging"
    try:
        for left in sorted(place.iterdir()) if place.is_dir() else ():
            with suppress(FileNotFoundError):  # its owner has just finished, or another fetch was faster
                if not left.is_dir() or left.is_symlink():
                    # A link, or a manifest, on its way to its place.
                    if time.time() - left.lstat().st_mtime > _SWAP_S:
                        left.unlink()
                elif not is_owned(left) and not (_proved(Place(left)) and time.time() - last_written_s(left) < _KEPT_S):
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


def is_owned(place: Path) -> bool:
    """Whether the fetch that made the staging folder `place` may still be running.

    Raises: FileNotFoundError where there is no such folder any more.
    """
    owner = _owner(place)
    if not owner:
        # Killed before it could say who it is, or while it removed something. Whoever fetches on this host holds a lock.
        # Looked at first: what is written between this and the clock would otherwise come from the future.
        written_s = last_written_s(place)
        if abs(time.time() - written_s) < _NAMING_S:
            return True
        if not _others_fetch(place.parents[1]):
            return False
    if not _is_here(owner):
        # A process elsewhere cannot be looked up; its files can.
        return time.time() - last_written_s(place) < _ABANDONED_S
    if owner.get("boot") != _self()["boot"]:
        return False
    pid = owner.get("pid")
    return isinstance(pid, int) and _started(pid) == owner.get("started") is not None


def last_written_s(place: Path) -> float:
    """When anything in `place` was last written to, in seconds since the epoch.

    Raises: FileNotFoundError where there is no such folder any more.
    """
    newest = place.stat().st_mtime
    for parent, _, files in os.walk(place):
        for name in files:
            try:
                newest = max(newest, os.lstat(os.path.join(parent, name)).st_mtime)  # noqa: PTH118
            except FileNotFoundError:
                continue  # its owner is at work
    return newest


def remove_tree(folder: Path) -> None:
    """Nothing; `folder` and all in it are gone, read-only folders included. A folder that is not there is no error."""
    if not folder.is_dir():
        return
    try:
        for parent, _, _ in os.walk(folder):
            os.chmod(parent, 0o700)  # noqa: PTH101 -- os.walk speaks text
        shutil.rmtree(folder)
    except FileNotFoundError:
        remove_tree(folder)  # another fetcher has just taken a part of it


def _acquire(descriptor: int, repo: str, progress: Progress) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            progress.note(f"another process is fetching {repo}; waiting for it")
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            return
        progress.note(f"this file system has no locks ({error.strerror}); going on without")


def _proved(place: Place) -> list[Path]:
    """The parts in `place` of which a journal says something."""
    journals = sorted(place.parts.glob(f"*{JOURNAL}")) if place.parts.is_dir() else []
    parts = [journal.with_suffix(PART) for journal in journals]
    return [part for part in parts if part.is_file() and not part.is_symlink() and read_journal(part)]


def _keep_proved(place: Place) -> None:
    """Leave nothing in `place` but proved parts, free for whoever needs them."""
    remove_tree(place.tree)
    kept = {path for part in _proved(place) for path in (part, part.with_suffix(JOURNAL))}
    for path in place.parts.iterdir():
        if path not in kept:
            path.unlink()
    write_durably(place.folder / _OWNER, json.dumps({**_self(), "pid": 0}).encode())


def _take(part: Path, place: Place) -> Path | None:
    """`part` in its new place; None when another claimer was first."""
    mine = place.parts / part.name
    try:
        part.with_suffix(JOURNAL).rename(mine.with_suffix(JOURNAL))
        part.rename(mine)
        mine.chmod(0o600)
    except FileNotFoundError:
        return None
    return mine


def _is_here(owner: dict[str, Any]) -> bool:
    """Whether the fetch of this owner ran where its process could be seen from here."""
    me = _self()
    return all(owner.get(key) == me[key] for key in ("host", "pid_namespace"))


def _others_fetch(store: Path) -> bool:
    """Whether another process of this host holds the lock of any repository in `store`; also where nobody can tell.

    The kernel's list is read, for to open and close a lock file would give up this process's own lock on it.
    """
    inodes = {os.lstat(path).st_ino for path in store.glob(".*.lock")}
    held = [line.split() for line in _text("/proc/locks").splitlines()]
    if not held and not os.path.exists("/proc/locks"):  # noqa: PTH110
        return True
    # Source: proc_locks(5): number, class, mode, kind, process, major:minor:inode, range.
    holders = [
        (fields[-4], fields[-3].rpartition(":")[2]) for fields in held if len(fields) >= 8 and "->" not in fields
    ]
    return any(pid != str(os.getpid()) and inode in {str(one) for one in inodes} for pid, inode in holders)


def _owner(place: Path) -> dict[str, Any]:
    try:
        owner = json.loads(plain_bytes(place / _OWNER))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


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
