"""What the modules that run on hosts know of a lock: its files, their digests, and which paths are allowed."""

from __future__ import annotations

import copy
import errno
import hashlib
import os
import re
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from slipway.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

MANIFEST = ".slipway-manifest.json"
"""Name of the file that a published folder holds besides the locked ones."""

_LONGEST_BYTES = 256 << 20
"""Longest index, config, manifest or record that is read into memory. M.1's index has 6 MB."""

_REPO = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?/[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_REVISION = re.compile(r"[0-9a-f]{40}")


class PinnedFile(Protocol):
    """One locked file: exactly one of the two digests (hex) is set."""

    @property
    def path(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def sha256(self) -> str | None: ...
    @property
    def git_sha1(self) -> str | None: ...


class Pins(Protocol):
    """A locked checkpoint, as far as fetching and verifying need it; `lock.CheckpointLock` is one."""

    @property
    def repo(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def files(self) -> Sequence[PinnedFile]: ...


class Progress(Protocol):
    """The shape of `slipway.progress.Progress`, which a host does not have."""

    def note(self, text: str) -> None: ...
    def track(
        self, label: str, total: int | None = None, unit: str = "bytes"
    ) -> AbstractContextManager[Callable[[int], None]]: ...


class _Silent:
    def note(self, text: str) -> None:
        pass

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Callable[[int], None]]:
        yield lambda _: None


silent: Progress = _Silent()
"""Reports nothing."""


def digest_of(file: PinnedFile) -> str:
    """The locked digest with its algorithm, as `sha256:…` or `git-sha1:…`."""
    return f"sha256:{file.sha256}" if file.sha256 else f"git-sha1:{file.git_sha1}"


class Hasher:
    """Feed it the bytes of `file` in order; `digest` is then comparable with `digest_of(file)`."""

    def __init__(self, file: PinnedFile) -> None:
        self._kind = "sha256" if file.sha256 else "git-sha1"
        self._state: Any = hashlib.sha256() if file.sha256 else hashlib.sha1()  # noqa: S324 -- git's own digest
        if not file.sha256:
            # Git hashes a header with the length first, so a file of another length has another digest by itself.
            self._state.update(b"blob %d\0" % file.size_bytes)

    def update(self, piece: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._state.update(piece)

    def copy(self) -> Hasher:
        """A hasher that has taken the same bytes and goes its own way from here."""
        twin = copy.copy(self)
        twin._state = self._state.copy()
        return twin

    @property
    def digest(self) -> str:
        return f"{self._kind}:{self._state.hexdigest()}"


class ChunkDigests:
    """Feed it the bytes of a file in order; `digests` then has the SHA-256 of every chunk, the last one perhaps shorter."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._left = chunk_bytes
        self._state = hashlib.sha256()
        self._done: list[str] = []

    def update(self, piece: memoryview) -> None:
        """Take the next bytes."""
        while piece:
            part = piece[: self._left]
            self._state.update(part)
            self._left -= len(part)
            piece = piece[len(part) :]
            if not self._left:
                self._done.append(self._state.hexdigest())
                self._state, self._left = hashlib.sha256(), self._chunk_bytes

    @property
    def digests(self) -> list[str]:
        whole = self._left == self._chunk_bytes and self._done
        return self._done if whole else [*self._done, self._state.hexdigest()]


def plain_bytes(path: Path) -> bytes:
    """The bytes of a small file that others may have put there: a pipe does not block, a link is not followed.

    Raises: OSError, also for what is no regular file or is longer than any that is meant.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > _LONGEST_BYTES:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(descriptor)


def path_problem(path: str) -> str:
    """Why `path` may not stand in a lock; empty when it may."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\\" in path:
        return "is not a relative path with forward slashes"
    if any(part in {"", ".", ".."} for part in parts):
        return "has an empty, `.` or `..` part, so it could leave the folder"
    if not path.isprintable() or any(len(part.encode()) > 255 for part in parts) or len(path.encode()) > 1024:
        return "has characters that do not print, or is longer than a file system allows"
    if parts[0] == MANIFEST:
        return "is the name of Slipway's own manifest"
    return ""


def paths_problem(paths: Sequence[str]) -> str:
    """Why these paths cannot stand together in one folder, naming the path; empty when they can."""
    known = set(paths)
    if len(known) != len(paths):
        twice = next(path for path in paths if list(paths).count(path) > 1)
        return f"{twice!r} stands twice"
    for path in paths:
        problem = path_problem(path)
        if problem:
            return f"{path!r} {problem}"
        parents = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 1)]
        clash = next((parent for parent in parents if parent in known), None)
        if clash is not None:
            return f"{clash!r} is both a file and the folder of {path!r}"
    return ""


def refuse_unsafe(pins: Pins) -> None:
    """Nothing; a lock that names a place outside its folder never reaches the disk.

    Raises: UsageError naming the repository and the path.
    """
    place = f"lock of {pins.repo!r}"
    if not _REPO.fullmatch(pins.repo) or ".." in pins.repo:
        raise UsageError(place, "the repository is not owner/name", "", "correct the lock")
    if not _REVISION.fullmatch(pins.revision):
        raise UsageError(
            place, f"the revision is not 40 hex digits (got {pins.revision!r})", "", "make the lock anew: lock-models"
        )
    problem = paths_problem([file.path for file in pins.files])
    if problem:
        raise UsageError(
            place, f"the path {problem}", "a locked file stays inside its folder", "make the lock anew: lock-models"
        )


def repo_problem(repo: str) -> str:
    """Why `repo` is no repository id; empty when it is one."""
    return "" if _REPO.fullmatch(repo) and ".." not in repo else "a repository is owner/name, as poolside/Laguna-M.1"
