"""Rules: each one speaks when it must, and only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipway import recipe, rules
from slipway.errors import PlanRefused
from slipway.recipe import Recipe

BOOK = Path(__file__).resolve().parent.parent / "recipes"
CHAMPION = "laguna-s-2.1.vllm/4x3090-int4-champion"
M1 = "laguna-m.1.sglang/h200-bf16"


def changed(
    recipe_id: str, *, file: dict[str, Any] | None = None, cell: dict[str, Any] | None = None, **role: Any
) -> Recipe:
    item = recipe.find(BOOK, recipe_id)
    new_role = item.cell.roles[0].model_copy(update=role)
    new_cell = item.cell.model_copy(update={"roles": [new_role], **(cell or {})})
    return item.model_copy(update={"cell": new_cell, **(file or {})})


BREAKING = {
    "typed-flag-spelled-twice": changed(CHAMPION, flags={"port": 1}),
    "sglang-yarn-scale": changed(M1, file={"engine_version": "0.5.15.post1"}),
    "dflash-memory-headroom": changed(CHAMPION, gpu_memory_fraction=0.90),
    "thinking-unstated": changed(CHAMPION, cell={"thinking": None}),
    "cached-tokens-unproven": changed(CHAMPION),
    "metrics-off": changed(M1, flags={}),
    "public-without-key": changed(CHAMPION),
    "checkpoint-unlocked": changed(CHAMPION),
}

MENDED = {
    "typed-flag-spelled-twice": changed(CHAMPION),
    "sglang-yarn-scale": changed(M1),
    "dflash-memory-headroom": changed(CHAMPION),
    "thinking-unstated": changed(CHAMPION),
    "cached-tokens-unproven": changed(CHAMPION, flags={"enable-prompt-tokens-details": True}),
    "metrics-off": changed(M1, flags={"enable-metrics": True}),
    "public-without-key": changed(CHAMPION, bind="127.0.0.1"),
}


def speaking(item: Recipe, *, locked: bool = False) -> set[str]:
    try:
        return {finding.rule.id for finding in rules.check(item, locked)}
    except PlanRefused as error:
        return {error.rule}


@pytest.mark.parametrize("rule", BREAKING)
def test_a_rule_speaks_where_it_is_broken(rule: str) -> None:
    assert rule in speaking(BREAKING[rule])


@pytest.mark.parametrize("rule", MENDED)
def test_a_rule_is_silent_where_it_is_kept(rule: str) -> None:
    assert rule not in speaking(MENDED[rule])


def test_a_locked_checkpoint_is_not_warned_about() -> None:
    assert "checkpoint-unlocked" not in speaking(changed(CHAMPION), locked=True)


@pytest.mark.parametrize("change", [{"tp": 4}, {"pp": 2}, {"page_size_tokens": 64}, {"kv_dtype": "fp8_e4m3"}])
def test_prefill_and_decode_must_have_one_kv_layout(change: dict[str, Any]) -> None:
    item = recipe.find(BOOK, M1)
    prefill = item.cell.roles[0].model_copy(update={"name": "prefill"})
    decode = prefill.model_copy(update={"name": "decode", "port": 30001})
    pair = item.model_copy(update={"cell": item.cell.model_copy(update={"roles": [prefill, decode]})})
    assert "pd-unequal-parallelism" not in speaking(pair)
    wrong = [prefill, decode.model_copy(update=change)]
    pair = item.model_copy(update={"cell": item.cell.model_copy(update={"roles": wrong})})
    with pytest.raises(PlanRefused, match=r"roles\.decode: prefill and decode differ"):
        rules.check(pair, locked=True)


def test_every_rule_is_complete_and_tested() -> None:
    ids = [rule.id for rule in rules.RULES]
    assert len(set(ids)) == len(ids)
    assert set(ids) == BREAKING.keys() | {"pd-unequal-parallelism"}
    for rule in rules.RULES:
        assert all((rule.message, rule.why, rule.remedy, rule.source)), rule.id


@pytest.mark.parametrize(("text", "numbers"), [("0.5.18", (0, 5, 18)), ("0.5.15.post1", (0, 5, 15)), ("1.0", (1, 0))])
def test_a_release_is_its_leading_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert rules.release(text) == numbers
