"""Rules about Laguna on SGLang."""

from __future__ import annotations

from slipway.rules.rule import BLACKWELL, Case, Rule

COOKBOOK_M1 = "https://github.com/sgl-project/sglang/blob/main/docs_new/cookbook/autoregressive/Poolside/Laguna-M.1.mdx"
COOKBOOK_S21 = (
    "https://github.com/sgl-project/sglang/blob/main/docs_new/cookbook/autoregressive/Poolside/Laguna-S-2.1.mdx"
)


def _fp8_garbage(case: Case) -> bool:
    return (
        case.serves_with("sglang")
        and case.version < (0, 5, 15)
        and case.recipe.cell.quantization == "fp8"
        and case.recipe.cell.hardware in BLACKWELL
        and case.flag("fp8-gemm-backend") != "triton"
    )


def _fraction_too_high(case: Case) -> bool:
    cell = case.recipe.cell
    plain_bf16 = case.serves_with("sglang") and cell.quantization == "bf16" and not case.speculates
    on_h200 = case.recipe.model == "laguna-s-2.1" and cell.hardware == "h200"
    return plain_bf16 and on_h200 and (case.role.gpu_memory_fraction or 0.893) > 0.80


def _dflash_backend_left_to_chance(case: Case) -> bool:
    return (
        case.serves_with("sglang")
        and case.speculates
        and case.windowed
        and case.flag("attention-backend") not in {"fa3", "trtllm_mha"}
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "sglang-laguna-unsupported",
        "refuse",
        lambda case: case.serves_with("sglang") and case.version < (0, 5, 14),
        "this SGLang release does not support Laguna",
        "per-element gating and full attention without a window came with 0.5.14; before it the weights do not load, or the "
        "server dies about a second into concurrent load",
        "pin SGLang 0.5.18 or newer",
        "https://github.com/sgl-project/sglang/pull/28400",
    ),
    Rule(
        "sglang-fp8-blackwell-garbage",
        "refuse",
        _fp8_garbage,
        "FP8 on Blackwell with this SGLang release generates garbage",
        "block scales reach DeepGEMM unpacked: GSM8K 0.00 % from a healthy server; mended in 0.5.15",
        "pin 0.5.18 or newer, or set fp8-gemm-backend: triton",
        "https://github.com/sgl-project/sglang/pull/28662",
    ),
    Rule(
        "sglang-yarn-scale",
        "refuse",
        lambda case: case.serves_with("sglang") and case.version < (0, 5, 18),
        "this SGLang release squares Laguna's YaRN attention scale",
        "answers stay fluent and GSM8K loses about 20 points; mended in 0.5.18",
        "pin SGLang 0.5.18 or newer",
        "https://github.com/sgl-project/sglang/pull/33558",
    ),
    Rule(
        "sglang-fp8-triton-slow",
        "warn",
        lambda case: (
            case.serves_with("sglang") and case.version >= (0, 5, 15) and case.flag("fp8-gemm-backend") == "triton"
        ),
        "fp8-gemm-backend: triton is no longer needed",
        "it worked around a fault that 0.5.15 mended, and costs about 19 %",
        "remove the flag",
        "https://github.com/sgl-project/sglang/pull/28662",
    ),
    Rule(
        "sglang-remote-code",
        "refuse",
        lambda case: case.serves_with("sglang") and not case.has("trust-remote-code"),
        "trust-remote-code is not set",
        "the checkpoint ships its own config and modelling code, and the server does not load it without the flag",
        "set trust-remote-code: true; the code is hashed with the weights",
        COOKBOOK_M1,
    ),
    Rule(
        "m1-deepep",
        "refuse",
        lambda case: (
            case.recipe.model == "laguna-m.1"
            and (case.flag("moe-a2a-backend") == "deepep" or case.sets_any("deepep-mode", "enable-deepep-moe"))
        ),
        "DeepEP with Laguna-M.1",
        "M.1 routes to 16 experts; DeepEP's low-latency kernels take 11 and assert at graph capture",
        "use plain tensor parallelism, or ep-size",
        COOKBOOK_M1,
    ),
    Rule(
        "m1-context-parallel",
        "refuse",
        lambda case: (
            case.recipe.model == "laguna-m.1"
            and case.sets_any("attn-cp-size", "enable-prefill-cp", "enable-prefill-context-parallel", "cp-strategy")
        ),
        "context parallelism with Laguna-M.1",
        "the attention backend stores KV without knowing of it, and crashes",
        "remove the flag",
        COOKBOOK_M1,
    ),
    Rule(
        "m1-dp-attention-slow",
        "warn",
        lambda case: case.recipe.model == "laguna-m.1" and case.has("enable-dp-attention"),
        "data-parallel attention with Laguna-M.1",
        "correct, but measured 15 to 28 % slower",
        "remove the flag unless you measured otherwise",
        COOKBOOK_M1,
    ),
    Rule(
        "attention-backend-triton",
        "refuse",
        lambda case: case.serves_with("sglang") and case.windowed and case.flag("attention-backend") == "triton",
        "attention-backend: triton with windowed layers",
        "the cookbook excludes it for this model",
        "leave it unset, or with DFlash set fa3 (Hopper) or trtllm_mha (Blackwell)",
        COOKBOOK_S21,
    ),
    Rule(
        "dflash-attention-unpinned",
        "refuse",
        _dflash_backend_left_to_chance,
        "DFlash without a pinned attention backend",
        "the automatic choice falls to flashinfer, which breaks the windowed layers: GSM8K 76 % became 28 %",
        "set attention-backend: fa3 on Hopper, trtllm_mha on Blackwell",
        COOKBOOK_S21,
    ),
    Rule(
        "dflash-draft-backend",
        "warn",
        lambda case: case.speculates and case.flag("speculative-draft-attention-backend") is not None,
        "speculative-draft-attention-backend is set",
        "the measured cells leave it to the engine",
        "remove the flag",
        COOKBOOK_S21,
    ),
    Rule(
        "dflash-page-size",
        "refuse",
        lambda case: case.serves_with("sglang") and case.speculates and case.role.page_size_tokens != 1,
        "DFlash with a page size other than 1",
        "every measured cell has page_size_tokens 1; the drafter's rollback works on single tokens",
        "set page_size_tokens: 1",
        COOKBOOK_S21,
    ),
    Rule(
        "fp8-shared-expert",
        "refuse",
        lambda case: (
            case.serves_with("sglang")
            and case.recipe.model == "laguna-s-2.1"
            and case.recipe.cell.quantization == "fp8"
            and case.role.tp in {4, 8}
            and case.role.env.get("SGLANG_SHARED_EXPERT_TP1") != "1"
        ),
        "FP8 at this tp without SGLANG_SHARED_EXPERT_TP1",
        "the shared expert's 128x128 block scales do not split over the ranks",
        'set env SGLANG_SHARED_EXPERT_TP1: "1"',
        COOKBOOK_S21,
    ),
    Rule(
        "bf16-h200-headroom",
        "refuse",
        _fraction_too_high,
        "S-2.1 in BF16 on H200 with a memory fraction above 0.80",
        "the default of 0.893 ran out of memory at graph capture, 0.88 died in NCCL at 1,024 streams",
        "set gpu_memory_fraction: 0.80",
        COOKBOOK_S21,
    ),
    Rule(
        "s21-top-k-zero",
        "warn",
        lambda case: (
            case.serves_with("sglang")
            and case.recipe.model == "laguna-s-2.1"
            and case.recipe.cell.checkpoint.revision is None
            and case.flag("sampling-defaults") is None
        ),
        "the unpinned checkpoint may be one of 2026-07-20, whose generation config has top_k 0",
        "SGLang answers 400 to every sampled request then; later revisions have top_k 20",
        "pin a later revision, or set sampling-defaults: openai",
        COOKBOOK_S21,
    ),
    Rule(
        "m1-has-no-drafter",
        "refuse",
        lambda case: case.recipe.model == "laguna-m.1" and case.speculates,
        "speculation with Laguna-M.1",
        "no drafter for it is published; another model's accepts nothing",
        "remove speculation",
        "string search over public repositories, 2026-11-30: no Laguna-M.1-DFlash",
        once=True,
    ),
)
