"""A tiny Laguna checkpoint, written file by file: the same bytes on every machine, and a model that talks sense.

`python -m slipway.reference.checkpoint --out DIR [--variant per-head|per-element]`
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from slipway.errors import SlipwayError, from_os_error
from slipway.reference import bpe, dialogue, tensors
from slipway.reference.config import CONFIG_FILE, LagunaConfig
from slipway.reference.weights import INDEX_FILE

SHARDS = 4
VOCAB_SIZE = 2048


class Variant(StrEnum):
    """Which Laguna the checkpoint is shaped like."""

    PER_HEAD = "per-head"
    """Laguna-S-2.1: full and sliding attention, head counts that differ, one gate a head, scaling 2.5."""
    PER_ELEMENT = "per-element"
    """Laguna-M.1: full attention only, three dense layers, one gate an element, YaRN by 64."""


@dataclass(frozen=True)
class GeneratedCheckpoint:
    """What `generate` wrote: file names relative to `folder`, sorted."""

    folder: Path
    variant: Variant
    files: tuple[str, ...]
    parameters: int
    total_bytes: int


def generate(folder: Path, variant: Variant = Variant.PER_HEAD) -> GeneratedCheckpoint:
    """The checkpoint of `variant`, written into `folder`, which is made when absent; files of these names are replaced.

    Each file appears whole or not at all; the index comes last, so an interrupted folder is seen as incomplete.

    Raises: DiskFailure.
    """
    files = contents(variant)
    for name in sorted(files, key=lambda name: (name == INDEX_FILE, name)):
        _write(folder / name, files[name])
    index = json.loads(files[INDEX_FILE])
    return GeneratedCheckpoint(
        folder=folder,
        variant=variant,
        files=tuple(sorted(files)),
        parameters=index["metadata"]["total_parameters"],
        total_bytes=sum(map(len, files.values())),
    )


def contents(variant: Variant) -> dict[str, bytes]:
    """The bytes of every file of the checkpoint, by name."""
    config = _configuration(variant)
    merges = _merges(_scripted_texts())
    ids = bpe.vocabulary(merges, dialogue.FIRST_BYTE_TOKEN)
    special, markup = _added_tokens()
    tokenizer = bpe.tokenizer_json(merges, dialogue.FIRST_BYTE_TOKEN, special, markup)
    weights = tensors.build(LagunaConfig.from_json(config), _script(ids))
    return {
        CONFIG_FILE: _json(config),
        "generation_config.json": _json({key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}),
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(_tokenizer_config(config)),
        "chat_template.jinja": dialogue.CHAT_TEMPLATE.encode(),
        "LICENSE": _LICENSE.encode(),
        **_shards(weights),
    }


def main(argv: list[str] | None = None) -> int:
    """The exit code of the command line `argv`: 0, or the error's own."""
    parser = argparse.ArgumentParser(prog="python -m slipway.reference.checkpoint", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write into")
    parser.add_argument("--variant", type=Variant, choices=list(Variant), default=Variant.PER_HEAD)
    arguments = parser.parse_args(argv)
    try:
        written = generate(arguments.out, arguments.variant)
    except SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(
        f"{written.folder}: {len(written.files)} files, {written.parameters:,} parameters, {written.total_bytes:,} bytes\n"
    )
    return 0


_LICENSE = """These files are the output of Slipway's reference checkpoint generator. They hold no trained weights and no
text or data of anyone else; like Slipway itself they may be used under the Apache License, Version 2.0.
"""

_COMMON: dict[str, Any] = {
    "architectures": ["LagunaForCausalLM"],
    "model_type": "laguna",
    "dtype": "bfloat16",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "moe_router_logit_softcapping": 0.0,
    "moe_apply_router_weight_on_input": False,
    "bos_token_id": 2,
    "eos_token_id": [2, 24],
    "pad_token_id": 9,
    "use_cache": True,
}

_SPECIFIC: dict[Variant, dict[str, Any]] = {
    Variant.PER_HEAD: {
        "gating": True,
        "max_position_embeddings": 16384,
        "num_hidden_layers": 4,
        "num_attention_heads_per_layer": [8, 12, 12, 8],
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "sliding_window": 64,
        "moe_routed_scaling_factor": 2.5,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 500000.0,
                "factor": 32.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                # Not what YaRN derives from the factor (1.35), so that an engine that ignores the key is seen.
                "attention_factor": 1.25,
                "partial_rotary_factor": 0.5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
    },
    Variant.PER_ELEMENT: {
        "gating": "per-element",
        "max_position_embeddings": 32768,
        "num_hidden_layers": 5,
        "num_attention_heads_per_layer": [8] * 5,
        "layer_types": ["full_attention"] * 5,
        "mlp_layer_types": ["dense", "dense", "dense", "sparse", "sparse"],
        "sliding_window": 0,
        "moe_routed_scaling_factor": 1.0,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 500000.0,
                "factor": 64.0,
                "original_max_position_embeddings": 512,
                # Unlike the default 32, this rounds to another dimension, so that an engine that ignores it is seen.
                "beta_fast": 64.0,
                "beta_slow": 1.0,
                "partial_rotary_factor": 1.0,
            },
        },
    },
}


def _configuration(variant: Variant) -> dict[str, Any]:
    return dict(sorted({**_COMMON, **_SPECIFIC[variant]}.items()))


def _tokenizer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    begin_and_end = dialogue.SPECIAL_TOKENS[2]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "bos_token": begin_and_end,
        "eos_token": begin_and_end,
        "pad_token": dialogue.SPECIAL_TOKENS[9],
        "unk_token": dialogue.SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": config["max_position_embeddings"],
    }


@cache
def _merges(scripted: tuple[str, ...]) -> list[tuple[str, str]]:
    """The tokenizer's merges; words of `scripted` texts count so much that each becomes one token."""
    counts = {bpe.spelled(f" {word}"): 1 for word in dialogue.COMMON_WORDS.split()}
    counts |= {bpe.spelled(piece): 1000 for text in scripted for piece in bpe.pieces(text)}
    return bpe.train(counts, VOCAB_SIZE - dialogue.FIRST_BYTE_TOKEN - 256)


def _scripted_texts() -> tuple[str, ...]:
    call = (dialogue.TOOL_NAME, dialogue.TOOL_KEY, dialogue.TOOL_VALUE)
    return (dialogue.REASONING, dialogue.ANSWER, *call, dialogue.LOG)


def _added_tokens() -> tuple[dict[int, str], dict[int, str]]:
    """The special tokens, with a name for every id that is kept free, and the markup tokens."""
    kept = set(range(dialogue.FIRST_BYTE_TOKEN)) - dialogue.SPECIAL_TOKENS.keys() - dialogue.MARKUP_TOKENS.keys()
    return {**dialogue.SPECIAL_TOKENS, **{one: f"〈|RESERVED_{one}|〉" for one in kept}}, dialogue.MARKUP_TOKENS


def _script(ids: Mapping[str, int]) -> tensors.Script:
    """Which token follows which: the scripted texts with their tags; every other token leads into the log.

    Raises: ValueError when a token stands twice, for then it would have two successors.
    """
    tag = {content: token_id for token_id, content in dialogue.MARKUP_TOKENS.items()}
    words = {text: [ids[bpe.spelled(piece)] for piece in bpe.pieces(text)] for text in _scripted_texts()}
    log = words[dialogue.LOG]
    state = max(dialogue.MARKUP_TOKENS) + 1
    chains = [
        [tag["<think>"], *words[dialogue.REASONING], tag["</think>"], *words[dialogue.ANSWER], tag["</assistant>"]],
        [state, tag["<tool_call>"], *words[dialogue.TOOL_NAME], tag["<arg_key>"], *words[dialogue.TOOL_KEY]],
        [words[dialogue.TOOL_KEY][-1], tag["</arg_key>"], tag["<arg_value>"], *words[dialogue.TOOL_VALUE]],
        [words[dialogue.TOOL_VALUE][-1], tag["</arg_value>"], tag["</tool_call>"], tag["</assistant>"]],
        [tag["</assistant>"], *log, log[0]],
        [tag["<assistant>"], tag["</think>"]],
    ]
    successors: dict[int, int] = {}
    for chain in chains:
        for before, after in pairwise(chain):
            if before in successors:
                raise ValueError(f"token {before} has two successors; a scripted word must stand only once")
            successors[before] = after
    free = [token for token in range(dialogue.FIRST_BYTE_TOKEN) if token not in successors]
    successors |= {token: log[position * 7 % len(log)] for position, token in enumerate(free)}
    others = [token for token in range(dialogue.FIRST_BYTE_TOKEN, VOCAB_SIZE) if token not in successors]
    imitates = {token: log[position % len(log)] for position, token in enumerate(others)}
    switch = tensors.ToolSwitch(asks=tag["</think>"], marker=tag["<use_tools>"], state=state)
    return tensors.Script(successors, imitates, switch)


def _shards(weights: Mapping[str, tensors.Stored]) -> dict[str, bytes]:
    """The shards and their index; tensors go by name into shards of about equal size."""
    total_bytes = sum(len(tensor.content) for tensor in weights.values())
    groups: list[dict[str, tensors.Stored]] = [{} for _ in range(SHARDS)]
    before = 0
    for name, tensor in sorted(weights.items()):
        groups[before * SHARDS // total_bytes][name] = tensor
        before += len(tensor.content)
    names = [f"model-{number:05}-of-{SHARDS:05}.safetensors" for number in range(1, SHARDS + 1)]
    parameters = sum(len(tensor.content) // (4 if tensor.dtype == "F32" else 2) for tensor in weights.values())
    index = {
        "metadata": {"total_parameters": parameters, "total_size": total_bytes},
        "weight_map": {tensor: name for name, group in zip(names, groups, strict=True) for tensor in group},
    }
    return {name: tensors.safetensors(group) for name, group in zip(names, groups, strict=True)} | {
        INDEX_FILE: _json(index)
    }


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            partial.unlink()
        raise from_os_error(error, path, "writing the reference checkpoint") from error


if __name__ == "__main__":
    sys.exit(main())
