"""Memory arithmetic: what the weights take on each GPU, what a token's KV takes, and how large a context fits.

An estimate for planning, not a promise: kernels' workspaces, CUDA graphs and fragmentation come on top, and only the engine's
own start-up figure counts. Checked against what engines printed on real GPUs (tests/test_fit.py).
"""

from __future__ import annotations

from slipway.documents import Document
from slipway.recipe import Recipe, Role

GIB = 1 << 30
KV_BYTES = {"bf16": 2, "bfloat16": 2, "fp16": 2, "auto": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes per stored KV element by dtype."""

DEFAULT_FRACTION = {"vllm": 0.92, "sglang": 0.88, "reference": 0.9}
"""The engines' share of GPU memory where the recipe sets none (vLLM 0.25.1; SGLang chooses about this at tp 8)."""


class Fit(Document):
    """Per-GPU figures of one role; the context is for one sequence."""

    role: str
    gpus: int
    gpu_memory_bytes: int
    weights_bytes_per_gpu: int
    kv_bytes_per_token_per_gpu: int
    kv_pool_bytes_per_gpu: int
    context_tokens: int
    largest_context_tokens: int
    fits: bool


def of(recipe: Recipe, role: Role, gpu_memory_gib: float) -> Fit | None:
    """The figures of `role` on GPUs of `gpu_memory_gib`, or None for a role that uses no GPU."""
    gpus = recipe.cell.gpus(role)
    if gpus == 0 or gpu_memory_gib == 0:
        return None
    memory_bytes = int(gpu_memory_gib * GIB)
    fraction = role.gpu_memory_fraction or DEFAULT_FRACTION[recipe.engine]
    weights_bytes = sum(checkpoint.weights_bytes for checkpoint in recipe.checkpoints) // gpus
    per_token, fixed = kv_bytes(recipe, role)
    pool_bytes = max(int(memory_bytes * fraction) - weights_bytes, 0)
    limit = recipe.architecture.max_context_tokens
    context = role.context_tokens or limit
    largest = min(limit, max(pool_bytes - fixed, 0) // per_token)
    return Fit(
        role=role.name,
        gpus=gpus,
        gpu_memory_bytes=memory_bytes,
        weights_bytes_per_gpu=weights_bytes,
        kv_bytes_per_token_per_gpu=per_token,
        kv_pool_bytes_per_gpu=pool_bytes,
        context_tokens=context,
        largest_context_tokens=largest,
        fits=context <= largest,
    )


def kv_bytes(recipe: Recipe, role: Role) -> tuple[int, int]:
    """What KV takes on each GPU: bytes per token of context, and bytes that do not grow with it (the windowed layers)."""
    shape = recipe.architecture
    spec = recipe.cell.speculation
    heads = max(shape.kv_heads // role.tp, 1)  # fewer heads than ranks are replicated
    per_layer = 2 * heads * shape.head_dim * _kv_element_bytes(recipe, role)
    growing = shape.full_attention_layers + (spec.kv_layers if spec else 0)
    windowed = shape.layers - shape.full_attention_layers
    layers_on_rank = max(growing // role.pp, 1)
    return per_layer * layers_on_rank, per_layer * windowed * shape.sliding_window_tokens // role.pp


def _kv_element_bytes(recipe: Recipe, role: Role) -> int:
    if role.kv_dtype is None or role.kv_dtype == "auto":
        # Laguna's quantized checkpoints carry an FP8 KV scheme, which vLLM applies by itself.
        quantized = recipe.engine == "vllm" and recipe.cell.quantization != "bf16"
        return 1 if quantized else 2
    return KV_BYTES.get(role.kv_dtype, 2)
