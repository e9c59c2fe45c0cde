"""The tensors of a sharded safetensors checkpoint as float32 arrays, read by strict rules.

One shard is `u64le n`, `n` bytes of JSON, then the tensors without a gap from 0 to the end of the file.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.errors import IntegrityMismatch, MissingFile, from_os_error

INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""Source: the limit of the safetensors library, 0.8.0."""

_DTYPES: dict[str, np.dtype[Any]] = {"BF16": np.dtype("<u2"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


def load_tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Every tensor of `shapes` by name, from the shards that the index in `folder` names.

    Raises: MissingFile naming the index or the shard that is absent; IntegrityMismatch naming the file that is
    truncated, malformed, or does not hold exactly the tensors that the index and `shapes` promise.
    """
    index = folder / INDEX_FILE
    tensors: dict[str, NDArray[np.float32]] = {}
    for shard, names in sorted(_names_by_shard(index).items()):
        path = folder / shard
        found = _read_shard(path, index)
        if found.keys() != names:
            odd = min(found.keys() ^ names)
            raise _broken(path, f"{'holds' if odd in found else 'lacks'} the tensor {odd} against {INDEX_FILE}")
        for name, tensor in found.items():
            if name not in shapes:
                raise _broken(path, f"holds the tensor {name}, which config.json does not call for")
            if tensor.shape != shapes[name]:
                raise _broken(
                    path, f"{name} has the shape {list(tensor.shape)}; config.json means {list(shapes[name])}"
                )
        tensors |= found
    missing = sorted(shapes.keys() - tensors.keys())
    if missing:
        raise _broken(index, f"names no shard for {missing[0]} and {len(missing) - 1} more that config.json calls for")
    return tensors


def _names_by_shard(index: Path) -> dict[str, set[str]]:
    try:
        content = json.loads(index.read_bytes())
    except OSError as error:
        raise from_os_error(error, index, "reading the index of the shards") from error
    except ValueError as error:
        raise _broken(index, f"is not JSON ({error})") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _broken(index, "has no weight_map")
    result: defaultdict[str, set[str]] = defaultdict(set)
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise _broken(index, f"puts {name} into {shard!r}, which is no plain path inside the folder")
        result[shard].add(name)
    return result


def _stays_inside(shard: str) -> bool:
    path = PurePosixPath(shard)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in shard


def _read_shard(path: Path, index: Path) -> dict[str, NDArray[np.float32]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        remedy = "fetch the checkpoint again; present shards are kept"
        raise MissingFile(path, "no such shard", f"{index.name} names it", remedy) from error
    except OSError as error:
        raise from_os_error(error, path, "reading a shard") from error
    header, start = _header(path, content)
    tensors: dict[str, NDArray[np.float32]] = {}
    position = 0
    for name, entry in sorted(header.items(), key=lambda item: _offsets(path, *item)):
        begin, end = _offsets(path, name, entry)
        dtype, shape = _dtype_and_shape(path, name, entry)
        if begin != position or end - begin != math.prod(shape) * dtype.itemsize:
            raise _broken(
                path, f"{name} stands at {begin}..{end}; {list(shape)} of {entry['dtype']} from {position} fits"
            )
        position = end
        if start + end > len(content):
            raise _broken(path, f"is truncated: {len(content)} bytes, but {name} ends at {start + end}")
        tensors[name] = _as_float32(np.frombuffer(content, dtype, math.prod(shape), start + begin).reshape(shape))
    if start + position != len(content):
        raise _broken(path, f"has {len(content)} bytes; the header describes {start + position}")
    return tensors


def _header(path: Path, content: bytes) -> tuple[dict[str, Any], int]:
    """The entries of a shard's header, without its free-form metadata, and where the tensors begin."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MAX_HEADER_BYTES, len(content) - 8):
        raise _broken(path, f"is truncated or no safetensors: {len(content)} bytes, a header of {length} announced")
    try:
        header = json.loads(content[8 : 8 + length], object_pairs_hook=_no_twins)
    except ValueError as error:
        raise _broken(path, f"has a header that is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _broken(path, "has a header that is no JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _offsets(path: Path, name: str, entry: Any) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(one) for one in offsets):
        raise _broken(path, f"{name} has no two data_offsets in its header")
    return offsets[0], offsets[1]


def _dtype_and_shape(path: Path, name: str, entry: dict[str, Any]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    shape, dtype = entry.get("shape"), entry.get("dtype")
    if not isinstance(shape, list) or not all(_is_count(one) for one in shape):
        raise _broken(path, f"{name} has no shape in its header")
    if dtype not in _DTYPES:
        raise _broken(path, f"{name} is stored as {dtype!r}; the numpy model reads {', '.join(_DTYPES)}")
    return _DTYPES[dtype], tuple(shape)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _as_float32(stored: NDArray[Any]) -> NDArray[np.float32]:
    if stored.dtype == np.dtype("<u2"):  # BF16 is the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def _broken(path: Path, problem: str) -> IntegrityMismatch:
    return IntegrityMismatch(path, problem, "a shard holds exactly what its header and the index say", "fetch it again")
