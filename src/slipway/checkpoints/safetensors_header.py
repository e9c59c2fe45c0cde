"""The header of one safetensors file, read and checked without its data.

Stricter than the reader's library in nothing but what cannot be meant; torch and numpy are not needed, and dtypes that
numpy lacks (F8, F4) are no obstacle.

Source: safetensors 0.8.0 acceptance run case by case, 2026-11-30.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from slipway.checkpoints import header_scan

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 100_000_000
"""Longest header of the format. Source: safetensors 0.8.0."""

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one element per dtype. Source: safetensors 0.8.0."""

_LIMIT = 1 << 63


class Unreadable(Exception):
    """The file is no sound safetensors file; the text says why."""


@dataclass(frozen=True)
class Header:
    """A sound header: the names of all tensors, the shapes of those that were asked for, and how long the file is."""

    names: set[str]
    shapes: dict[str, list[int]]
    size_bytes: int


def read(path: Path, *, shapes_of: str = "", allow_sparse: bool = False) -> Header:
    """The checked header of `path`; no byte of tensor data is read.

    Shapes are kept of the tensors whose name ends in `shapes_of`. `allow_sparse` accepts a file with holes on disk, which a
    crashed download leaves where zeros are read.

    Raises: Unreadable, OSError.
    """
    # A pipe put in the file's place must not block; a folder must not look like an empty file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("is not a regular file")
        text = _header_text(descriptor, status.st_size)
        usual = header_scan.scan(text, status.st_size - 8 - len(text), BITS, shapes_of)
        names, shapes = usual or _named(parse(text, status.st_size - 8 - len(text)), shapes_of)
        if not allow_sparse and _has_hole(descriptor, 8 + len(text), status.st_size):
            raise Unreadable(
                "has holes on disk that read as zeros, as an interrupted download leaves them; "
                "verify with level full if the zeros may be meant"
            )
    finally:
        os.close(descriptor)
    return Header(names, shapes, status.st_size)


def names(start: bytes, size_bytes: int) -> set[str]:
    """The tensors of a file of `size_bytes` bytes that begins with `start`: its whole header, or 200 bytes of what has none.

    Raises: Unreadable.
    """
    text = _text_of(start, size_bytes)
    data_bytes = size_bytes - 8 - len(text)
    usual = header_scan.scan(text, data_bytes, BITS, "")
    return usual[0] if usual else set(parse(text, data_bytes))


def parse(text: bytes, data_bytes: int) -> dict[str, dict[str, Any]]:
    """The tensors that the header `text` describes, when they cover exactly `data_bytes` bytes of data.

    Raises: Unreadable.
    """
    if not text.startswith(b"{"):
        raise Unreadable("the header is not a JSON object")
    try:
        # No number of a header is a fraction; refusing them here spares a look at every type later.
        tensors: dict[str, dict[str, Any]] = json.loads(
            text.decode("utf-8"), parse_float=_no_fraction, parse_constant=_no_fraction
        )
    except (ValueError, RecursionError):
        raise Unreadable("the header is not JSON in UTF-8") from None
    metadata = tensors.pop("__metadata__", None)
    if metadata is not None and not _is_text_map(metadata):
        raise Unreadable("__metadata__ of the header is not a map of texts")
    end = 0
    for begin, after, name in _spans(tensors, strict=b"true" in text or b"false" in text):
        if begin != end:
            what = "a hole before" if begin > end else "an overlap with"
            raise Unreadable(f"the header has {what} tensor {_shown(name)} at byte {begin}")
        end = after
    if end > data_bytes:
        raise Unreadable(f"is truncated: {end - data_bytes} of {end} bytes of data are missing")
    if end < data_bytes:
        raise Unreadable(f"has {data_bytes - end} trailing bytes after the last tensor")
    return tensors


def _named(tensors: dict[str, dict[str, Any]], shapes_of: str) -> tuple[set[str], dict[str, Any]]:
    wanted = [name for name in tensors if name.endswith(shapes_of)] if shapes_of else []
    return set(tensors), {name: tensors[name]["shape"] for name in wanted}


def _spans(tensors: dict[str, Any], *, strict: bool) -> list[tuple[int, int, str]]:
    """Begin, end and name of each tensor in file order, once its length agrees with its dtype and shape.

    A large checkpoint has 50,000 tensors of a dozen shapes, so each shape is measured once per file. JSON's true equals 1
    in Python; with `strict` no shape is taken as known.
    """
    spans = []
    known: dict[Any, int] = {}
    for name, entry in tensors.items():
        try:
            begin, end = entry["data_offsets"]
            kind = (entry["dtype"], *entry["shape"])
            bits = known.get(kind)
            if bits is None or strict:
                bits = known[kind] = _bits(entry, begin, end)
            sound = (end - begin) * 8 == bits and 0 <= begin <= end < _LIMIT
        except (TypeError, KeyError, ValueError):
            sound = False
        if not sound:
            raise Unreadable(f"tensor {_shown(name)} has an unknown dtype, or offsets that its shape does not fill")
        spans.append((begin, end, name))
    spans.sort()
    return spans


def _bits(entry: dict[str, Any], begin: object, end: object) -> int:
    shape = entry["shape"]
    if type(shape) is not list or not {type(number) for number in (begin, end, *shape)} <= {int}:
        raise TypeError
    if shape and min(shape) < 0:
        raise ValueError
    return prod(shape) * BITS[entry["dtype"]]


def _header_text(descriptor: int, size: int) -> bytes:
    start = os.pread(descriptor, 200, 0)
    length = int.from_bytes(start[:8], "little")
    if 0 < length <= min(MAX_HEADER_BYTES, size - 8):
        start = os.pread(descriptor, length + 8, 0)
    return _text_of(start, size)


def _text_of(start: bytes, size: int) -> bytes:
    """The header's text out of the first bytes of a file of `size` bytes: all of the header, or 200 where there is none."""
    length = int.from_bytes(start[:8], "little")
    if 0 < length <= min(MAX_HEADER_BYTES, size - 8):
        text = start[8 : 8 + length]
        if len(text) == length and (text[:1] == b"{" or not _what_else(start[:128])):
            if text.strip(b"\0") == b"":
                raise Unreadable("has a header of zero bytes")
            return text
    said = _what_else(start[:200])
    if said:
        raise Unreadable(said)
    if size < 8:
        raise Unreadable(f"is truncated: {size} bytes are too few for a header")
    if length == 0:
        raise Unreadable("starts with zero bytes where the length of the header stands")
    if length > MAX_HEADER_BYTES:
        raise Unreadable(f"claims a header of {length} bytes; the format allows {MAX_HEADER_BYTES}")
    raise Unreadable(f"is truncated: {size} bytes, of which the header alone would take {length + 8}")


def _what_else(start: bytes) -> str:
    """What a file that begins so is instead of tensors; empty when unknown."""
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the tensors: the repository was cloned or copied without its LFS files"
    if start.lstrip()[:1] == b"<":
        return "is an HTML or XML page, not the tensors: a server or proxy answered with a page"
    if start.lstrip()[:2] in {b'{"', b"{\n", b"{ "}:
        return "is a JSON text, not the tensors: a server answered with a message"
    return ""


def _has_hole(descriptor: int, first: int, size: int) -> bool:
    if first >= size:
        return False
    try:
        return os.lseek(descriptor, first, os.SEEK_HOLE) < size
    except OSError:
        return False  # the file system cannot tell; the digests of level full still can


def _no_fraction(_: str) -> float:
    raise ValueError


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _shown(value: object) -> str:
    return ascii(value)[:120]
