"""One Laguna decoder layer in numpy: attention with rotary positions and an output gate, then a dense or sparse MLP.

Everything is float32 and [tokens, …]. Weight matrices are kept transposed, [in, out], and side by side where they read
the same input, so that one token costs few calls. Source of the semantics: transformers 5.24,
`models/laguna/modeling_laguna.py` and `modeling_rope_utils.py`, read 2026-11-30; agreement is tested against its logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slipway.reference.config import LagunaConfig, LayerConfig, Rope

Floats = NDArray[np.float32]

_NO_KEY = np.float32(-1e30)
"""The score of a key that a query must not see; finite, so that a row's maximum stays a number."""


def rms_norm(hidden: Floats, weight: Floats, eps: float) -> Floats:
    """`hidden` divided by its root mean square over the last axis, times `weight`."""
    mean_square = np.vecdot(hidden, hidden)[..., None] * np.float32(1 / hidden.shape[-1])
    normed: Floats = hidden / np.sqrt(mean_square + np.float32(eps))
    normed *= weight
    return normed


class RotaryTable:
    """cos and sin of every position of one layer type, [positions, rotary_dim / 2], the attention factor included."""

    def __init__(self, rope: Rope, positions: int) -> None:
        # The product is rounded to float32 before cos, as in transformers: at position 10,000 that shows.
        angles = np.arange(positions, dtype=np.float32)[:, None] * inverse_frequencies(rope)
        exact = angles.astype(np.float64)
        self.cos = (np.cos(exact) * rope.attention_factor).astype(np.float32)
        self.sin = (np.sin(exact) * rope.attention_factor).astype(np.float32)

    def rotate(self, heads: Floats, first_position: int) -> Floats:
        """`heads` [tokens, heads, head_dim], turned by position; dimensions past rotary_dim pass unchanged."""
        span = slice(first_position, first_position + len(heads))
        cos, sin = self.cos[span, None, :], self.sin[span, None, :]
        half = cos.shape[-1]
        first, second = heads[..., :half], heads[..., half : 2 * half]
        turned = heads.copy()
        turned[..., :half] = first * cos - second * sin
        turned[..., half : 2 * half] = second * cos + first * sin
        return turned


def inverse_frequencies(rope: Rope) -> Floats:
    """The angle per position of each pair of dimensions, [rotary_dim / 2], with YaRN where `rope.factor` is above 1."""
    dim = rope.rotary_dim
    frequencies = 1.0 / rope.theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    if rope.original_max_position == 0:
        return frequencies.astype(np.float32)

    def dimension_that_turns(times: float) -> float:
        return dim * math.log(rope.original_max_position / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(math.floor(dimension_that_turns(rope.beta_fast)), 0)
    high = min(math.ceil(dimension_that_turns(rope.beta_slow)), dim - 1)
    width = high - low if high != low else 0.001
    interpolated = np.clip((np.arange(dim // 2) - low) / width, 0, 1)
    return (frequencies / rope.factor * interpolated + frequencies * (1 - interpolated)).astype(np.float32)


class KeyValues:
    """Keys and values of one layer, [kv_heads, tokens, head_dim], growing at the end.

    A copy shares the buffers until it grows: nothing written is ever changed, so sharing is safe while the owner goes on.
    """

    def __init__(self, heads: int, head_dim: int) -> None:
        self._keys = np.empty((heads, 0, head_dim), np.float32)
        self._values = np.empty((heads, 0, head_dim), np.float32)
        self._owned = True

    def shared(self) -> KeyValues:
        """A copy that costs nothing until something is written to it."""
        copy = object.__new__(KeyValues)
        copy._keys, copy._values, copy._owned = self._keys, self._values, False
        return copy

    def write(self, at: int, keys: Floats, values: Floats) -> None:
        """Put `keys` and `values`, [tokens, kv_heads, head_dim], at position `at`."""
        end = at + len(keys)
        capacity = self._keys.shape[1]
        if end > capacity or not self._owned:
            size = max(64, end if end <= capacity else 2 * end)
            self._keys, self._values = _moved(self._keys, at, size), _moved(self._values, at, size)
            self._owned = True
        self._keys[:, at:end] = keys.transpose(1, 0, 2)
        self._values[:, at:end] = values.transpose(1, 0, 2)

    def read(self, start: int, end: int) -> tuple[Floats, Floats]:
        """Views of the keys and values from `start` to `end`."""
        return self._keys[:, start:end], self._values[:, start:end]


def _moved(buffer: Floats, used: int, size: int) -> Floats:
    larger = np.empty((buffer.shape[0], size, buffer.shape[2]), np.float32)
    larger[:, :used] = buffer[:, :used]
    return larger


class Attention:
    """Grouped-query attention with normed queries and keys and a softplus gate on each head or element."""

    def __init__(self, config: LagunaConfig, layer: LayerConfig, tensors: Mapping[str, Floats], prefix: str) -> None:
        self._eps = config.rms_norm_eps
        self._heads, self._kv_heads, self._dim = layer.heads, config.key_value_heads, config.head_dim
        self._window = layer.window_tokens
        names = ("q_proj", "k_proj", "v_proj", "g_proj")
        self._into = _side_by_side([tensors[f"{prefix}{name}.weight"] for name in names])
        self._out = np.ascontiguousarray(tensors[f"{prefix}o_proj.weight"].T)
        # The score's 1/sqrt(head_dim) goes into the query's norm.
        query_norm = tensors[f"{prefix}q_norm.weight"] * np.float32(self._dim**-0.5)
        norms = [query_norm] * self._heads + [tensors[f"{prefix}k_norm.weight"]] * self._kv_heads
        self._norms = np.stack(norms)

    def forward(self, hidden: Floats, past: KeyValues, position: int, table: RotaryTable) -> Floats:
        """The attention's output [tokens, hidden] for normed `hidden` at `position`; extends `past`."""
        tokens, width = len(hidden), self._heads * self._dim
        queries_keys = width + self._kv_heads * self._dim
        values_end = queries_keys + self._kv_heads * self._dim
        mixed = hidden @ self._into
        turned = mixed[:, :queries_keys].reshape(tokens, self._heads + self._kv_heads, self._dim)
        turned = table.rotate(rms_norm(turned, self._norms, self._eps), position)
        values = mixed[:, queries_keys:values_end].reshape(tokens, self._kv_heads, self._dim)
        past.write(position, turned[:, self._heads :], values)
        attended = self._attend(turned[:, : self._heads], past, position)
        gate = np.logaddexp(np.float32(0), mixed[:, values_end:])[..., None]
        gated = attended.reshape(tokens, gate.shape[1], -1) * gate
        output: Floats = gated.reshape(tokens, width) @ self._out
        return output

    def _attend(self, queries: Floats, past: KeyValues, position: int) -> Floats:
        """The values that each query [tokens, heads, head_dim] attends to, in the same shape."""
        tokens, group = len(queries), self._heads // self._kv_heads
        end = position + tokens
        start = 0 if self._window is None else max(0, position - self._window + 1)
        keys, values = past.read(start, end)
        grouped = queries.reshape(tokens, self._kv_heads, group, self._dim).transpose(1, 2, 0, 3)
        scores = grouped.reshape(self._kv_heads, group * tokens, self._dim) @ keys.transpose(0, 2, 1)
        if tokens > 1:
            self._hide(scores.reshape(self._kv_heads, group, tokens, end - start))
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        attended: Floats = (scores @ values) / scores.sum(axis=-1, keepdims=True)
        return attended.reshape(self._kv_heads * group, tokens, self._dim).transpose(1, 0, 2)

    def _hide(self, scores: Floats) -> None:
        """Overwrite the scores [kv_heads, group, tokens, keys] of keys that are later than the query or out of window."""
        tokens, keys = scores.shape[-2:]
        # Every query sees all keys before this chunk, unless a window slides.
        first = keys - tokens if self._window is None else 0
        behind = np.arange(keys - tokens, keys)[:, None] - np.arange(first, keys)[None, :]
        unseen = behind < 0 if self._window is None else (behind < 0) | (behind >= self._window)
        np.copyto(scores[..., first:], _NO_KEY, where=unseen)


class GatedMlp:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, tensors: Mapping[str, Floats], prefix: str) -> None:
        self._into = _side_by_side([tensors[f"{prefix}gate_proj.weight"], tensors[f"{prefix}up_proj.weight"]])
        self._out = np.ascontiguousarray(tensors[f"{prefix}down_proj.weight"].T)

    def forward(self, hidden: Floats) -> Floats:
        """The output [tokens, hidden] for normed `hidden`."""
        mixed = hidden @ self._into
        inner = mixed.shape[-1] // 2
        gate = mixed[..., :inner]
        output: Floats = (gate / (np.float32(1) + np.exp(-gate)) * mixed[..., inner:]) @ self._out
        return output


class SparseMlp:
    """The best experts of each token, weighted by their sigmoid scores, plus the shared expert."""

    def __init__(self, config: LagunaConfig, tensors: Mapping[str, Floats], prefix: str) -> None:
        self._router = np.ascontiguousarray(tensors[f"{prefix}gate.weight"].T)
        self._bias = tensors[f"{prefix}experts.e_score_correction_bias"]
        self._experts = [GatedMlp(tensors, f"{prefix}experts.{number}.") for number in range(config.experts)]
        self._shared = GatedMlp(tensors, f"{prefix}shared_expert.")
        self._chosen, self._scaling = config.experts_per_token, np.float32(config.routed_scaling_factor)

    def forward(self, hidden: Floats) -> Floats:
        """The output [tokens, hidden] for normed `hidden`."""
        scores = np.float32(1) / (np.float32(1) + np.exp(-(hidden @ self._router)))
        # The correction bias takes part in the choice, not in the weights.
        chosen = np.argsort(-(scores + self._bias), axis=-1, kind="stable")[:, : self._chosen]
        weights = scores[np.arange(len(hidden))[:, None], chosen]
        weights *= self._scaling / weights.sum(axis=-1, keepdims=True)
        output = self._shared.forward(hidden)
        if len(hidden) == 1:
            for number, weight in zip(chosen[0], weights[0], strict=True):
                output += weight * self._experts[number].forward(hidden)
            return output
        for number, expert in enumerate(self._experts):
            rows, ranks = np.nonzero(chosen == number)
            if len(rows):
                output[rows] += weights[rows, ranks, None] * expert.forward(hidden[rows])
        return output


class DecoderLayer:
    """Attention and MLP, each behind its norm and added to the residual stream."""

    def __init__(self, config: LagunaConfig, number: int, tensors: Mapping[str, Floats], table: RotaryTable) -> None:
        prefix, layer = f"model.layers.{number}.", config.layers[number]
        self._table = table
        self._eps = config.rms_norm_eps
        self._input_norm = tensors[f"{prefix}input_layernorm.weight"]
        self._mlp_norm = tensors[f"{prefix}post_attention_layernorm.weight"]
        self._attention = Attention(config, layer, tensors, f"{prefix}self_attn.")
        self._mlp = SparseMlp(config, tensors, f"{prefix}mlp.") if layer.sparse else GatedMlp(tensors, f"{prefix}mlp.")

    def forward(self, hidden: Floats, past: KeyValues, position: int) -> Floats:
        """The residual stream [tokens, hidden] after this layer; extends `past` from `position` on."""
        normed = rms_norm(hidden, self._input_norm, self._eps)
        hidden = hidden + self._attention.forward(normed, past, position, self._table)
        return hidden + self._mlp.forward(rms_norm(hidden, self._mlp_norm, self._eps))


def _side_by_side(matrices: list[Floats]) -> Floats:
    """Matrices [out, in] that read the same input, as one contiguous [in, sum of out]."""
    return np.ascontiguousarray(np.concatenate(matrices).T)
