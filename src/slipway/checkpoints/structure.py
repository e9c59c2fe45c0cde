"""What can be told of a checkpoint without reading its weights: headers, index, and whether config and weights agree."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway.checkpoints import safetensors_header
from slipway.checkpoints.findings import Finding, refuse
from slipway.checkpoints.pins import path_problem, plain_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from slipway.checkpoints.safetensors_header import Header

INDEX_SUFFIX = ".safetensors.index.json"
SHARD_SUFFIX = ".safetensors"

_GATE = re.compile(r"(?:^|\.)layers\.([0-9]{1,6})\.self_attn\.g_proj\.weight$")
_SHOWN = 3
_WHY = "headers, index and config of a checkpoint agree with each other"
_UNKNOWN = "verify with level full to see whether files are damaged or were published so; fetch-models repairs damage"
_PUBLISHED_SO = (
    "the repository itself was published so: lock another revision, or only the right files, and tell its owner"
)


@dataclass(frozen=True)
class Structure:
    """A sound checkpoint: how many shards and tensors it has, and the bytes of all shards."""

    shards: int
    tensors: int
    total_bytes: int


def check(folder: Path, *, digests_known: bool = False) -> Structure:
    """The structure of the checkpoint in `folder`, once every header, the index and the config agree.

    Folders inside (a drafter, an adapter) are held to the same rules, each by itself. No weight is read: a flipped byte in
    the data is what `verify` finds. With `digests_known` every digest agrees with the lock already: holes on disk are then
    zeros that were published so, and anything wrong was published so too.

    Raises: MissingFile, IntegrityMismatch, DiskFailure, with everything wrong named at once.
    """
    findings: list[Finding] = []
    shards = tensors = total_bytes = 0
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in {".cache", ".git"})
        part = _Part(folder, os.path.relpath(parent, folder), sorted(files))
        headers = part.headers(findings, allow_sparse=digests_known)
        findings += part.against_index(headers)
        findings += part.against_config(headers)
        shards += len(headers)
        tensors += sum(len(header.names) for header in headers.values())
        total_bytes += sum(header.size_bytes for header in headers.values())
    if not shards and not findings:
        findings.append(Finding("", "holds no *.safetensors file", "missing"))
    refuse(folder, findings, _WHY, _PUBLISHED_SO if digests_known else _UNKNOWN)
    return Structure(shards, tensors, total_bytes)


class _Part:
    """One folder of the checkpoint: the shards that lie directly in it, and what speaks about them."""

    def __init__(self, folder: Path, inside: str, files: list[str]) -> None:
        self._here = folder if inside == "." else folder / inside
        self._prefix = "" if inside == "." else f"{inside}/"
        self._shards = [name for name in files if name.endswith(SHARD_SUFFIX)]
        self._indexes = [name for name in files if name.endswith(INDEX_SUFFIX)]
        self._has_config = "config.json" in files

    def headers(self, findings: list[Finding], *, allow_sparse: bool) -> dict[str, Header]:
        """The header of every shard that can be read; the others are added to `findings`."""
        headers = {}
        for name in self._shards:
            try:
                headers[name] = safetensors_header.read(
                    self._here / name, shapes_of="g_proj.weight", allow_sparse=allow_sparse
                )
            except safetensors_header.Unreadable as error:
                findings.append(self._finding(name, str(error)))
            except FileNotFoundError:
                findings.append(self._finding(name, "is a link to a file that does not exist", "missing"))
            except OSError as error:
                findings.append(self._finding(name, f"cannot be read: {error.strerror}", "disk"))
        return headers

    def against_index(self, headers: dict[str, Header]) -> list[Finding]:
        """Where the shards and the index, or the lack of one, contradict each other."""
        if not self._indexes:
            if len(self._shards) < 2:
                return []
            text = f"is missing though there are {len(self._shards)} shards, so nothing tells whether one is absent"
            return [self._finding(f"model{INDEX_SUFFIX}", text, "missing")]
        findings = []
        named: set[str] = set()
        for index in self._indexes:
            weight_map, problem = self._weight_map(index)
            if problem:
                return [self._finding(index, problem)]
            named |= set(weight_map.values())
            findings += self._against(index, weight_map, headers)
        stale = sorted(set(self._shards) - named)
        absent = sorted(name for name in named if name not in self._shards)
        if stale and absent:
            text = f"is stale: it names {few(absent)}, which are absent, and not {few(stale)}, which are there"
            return [self._finding(self._indexes[0], text)]
        findings += [self._finding(name, "is a stale shard: no index names it; remove it") for name in stale]
        return findings

    def against_config(self, headers: dict[str, Header]) -> list[Finding]:
        """Gate projections with other rows than config.json asks for: config and weights of two revisions."""
        gates = [
            (name, tensor, int(match[1]), shape)
            for name, header in headers.items()
            for tensor, shape in header.shapes.items()
            if (match := _GATE.search(tensor))
        ]
        if not gates or not self._has_config:
            return []
        config, problem = self._json("config.json")
        if problem:
            return [self._finding("config.json", problem)]
        findings = []
        for name, tensor, layer, shape in gates:
            rows = gate_rows(config, layer)
            if rows is not None and shape[:1] != [rows]:
                text = f"{tensor} has shape {shape}, config.json asks for {rows} rows: config and weights differ"
                findings.append(self._finding(name, text))
        return findings[:1]

    def _against(self, index: str, weight_map: dict[str, str], headers: dict[str, Header]) -> list[Finding]:
        """What one index says that the headers do not, and the other way round, per shard."""
        findings = []
        for shard, count in sorted(Counter(weight_map.values()).items()):
            problem = path_problem(shard)
            if problem or "/" in shard:
                text = f"weight_map names {ascii(shard)[:120]}, which {problem or 'is not in the folder of the index'}"
                findings.append(self._finding(index, text))
            elif shard not in self._shards:
                text = f"is absent, but {index} places {count} tensors in it"
                findings.append(self._finding(shard, text, "missing"))
            elif shard in headers and not _agree(shard, count, weight_map, headers[shard].names):
                findings += self._placed(index, shard, weight_map, headers[shard].names)
        return findings

    def _placed(self, index: str, shard: str, weight_map: dict[str, str], names: set[str]) -> list[Finding]:
        """What the index places in `shard` and is not there, and what is there and not placed."""
        placed = {tensor for tensor, place in weight_map.items() if place == shard}
        findings = []
        if placed - names:
            text = f"lacks {few(sorted(placed - names))}, which {index} places in it"
            findings.append(self._finding(shard, text))
        if names - placed:
            text = f"holds {few(sorted(names - placed))}, which {index} does not place in it"
            findings.append(self._finding(shard, text))
        return findings

    def _weight_map(self, index: str) -> tuple[dict[str, str], str]:
        data, problem = self._json(index)
        weight_map = data.get("weight_map")
        if problem or not isinstance(weight_map, dict) or not weight_map:
            return {}, problem or "has no weight_map"
        if set(map(type, weight_map.values())) != {str}:
            return {}, "has a weight_map that does not name files"
        return weight_map, ""

    def _json(self, name: str) -> tuple[dict[str, Any], str]:
        """A JSON object of this folder, and why it is none."""
        try:
            data = json.loads(plain_bytes(self._here / name).decode("utf-8"))
        except (ValueError, RecursionError):
            return {}, "is not JSON"
        except OSError as error:
            return {}, f"cannot be read: {error.strerror}"
        return (data, "") if isinstance(data, dict) else ({}, "is not a JSON object")

    def _finding(self, name: str, text: str, kind: str = "mismatch") -> Finding:
        return Finding(self._prefix + name, text, kind)


def gate_rows(config: dict[str, Any], layer: int) -> int | None:
    """Rows that g_proj of `layer` must have: its heads (per-head gating) or heads × head_dim (per-element); None where
    the config does not say.

    Source: Laguna configs and transformers 5.24 models/laguna, read 2026-11-30; transformers PR #46690.
    """
    per_layer = config.get("num_attention_heads_per_layer")
    heads = config.get("num_attention_heads")
    if isinstance(per_layer, list) and layer < len(per_layer):
        heads = per_layer[layer]
    gating, head_dim = config.get("gating"), config.get("head_dim")
    if type(heads) is not int or not gating:
        return None
    if gating is True or gating == "per-head":
        return heads
    return heads * head_dim if gating == "per-element" and type(head_dim) is int else None


def few(names: list[str]) -> str:
    """The first of `names`, fit to be printed, and how many more there are."""
    shown = ", ".join(ascii(name)[1:-1][:120] for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _agree(shard: str, count: int, weight_map: dict[str, str], names: set[str]) -> bool:
    """Whether the `count` tensors that the map places in `shard` are just those that it holds."""
    return count == len(names) == list(map(weight_map.get, names)).count(shard)
