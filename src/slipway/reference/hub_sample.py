"""A small repository to serve: a sharded checkpoint of sound structure, with the names and shapes of a Laguna model."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

_HEADS = (4, 6)
_HIDDEN = 64
_PIECE_BYTES = 1 << 20


def write_sample(folder: Path, *, shards: int = 3, rows: int = 64, seed: int = 0) -> None:
    """Nothing; `folder` then holds config, index, tokenizer, code and `shards` shards, equal for equal arguments.

    `rows` of 128 bytes each make up the embedding, so it sets the size of the first shard.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (rows, _HIDDEN)}
    for layer, heads in enumerate(_HEADS):
        tensors[f"model.layers.{layer}.self_attn.g_proj.weight"] = (heads, _HIDDEN)
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = (_HIDDEN,)
    tensors["model.norm.weight"] = (_HIDDEN,)
    weight_map: dict[str, str] = {}
    names = list(tensors)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = {name: tensors[name] for name in names[shard::shards]}
        write_shard(folder / file, mine, seed=seed + shard)
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": dict(sorted(weight_map.items()))}
    config = {
        "model_type": "laguna",
        "architectures": ["LagunaForCausalLM"],
        "gating": "per-head",
        "head_dim": 16,
        "num_attention_heads_per_layer": list(_HEADS),
    }
    texts = {
        "model.safetensors.index.json": json.dumps(index, indent=1),
        "config.json": json.dumps(config, indent=1),
        "tokenizer.json": json.dumps({"version": "1.0"}),
        "README.md": "---\nlicense: apache-2.0\n---\n",
        "code/modeling_laguna.py": "# the repository's own code\n",
    }
    (folder / "code").mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_shard(path: Path, tensors: Mapping[str, Sequence[int]], *, seed: int = 0) -> None:
    """Nothing; `path` is then a safetensors file with these BF16 tensors, filled with bytes drawn from `seed`."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in tensors.items():
        begin, end = end, end + 2
        for size in shape:
            end = begin + (end - begin) * size
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    source = random.Random(seed)  # noqa: S311 -- a repeatable filling, no secret
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, _PIECE_BYTES):
            stream.write(source.randbytes(min(_PIECE_BYTES, end - begin)))
