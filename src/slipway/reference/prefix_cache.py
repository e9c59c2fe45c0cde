"""KV caches of earlier prompts, found again by their token prefix."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]


class PrefixSource(Protocol):
    """A KV cache that can be copied up to some length."""

    def prefix(self, length: int) -> PrefixSource:
        """An independent cache with the first `length` tokens."""


Cache = TypeVar("Cache", bound=PrefixSource)


class PrefixCache(Generic[Cache]):
    """The most recently used KV caches, at most `capacity_tokens` of them in sum; one thread only."""

    def __init__(self, block_size_tokens: int, capacity_tokens: int) -> None:
        self._block = block_size_tokens
        self._capacity_tokens = capacity_tokens
        self._entries: list[tuple[TokenIds, Cache]] = []

    @property
    def used_tokens(self) -> int:
        """How many tokens the entries hold."""
        return sum(tokens.size for tokens, _ in self._entries)

    def find(self, tokens: TokenIds) -> tuple[Cache, int] | None:
        """The cache that shares the longest prefix with `tokens`, and how many tokens of it can be used.

        Whole blocks only, and never all of `tokens`: the last one must be computed to know what follows it.
        """
        best, best_at = 0, -1
        for at, (known, _) in enumerate(self._entries):
            length = _shared(known, tokens)
            if length > best:
                best, best_at = length, at
        usable = min(best, tokens.size - 1) // self._block * self._block
        if usable <= 0:
            return None
        entry = self._entries.pop(best_at)
        self._entries.append(entry)
        return entry[1], usable

    def keep(self, tokens: TokenIds, cache: Cache) -> None:
        """Remember that `cache` begins with `tokens`; entries that it contains are dropped, then the oldest ones."""
        shared = [_shared(known, tokens) for known, _ in self._entries]
        if tokens.size > self._capacity_tokens or tokens.size in shared:
            return
        self._entries = [entry for entry, length in zip(self._entries, shared, strict=True) if length < entry[0].size]
        self._entries.append((tokens, cache))
        while self.used_tokens > self._capacity_tokens:
            del self._entries[0]


def _shared(left: TokenIds, right: TokenIds) -> int:
    length = min(left.size, right.size)
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
