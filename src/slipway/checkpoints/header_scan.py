"""Headers as every writer writes them, checked without building an object per tensor: a large checkpoint has 50,000.

What is written otherwise is not wrong: `scan` answers None, and `safetensors_header.parse` decides.
"""

from __future__ import annotations

import json
import re
from math import prod
from operator import sub
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER = "(0|[1-9][0-9]{0,17})"
_METADATA = re.compile(r'\{"__metadata__": ?(\{[^{}\\]*\}), ?')
_STYLES = (("", ""), (" ", " "))
"""Spaces after colon and comma: as the format's own library writes, and as Python's json does."""


def _entry(colon: str, comma: str) -> re.Pattern[str]:
    """One tensor and the comma after it, in three columns: name, dtype with shape, begin and end."""
    kind = f'"dtype":{colon}"[A-Z0-9_]+",{comma}"shape":{colon}\\[[0-9, ]*\\]'
    offsets = f'"data_offsets":{colon}\\[{_NUMBER},{comma}{_NUMBER}\\]'
    return re.compile(f'"([^"\\\\\\x00-\\x1f]*)":{colon}{{({kind}),{comma}{offsets}}},{comma}')


_ENTRIES = tuple((_entry(colon, comma), colon, comma) for colon, comma in _STYLES)


def scan(
    text: bytes, data_bytes: int, bits: Mapping[str, int], shapes_of: str
) -> tuple[set[str], dict[str, Any]] | None:
    """Names of all tensors, and shapes of those whose name ends in `shapes_of`; None unless the header surely is sound.

    Surely sound: one usual way of writing, every character accounted for, tensors in the order of their data, each as long as
    its dtype and shape say, `data_bytes` in all.
    """
    try:
        header = text.decode("utf-8").rstrip(" ")
    except UnicodeDecodeError:
        return None
    start = _metadata_end(header)
    if start is None or header[-1:] != "}":
        return None
    for entry, colon, comma in _ENTRIES:
        entries = f"{header[start:-1]},{comma}"
        # Asked of the first tensor alone: to search all of them for the other style costs as much as to read them.
        found = entry.findall(entries) if entry.match(entries) else []
        if found:
            columns = tuple(zip(*found))  # noqa: B905 -- 3.8
            fixed = len('"":{,"data_offsets":[,]},') + 2 * len(colon) + 3 * len(comma)
            covered = sum(len("".join(column)) for column in columns) + fixed * len(found) == len(entries)
            if not covered or not _is_sound(columns, data_bytes, bits):
                return None
            names = set(columns[0])
            wanted = [name for name in names if name.endswith(shapes_of)] if shapes_of and shapes_of in header else []
            kind_of = dict(zip(columns[0], columns[1])) if wanted else {}  # noqa: B905
            return names, {name: _kind(kind_of[name])["shape"] for name in wanted}
    return None


def _kind(text: str) -> dict[str, Any]:
    """Dtype and shape, as they stand in an entry.

    Raises: ValueError where they are not JSON after all.
    """
    kind: dict[str, Any] = json.loads(f"{{{text}}}")
    return kind


def _metadata_end(header: str) -> int | None:
    """Where the tensors begin; None when what stands before them is not what is usual."""
    match = _METADATA.match(header)
    if match is None:
        return 1
    try:
        metadata = json.loads(match[1])
    except ValueError:
        return None
    return match.end() if all(isinstance(value, str) for value in metadata.values()) else None


def _is_sound(columns: tuple[Any, ...], data_bytes: int, bits: Mapping[str, int]) -> bool:
    """Whether the tensors follow each other without hole or overlap and are as long as their shapes say."""
    names, kinds, begins, ends = columns
    if begins[0] != "0" or begins[1:] != ends[:-1] or "__metadata__" in names or len(set(names)) != len(names):
        return False
    try:
        known = {text: _kind(text) for text in set(kinds)}
        size_of = {text: prod(kind["shape"]) * bits[kind["dtype"]] for text, kind in known.items()}
    except (ValueError, KeyError):
        return False  # numbers that JSON does not know, or a dtype that we do not
    ends_at = [0, *map(int, ends)]
    if ends_at[-1] != data_bytes or any(size % 8 for size in size_of.values()):
        return False
    bytes_of = {text: size // 8 for text, size in size_of.items()}
    return list(map(sub, ends_at[1:], ends_at)) == list(map(bytes_of.__getitem__, kinds))
