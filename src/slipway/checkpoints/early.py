"""Shards held against their index while they come: a wrong one is known after its header, before gigabytes follow.

What is found here would be found at the end as well (module `structure`), which stays the judge: only headers of usual length
are looked at, and nothing of the config.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slipway.checkpoints import safetensors_header
from slipway.checkpoints.findings import Finding, refuse
from slipway.checkpoints.structure import INDEX_SUFFIX, SHARD_SUFFIX, few

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from slipway.checkpoints.pins import PinnedFile

LONGEST_BYTES = 16 << 20
"""Longest header that is kept in memory while a shard comes. M.1's largest, of 91 shards, has 0.1 MB."""

_WHY = "every shard of the index must be locked, and every locked shard must be named by it"
_REMEDY = (
    "the repository itself was published so, or the lock's patterns leave files out; nothing large was downloaded: "
    "lock another revision, or the right files, and tell its owner"
)


class Shards:
    """What the indexes of a lock say of its shards. `texts` has the bytes of each index by its path.

    Raises: IntegrityMismatch, MissingFile where an index and the lock contradict each other.
    """

    def __init__(self, folder: Path, files: Sequence[PinnedFile], texts: Mapping[str, bytes]) -> None:
        self._placed: dict[str, list[set[str]]] = {}
        here = {file.path for file in files if file.path.endswith(SHARD_SUFFIX)}
        findings = []
        for index, text in texts.items():
            place = index.rpartition("/")[0]
            weight_map = _weight_map(text)
            if not weight_map:
                findings.append(Finding(index, "has no weight_map that names files"))
                continue
            shards: dict[str, set[str]] = {}
            for tensor, name in weight_map.items():
                shards.setdefault(f"{place}/{name}" if place else name, set()).add(tensor)
            for path, tensors in shards.items():
                self._placed.setdefault(path, []).append(tensors)
            absent = sorted(shards.keys() - here)
            beside = {path for path in here if path.rpartition("/")[0] == place}
            stale = sorted(beside - shards.keys()) if len(texts) == 1 else []
            if absent and stale:
                said = f"is stale: it names {few(absent)}, which are absent, and not {few(stale)}, which are there"
                findings.append(Finding(index, said))
                continue
            for path in absent:
                said = f"is absent, but {index} places {len(shards[path])} tensors in it"
                findings.append(Finding(path, said, "missing"))
            findings += [Finding(path, "is a stale shard: no index names it") for path in stale]
        refuse(folder, findings, _WHY, _REMEDY)

    def look(self, file: PinnedFile) -> Look | None:
        """What looks at the bytes of `file` while they come; None for a file that is no shard."""
        return Look(file, self._placed.get(file.path, [])) if file.path.endswith(SHARD_SUFFIX) else None


class Look:
    """Takes the bytes of one shard in order until its header is whole; `problem` then says what is wrong with it."""

    def __init__(self, file: PinnedFile, placed: Sequence[set[str]]) -> None:
        self._size_bytes = file.size_bytes
        self._placed = placed
        self.restart()

    def restart(self) -> None:
        """The next bytes are the file's first again."""
        self._start = bytearray()
        self._wanted = 8
        self.problem = ""

    def take(self, piece: memoryview) -> None:
        """Look at the next bytes."""
        while piece and self._wanted:
            part = piece[: self._wanted - len(self._start)]
            self._start += part
            piece = piece[len(part) :]
            if len(self._start) == self._wanted:
                self._whole()

    def _whole(self) -> None:
        length = int.from_bytes(self._start[:8], "little")
        # What is no header says so in its first bytes.
        end = min(length + 8 if length < LONGEST_BYTES else 200, self._size_bytes)
        if self._wanted < end:
            self._wanted = end
            return
        self._wanted = 0
        if LONGEST_BYTES <= length <= safetensors_header.MAX_HEADER_BYTES:
            return
        try:
            names = safetensors_header.names(bytes(self._start), self._size_bytes)
        except safetensors_header.Unreadable as error:
            self.problem = f"a header that {error}" if "header" not in str(error) else f"a file: {error}"
            return
        for placed in self._placed:
            lacking, strange = sorted(placed - names), sorted(names - placed)
            if lacking or strange:
                what = f"lacks {few(lacking)}" if lacking else f"has {few(strange)}"
                self.problem = f"a header that {what}, unlike the index"


def _weight_map(text: bytes) -> dict[str, str]:
    """Tensor → shard; empty for what is no index."""
    try:
        data: Any = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    found = data.get("weight_map") if isinstance(data, dict) else None
    return found if isinstance(found, dict) and set(map(type, found.values())) <= {str} else {}


def indexes(files: Sequence[PinnedFile]) -> list[PinnedFile]:
    """Those of `files` that are indexes: they come before everything else."""
    return [file for file in files if file.path.endswith(INDEX_SUFFIX)]
