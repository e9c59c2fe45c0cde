"""The files of a layout: read as far as they may go, and received so that what was broken off is gone on with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from slipway.durable import NotRegular, open_regular
from slipway.errors import IntegrityMismatch, from_os_error
from slipway.images import manifests
from slipway.images.manifests import Descriptor

_READ_BYTES = 1 << 20
_MAX_INDEX_BYTES = 8 << 20


def document(path: Path) -> bytes:
    """One of the two documents beside the blobs. Raises: as `chunks`."""
    data = b"".join(chunks(path, 0, _MAX_INDEX_BYTES + 1, "reading the layout"))
    if len(data) > _MAX_INDEX_BYTES:
        raise IntegrityMismatch(
            path, f"has more than {_MAX_INDEX_BYTES} bytes", "none is that large", "copy the image again"
        )
    return data


def chunks(path: Path, start: int, end: int, doing: str) -> Iterator[bytes]:
    """The bytes from `start` to `end`, or to the file's own end. Raises: MissingFile, DiskFailure, IntegrityMismatch."""
    try:
        with open_regular(path) as file:
            file.seek(start)
            while start < end and (chunk := file.read(min(end - start, _READ_BYTES))):
                start += len(chunk)
                yield chunk
    except NotRegular:
        raise IntegrityMismatch(path, "is not a regular file", "a layout has files", "copy the image again") from None
    except OSError as error:
        raise from_os_error(error, path, doing) from error


def receive(part: IO[bytes], place: Path, descriptor: Descriptor, read: Callable[[int], Iterator[bytes]]) -> None:
    """The blob's bytes stand in `part`, proved; what stood there before is its beginning, or is thrown away."""
    start = part.seek(0, os.SEEK_END)
    if start > descriptor.size_bytes:
        start = part.truncate(0)
    try:
        before = _from_start(part) if start else iter(())
        for chunk in manifests.proved(_written(part, read, start), descriptor, place, before):
            del chunk  # it is written already; what counts is that the last one came
    except IntegrityMismatch:
        part.truncate(0)
        if not start:
            place.unlink()
            raise
        part.seek(0)
        receive(part, place, descriptor, read)


def _written(part: IO[bytes], read: Callable[[int], Iterator[bytes]], start: int) -> Iterator[bytes]:
    part.seek(start)
    for chunk in read(start):
        part.write(chunk)
        yield chunk


def _from_start(part: IO[bytes]) -> Iterator[bytes]:
    part.seek(0)
    while chunk := part.read(_READ_BYTES):
        yield chunk
