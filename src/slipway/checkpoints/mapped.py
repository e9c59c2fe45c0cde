"""Hashes files for the process that started it: maps them, so that no byte is copied before it is hashed.

A mapped file that is cut short, or whose disk fails, ends a process by SIGBUS. So this is a process of its own, nothing is lost with
it, and `digests` reads such a file itself to say what is wrong.

On standard input, for each file a JSON list: path, bytes, sha256 or null, git-sha1 or null, bytes of a chunk (0: no digests of
chunks). On standard output, for each file, numbers of bytes as they are hashed, and in the end a list: the digest and those of the
chunks, or nothing for a file that cannot be mapped or has another size.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import stat
import sys
from typing import IO

from slipway.checkpoints.pins import ChunkDigests, Hasher
from slipway.checkpoints.plain_lock import PlainFile

WINDOW_BYTES = 8 << 20
"""Mapped at a time: what several workers map counts as their memory."""

_MAP_POPULATE = 0x8000 if sys.platform == "linux" else 0
"""One call for all pages of a window, not a fault for every few. Python names it since 3.10; source: mmap(2), 2026-12-01."""


def hash_file(file: PlainFile, chunk_bytes: int, out: IO[bytes]) -> list[str]:
    """The answer for one file, as the module says; progress goes to `out`.

    Raises: OSError.
    """
    hasher = Hasher(file)
    chunks = ChunkDigests(chunk_bytes) if chunk_bytes else None
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size_bytes:
            return []
        for start in range(0, file.size_bytes, WINDOW_BYTES):
            size = min(WINDOW_BYTES, file.size_bytes - start)
            # The disk reads the next window while this one is hashed.
            os.posix_fadvise(descriptor, start + size, WINDOW_BYTES, os.POSIX_FADV_WILLNEED)
            flags = mmap.MAP_SHARED | _MAP_POPULATE
            with mmap.mmap(descriptor, size, flags, mmap.PROT_READ, offset=start) as pages, memoryview(pages) as piece:
                hasher.update(piece)
                if chunks is not None:
                    chunks.update(piece)
            out.write(b"%d\n" % size)
            out.flush()
        if os.fstat(descriptor).st_size != file.size_bytes:
            return []
    finally:
        os.close(descriptor)
    return [hasher.digest, *(chunks.digests if chunks else ())]


def main() -> None:
    """Answer until standard input ends."""
    # Death by SIGBUS is expected; a core file of it is of no use to anybody.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        *file, chunk_bytes = json.loads(line)
        try:
            said = hash_file(PlainFile(*file), chunk_bytes, out)
        except (OSError, ValueError):
            said = []
        out.write(json.dumps(said).encode() + b"\n")
        out.flush()
