"""Whether two images are the same, and where they are not, file by file.

The identity is the config digest with its diff ids: the manifest digest also depends on how layers were compressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.images import layers
from slipway.images.layers import Entry
from slipway.images.oci_archive import Archive

LIMIT = 20
"""Differing files that are named; the rest is counted."""

_FIELDS = (
    # What differs → how it is called. The content's time is the classic one, so it comes last.
    ("kind", "type"),
    ("link", "link"),
    ("size_bytes", "size"),
    ("sha256", "content"),
    ("mode", "mode"),
    ("uid", "uid"),
    ("gid", "gid"),
    ("mtime_s", "mtime"),
)


@dataclass(frozen=True)
class Difference:
    """One thing that differs: the file `name` of the layer `layer` (from 0), in the words of `what`; layer -1 is the config."""

    layer: int
    name: str
    what: str

    def __str__(self) -> str:
        return f"{'config' if self.layer < 0 else f'layer {self.layer}'}: {self.name}: {self.what}"


@dataclass(frozen=True)
class Comparison:
    """How two images differ: the first differences in order, and how many there are in all."""

    listed: tuple[Difference, ...]
    count: int

    @property
    def equal(self) -> bool:
        """Whether they have the same config digest, and with it the same layers."""
        return self.count == 0

    def lines(self) -> tuple[str, ...]:
        """One line per difference, and one that counts those not named."""
        rest = self.count - len(self.listed)
        return (*map(str, self.listed), *((f"and {rest} more",) if rest else ()))


def differences(first: Archive, second: Archive, limit: int = LIMIT) -> Comparison:
    """What differs from `first` to `second`, the config before the layers; layers with equal diff ids are not read.

    Raises: as `layers.entries`.
    """
    if first.config_digest == second.config_digest:
        return Comparison((), 0)
    listed: list[Difference] = []
    count = 0
    for difference in _all(first, second):
        count += 1
        if len(listed) < limit:
            listed.append(difference)
    return Comparison(tuple(listed), count)


def _all(first: Archive, second: Archive) -> Iterator[Difference]:
    yield from _values("", _without_layers(first.config), _without_layers(second.config))
    count = max(len(first.diff_ids), len(second.diff_ids))
    for index in range(count):
        if index >= len(first.diff_ids) or index >= len(second.diff_ids):
            which = "second" if index >= len(first.diff_ids) else "first"
            yield Difference(index, "the layer", f"is only in the {which} image")
        elif first.diff_ids[index] != second.diff_ids[index]:
            yield from _layer(index, layers.listing(first, index), layers.listing(second, index))


def _layer(index: int, first: Mapping[str, Entry], second: Mapping[str, Entry]) -> Iterator[Difference]:
    same = True
    for name in sorted(first.keys() | second.keys()):
        before, after = first.get(name), second.get(name)
        if before is None or after is None:
            same = False
            yield Difference(index, name, f"is only in the {'second' if before is None else 'first'} image")
        elif before != after:
            same = False
            yield Difference(index, name, _what(before, after))
    if same:
        # The same files in another order, or headers of another tar format.
        yield Difference(index, "the layer", "holds the same files, but not the same tar (order or header format)")


def _what(before: Entry, after: Entry) -> str:
    parts = []
    for field, called in _FIELDS:
        old, new = getattr(before, field), getattr(after, field)
        if old == new:
            continue
        if field == "sha256":
            parts.append("content")
        elif field == "mode":
            parts.append(f"mode {old:04o} → {new:04o}")
        else:
            parts.append(f"{called} {old} → {new}")
    return ", ".join(parts)


def _without_layers(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config less its diff ids, whose differences the files tell better."""
    return {name: value for name, value in config.items() if name != "rootfs"}


def _values(place: str, first: Any, second: Any) -> Iterator[Difference]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted(first.keys() | second.keys()):
            yield from _values(f"{place}.{key}" if place else key, first.get(key), second.get(key))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (old, new) in enumerate(zip(first, second, strict=True)):
            yield from _values(f"{place}[{index}]", old, new)
    elif first != second:
        yield Difference(-1, place, f"{_shown(first)} → {_shown(second)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:119]}…"
