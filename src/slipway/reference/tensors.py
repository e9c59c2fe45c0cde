"""The tiny checkpoint's weights, made by integer arithmetic so that every machine writes the same bytes.

Every weight is an integer divided by a power of two and fits BF16 exactly. Three things are planted in the noise:
embeddings of ±1; an `lm_head` that answers each token with its scripted successor; and, in layer 0, one attention head
that lets `</think>` look for `<use_tools>` and turn the successor into `<tool_call>`. All other layers add seeded noise
that is small against the script but moves every logit, so a wrong implementation is seen.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipway.reference.config import LagunaConfig

Integers = NDArray[np.int32]

HEAD_SHIFT = 6
"""`lm_head` is in units of 1/64."""

_SUCCESSOR = 4
"""1/16 in those units: 256 agreeing signs make a logit of 16."""

_SHIFTS = {
    "q_proj": 10,
    "k_proj": 10,
    "v_proj": 10,
    "g_proj": 10,
    "o_proj": 12,
    "gate_proj": 10,
    "up_proj": 10,
    "down_proj": 13,
    "gate": 10,
}
"""A matrix is int8 noise over two to this power. With inputs of size 1, ten gives outputs of about size 1."""


@dataclass(frozen=True)
class ToolSwitch:
    """Token ids of the planted head: at `asks` it looks for `marker`; when found, it adds the embedding of `state`."""

    asks: int
    marker: int
    state: int


@dataclass(frozen=True)
class Script:
    """What follows what: `successors` maps a token id to the next; every other id is in `imitates`, which names the
    token that its embedding resembles, so that the same token follows.
    """

    successors: Mapping[int, int]
    imitates: Mapping[int, int]
    switch: ToolSwitch


@dataclass(frozen=True)
class Stored:
    """One tensor as it goes to disk."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes


def build(config: LagunaConfig, script: Script) -> dict[str, Stored]:
    """Every tensor that `config` calls for, by name, with `script` planted."""
    signs = _embeddings((config.vocab_size, config.hidden_size), script)
    units: dict[str, tuple[Integers, int]] = {}
    for name, shape in config.tensor_shapes().items():
        if name == "model.embed_tokens.weight":
            units[name] = signs, 0
        elif name == "lm_head.weight":
            units[name] = _head(signs, script), HEAD_SHIFT
        elif name.endswith("e_score_correction_bias"):
            units[name] = _noise(name, shape) >> 3, 6
        elif len(shape) == 1:
            # Queries and keys larger than 1 make attention choose instead of averaging.
            base = 208 if name.endswith(("q_norm.weight", "k_norm.weight")) else 112
            units[name] = base + (_noise(name, shape) & 31), 7
        else:
            units[name] = _noise(name, shape), _SHIFTS[name.split(".")[-2]]
    _plant_switch(units, config, signs, script.switch)
    return {name: _stored(name, integers, shift) for name, (integers, shift) in units.items()}


def safetensors(tensors: Mapping[str, Stored]) -> bytes:
    """One shard in the safetensors form: names sorted, header padded with blanks to a multiple of 8."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, tensor in sorted(tensors.items()):
        end = position + len(tensor.content)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.content for _, tensor in sorted(tensors.items()))


def _bytes_for(name: str, count: int) -> bytes:
    """`count` bytes that only `name` decides."""
    return hashlib.shake_256(f"slipway reference checkpoint 1: {name}".encode()).digest(count)


def _noise(name: str, shape: tuple[int, ...]) -> Integers:
    """Integers from -128 to 127, all equally likely."""
    count = math.prod(shape)
    return np.frombuffer(_bytes_for(name, count), np.int8).astype(np.int32).reshape(shape)


def _signs(name: str, shape: tuple[int, ...]) -> Integers:
    """+1 and -1, equally likely."""
    count = math.prod(shape)
    bits = np.unpackbits(np.frombuffer(_bytes_for(name, -(-count // 8)), np.uint8))[:count]
    return (2 * bits.astype(np.int32) - 1).reshape(shape)


def _embeddings(shape: tuple[int, int], script: Script) -> Integers:
    """The embeddings of ±1; one that imitates another differs from it in about an eighth of the signs."""
    name = "model.embed_tokens.weight"
    signs = _signs(name, shape)
    chances = _noise(f"{name} flips", shape)
    for token, other in script.imitates.items():
        signs[token] = np.where(chances[token] < -96, -signs[other], signs[other])
    return signs


def _head(signs: Integers, script: Script) -> Integers:
    """`lm_head`: each row is the sum of the embeddings that it follows, plus noise of -1, 0 and 1."""
    head: Integers = _noise("lm_head.weight", signs.shape) % 3 - 1
    for before, after in script.successors.items():
        head[after] += _SUCCESSOR * signs[before]
    return head


def _plant_switch(
    units: dict[str, tuple[Integers, int]], config: LagunaConfig, signs: Integers, switch: ToolSwitch
) -> None:
    """Plant the head that looks for the tools marker: head 0 of layer 0, in its last quarter of dimensions.

    Those dimensions hardly turn with the position in either variant, so the marker is found at any distance.
    """
    prefix, dim = "model.layers.0.self_attn.", config.head_dim
    still = slice(dim - dim // 4, dim)
    for name in ("q_norm", "k_norm"):
        units[f"{prefix}{name}.weight"][0][still] = 304  # 2.375
    query, key, value = (units[f"{prefix}{name}_proj.weight"][0] for name in "qkv")
    # Little noise here: another token's query or key must not point where these two do.
    query[still] = (query[still] >> 4) + 16 * signs[switch.asks]
    key[still] = (key[still] >> 4) + 16 * signs[switch.marker]
    value[:dim] += 8 * signs[switch.marker]
    gate = units[f"{prefix}g_proj.weight"][0]
    gate[: dim if config.gate_per_element else 1] += 12 * signs[switch.asks]
    output = units[f"{prefix}o_proj.weight"][0]
    output[:, :dim] += 72 * signs[switch.state][:, None]


def _stored(name: str, integers: Integers, shift: int) -> Stored:
    """`integers` / 2**`shift` in BF16, or in F32 for the router's correction bias, as Laguna has it."""
    values = np.ldexp(integers.astype(np.float32), -shift)
    if name.endswith("e_score_correction_bias"):
        return Stored("F32", values.shape, values.astype("<f4").tobytes())
    bits = values.view(np.uint32)
    if (bits & 0xFFFF).any():
        raise ValueError(f"{name} has a weight that BF16 cannot hold")
    return Stored("BF16", values.shape, (bits >> 16).astype("<u2").tobytes())
