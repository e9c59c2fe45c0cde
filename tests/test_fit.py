"""Fit: the arithmetic agrees with what engines printed on real GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway import fit, recipe
from slipway.recipe import Recipe

BOOK = Path(__file__).resolve().parent.parent / "recipes"


def champion(**role: object) -> Recipe:
    item = recipe.find(BOOK, "laguna-s-2.1.vllm/4x3090-int4-champion")
    return item.model_copy(
        update={"cell": item.cell.model_copy(update={"roles": [item.cell.roles[0].model_copy(update=role)]})}
    )


def test_kv_bytes_per_token_of_m1_are_the_published_ones() -> None:
    """Source: 2 x 70 layers x 8 heads x 128 x 2 bytes = 286,720 bytes per token in BF16, an eighth on each of 8 GPUs."""
    item = recipe.find(BOOK, "laguna-m.1.sglang/h200-bf16")
    assert fit.kv_bytes(item, item.cell.roles[0]) == (286720 // 8, 0)


def test_kv_bytes_per_token_of_the_champion_are_near_the_measured_ones() -> None:
    """Source: a rank-shaped vLLM 0.25.1 printed 1.88 GiB for 213,399 tokens (9,460 bytes per token), 2026-11-30."""
    per_token, fixed = fit.kv_bytes(champion(), champion().cell.roles[0])
    assert per_token == 2 * 2 * 128 * (12 + 6)
    assert per_token == pytest.approx(9460, rel=0.03)
    assert fixed == 2 * 2 * 128 * 36 * 512


def test_weights_per_gpu_are_near_the_measured_ones() -> None:
    """Source: the 4x3090 recipe printed `Model loading took 17.53 GiB memory` with the drafter, 2026-07-22."""
    figures = fit.of(champion(), champion().cell.roles[0], 24)
    assert figures is not None
    assert figures.weights_bytes_per_gpu / fit.GIB == pytest.approx(17.53, rel=0.03)
    assert figures.fits


def test_a_context_that_cannot_fit_is_said_so() -> None:
    item = champion(context_tokens=1048576)
    figures = fit.of(item, item.cell.roles[0], 24)
    assert figures is not None
    assert not figures.fits
    assert figures.largest_context_tokens < 1048576


def test_bf16_kv_takes_twice_the_bytes_of_the_checkpoints_own_fp8() -> None:
    wide = champion(kv_dtype="bfloat16")
    assert fit.kv_bytes(wide, wide.cell.roles[0])[0] == 2 * fit.kv_bytes(champion(), champion().cell.roles[0])[0]


def test_a_role_without_gpus_has_no_figures() -> None:
    tiny = recipe.find(BOOK, "laguna-tiny.reference/laptop")
    assert fit.of(tiny, tiny.cell.roles[0], 0) is None
