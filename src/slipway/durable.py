"""Files that are either old or new after a kill or a power cut, and never anything but files where one is read.

Standard library only: hosts run it too.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from typing import IO, TYPE_CHECKING

from slipway.errors import from_os_error

if TYPE_CHECKING:
    from pathlib import Path


class NotRegular(OSError):
    """Where a file is read stands a folder, a pipe or a device, which could go on for ever."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "is not a regular file", str(path))


def open_regular(path: Path) -> IO[bytes]:
    """The file at `path`, open to be read.

    Raises: NotRegular, other OSError.
    """
    # Non-blocking, since opening a pipe that nobody writes to would wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(path)
    return os.fdopen(descriptor, "rb")


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Nothing; `path` then holds `data` even after a power loss, and never holds half of it.

    Raises: DiskFailure, MissingFile.
    """
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except BaseException:
            remove_file(temporary)
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise from_os_error(error, path, "writing the file") from error


def remove_file(path: Path) -> None:
    """Nothing; `path` is gone. A file that never came to be is no error."""
    try:
        path.unlink()
    except FileNotFoundError:
        return


def sync_folder(folder: Path) -> None:
    """Nothing; the names in `folder` are then on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
