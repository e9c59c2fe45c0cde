"""One file as it grows on disk: hashed on the way, written in aligned pieces, and proved chunk by chunk in a journal.

A chunk is proved by the digest of the whole file up to its end, which the running hash yields for nothing: a digest per
chunk would double the cost of hashing. Whoever hashes the file again in order can tell the first wrong chunk, replace it, and
go on from the state before it, so one pass finds and mends every bad chunk.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipway.checkpoints.pins import Hasher, digest_of, plain_bytes
from slipway.errors import from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from slipway.checkpoints.early import Look
    from slipway.checkpoints.pins import PinnedFile

CHUNK_BYTES = 64 << 20
"""What is fetched again when one bit is wrong, and at most lost when a fetch is killed."""

BUFFER_BYTES = 1 << 20
"""Received, hashed and written at a time: large enough that a call costs nothing, small enough to stay in a core's cache."""

DIRECT_BUFFER_BYTES = 2 << 20
"""Written at a time past the page cache: nothing is copied then, and the disk likes it large."""

PART, JOURNAL = ".part", ".journal"
_BLOCK_BYTES = 4096
_PREALLOCATE_FROM_BYTES = 16 << 20
_DIRECT: int = getattr(os, "O_DIRECT", 0)
_LINE = re.compile(r"(\d{1,19}) ((?:sha256:[0-9a-f]{64})|(?:git-sha1:[0-9a-f]{40}))")


@dataclass(frozen=True)
class Io:
    """How files are written: past the page cache where the file system can, and else whether they may stay in it."""

    direct: bool = False
    keep_cached: bool = True
    chunk_bytes: int = CHUNK_BYTES


@dataclass(frozen=True)
class Donor:
    """A file that may hold the right bytes; `digests` says, per end of a chunk (the last ends the file), what everything before
    it hashes to."""

    path: Path
    digests: Mapping[int, str] = field(repr=False)


class Part:
    """A file that is not whole yet. `advance` is told the bytes it grew by, negative when they have to come again.

    Raises: DiskFailure.
    """

    def __init__(
        self, path: Path, file: PinnedFile, io: Io, advance: Callable[[int], None], look: Look | None = None
    ) -> None:
        self._path = path
        self._look = look
        self._file = file
        self._io = io
        self._advance = advance
        self._direct = io.direct and file.size_bytes >= _BLOCK_BYTES
        longest = DIRECT_BUFFER_BYTES if self._direct else BUFFER_BYTES
        size = -(-min(longest, io.chunk_bytes, max(file.size_bytes, 1)) // _BLOCK_BYTES) * _BLOCK_BYTES
        # A map of its own begins on a page, as O_DIRECT demands.
        self._buffer = memoryview(mmap.mmap(-1, size))
        self._filled = self._told = self.received_bytes = 0
        self._hasher = Hasher(file)
        self._digests: dict[int, str] = {}
        try:
            self._descriptor = self._open()
        except OSError as error:
            raise from_os_error(error, path, "creating the file") from error
        try:
            self._preallocate()
        except BaseException:
            self.close()
            raise

    @property
    def room(self) -> memoryview:
        """Where the next bytes go: never past a chunk's end or the file's; one byte more where the file is whole."""
        left = self._chunk_end() - self.received_bytes
        return self._buffer[self._filled : min(self._filled + left, len(self._buffer))] if left else self._buffer[:1]

    @property
    def digest(self) -> str:
        """The digest of what has come, comparable with `digest_of(file)`."""
        return self._hasher.digest

    @property
    def digests(self) -> dict[int, str]:
        """The digest up to the end of each chunk but the last."""
        return dict(self._digests)

    @property
    def problem(self) -> str:
        """What is wrong with the header, as far as it has come; empty for what is no shard."""
        return self._look.problem if self._look else ""

    @property
    def at_chunk(self) -> bool:
        """Whether the next byte is a chunk's first."""
        return self.received_bytes % self._io.chunk_bytes == 0

    def took(self, count: int) -> None:
        """`count` bytes were put at the front of `room`.

        Raises: DiskFailure.
        """
        self._grow(count, write=True)
        if self.at_chunk and self.received_bytes < self._file.size_bytes:
            self._record(write=True)

    def offer(self, donor: Donor) -> bool:
        """Whether the next chunk of `donor` was right, and is now ours.

        Raises: DiskFailure when it cannot be written.
        """
        start, end, before = self.received_bytes, self._chunk_end(), self._hasher.copy()
        wanted = donor.digests.get(end)
        ours = donor.path == self._path
        if wanted is not None and self._copy(donor.path, end, write=not ours) and self.digest == wanted:
            if end < self._file.size_bytes:
                self._record(write=not ours)
            return True
        self._hasher, self.received_bytes, self._filled = before, start, 0
        if self._look and not start:
            self._look.restart()
        self._tell()
        return False

    def proved(self) -> bool:
        """Whether all bytes are in the file already, put there by someone else, and right; if not, they are forgotten."""
        while self.received_bytes < self._file.size_bytes:
            if not self._copy(self._path, self._chunk_end(), write=False):
                break
            if self.received_bytes < self._file.size_bytes:
                self._record(write=False)
        if self.received_bytes == self._file.size_bytes and self.digest == digest_of(self._file):
            return True
        self.restart()
        return False

    def missing_until(self, donors: Sequence[Donor]) -> int | None:
        """Where the next chunk begins that one of `donors` may have, after the one that is missing; None when there is none."""
        later = [end for donor in donors for end in donor.digests if self._chunk_end() < end <= self._file.size_bytes]
        return (min(later) - 1) // self._io.chunk_bytes * self._io.chunk_bytes if later else None

    def restart(self) -> None:
        """Forget every byte and what the journal says of them."""
        self._hasher, self.received_bytes, self._filled = Hasher(self._file), 0, 0
        self._digests.clear()
        if self._look:
            self._look.restart()
        self._tell()
        journal = _journal_of(self._path)
        if journal.exists():
            os.truncate(journal, 0)

    def finish(self) -> None:
        """The whole file is then on disk and read-only.

        Raises: DiskFailure.
        """
        try:
            os.ftruncate(self._descriptor, self._file.size_bytes)
            os.fchmod(self._descriptor, 0o444)
            os.fsync(self._descriptor)
            if self._digests:
                self._note(self._file.size_bytes)
        except OSError as error:
            raise from_os_error(error, self._path, "syncing the file") from error
        if not self._io.keep_cached:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        if self._direct:
            try:
                return os.open(self._path, flags | _DIRECT, 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._direct = False
        return os.open(self._path, flags, 0o600)

    def _preallocate(self) -> None:
        """Space for the whole file, so that a full disk is found before the first byte and blocks lie together."""
        if self._file.size_bytes < _PREALLOCATE_FROM_BYTES:
            return
        try:
            os.posix_fallocate(self._descriptor, 0, self._file.size_bytes)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}:
                raise from_os_error(error, self._path, "taking space for the file") from error

    def _chunk_end(self) -> int:
        chunk = self._io.chunk_bytes
        return min((self.received_bytes // chunk + 1) * chunk, self._file.size_bytes)

    def _copy(self, source: Path, end: int, *, write: bool) -> bool:
        """Whether the bytes of `source` up to `end` could be read."""
        try:
            descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            while self.received_bytes < end:
                try:
                    count = os.preadv(descriptor, [self.room], self.received_bytes)
                except OSError:
                    return False  # a bad block, or a folder in the file's place: the bytes come from elsewhere
                if not count:
                    return False
                self._grow(count, write=write)
            if not self._io.keep_cached:
                os.posix_fadvise(descriptor, 0, end, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
        return True

    def _grow(self, count: int, *, write: bool) -> None:
        piece = self._buffer[self._filled : self._filled + count]
        self._hasher.update(piece)
        if self._look:
            self._look.take(piece)
        self._filled += count
        self.received_bytes += count
        if self._filled == len(self._buffer) or self.received_bytes == self._chunk_end() or self.at_chunk:
            if write:
                self._write()
            self._filled = 0
            self._tell()

    def _tell(self) -> None:
        self._advance(self.received_bytes - self._told)
        self._told = self.received_bytes

    def _write(self) -> None:
        """Write the buffer to its place; the last piece is padded to a whole block, and cut when the file is finished."""
        place = self.received_bytes - self._filled
        length = -(-self._filled // _BLOCK_BYTES) * _BLOCK_BYTES if self._direct else self._filled
        done = 0
        try:
            while done < length:
                try:
                    done += os.pwrite(self._descriptor, self._buffer[done:length], place + done)
                except OSError as error:
                    if error.errno != errno.EINVAL or not self._direct:
                        raise
                    # The file system took the flag and cannot do it after all.
                    self._direct = False
                    flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
                    fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
        except OSError as error:
            raise from_os_error(error, self._path, "writing the file") from error

    def _record(self, *, write: bool) -> None:
        """The chunk that just ended is proved; the journal says so once the bytes are on disk."""
        end = self.received_bytes
        self._digests[end] = self.digest
        if not write:
            return
        try:
            os.fdatasync(self._descriptor)
            self._note(end)
        except OSError as error:
            raise from_os_error(error, self._path, "syncing the file") from error
        if not self._io.keep_cached:
            chunk = self._io.chunk_bytes
            os.posix_fadvise(self._descriptor, end - chunk, chunk, os.POSIX_FADV_DONTNEED)

    def _note(self, end: int) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(_journal_of(self._path), flags, 0o600)
        try:
            os.write(descriptor, f"{end} {self.digest}\n".encode())
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def part_name(file: PinnedFile) -> str:
    """The name under which an unfinished `file` is found again, by its digest."""
    return digest_of(file).replace(":", "-") + PART


def read_journal(part: Path) -> dict[int, str]:
    """The digest up to the end of each chunk that was on disk; a line that was cut by a power loss is passed over."""
    try:
        lines = plain_bytes(_journal_of(part)).decode("ascii", "replace").splitlines()
    except OSError:
        return {}
    found = (_LINE.fullmatch(line) for line in lines)
    return {int(match[1]): match[2] for match in found if match}


def _journal_of(part: Path) -> Path:
    return part.with_suffix(JOURNAL)
