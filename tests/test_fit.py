"""Fit: the arithmetic agrees with what engines printed on real GPUs, and plans that cannot fit are refused with it.

Sources: the 4x3090 recipe's BENCHMARKS.md (2026-07-22); vLLM 0.25.1 on one H200, weight-less (2026-11-30).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slipway import fit, kernels, plan, recipe
from slipway.engines import schema
from slipway.errors import PlanRefused
from slipway.images import catalogue
from slipway.inventory import RdmaDevice
from slipway.recipe import Recipe

BOOK = Path(__file__).resolve().parent.parent / "recipes"
SCHEMAS = {engine: schema.read_all(BOOK.parent / "images", engine) for engine in ("vllm", "sglang", "router")}
DATA = (
    SCHEMAS,
    catalogue.read(BOOK.parent / "images", BOOK.parent / "stacks" / "data" / "gpus.yaml"),
    kernels.read(BOOK.parent / "images" / "caches.yaml"),
)
"""What the checkout says beside recipes, inventories and locks."""
CHAMPION = recipe.find(BOOK, "laguna-s-2.1.vllm/4x3090-int4-champion")
M1 = recipe.find(BOOK, "laguna-m.1.sglang/h200-bf16")


def changed(
    item: Recipe, *, cell: dict[str, Any] | None = None, flags: dict[str, Any] | None = None, **role: Any
) -> Recipe:
    old = item.cell.roles[0]
    new = old.model_copy(update={**role, "flags": {**old.flags, **(flags or {})}})
    return item.model_copy(update={"cell": item.cell.model_copy(update={"roles": [new], **(cell or {})})})


def one_h200(*, drafter: bool) -> Recipe:
    """The champion's model on one H200 at tp 1, as it was run without weights."""
    needs = CHAMPION.cell.requires.model_copy(update={"gpus_per_node": 1, "gpu_memory_gib": 140.4})
    spec = CHAMPION.cell.speculation if drafter else None
    return changed(CHAMPION, cell={"requires": needs, "speculation": spec}, tp=1)


@dataclass(frozen=True)
class Measured:
    """One start-up: what was printed."""

    name: str
    recipe: Recipe
    gpu_gib: float
    weights_gib: float | None
    pool_tokens: int


def ladder(name: str, context: int, fraction: float, sequences: int, batch: int, pool: int) -> Measured:
    flags = {"max-num-seqs": sequences, "max-num-batched-tokens": batch}
    item = changed(CHAMPION, flags=flags, context_tokens=context, gpu_memory_fraction=fraction)
    return Measured(name, item, 24, 17.53, pool)


POINTS = [
    Measured("H200 tp1 plain", one_h200(drafter=False), 140.4, 67.34, 2_242_639),
    Measured("H200 tp1 DFlash", one_h200(drafter=True), 140.4, 69.41, 1_441_481),
    ladder("3090 champion 200K", 204_800, 0.87, 4, 2048, 212_822),
    ladder("3090 176K", 180_224, 0.87, 4, 2048, 212_112),
    ladder("3090 batch 4096 128K", 131_072, 0.88, 4, 4096, 193_917),
    ladder("3090 batch 4096 192K", 196_608, 0.88, 4, 4096, 198_273),
    ladder("3090 seqs 8 128K", 131_072, 0.88, 8, 2048, 160_335),
]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_weights_are_within_ten_and_pools_within_fifteen_percent_of_what_was_printed(point: Measured) -> None:
    figures = fit.of(point.recipe, point.recipe.cell.roles[0], point.gpu_gib)
    assert figures is not None
    if point.weights_gib:
        assert figures.weights_bytes_per_gpu / fit.GIB == pytest.approx(point.weights_gib, rel=0.10)
    assert figures.pool_tokens == pytest.approx(point.pool_tokens, rel=0.15)
    assert not figures.hopeless


def test_bytes_per_token_at_the_context_are_the_printed_ones() -> None:
    """53.27 GiB for 2,242,639 tokens, 50.73 GiB for 1,441,481, and 1.88 GiB for 213,399 on the rank shape."""
    for item, printed in ((one_h200(drafter=False), 25_505), (one_h200(drafter=True), 37_789), (CHAMPION, 9_460)):
        per_token, fixed = fit.kv_bytes(item, item.cell.roles[0])
        assert per_token + fixed / 204_800 == pytest.approx(printed, rel=0.002)


def test_kv_bytes_per_token_of_m1_are_the_published_ones() -> None:
    """2 x 70 layers x 8 heads x 128 x 2 bytes = 286,720 bytes per token in BF16, an eighth on each of 8 GPUs."""
    assert fit.kv_bytes(M1, M1.cell.roles[0]) == (286_720 // 8, 0)


@pytest.mark.parametrize(
    ("recipe_id", "billions"), [("laguna-m.1.sglang/h200-bf16", 225), ("laguna-s-2.1.vllm/8xh200-bf16", 117.6)]
)
def test_parameters_add_up_to_the_published_totals(recipe_id: str, billions: float) -> None:
    assert fit.parameters(recipe.find(BOOK, recipe_id).architecture) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(
    ("recipe_id", "gigabytes"),
    [
        ("laguna-m.1.sglang/h200-bf16", 450),
        ("laguna-m.1.sglang/h200-fp8", 225),
        ("laguna-m.1.sglang/b200-nvfp4", 135),
        ("laguna-s-2.1.vllm/8xh200-bf16", 235),
        ("laguna-s-2.1.vllm/2xh200-fp8", 121),
        ("laguna-s-2.1.vllm/1xb200-nvfp4", 71.94),
    ],
)
def test_checkpoint_sizes_are_the_published_ones(recipe_id: str, gigabytes: float) -> None:
    item = recipe.find(BOOK, recipe_id)
    role = item.cell.roles[0]
    routers = item.architecture.router_parameters * 4 * (item.cell.gpus(role) - 1)
    total = fit.weights_bytes_per_gpu(item, role) * item.cell.gpus(role) - routers
    assert total / 1e9 == pytest.approx(gigabytes, rel=0.06)


@pytest.mark.parametrize(
    "change",
    [
        {"context_tokens": 262_144},  # a full window with the drafter: the source reports out of memory
        {"gpu_memory_fraction": 0.85, "context_tokens": 32_768, "flags": {"max-num-seqs": 256}},  # KV rejected at start
        {"kv_dtype": "bfloat16"},  # twice the bytes
    ],
)
def test_what_did_not_boot_is_refused_with_the_arithmetic(change: dict[str, Any]) -> None:
    with pytest.raises(PlanRefused, match=r"does-not-fit.*per GPU \d+\.\d\d GiB .* weights .* for KV") as caught:
        plan.compile_plan(changed(CHAMPION, **change), None, {}, *DATA)
    assert caught.value.exit_code == 2


def test_a_context_at_the_limit_is_warned_about_and_not_refused() -> None:
    made = plan.compile_plan(changed(CHAMPION, context_tokens=220_000), None, {}, *DATA)
    assert not made.fit[0].fits
    assert "near-the-memory-limit" in {warning.rule for warning in made.warnings}


def test_every_shipped_recipe_fits_the_hardware_it_names() -> None:
    for item in recipe.read_book(BOOK):
        assert all(figures.fits for figures in plan.compile_plan(item, None, {}, *DATA).fit), item.id


@pytest.mark.parametrize(("nics", "seconds"), [(8, 0.104), (1, 0.835), (0, 110.5)])
def test_a_prompts_kv_takes_as_long_as_the_fabric_lets_it(nics: int, seconds: float) -> None:
    """128K tokens of M.1 are 37.6 GB: 0.1 s over eight 400 Gb/s devices, nearly two minutes over TCP."""
    devices = [RdmaDevice(name=f"mlx5_{number}", rate_gbps=400) for number in range(nics)]
    moved = fit.transfer_time(M1, M1.cell.roles[0], devices, 131_072)
    assert moved.payload_bytes == 286_720 * 131_072
    assert moved.seconds == pytest.approx(seconds, rel=0.01)


def test_a_role_without_gpus_has_no_figures() -> None:
    tiny = recipe.find(BOOK, "laguna-tiny.reference/laptop")
    assert fit.of(tiny, tiny.cell.roles[0], 0) is None
