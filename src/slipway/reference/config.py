"""`config.json` of a Laguna checkpoint as a frozen value, and the tensors that it promises."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.errors import IntegrityMismatch, UsageError, from_os_error

CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class Rope:
    """Rotary position parameters of one layer type; `factor` is 1 without YaRN."""

    theta: float
    rotary_dim: int
    factor: float = 1.0
    attention_factor: float = 1.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class LayerConfig:
    """One decoder layer; `window_tokens` is None where attention is full."""

    heads: int
    window_tokens: int | None
    sparse: bool
    rope: Rope


@dataclass(frozen=True)
class LagunaConfig:
    """What the numpy model needs to know of a checkpoint, in the words of `config.json` where they are clear."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    head_dim: int
    key_value_heads: int
    experts: int
    experts_per_token: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    routed_scaling_factor: float
    gate_per_element: bool
    rms_norm_eps: float
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    layers: tuple[LayerConfig, ...]

    @classmethod
    def load(cls, folder: Path) -> LagunaConfig:
        """The configuration in `folder`/config.json.

        Raises: MissingFile; IntegrityMismatch when it is no JSON object; UsageError, naming the key, for anything that
        this model does not compute.
        """
        path = folder / CONFIG_FILE
        try:
            content = json.loads(path.read_bytes())
        except OSError as error:
            raise from_os_error(error, path, "reading the model's configuration") from error
        except ValueError as error:
            raise IntegrityMismatch(path, f"is not JSON ({error})", "", "fetch the file again") from error
        if not isinstance(content, dict):
            raise IntegrityMismatch(path, "is not a JSON object", "", "fetch the file again")
        return cls.from_json(content, path)

    @classmethod
    def from_json(cls, content: Mapping[str, Any], place: Path | str = CONFIG_FILE) -> LagunaConfig:
        """The configuration that the parsed `content` of config.json describes; `place` is named in errors.

        Raises: UsageError, naming the key.
        """
        read = _Reader(content, place)
        read.refuse_unknown()
        layers = _layers(read)
        if read.count("num_experts_per_tok") > read.count("num_experts"):
            raise read.refuse(
                "num_experts_per_tok", f"got {read.count('num_experts_per_tok')}", "there are fewer experts"
            )
        eos = content.get("eos_token_id")
        return cls(
            vocab_size=read.count("vocab_size"),
            hidden_size=read.count("hidden_size"),
            intermediate_size=read.count("intermediate_size"),
            head_dim=read.count("head_dim"),
            key_value_heads=read.count("num_key_value_heads"),
            experts=read.count("num_experts"),
            experts_per_token=read.count("num_experts_per_tok"),
            moe_intermediate_size=read.count("moe_intermediate_size"),
            shared_expert_intermediate_size=read.count("shared_expert_intermediate_size"),
            routed_scaling_factor=read.number("moe_routed_scaling_factor", 1.0),
            gate_per_element=content.get("gating", True) == "per-element",
            rms_norm_eps=read.number("rms_norm_eps", 1e-6),
            max_position_embeddings=read.count("max_position_embeddings"),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
            bos_token_id=content.get("bos_token_id"),
            pad_token_id=content.get("pad_token_id"),
            layers=layers,
        )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every tensor that a checkpoint with this configuration holds, in model order.

        Source: transformers 5.24, `models/laguna` and its `conversion_mapping` (names on disk), read 2026-11-30.
        """
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.hidden_size)}
        for number, layer in enumerate(self.layers):
            shapes |= self._attention_shapes(f"model.layers.{number}.", layer)
            shapes |= self._mlp_shapes(f"model.layers.{number}.mlp.", layer)
        return shapes | {
            "model.norm.weight": (self.hidden_size,),
            "lm_head.weight": (self.vocab_size, self.hidden_size),
        }

    def _attention_shapes(self, prefix: str, layer: LayerConfig) -> dict[str, tuple[int, ...]]:
        hidden, width = self.hidden_size, layer.heads * self.head_dim
        key_value = (self.key_value_heads * self.head_dim, hidden)
        return {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (width, hidden),
            f"{prefix}self_attn.k_proj.weight": key_value,
            f"{prefix}self_attn.v_proj.weight": key_value,
            f"{prefix}self_attn.o_proj.weight": (hidden, width),
            f"{prefix}self_attn.g_proj.weight": (width if self.gate_per_element else layer.heads, hidden),
            f"{prefix}self_attn.q_norm.weight": (self.head_dim,),
            f"{prefix}self_attn.k_norm.weight": (self.head_dim,),
        }

    def _mlp_shapes(self, prefix: str, layer: LayerConfig) -> dict[str, tuple[int, ...]]:
        if not layer.sparse:
            return self._gated_shapes(prefix, self.intermediate_size)
        shapes: dict[str, tuple[int, ...]] = {
            f"{prefix}gate.weight": (self.experts, self.hidden_size),
            f"{prefix}experts.e_score_correction_bias": (self.experts,),
        }
        for expert in range(self.experts):
            shapes |= self._gated_shapes(f"{prefix}experts.{expert}.", self.moe_intermediate_size)
        return shapes | self._gated_shapes(f"{prefix}shared_expert.", self.shared_expert_intermediate_size)

    def _gated_shapes(self, prefix: str, inner: int) -> dict[str, tuple[int, ...]]:
        return {
            f"{prefix}gate_proj.weight": (inner, self.hidden_size),
            f"{prefix}up_proj.weight": (inner, self.hidden_size),
            f"{prefix}down_proj.weight": (self.hidden_size, inner),
        }


_FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("laguna",),
    "architectures": (["LagunaForCausalLM"],),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "tie_word_embeddings": (False,),
    "moe_apply_router_weight_on_input": (False,),
    "moe_router_logit_softcapping": (0, 0.0),
    "gating": (True, "per-head", "per-element"),
}
"""Keys of which this model computes only these values."""

_READ = {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_attention_heads_per_layer",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "sliding_window",
    "layer_types",
    "mlp_layer_types",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "moe_routed_scaling_factor",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}

_NO_EFFECT = {
    "attention_dropout",
    "auto_map",
    "dtype",
    "initializer_range",
    "output_router_logits",
    "router_aux_loss_coef",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
"""Keys of training, storage or loading that do not change what inference computes."""

_ROPE_KEYS = {
    "default": {"rope_type", "rope_theta", "partial_rotary_factor"},
    "yarn": {
        "rope_type",
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
    },
}


class _Reader:
    """Reads values of one config.json; every refusal names the file and the key."""

    def __init__(self, content: Mapping[str, Any], place: Path | str) -> None:
        self.content = content
        self._place = place

    def refuse(self, key: str, problem: str, why: str) -> UsageError:
        remedy = "use an engine that knows this feature, or a checkpoint without it"
        return UsageError(f"{self._place}: {key}", problem, why, remedy)

    def refuse_unknown(self) -> None:
        for key, value in self.content.items():
            if key in _FIXED:
                if not any(value == allowed and type(value) is type(allowed) for allowed in _FIXED[key]):
                    allowed = " or ".join(json.dumps(one) for one in _FIXED[key])
                    raise self.refuse(key, f"got {json.dumps(value)}", f"the numpy model computes only {allowed}")
            elif key not in _READ | _NO_EFFECT:
                raise self.refuse(key, "is not known to the numpy model", "an unknown feature may change every logit")

    def count(self, key: str) -> int:
        value = self.content.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(key, f"got {json.dumps(value)}", "a whole number of at least 1 is needed")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.content.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.refuse(key, f"got {json.dumps(value)}", "a number above 0 is needed")
        return float(value)

    def per_layer(self, key: str, default: list[Any]) -> list[Any]:
        value = self.content.get(key)
        value = default if value is None else value
        if not isinstance(value, list) or len(value) != len(default):
            raise self.refuse(key, f"got {json.dumps(value)}", f"one entry for each of {len(default)} layers is needed")
        return value


def _layers(read: _Reader) -> tuple[LayerConfig, ...]:
    number = read.count("num_hidden_layers")
    types = read.per_layer("layer_types", ["full_attention"] * number)
    mlps = read.per_layer("mlp_layer_types", ["dense", *["sparse"] * (number - 1)])
    heads = read.per_layer("num_attention_heads_per_layer", [read.content.get("num_attention_heads")] * number)
    key_value_heads = read.count("num_key_value_heads")
    layers = []
    for kind, mlp, head_count in zip(types, mlps, heads, strict=True):
        if kind not in {"full_attention", "sliding_attention"}:
            raise read.refuse("layer_types", f"got {kind!r}", "full_attention or sliding_attention is allowed")
        if mlp not in {"dense", "sparse"}:
            raise read.refuse("mlp_layer_types", f"got {mlp!r}", "dense or sparse is allowed")
        if not isinstance(head_count, int) or head_count < 1 or head_count % key_value_heads:
            why = f"a multiple of num_key_value_heads ({key_value_heads}) is needed"
            raise read.refuse("num_attention_heads_per_layer", f"got {head_count!r}", why)
        window = read.count("sliding_window") if kind == "sliding_attention" else None
        layers.append(LayerConfig(head_count, window, mlp == "sparse", _rope(read, kind)))
    return tuple(layers)


def _rope(read: _Reader, kind: str) -> Rope:
    nested = read.content.get("rope_parameters")
    values = nested.get(kind) if isinstance(nested, Mapping) else None
    key = f"rope_parameters.{kind}"
    if not isinstance(values, Mapping):
        raise read.refuse(key, "is missing", "rotary parameters are nested by layer type")
    rope_type = values.get("rope_type", "default")
    if rope_type not in _ROPE_KEYS:
        raise read.refuse(f"{key}.rope_type", f"got {rope_type!r}", "default or yarn is allowed")
    for name, value in values.items():
        if name not in _ROPE_KEYS[rope_type]:
            raise read.refuse(f"{key}.{name}", "is not known to the numpy model", f"it is no key of {rope_type}")
        number = not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < math.inf
        if name != "rope_type" and value is not None and not number:
            raise read.refuse(f"{key}.{name}", f"got {value!r}", "a number above 0 is needed")
    if values.get("rope_theta") is None:
        raise read.refuse(f"{key}.rope_theta", "is missing", "the base of the rotary frequencies is needed")
    rotary_dim = int(read.count("head_dim") * (values.get("partial_rotary_factor") or 1.0))
    if rotary_dim % 2 or not 2 <= rotary_dim <= read.count("head_dim"):
        raise read.refuse(f"{key}.partial_rotary_factor", f"rotates {rotary_dim} dimensions", "they go in pairs")
    if rope_type == "default":
        return Rope(float(values["rope_theta"]), rotary_dim)
    maximum = read.count("max_position_embeddings")
    original = int(values.get("original_max_position_embeddings") or maximum)
    factor = float(values.get("factor") or maximum / original)
    return Rope(
        theta=float(values["rope_theta"]),
        rotary_dim=rotary_dim,
        factor=factor,
        attention_factor=float(values.get("attention_factor") or _attention_factor(factor)),
        original_max_position=original,
        beta_fast=float(values.get("beta_fast") or 32),
        beta_slow=float(values.get("beta_slow") or 1),
    )


def _attention_factor(factor: float) -> float:
    """The factor on cos and sin where the configuration names none. Source: YaRN, arXiv 2309.00071, section 3.4."""
    return 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
