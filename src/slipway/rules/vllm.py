"""Rules about Laguna on vLLM."""

from __future__ import annotations

from slipway.engines.schema import release
from slipway.rules.rule import Case, Rule

LADDER = "https://github.com/tonyd2wild/Laguna-S-2.1-INT4-DFlash-4x-RTX3090-200-tok-s"
QUANTIZED = frozenset({"fp8", "int4", "nvfp4"})


def _too_old(case: Case) -> bool:
    needed = (0, 22, 0) if case.recipe.cell.quantization in QUANTIZED else (0, 21, 0)
    return case.serves_with("vllm") and case.version < needed


def _fp8_kv(case: Case) -> bool:
    return (
        case.serves_with("vllm")
        and case.recipe.cell.quantization in QUANTIZED
        and (case.role.kv_dtype or "").startswith("fp8")
    )


def _wide_kv(case: Case) -> bool:
    wide = case.role.kv_dtype in {"bfloat16", "bf16", "float16", "fp16"}
    return case.serves_with("vllm") and case.recipe.cell.quantization in QUANTIZED and wide


def _headroom(case: Case) -> bool:
    return (
        case.serves_with("vllm")
        and case.speculates
        and 0 < case.recipe.cell.requires.gpu_memory_gib <= 24
        and (case.role.gpu_memory_fraction or 0.92) >= 0.90
    )


def _min_p(case: Case) -> bool:
    override = case.flag("override-generation-config")
    return case.speculates and isinstance(override, dict) and bool({"min_p", "logit_bias"} & override.keys())


def _many_sequences(case: Case) -> bool:
    limit = case.flag("max-num-seqs")
    return case.serves_with("vllm") and case.speculates and not (isinstance(limit, int) and limit <= 32)


def _synthetic(case: Case) -> bool:
    spec = case.recipe.cell.speculation
    return spec is not None and spec.synthetic_acceptance is not None


RULES: tuple[Rule, ...] = (
    Rule(
        "vllm-laguna-unsupported",
        "refuse",
        _too_old,
        "this vLLM release does not serve this Laguna checkpoint",
        "Laguna came with 0.21.0; quantized checkpoints need 0.22.0, before it the FP8 KV scale was read per head wrongly",
        "pin vLLM 0.25.1",
        "https://github.com/vllm-project/vllm/pull/41129",
        once=True,
    ),
    Rule(
        "vllm-dflash-unsupported",
        "refuse",
        lambda case: case.serves_with("vllm") and case.speculates and case.version < (0, 25, 0),
        "this vLLM release has no DFlash for Laguna",
        "it came with 0.25.0",
        "pin vLLM 0.25.1",
        "https://github.com/vllm-project/vllm/pull/46853",
    ),
    Rule(
        "vllm-transformers-too-new",
        "refuse",
        lambda case: (
            case.serves_with("vllm")
            and case.version <= (0, 25, 1)
            and release(case.recipe.packages.get("transformers", "0")) >= (5, 13)
        ),
        "vLLM 0.25.1 beside transformers 5.13 or newer",
        "its own requirement allows it, but Laguna's nested rope_parameters then break config loading",
        "pin transformers 5.12.1",
        "run on one H200, 2026-11-30",
        once=True,
    ),
    Rule(
        "dflash-memory-headroom",
        "refuse",
        _headroom,
        "DFlash with gpu_memory_fraction 0.90 or more on 24 GB",
        "the drafter's buffer of the first generation ran out of memory there",
        "use 0.87",
        LADDER,
    ),
    Rule(
        "graph-estimate-off",
        "refuse",
        lambda case: case.role.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") == "0",
        "the CUDA-graph memory estimate is switched off",
        "both tries crashed: an illegal access at the first generation, out of memory at capture",
        "remove the variable",
        LADDER,
    ),
    Rule(
        "dflash-v2-runner",
        "refuse",
        lambda case: case.speculates and case.role.env.get("VLLM_USE_V2_MODEL_RUNNER") == "1",
        "DFlash with the V2 model runner",
        "on 0.25.1 every draft is rejected: answers are right and the speed-up is gone without any error",
        "remove VLLM_USE_V2_MODEL_RUNNER",
        "https://github.com/vllm-project/vllm/issues/49559",
    ),
    Rule(
        "hybrid-kv-manager-off",
        "refuse",
        lambda case: case.windowed and case.has("disable-hybrid-kv-cache-manager"),
        "the hybrid KV cache manager is switched off",
        "every windowed layer then keeps the whole context: the pool fell to about 41K tokens",
        "remove the flag",
        LADDER,
    ),
    Rule(
        "kv-int4-per-token-head",
        "refuse",
        lambda case: case.role.kv_dtype == "int4_per_token_head",
        "int4_per_token_head KV",
        "it does not initialise for Laguna's cache shape",
        "leave kv_dtype out: the checkpoint selects FP8",
        LADDER,
    ),
    Rule(
        "kv-fp8-no-op",
        "warn",
        _fp8_kv,
        "FP8 KV is spelled out",
        "the checkpoint's own scheme selects it with calibrated scales; the flag changes nothing",
        "remove kv_dtype",
        LADDER,
    ),
    Rule(
        "kv-bf16-halves-pool",
        "warn",
        _wide_kv,
        "BF16 KV on a checkpoint with an FP8 scheme",
        "it halves the pool",
        "remove kv_dtype",
        LADDER,
    ),
    Rule(
        "tool-parser-without-choice",
        "refuse",
        lambda case: (
            case.serves_with("vllm")
            and case.recipe.cell.parsers.tool_call is not None
            and not case.has("enable-auto-tool-choice")
        ),
        "a tool-call parser without enable-auto-tool-choice",
        "vLLM then refuses every request with tools",
        "set enable-auto-tool-choice: true",
        LADDER,
    ),
    Rule(
        "thinking-unstated",
        "warn",
        lambda case: (
            case.serves_with("vllm")
            and case.recipe.cell.parsers.reasoning == "poolside_v1"
            and case.recipe.cell.thinking is None
        ),
        "the default for thinking is not stated",
        "vLLM's poolside_v1 parser passes think tags through into the content where the chat template thinks by default",
        "set thinking: true or false",
        "vLLM 0.25.1, reasoning/deepseek_v3_reasoning_parser.py",
    ),
    Rule(
        "speculation-sampling-defaults",
        "refuse",
        _min_p,
        "min_p or logit_bias as a default under speculation",
        "vLLM answers 400 to every request that has them while a drafter is loaded",
        "remove them from override-generation-config",
        "run on one H200, 2026-11-30",
    ),
    Rule(
        "dflash-many-sequences",
        "warn",
        _many_sequences,
        "DFlash with max-num-seqs above 32, or left at 256",
        "reported to crash at the default; each sequence reserves draft tokens of every step",
        "set max-num-seqs: 32 or lower",
        "model card of Laguna-S-2.1-NVFP4, read 2026-11-30",
    ),
    Rule(
        "dflash-depth",
        "warn",
        lambda case: (spec := case.recipe.cell.speculation) is not None and (spec.draft_tokens or 7) > 7,
        "more than 7 draft tokens",
        "acceptance collapses beyond about five positions; 7 was faster than 15 wherever both were measured",
        "set draft_tokens: 7, or measure both",
        LADDER,
        once=True,
    ),
    Rule(
        "fp8-block-flashinfer",
        "warn",
        lambda case: (
            case.serves_with("vllm")
            and case.recipe.model != "laguna-m.1"
            and case.recipe.cell.quantization == "fp8"
            and case.role.env.get("VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER") != "0"
        ),
        "FP8 without VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER=0",
        "the official recipe sets it for this model",
        'set env VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER: "0"',
        "vllm-project/recipes at 8959cf64, models/poolside",
    ),
    Rule(
        "custom-all-reduce-3090",
        "warn",
        lambda case: (
            case.serves_with("vllm")
            and case.recipe.cell.hardware == "rtx-3090"
            and case.role.tp > 1
            and not case.has("disable-custom-all-reduce")
        ),
        "custom all-reduce on RTX 3090",
        "with patched peer-to-peer drivers it returned wrong data without any error; without NVLink on every pair it is off anyway",
        "set disable-custom-all-reduce: true",
        "https://github.com/noonghunna/club-3090/issues/922",
    ),
    Rule(
        "synthetic-acceptance",
        "warn",
        _synthetic,
        "synthetic acceptance",
        "drafts are accepted by a given curve and not by the model, so the text means nothing",
        "use it to rehearse memory and speed only",
        "run on one H200, 2026-11-30",
        once=True,
    ),
    Rule(
        "synthetic-with-structured-output",
        "refuse",
        lambda case: _synthetic(case) and case.flag("structured-outputs-config") is not None,
        "structured output with synthetic acceptance",
        "the grammar rejects the forced tokens and the server answers 500",
        "remove one of the two",
        "run on one H200, 2026-11-30",
    ),
)
