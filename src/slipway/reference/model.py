"""Laguna on a CPU: token ids in, float32 logits out, with a key-value cache per conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slipway.errors import UsageError
from slipway.reference.config import LagunaConfig
from slipway.reference.layers import DecoderLayer, Floats, KeyValues, RotaryTable, rms_norm
from slipway.reference.weights import load_tensors

__all__ = ["KVCache", "Laguna", "LagunaConfig"]

_MAX_CHUNK_TOKENS = 256
_MAX_SCORES = 1 << 22
"""Attention scores of one chunk, all heads together: 16 MiB of float32."""


class KVCache:
    """The keys and values of the first `length` tokens of one conversation. One thread may use it at a time."""

    def __init__(self, layers: Sequence[KeyValues], length: int = 0) -> None:
        self.length = length
        self.layers = tuple(layers)

    def prefix(self, length: int) -> KVCache:
        """An independent cache of the first `length` tokens; it shares memory with this one until it grows.

        Raises: ValueError when this cache holds fewer tokens.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"a prefix of {length} tokens was asked of a cache of {self.length}")
        return KVCache([layer.shared() for layer in self.layers], length)


class Laguna:
    """A loaded checkpoint. Its arrays are only read, so any number of threads may use it, each with its own cache."""

    def __init__(self, config: LagunaConfig, tensors: dict[str, Floats]) -> None:
        self.config = config
        self._embeddings = tensors["model.embed_tokens.weight"]
        self._norm = tensors["model.norm.weight"]
        self._head = np.ascontiguousarray(tensors["lm_head.weight"].T)
        ropes = {layer.rope for layer in config.layers}
        tables = {rope: RotaryTable(rope, config.max_position_embeddings) for rope in ropes}
        self._layers = [
            DecoderLayer(config, number, tensors, tables[layer.rope]) for number, layer in enumerate(config.layers)
        ]

    @classmethod
    def load(cls, folder: Path) -> Laguna:
        """The model in `folder`: config.json, the shards' index and the shards.

        Raises: MissingFile, IntegrityMismatch (naming the file), UsageError (naming config.json and the key).
        """
        config = LagunaConfig.load(folder)
        return cls(config, load_tensors(folder, config.tensor_shapes()))

    def cache(self) -> KVCache:
        """An empty cache."""
        config = self.config
        return KVCache([KeyValues(config.key_value_heads, config.head_dim) for _ in config.layers])

    def logits(self, token_ids: Sequence[int], cache: KVCache) -> NDArray[np.float32]:
        """The logits [vocab_size] after the last of `token_ids`, which are appended to `cache`.

        Raises: UsageError when an id is outside the vocabulary, there is none, or the context would overflow; `cache`
        is then unchanged.
        """
        for hidden in self._hidden(token_ids, cache):
            last = hidden[-1:]  # set at least once: an empty sequence is refused
        return self._project(last).reshape(-1)

    def all_logits(self, token_ids: Sequence[int], cache: KVCache) -> NDArray[np.float32]:
        """The logits [tokens, vocab_size] after each of `token_ids`, which are appended to `cache`.

        Raises: as `logits`.
        """
        return np.concatenate([self._project(hidden) for hidden in self._hidden(token_ids, cache)])

    def _project(self, hidden: Floats) -> Floats:
        logits: Floats = rms_norm(hidden, self._norm, self.config.rms_norm_eps) @ self._head
        return logits

    def _hidden(self, token_ids: Sequence[int], cache: KVCache) -> Iterator[Floats]:
        """The residual stream after the last layer, chunk by chunk, so that a long prompt needs bounded memory."""
        ids = np.asarray(token_ids, dtype=np.int64)
        self._check(ids, cache)
        most_heads = max(layer.heads for layer in self.config.layers)
        done = 0
        while done < len(ids):
            reach = cache.length + _MAX_CHUNK_TOKENS
            chunk = ids[done : done + max(1, min(_MAX_CHUNK_TOKENS, _MAX_SCORES // (most_heads * reach)))]
            # exp(-x) of a very negative x is infinite, and 1 / (1 + inf) is right.
            with np.errstate(over="ignore"):
                hidden = self._embeddings[chunk]
                for layer, past in zip(self._layers, cache.layers, strict=True):
                    hidden = layer.forward(hidden, past, cache.length)
            cache.length += len(chunk)
            done += len(chunk)
            yield hidden

    def _check(self, ids: NDArray[np.int64], cache: KVCache) -> None:
        limit, vocab = self.config.max_position_embeddings, self.config.vocab_size
        if ids.ndim != 1 or len(ids) == 0:
            raise UsageError("token ids", "there are none", "at least one token is needed")
        if ids.min() < 0 or ids.max() >= vocab:
            odd = ids[(ids < 0) | (ids >= vocab)][0]
            raise UsageError("token ids", f"got {odd}", f"the vocabulary has the ids 0 to {vocab - 1}")
        if cache.length + len(ids) > limit:
            problem = f"got {cache.length + len(ids)} tokens"
            raise UsageError("context", problem, f"max_position_embeddings is {limit}", "send a shorter prompt")
