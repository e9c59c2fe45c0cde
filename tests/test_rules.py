"""Rules: each one speaks when it must, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipway import recipe, rules
from slipway.errors import PlanRefused
from slipway.recipe import Allowed, Checkpoint, FabricVariant, Recipe

BOOK = {item.id: item for item in recipe.read_book(Path(__file__).resolve().parent.parent / "recipes")}

CHAMPION = "laguna-s-2.1.vllm/4x3090-int4-champion"
VLLM_BF16 = "laguna-s-2.1.vllm/8xh200-bf16"
VLLM_FP8 = "laguna-s-2.1.vllm/2xh200-fp8"
VLLM_DFLASH = "laguna-s-2.1.vllm/8xh200-bf16-dflash"
M1 = "laguna-m.1.sglang/h200-bf16"
M1_FP8_B200 = "laguna-m.1.sglang/b200-fp8"
S21_FP8 = "laguna-s-2.1.sglang/h200-fp8-high-throughput"
S21_BF16 = "laguna-s-2.1.sglang/h200-bf16-high-throughput"
S21_DFLASH = "laguna-s-2.1.sglang/h200-bf16-low-latency"
S21_NVFP4 = "laguna-s-2.1.sglang/b300-nvfp4-low-latency"
PD = "laguna-m.1.sglang/h200-bf16-pd-mooncake"
NIXL = "laguna-m.1.sglang/h200-bf16-pd-nixl"
TCP = "laguna-m.1.sglang/h200-bf16-pd-tcp"


def changed(
    recipe_id: str,
    *,
    file: dict[str, Any] | None = None,
    cell: dict[str, Any] | None = None,
    flags: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    only: str | None = None,
    **role: Any,
) -> Recipe:
    """The shipped recipe with changes: `flags` and `env` are added (None removes), to every role or `only` to one."""
    item = BOOK[recipe_id]

    def change(old: Any) -> Any:
        if only and old.name != only:
            return old
        merged = {key: value for key, value in {**old.flags, **(flags or {})}.items() if value is not None}
        return old.model_copy(update={"flags": merged, "env": {**old.env, **(env or {})}, **role})

    roles = [change(old) for old in item.cell.roles]
    new = item.cell.model_copy(update={"roles": roles, **(cell or {})})
    return item.model_copy(update={"cell": new, **(file or {})})


def spec(recipe_id: str, **values: Any) -> dict[str, Any]:
    speculation = BOOK[recipe_id].cell.speculation
    assert speculation is not None
    return {"speculation": speculation.model_copy(update=values)}


def transfer(recipe_id: str, **values: Any) -> dict[str, Any]:
    found = BOOK[recipe_id].cell.transfer
    assert found is not None
    return {"transfer": found.model_copy(update=values)}


def container(recipe_id: str, **values: Any) -> dict[str, Any]:
    return {"container": BOOK[recipe_id].cell.container.model_copy(update=values)}


def old(version: str, recipe_id: str = M1, **changes: Any) -> Recipe:
    return changed(recipe_id, file={"engine_version": version}, **changes)


OTHER_DRAFTER = Checkpoint(repo="poolside/Laguna-S-2.1-DFlash", revision=None)
EFA = {"efa": FabricVariant(image="build:sglang-efa", env={"MOONCAKE_PROTOCOL": "efa"})}

# rule → (recipes that break it, recipes that keep it)
CASES: dict[str, tuple[list[Recipe], list[Recipe]]] = {
    "typed-flag-spelled-twice": (
        [changed(CHAMPION, flags={"port": 1}), changed(PD, only="router", flags={"decode": "x"})],
        [],
    ),
    "image-tag-drifts": (
        [
            changed(CHAMPION, cell={"image": "vllm/vllm-openai:latest"}),
            changed(PD, cell=transfer(PD, fabrics={"efa": FabricVariant(image="x:y")})),
        ],
        [changed(CHAMPION, cell={"image": "build:vllm-default"})],
    ),
    "nvfp4-needs-blackwell": ([changed(S21_NVFP4, cell={"hardware": "h200"})], [BOOK[S21_NVFP4]]),
    "drafter-precision": (
        [changed(CHAMPION, cell=spec(CHAMPION, drafter=OTHER_DRAFTER)), changed(S21_DFLASH, cell=spec(CHAMPION))],
        [BOOK[S21_DFLASH], BOOK[S21_NVFP4]],
    ),
    "drafter-revision": (
        [
            changed(
                CHAMPION,
                cell=spec(CHAMPION, drafter=BOOK[CHAMPION].checkpoints[1].model_copy(update={"revision": "0" * 40})),
            )
        ],
        [BOOK[CHAMPION]],
    ),
    "revision-unpinned": ([BOOK[M1]], [BOOK[CHAMPION]]),
    "checkpoint-unlocked": ([BOOK[M1]], []),
    "tp-does-not-divide": (
        [changed(VLLM_BF16, tp=3), changed(M1, tp=5)],
        [BOOK[VLLM_BF16], BOOK[PD], changed(M1, tp=16)],
    ),
    "count-not-positive": ([changed(CHAMPION, flags={"max-num-seqs": -4})], [BOOK[CHAMPION]]),
    "context-beyond-model": ([changed(CHAMPION, context_tokens=500_000)], [BOOK[CHAMPION], BOOK[M1]]),
    "shared-memory": (
        [changed(M1, cell=container(M1, ipc="private"))],
        [BOOK[M1], changed(M1, cell=container(M1, ipc="private", shm_size_gib=16))],
    ),
    "cached-tokens-unproven": (
        [BOOK[CHAMPION], changed(M1, flags={"enable-cache-report": None})],
        [BOOK[VLLM_BF16], BOOK[M1]],
    ),
    "metrics-off": ([changed(M1, flags={"enable-metrics": None})], [BOOK[M1], BOOK[VLLM_BF16]]),
    "public-without-key": ([BOOK[M1]], [changed(M1, bind="127.0.0.1")]),
    "sglang-laguna-unsupported": ([old("0.5.13.post1")], [old("0.5.14")]),
    "sglang-fp8-blackwell-garbage": (
        [old("0.5.14", M1_FP8_B200)],
        [
            BOOK[M1_FP8_B200],
            old("0.5.14", M1_FP8_B200, flags={"fp8-gemm-backend": "triton"}),
            old("0.5.14", "laguna-m.1.sglang/h200-fp8"),
        ],
    ),
    "sglang-yarn-scale": ([old("0.5.15.post1"), old("0.5.17")], [old("0.5.18"), old("0.5.23")]),
    "sglang-fp8-triton-slow": ([changed(M1_FP8_B200, flags={"fp8-gemm-backend": "triton"})], [BOOK[M1_FP8_B200]]),
    "sglang-remote-code": (
        [changed(M1, flags={"trust-remote-code": None})],
        [BOOK[M1], BOOK["laguna-m.1.vllm/8xh200-bf16"]],
    ),
    "m1-deepep": (
        [changed(M1, flags={"moe-a2a-backend": "deepep"}), changed(M1, flags={"deepep-mode": "normal"})],
        [changed(M1, flags={"ep-size": 8}), changed(S21_BF16, flags={"moe-a2a-backend": "deepep"})],
    ),
    "m1-context-parallel": (
        [changed(M1, flags={"attn-cp-size": 2}), changed(M1, flags={"enable-prefill-cp": True})],
        [changed(M1, flags={"attn-cp-size": 1})],
    ),
    "m1-dp-attention-slow": ([changed(M1, flags={"enable-dp-attention": True})], [BOOK[M1]]),
    "attention-backend-triton": (
        [changed(S21_BF16, flags={"attention-backend": "triton"})],
        [changed(M1, flags={"attention-backend": "triton"})],
    ),
    "dflash-attention-unpinned": (
        [
            changed(S21_DFLASH, flags={"attention-backend": None}),
            changed(S21_DFLASH, flags={"attention-backend": "flashinfer"}),
        ],
        [BOOK[S21_DFLASH], BOOK[S21_NVFP4], BOOK[S21_BF16]],
    ),
    "dflash-draft-backend": (
        [changed(S21_DFLASH, flags={"speculative-draft-attention-backend": "fa3"})],
        [BOOK[S21_DFLASH]],
    ),
    "dflash-page-size": ([changed(S21_DFLASH, page_size_tokens=None)], [BOOK[S21_DFLASH], BOOK[CHAMPION]]),
    "fp8-shared-expert": (
        [changed(S21_FP8, env={"SGLANG_SHARED_EXPERT_TP1": "0"})],
        [BOOK[S21_FP8], changed(S21_FP8, env={"SGLANG_SHARED_EXPERT_TP1": "0"}, tp=2)],
    ),
    "bf16-h200-headroom": (
        [changed(S21_BF16, gpu_memory_fraction=None), changed(S21_BF16, gpu_memory_fraction=0.88)],
        [BOOK[S21_BF16], BOOK["laguna-s-2.1.sglang/b300-bf16-high-throughput"]],
    ),
    "s21-top-k-zero": (
        [BOOK[S21_BF16]],
        [changed(S21_BF16, flags={"sampling-defaults": "openai"}), BOOK[S21_NVFP4], BOOK[M1], BOOK[VLLM_BF16]],
    ),
    "m1-has-no-drafter": ([changed(M1, cell=spec(S21_DFLASH), page_size_tokens=1)], [BOOK[M1]]),
    "vllm-laguna-unsupported": (
        [old("0.20.0", VLLM_BF16), old("0.21.0", VLLM_FP8)],
        [old("0.21.0", VLLM_BF16), old("0.22.0", VLLM_FP8)],
    ),
    "vllm-dflash-unsupported": ([old("0.24.0", CHAMPION)], [old("0.25.0", CHAMPION), old("0.24.0", VLLM_BF16)]),
    "vllm-transformers-too-new": (
        [changed(CHAMPION, file={"packages": {"transformers": "5.17.0"}})],
        [
            changed(CHAMPION, file={"packages": {"transformers": "5.12.1"}}),
            changed(M1, file={"packages": {"transformers": "5.17.0"}}),
        ],
    ),
    "dflash-memory-headroom": (
        [changed(CHAMPION, gpu_memory_fraction=0.90), changed(CHAMPION, gpu_memory_fraction=None)],
        [BOOK[CHAMPION], BOOK[VLLM_DFLASH]],
    ),
    "graph-estimate-off": (
        [changed(CHAMPION, env={"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0"})],
        [BOOK[CHAMPION]],
    ),
    "dflash-v2-runner": (
        [changed(CHAMPION, env={"VLLM_USE_V2_MODEL_RUNNER": "1"})],
        [changed(VLLM_BF16, env={"VLLM_USE_V2_MODEL_RUNNER": "1"})],
    ),
    "hybrid-kv-manager-off": ([changed(CHAMPION, flags={"disable-hybrid-kv-cache-manager": True})], [BOOK[CHAMPION]]),
    "kv-int4-per-token-head": ([changed(CHAMPION, kv_dtype="int4_per_token_head")], [BOOK[CHAMPION]]),
    "kv-fp8-no-op": ([changed(CHAMPION, kv_dtype="fp8_e4m3")], [BOOK[CHAMPION], changed(VLLM_BF16, kv_dtype="fp8")]),
    "kv-bf16-halves-pool": (
        [changed(CHAMPION, kv_dtype="bfloat16")],
        [BOOK[CHAMPION], changed(VLLM_BF16, kv_dtype="bfloat16")],
    ),
    "tool-parser-without-choice": (
        [changed(CHAMPION, flags={"enable-auto-tool-choice": None})],
        [BOOK[CHAMPION], BOOK[M1]],
    ),
    "thinking-unstated": ([changed(CHAMPION, cell={"thinking": None})], [BOOK[CHAMPION], BOOK[M1]]),
    "speculation-sampling-defaults": (
        [changed(CHAMPION, flags={"override-generation-config": {"min_p": 0.05}})],
        [
            changed(CHAMPION, flags={"override-generation-config": {"top_k": 20}}),
            changed(VLLM_BF16, flags={"override-generation-config": {"min_p": 0.05}}),
        ],
    ),
    "dflash-many-sequences": (
        [changed(CHAMPION, flags={"max-num-seqs": None}), changed(CHAMPION, flags={"max-num-seqs": 64})],
        [BOOK[CHAMPION], BOOK[VLLM_BF16]],
    ),
    "dflash-depth": ([BOOK[VLLM_DFLASH]], [BOOK[CHAMPION], BOOK[S21_DFLASH]]),
    "fp8-block-flashinfer": (
        [changed(VLLM_FP8, env={"VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": "1"})],
        [BOOK[VLLM_FP8], BOOK["laguna-m.1.vllm/4xh200-fp8"]],
    ),
    "custom-all-reduce-3090": (
        [changed(CHAMPION, flags={"disable-custom-all-reduce": None})],
        [BOOK[CHAMPION], BOOK[VLLM_BF16]],
    ),
    "synthetic-acceptance": (
        [changed(CHAMPION, cell=spec(CHAMPION, synthetic_acceptance=[0.9, 0.8]))],
        [BOOK[CHAMPION]],
    ),
    "synthetic-with-structured-output": (
        [
            changed(
                CHAMPION,
                cell=spec(CHAMPION, synthetic_acceptance=[0.9]),
                flags={"structured-outputs-config": {"backend": "xgrammar"}},
            )
        ],
        [changed(CHAMPION, flags={"structured-outputs-config": {"backend": "xgrammar"}})],
    ),
    "pd-unequal-layout": (
        [
            changed(PD, only="decode", **change)
            for change in ({"tp": 4}, {"page_size_tokens": 64}, {"kv_dtype": "fp8_e4m3"})
        ],
        [BOOK[PD]],
    ),
    "pd-pipeline-parallel": ([changed(PD, pp=2)], [BOOK[PD]]),
    "nixl-unpinned": ([changed(NIXL, cell=transfer(NIXL, devices="none"))], [BOOK[NIXL]]),
    "nixl-cold-start": ([changed(NIXL, env={"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "300"})], [BOOK[NIXL], BOOK[PD]]),
    "devices-in-recipe": ([changed(NIXL, env={"UCX_NET_DEVICES": "mlx5_0:1"})], [BOOK[NIXL]]),
    "efa-needs-its-variant": (
        [
            changed(PD, cell=transfer(PD, fabrics={})),
            changed(PD, cell=transfer(PD, fabrics={"efa": FabricVariant(env={})})),
        ],
        [BOOK[PD], changed(PD, cell=transfer(PD, fabrics=EFA))],
    ),
    "efa-expandable-segments": (
        [changed(PD, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})],
        [BOOK[PD], changed(CHAMPION)],
    ),
    "kv-over-tcp": ([BOOK[TCP]], [BOOK[PD]]),
    "rdma-container": (
        [
            changed(PD, cell=container(PD, **change))
            for change in ({"network": "bridge"}, {"ulimits": {}}, {"devices": []}, {"capabilities": []})
        ],
        [BOOK[PD], BOOK[TCP]],
    ),
}


def speaking(item: Recipe, *, locked: bool = False) -> set[str]:
    """The ids of all rules that speak, refusals included."""
    case_roles = [rules.Case(item, role, locked) for role in item.cell.roles]
    return {rule.id for rule in rules.RULES for case in case_roles if rule.broken(case)}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_speaks_where_it_is_broken(rule: str) -> None:
    for item in CASES[rule][0]:
        assert rule in speaking(item)
        severity = next(known.severity for known in rules.RULES if known.id == rule)
        if severity == "refuse":
            with pytest.raises(PlanRefused):
                rules.check(item, locked=True)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_is_silent_where_it_is_kept(rule: str) -> None:
    for item in CASES[rule][1]:
        assert rule not in speaking(item)


def test_a_locked_checkpoint_is_not_warned_about() -> None:
    assert "checkpoint-unlocked" not in speaking(BOOK[CHAMPION], locked=True)


def test_every_rule_is_complete_and_tested() -> None:
    ids = [rule.id for rule in rules.RULES]
    assert len(set(ids)) == len(ids)
    assert set(ids) == CASES.keys()
    for rule in rules.RULES:
        assert all((rule.message, rule.why, rule.remedy, rule.source)), rule.id


def test_the_shipped_recipes_break_no_rule_that_refuses() -> None:
    for item in BOOK.values():
        rules.check(item, locked=False)


def test_a_refusal_names_rule_place_reason_and_source() -> None:
    with pytest.raises(PlanRefused) as caught:
        rules.check(changed(M1, flags={"moe-a2a-backend": "deepep"}), locked=True)
    assert caught.value.rule == "m1-deepep"
    assert str(caught.value).startswith(
        "laguna-m.1.sglang/h200-bf16: roles.server: DeepEP with Laguna-M.1 [m1-deepep]; "
    )
    assert "https://" in str(caught.value)


def allowing(rule: str, item: Recipe) -> Recipe:
    allow = [Allowed(rule=rule, reason="measured here on purpose")]
    return item.model_copy(update={"cell": item.cell.model_copy(update={"allow": allow})})


def test_a_rule_that_is_broken_on_purpose_is_said_and_does_not_stop_the_plan() -> None:
    item = allowing("m1-deepep", changed(M1, flags={"moe-a2a-backend": "deepep"}))
    finding = next(finding for finding in rules.check(item, locked=True) if finding.rule.id == "m1-deepep")
    assert "allowed: measured here on purpose" in finding.text


@pytest.mark.parametrize(
    ("rule", "said"), [("m1-deepp", "did you mean m1-deepep?"), ("kv-over-tcp", "is not broken here")]
)
def test_an_allowance_that_allows_nothing_is_refused(rule: str, said: str) -> None:
    with pytest.raises(PlanRefused, match=said):
        rules.check(allowing(rule, BOOK[M1]), locked=True)
