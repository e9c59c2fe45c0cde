"""Memory and transfer arithmetic: what the weights take on each GPU, how much KV fits beside them, how long KV takes to move.

From the architecture in the recipe file; an estimate for refusing what cannot work, not a promise. docs/benchmarks.md sets it
against what engines printed on real GPUs, and says where it cannot predict: run-time workspaces that grow with a prompt.
"""

from __future__ import annotations

import math

from slipway.documents import Document
from slipway.inventory import RdmaDevice
from slipway.recipe import Architecture, Recipe, Role

GIB = 1 << 30

DRIVER_GIB = 0.44
"""What driver and context keep back: a 24 GiB card shows 23.56 GiB to torch, an H200 139.8 of 140.4 (measured)."""

EXPERT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5 + 2 / 32, "nvfp4": 0.5 + 1 / 16}
"""Bytes per expert weight with its scales: INT4 has a 2-byte scale per 32 weights, NVFP4 one byte per 16."""

OTHER_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 2.0, "nvfp4": 2.0}
"""Bytes per weight of attention, dense and shared-expert matrices: INT4 and NVFP4 checkpoints leave them in BF16."""

KV_BYTES = {"bf16": 2, "bfloat16": 2, "fp16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

DEFAULT_FRACTION = {"vllm": 0.92, "sglang": 0.88, "reference": 0.9}
"""The engines' share of GPU memory where the recipe sets none (vLLM 0.25.1; SGLang chooses about this at tp 8)."""

SGLANG_WINDOWED_SHARE = 0.8
"""SGLang's swa_full_tokens_ratio: the windowed layers' pool holds this many tokens for each of the full layers' (0.5.16)."""

BLOCK_TOKENS = 16

POOL_ERROR = 0.15
"""How far the predicted pool may be off; a plan is refused only when even a pool larger by this would not do."""

LINK_EFFICIENCY = 0.9
TCP_BYTES_S = 0.34e9
"""What Mooncake moved over TCP on loopback, 2026-11-30; a real network of 10 Gb/s is not much faster."""


class Fit(Document):
    """Per-GPU figures of one role. `pool_tokens` is what vLLM prints: concurrency at the context times the context.

    `fits` is the estimate's word; `hopeless` says that not even an estimate off by POOL_ERROR would let it fit.
    """

    role: str
    gpus: int
    gpu_memory_bytes: int
    share_bytes: int
    weights_bytes_per_gpu: int
    overhead_bytes_per_gpu: int
    kv_pool_bytes_per_gpu: int
    kv_bytes_per_token_per_gpu: int
    context_tokens: int
    pool_tokens: int
    largest_context_tokens: int
    fits: bool
    hopeless: bool

    def arithmetic(self) -> str:
        """The sum in words, in GiB per GPU."""
        graphs = (
            f" - {self.overhead_bytes_per_gpu / GIB:.2f} graphs and workspace" if self.overhead_bytes_per_gpu else ""
        )
        outside = "" if graphs else ", graphs and workspace outside of it"
        return (
            f"per GPU {self.share_bytes / GIB:.2f} GiB for the engine{outside}"
            f" - {self.weights_bytes_per_gpu / GIB:.2f} weights{graphs} = {self.kv_pool_bytes_per_gpu / GIB:.2f} for KV;"
            f" largest context {self.largest_context_tokens:,} tokens, asked for {self.context_tokens:,}"
        )


class TransferTime(Document):
    """How long the KV of one prompt of `prompt_tokens` takes from prefill to decode, at `bytes_s`."""

    prompt_tokens: int
    payload_bytes: int
    bytes_s: int
    seconds: float


def of(recipe: Recipe, role: Role, gpu_memory_gib: float) -> Fit | None:
    """The figures of `role` on GPUs of `gpu_memory_gib`, or None for a role that uses no GPU."""
    gpus = recipe.cell.gpus(role)
    if gpus == 0 or gpu_memory_gib == 0:
        return None
    share_bytes = int((gpu_memory_gib - DRIVER_GIB) * GIB * fraction(recipe, role))
    weights_bytes = weights_bytes_per_gpu(recipe, role)
    overhead_bytes = _overhead_bytes(recipe, role)
    pool_bytes = max(share_bytes - weights_bytes - overhead_bytes, 0)
    context = role.context_tokens or recipe.architecture.max_context_tokens
    per_token, fixed = kv_bytes(recipe, role)
    largest = max(pool_bytes - fixed, 0) // per_token
    return Fit(
        role=role.name,
        gpus=gpus,
        gpu_memory_bytes=int(gpu_memory_gib * GIB),
        share_bytes=share_bytes,
        weights_bytes_per_gpu=weights_bytes,
        overhead_bytes_per_gpu=overhead_bytes,
        kv_pool_bytes_per_gpu=pool_bytes,
        kv_bytes_per_token_per_gpu=per_token,
        context_tokens=context,
        pool_tokens=int(pool_bytes / (per_token * context + fixed) * context),
        largest_context_tokens=min(largest, recipe.architecture.max_context_tokens),
        fits=context <= largest,
        hopeless=per_token * context + fixed > pool_bytes * (1 + POOL_ERROR),
    )


def fraction(recipe: Recipe, role: Role) -> float:
    """The share of GPU memory that the engine may take."""
    return role.gpu_memory_fraction or DEFAULT_FRACTION[recipe.engine]


def weights_bytes_per_gpu(recipe: Recipe, role: Role) -> int:
    """Target and drafter on one rank; embeddings, attention and experts are split, routers and the drafter's input layer are not."""
    shape, quantization = recipe.architecture, recipe.cell.quantization
    split = (
        shape.expert_parameters * EXPERT_BYTES.get(quantization, 2.0)
        + shape.matrix_parameters * OTHER_BYTES.get(quantization, 2.0)
        + shape.embedding_parameters * 2
    )
    whole = shape.router_parameters * 4.0  # kept in FP32
    spec = recipe.cell.speculation
    if spec:
        split += (spec.drafter_parameters - spec.drafter_unsplit_parameters) * 2
        whole += spec.drafter_unsplit_parameters * 2
    return int(split / recipe.cell.gpus(role) + whole / role.pp)


def kv_bytes(recipe: Recipe, role: Role) -> tuple[int, int]:
    """What KV takes on each GPU: bytes per token of context, and bytes per request that do not grow with it (windowed layers)."""
    shape, spec = recipe.architecture, recipe.cell.speculation
    heads = max(shape.kv_heads // role.tp, 1)  # fewer heads than ranks are replicated
    per_layer = 2 * heads * shape.head_dim * _kv_element_bytes(recipe, role)
    growing: float = shape.full_attention_layers + (spec.kv_layers if spec else 0)
    windowed = shape.layers - shape.full_attention_layers
    if recipe.engine == "sglang":
        growing += windowed * SGLANG_WINDOWED_SHARE
        return int(per_layer * growing / role.pp), 0
    # vLLM keeps a window plus what one step may add, in whole blocks and one more.
    step_tokens = shape.sliding_window_tokens - 1 + _step_tokens(recipe, role)
    kept_tokens = (math.ceil(step_tokens / BLOCK_TOKENS) + 1) * BLOCK_TOKENS if windowed else 0
    return int(per_layer * growing / role.pp), int(per_layer * windowed * kept_tokens / role.pp)


def kv_payload_bytes(recipe: Recipe, role: Role, prompt_tokens: int) -> int:
    """The KV of one prompt over all ranks: what prefill sends to decode."""
    per_token, fixed = kv_bytes(recipe, role)
    return (per_token * prompt_tokens + fixed) * recipe.cell.gpus(role)


def transfer_time(recipe: Recipe, role: Role, devices: list[RdmaDevice], prompt_tokens: int) -> TransferTime:
    """How long the KV of one prompt takes over `devices` together, or over TCP where there are none."""
    payload = kv_payload_bytes(recipe, role, prompt_tokens)
    rdma = sum(device.rate_gbps for device in devices) * 1e9 / 8 * LINK_EFFICIENCY
    bytes_s = rdma or TCP_BYTES_S
    return TransferTime(
        prompt_tokens=prompt_tokens, payload_bytes=payload, bytes_s=int(bytes_s), seconds=round(payload / bytes_s, 3)
    )


def _overhead_bytes(recipe: Recipe, role: Role) -> int:
    """CUDA graphs, activations and communication buffers inside vLLM's share; SGLang keeps them outside its static share.

    A line through measured start-ups of vLLM 0.25.1 (docs/benchmarks.md), made for max-num-seqs of 4 and 8. It levels off
    at 13, where it meets what the engine's default of 256 took; near there it is too rough to predict a pool.
    """
    if recipe.engine != "vllm":
        return 0
    sequences = min(_flag(role, "max-num-seqs", 256), 13)
    return int((0.175 + 0.168 * sequences + 0.156 * _step_tokens(recipe, role) / 1024) * GIB)


def _step_tokens(recipe: Recipe, role: Role) -> int:
    # vLLM 0.25.1: 2048 on cards below 70 GiB, 8192 above.
    return _flag(role, "max-num-batched-tokens", 2048 if recipe.cell.requires.gpu_memory_gib < 70 else 8192)


def _flag(role: Role, name: str, default: int) -> int:
    value = role.flags.get(name, default)
    return value if isinstance(value, int) else default


def _kv_element_bytes(recipe: Recipe, role: Role) -> int:
    if role.kv_dtype is None or role.kv_dtype == "auto":
        # Laguna's quantized checkpoints carry an FP8 KV scheme, which vLLM applies by itself.
        return 1 if recipe.engine == "vllm" and recipe.cell.quantization != "bf16" else 2
    return KV_BYTES.get(role.kv_dtype, 2)


def parameters(shape: Architecture) -> int:
    """All parameters of the target."""
    return shape.expert_parameters + shape.matrix_parameters + shape.embedding_parameters + shape.router_parameters
