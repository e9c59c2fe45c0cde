"""The digests of files as they lie on disk, several at a time: large ones mapped by processes of their own, others read here."""

from __future__ import annotations

import errno
import json
import os
import queue
import re
import resource
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.checkpoints.pins import ChunkDigests, Hasher
from slipway.errors import DiskFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slipway.checkpoints.pins import PinnedFile, Progress

UNREADABLE = "cannot be read: "
"""How the text begins that stands for the digest of a file that the disk does not give."""

_PIECE_BYTES = 1 << 20

_MAPPED_BYTES = 128 << 20
"""From this size on a file is mapped. To start a process takes some 40 ms, in which 50 MB are hashed."""

_MAPPED_WELL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})
"""Filesystems of this machine. Those of a network read ahead for reads, and mapped page by page."""


@dataclass(frozen=True)
class OnDisk:
    """What lies at `path`, to be held against `file`; with `chunk_bytes`, every chunk has its digest besides."""

    path: Path
    file: PinnedFile
    chunk_bytes: int = 0


@dataclass(frozen=True)
class Found:
    """The digest of a file, or a text that equals none; and that of each chunk where it was wanted.

    A file that was written to, or replaced, while it was hashed has no digest.
    """

    digest: str
    chunks: tuple[str, ...] = ()


def digest_on_disk(path: Path, file: PinnedFile) -> str:
    """The digest of the bytes at `path`, comparable with that of `file`; a text that equals none when it cannot be read."""
    return _read(OnDisk(path, file), lambda _: None).digest


def digests_on_disk(wanted: Sequence[OnDisk], workers: int, progress: Progress, label: str) -> list[Found]:
    """What each of `wanted` has, in their order, `workers` at a time."""
    counted, stopping = threading.Lock(), threading.Event()
    # More processes than cores hash nothing faster; other workers read, which on a slow disk still helps.
    helpers = [_Helper(stopping, maps=number < (os.cpu_count() or 1)) for number in range(max(workers, 1))]
    idle: queue.SimpleQueue[_Helper] = queue.SimpleQueue()
    for helper in helpers:
        idle.put(helper)
    with progress.track(label, sum(one.file.size_bytes for one in wanted)) as advance:

        def count(amount: int) -> None:
            if stopping.is_set():
                raise _Stopped
            with counted:
                advance(amount)

        def one(wish: OnDisk) -> Found:
            helper = idle.get()
            try:
                before = _state(wish.path)
                found = helper.found(wish, count)
                return found if _state(wish.path) == before else Found("was changed or replaced while it was hashed")
            finally:
                idle.put(helper)

        try:
            with ThreadPoolExecutor(len(helpers)) as pool:
                try:
                    return list(pool.map(one, wanted))
                finally:
                    # After Ctrl-C nobody waits for the rest of a shard.
                    stopping.set()
                    for helper in helpers:
                        helper.kill()
        finally:
            for helper in helpers:
                helper.close()


class _Stopped(Exception):
    """Nobody waits for the answer any more."""


class _Helper:
    """Hashes one file after another: mapped by a process where that pays, read here where not, or where the process fails."""

    def __init__(self, stopping: threading.Event, *, maps: bool) -> None:
        self._stopping = stopping
        self._process: subprocess.Popen[bytes] | None = None
        self._works = maps and bool(sys.executable)

    def found(self, wish: OnDisk, count: Callable[[int], None]) -> Found:
        """What the file has; `count` is told of every byte once.

        Raises: _Stopped, DiskFailure, and whatever `count` raises.
        """
        told = 0

        def once(amount: int) -> None:
            nonlocal told
            told += amount
            count(amount)

        large = wish.file.size_bytes >= _MAPPED_BYTES
        # Pages that another process writes may be others when they are hashed a second time, so chunks take a copy.
        if self._works and large and not wish.chunk_bytes and _is_mapped_well(wish.path):
            digest = self._mapped(wish, once)
            if self._stopping.is_set():
                raise _Stopped
            if digest:
                return Found(digest)
        return _read(wish, _beyond(told, count))

    def kill(self) -> None:
        """End the process whatever it does; a thread that waits for its answer hears of it."""
        process = self._process
        if process:
            process.kill()

    def close(self) -> None:
        """Nothing of the process is left. No thread may be using it."""
        if self._process:
            _ended(self._process)
            self._process = None

    def _mapped(self, wish: OnDisk, count: Callable[[int], None]) -> str:
        """The digest; empty where the process has no answer, and reading the file says why."""
        digest = None
        try:
            for said in self._answers(wish):
                if isinstance(said, str):
                    digest = said
                    break
                count(said)
        finally:
            if digest is None:
                self._drop()
        return digest or ""

    def _answers(self, wish: OnDisk) -> Iterator[int | str]:
        """What the process says: how many bytes more it has hashed, again and again, and the digest; nothing more when it fails."""
        file = wish.file
        try:
            process = self._process = self._process or _start()
            if self._stopping.is_set():
                # Begun while the others were being killed.
                process.kill()
            assert process.stdin and process.stdout
            asked = [os.fsencode(wish.path).hex(), file.size_bytes, file.sha256, file.git_sha1]
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return
        while True:
            try:
                said = json.loads(process.stdout.readline())
            except (OSError, ValueError):
                return
            if not isinstance(said, (int, str)):
                return
            yield said

    def _drop(self) -> None:
        """The process gave no answer, or nobody has heard it, so it must answer nothing more."""
        process, self._process = self._process, None
        if process:
            process.kill()
        # Killed by SIGBUS, or by the kernel for want of memory, or here: the next file gets a new one. Not so if it cannot start.
        self._works = process is not None and _ended(process) < 0


_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from slipway.checkpoints.mapped import main; main()"
_ROOT = str(Path(__file__).absolute().parents[2])
"""Where `slipway` is imported from: a folder, or the zipapp itself."""


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, _ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit status, once it is gone: of its own, or killed now."""
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe:
                pipe.close()
    try:
        return process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


_PATIENCE_S = 1
"""A helper whose input has ended ends at once, one in the middle of a window when it has hashed it."""


def _beyond(told: int, count: Callable[[int], None]) -> Callable[[int], None]:
    """Tells `count` only of bytes after the first `told`."""
    left = told

    def later(amount: int) -> None:
        nonlocal left
        known = min(left, amount)
        left -= known
        count(amount - known)

    return later


def _read(wish: OnDisk, count: Callable[[int], None]) -> Found:
    hasher, chunks = Hasher(wish.file), ChunkDigests(wish.chunk_bytes) if wish.chunk_bytes else None
    buffer = memoryview(bytearray(_PIECE_BYTES))
    try:
        # A pipe put in the file's place must not block the check.
        descriptor = os.open(wish.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _unreadable(wish, error)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return Found("not a regular file")
        while True:
            try:
                size = os.readv(descriptor, [buffer])
            except OSError as error:
                return _unreadable(wish, error)
            if not size:
                return Found(hasher.digest, tuple(chunks.digests) if chunks else ())
            hasher.update(buffer[:size])
            if chunks is not None:
                chunks.update(buffer[:size])
            count(size)
    finally:
        os.close(descriptor)


def _unreadable(wish: OnDisk, error: OSError) -> Found:
    """What stands for the digest.

    Raises: DiskFailure where the process, not the file, is at fault.
    """
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        why = f"this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files open (ulimit -n)"
        raise DiskFailure(wish.path, "too many files are open", why, "raise the limit, or use fewer --workers")
    return Found(f"{UNREADABLE}{error.strerror}")


def _state(path: Path) -> tuple[int, ...] | None:
    """What differs once `path` was written to or replaced; not the ctime, which a hard link more changes."""
    try:
        status = os.stat(path)  # noqa: PTH116 -- one call, no object
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_mapped_well(path: Path) -> bool:
    try:
        return _filesystem(os.path.dirname(os.path.realpath(path))) in _MAPPED_WELL  # noqa: PTH120
    except OSError:
        return False


@lru_cache(maxsize=64)
def _filesystem(folder: str) -> str:
    """The kind of the filesystem that `folder` (absolute, without links) lies on; empty where the kernel does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_bytes().decode(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    found = ("", "")
    for fields, _, kind in (line.partition(" - ") for line in mounts):
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        # Of two mounts at one place the later one is seen.
        if len(place) >= len(found[0]) and (folder == place or folder.startswith(place.rstrip("/") + "/")):
            found = (place, kind.split(" ")[0])
    return found[1]
