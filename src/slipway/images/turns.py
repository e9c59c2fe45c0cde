"""Files and folders that one run at a time writes to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def held(path: Path) -> Iterator[IO[bytes]]:
    """The file at `path`, made if need be, for this run alone; another run that wants it waits."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644), "r+b")
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Who waited may hold a file that was renamed meanwhile.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                yield file
                return


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, for this run alone; another run that wants it waits."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync(file: IO[bytes]) -> None:
    """Nothing; what was written to `file` is on the disk."""
    file.flush()
    os.fsync(file.fileno())
