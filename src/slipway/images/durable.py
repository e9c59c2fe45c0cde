"""Files that are there whole or not at all, and for one run at a time."""

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


def write_durably(path: Path, data: bytes) -> None:
    """Nothing; `path` holds `data`, or what it held before. Raises: OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(data)
            sync(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync(file: IO[bytes]) -> None:
    """Nothing; what was written to `file` is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Nothing; the names in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
