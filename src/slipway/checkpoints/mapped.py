"""Hashes files for the process that started it: maps them, so that no byte is copied before it is hashed.

A mapped file that is cut short, or whose disk fails, ends a process by SIGBUS. So this is a process of its own, nothing is lost with
it, and `digests` reads such a file itself to say what is wrong.

On standard input, for each file a JSON list: its path in hexadecimal (bytes, since two processes may disagree on how names are
encoded), its size, sha256 or null, git-sha1 or null. On standard output, for each file, numbers of bytes as they are hashed, and in
the end a text: its digest, empty for a file that cannot be mapped or has another size.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import resource
import signal
import stat
import sys
from typing import IO

from slipway.checkpoints.pins import Hasher
from slipway.checkpoints.plain_lock import PlainFile

WINDOW_BYTES = 8 << 20
"""Mapped at a time: what several workers map counts as their memory."""

TOLD_BYTES = 4 * WINDOW_BYTES
"""Progress is said this often: each time the process that listens must wake up, on a core that hashes."""

_MADV_POPULATE_READ = 22
"""One call for all pages of a window, not a fault for every few. Since Linux 5.14; source: madvise(2), 2026-12-01. MAP_POPULATE does
the same, but tries a page that the disk does not give again and again without end."""


def hash_file(path: bytes, file: PlainFile, out: IO[bytes]) -> str:
    """The answer for one file, as the module says; progress goes to `out`.

    Raises: OSError.
    """
    hasher = Hasher(file)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.size_bytes:
            return ""
        untold = 0
        for start in range(0, file.size_bytes, WINDOW_BYTES):
            size = min(WINDOW_BYTES, file.size_bytes - start)
            # The disk reads the next window while this one is hashed.
            os.posix_fadvise(descriptor, start + size, WINDOW_BYTES, os.POSIX_FADV_WILLNEED)
            with mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ, offset=start) as pages:
                _populate(pages)
                with memoryview(pages) as piece:
                    hasher.update(piece)
            untold += size
            if untold >= TOLD_BYTES or start + size == file.size_bytes:
                out.write(b"%d\n" % untold)
                out.flush()
                untold = 0
        if os.fstat(descriptor).st_size != file.size_bytes:
            return ""
    finally:
        os.close(descriptor)
    return hasher.digest


def _populate(pages: mmap.mmap) -> None:
    try:
        pages.madvise(_MADV_POPULATE_READ)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older kernel: page by page then
            raise


def main() -> None:
    """Answer until standard input ends."""
    # Ctrl-C is for the command, which then kills this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Death by SIGBUS is expected; a core file of it is of no use to anybody.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        path, *file = json.loads(line)
        try:
            said = hash_file(bytes.fromhex(path), PlainFile("", *file), out)
        except (OSError, ValueError):
            said = ""
        out.write(json.dumps(said).encode() + b"\n")
        out.flush()
