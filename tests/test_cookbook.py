"""The shipped SGLang cells say what the cookbook's cells say; every difference is named here with its reason.

Source: data/cookbook-cells.jsonl, read from the SGLang cookbook pages for Laguna-M.1 (revision D) and S-2.1 (revision B).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipway import kernels, plan, recipe
from slipway.engines import schema
from slipway.images import catalogue
from slipway.plan import Process

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = {engine: schema.read_all(ROOT / "images", engine) for engine in ("sglang", "router")}
DATA = (
    SCHEMAS,
    catalogue.read(ROOT / "images", ROOT / "stacks" / "data" / "gpus.yaml"),
    kernels.read(ROOT / "images" / "caches.yaml"),
)
"""What the checkout says beside recipes, inventories and locks."""
CELLS = [json.loads(line) for line in (ROOT / "tests" / "data" / "cookbook-cells.jsonl").read_text().splitlines()]
MODELS = {"m1": "laguna-m.1.sglang", "s21": "laguna-s-2.1.sglang"}

COMMON = {
    "--trust-remote-code": True,
    "--reasoning-parser": "poolside_v1",
    "--tool-call-parser": "poolside_v1",
    "--host": "0.0.0.0",
    "--port": "30000",
}
"""What every command of the pages has besides its own flags."""

ADDED = {
    "--served-model-name": "clients ask for the repository's name, and the weights are read from a checked local folder",
    "--enable-metrics": "the gates compare token counters",
    "--enable-cache-report": "the gates prove that a prompt was fresh",
}

ADDED_ENV = {
    "HF_HUB_OFFLINE": "weights come from a checked folder; nothing is looked up on a hub",
    "SGLANG_CACHE_DIR": "this and the rest: compiled kernels survive the container, in one mounted folder (docs/caches.md)",
    "SGLANG_DG_CACHE_DIR": "its default place moved between releases",
    "SGLANG_JIT_CACHE_DIR": "its default does not follow SGLANG_CACHE_DIR",
    "TRITON_CACHE_DIR": "of a library that SGLang uses",
    "TORCHINDUCTOR_CACHE_DIR": "of a library that SGLang uses",
    "FLASHINFER_WORKSPACE_BASE": "of a library that SGLang uses",
    "TILELANG_CACHE_DIR": "of a library that SGLang uses",
    "CUDA_CACHE_PATH": "of the driver",
    "TVM_FFI_CACHE_DIR": "of a library that SGLang uses",
}

LEFT_OUT = {
    "--fp8-gemm-backend": "needed on 0.5.14 only; on the pinned 0.5.18 it costs 19 % (rule sglang-fp8-triton-slow)",
}

RENAMED = {"--tp": "--tp-size"}  # the page's spelling is an abbreviation


def ours(cell: dict[str, Any]) -> tuple[recipe.Recipe, Process]:
    model, *rest = cell["id"].split("/")
    item = recipe.find(ROOT / "recipes", f"{MODELS[model]}/{'-'.join(rest)}")
    return item, plan.compile_plan(item, None, {}, *DATA).processes[0]


def options(argv: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, word in enumerate(argv):
        if word.startswith("--"):
            following = argv[index + 1] if index + 1 < len(argv) else "--"
            found[word] = True if following.startswith("--") else following
    return found


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell["id"])
def test_flags_and_environment_are_the_cells(cell: dict[str, Any]) -> None:
    item, process = ours(cell)
    wanted = dict(COMMON)
    for flag in cell["flags"]:
        name, _, value = flag.partition(" ")
        wanted[RENAMED.get(name, name)] = value
    for name in LEFT_OUT:
        wanted.pop(name, None)
    found = options(process.argv)
    assert found.pop("--model-path").endswith(f"/{cell['model'].partition('/')[2]}")
    assert found.pop("--served-model-name") == cell["model"]
    if "--speculative-draft-model-path" in wanted:
        drafter = wanted.pop("--speculative-draft-model-path").partition("/")[2]
        assert found.pop("--speculative-draft-model-path").endswith(f"/{drafter}")
    for name in ADDED:
        found.pop(name, None)
    numbers = {"--mem-fraction-static"}
    for name in numbers & wanted.keys():
        assert float(found.pop(name)) == float(wanted.pop(name))
    assert found == wanted
    env = dict(pair.split("=", 1) for pair in cell["env"])
    assert env.items() <= process.env.items()
    assert process.env.keys() - env.keys() == ADDED_ENV.keys()
    assert (item.cell.verified is not None) == cell["ran"]


def test_every_cell_of_the_pages_is_shipped_and_no_other_single_node_cell() -> None:
    shipped = {
        item.id
        for item in recipe.read_book(ROOT / "recipes")
        if item.engine == "sglang" and item.cell.topology == "single" and item.model in {"laguna-m.1", "laguna-s-2.1"}
    }
    assert shipped == {ours(cell)[0].id for cell in CELLS}
    assert len(CELLS) == 14 + 22
