"""The recipe book as a table, and the plan that a recipe or a stack names."""

from __future__ import annotations

import difflib
import io
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slipway import documents, kernels, plan, recipe, rules, stacks
from slipway.checkpoints import lock
from slipway.engines import schema
from slipway.engines.schema import FlagSchema, SchemaEngine
from slipway.errors import CheckFailed, DocumentError, PlanRefused, UsageError
from slipway.images import catalogue
from slipway.images.catalogue import Catalogue
from slipway.inventory import Inventory
from slipway.kernels import Caches
from slipway.plan import Plan
from slipway.recipe import Recipe
from slipway.recipe.words import Engine
from slipway.stacks import Checkout

Row = dict[str, Any]

FILTERS = ("model", "hardware", "quantization")


def rows(checkout: Checkout, wanted: dict[str, str | None]) -> list[Row]:
    """One row per recipe that matches every filter of `wanted`, under the keys of the command contract.

    Raises: DocumentError, UsageError when a filter matches nothing, with what there is.
    """
    every = [_row(item) for item in recipe.read_book(checkout.recipes)]
    found = every
    for key in FILTERS:
        value = wanted.get(key)
        if value is None:
            continue
        found = [row for row in found if row[key] == value.lower()]
        if not found:
            known = sorted({row[key] for row in every})
            near = [name for name in known if value.lower() in name] or difflib.get_close_matches(value.lower(), known)
            why = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            raise UsageError(f"--{key}", f"no recipe has it (got {value})", why, "drop or correct the filter")
    return found


def table(found: list[Row]) -> str:
    """`found` as a table for a terminal or a file."""
    stream = io.StringIO()
    grid = Table(box=None, pad_edge=False, header_style="")
    for title in ("recipe", "engine", "topology", "run on, by its source"):
        grid.add_column(title, no_wrap=True)
    for row in found:
        verified = row["verified"]
        where = ", ".join(filter(None, (verified["on"], verified["date"]))) if verified else "not run"
        grid.add_row(row["id"], f"{row['engine']} {row['engine_version']}", row["topology"], where)
    Console(file=stream, width=240, color_system=None).print(grid)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def check(checkout: Checkout, found: list[Row]) -> str:
    """Compile a plan for each row and say how many were accepted: every cell against every rule and its engine's own flags.

    Raises: CheckFailed with one line per recipe that is refused.
    """
    schemas, digests, images = _schemas(checkout, tuple(SCHEMA_OF)), lock_digests(checkout), _images(checkout)
    recipes = {item.id: item for item in recipe.read_book(checkout.recipes)}
    refused: list[str] = []
    for row in found:
        try:
            plan.compile_plan(recipes[row["id"]], None, digests, schemas, *images)
        except PlanRefused as error:
            refused.append(f"  {error}")
    if refused:
        problem = f"{len(refused)} of {len(found)} recipes are refused"
        raise CheckFailed(
            "recipes", problem, "\n" + "\n".join(refused), "correct them, or allow the rule with a reason"
        )
    return f"{len(found)} recipes pass {len(rules.RULES)} rules and their engines' own flags\n"


def compiled(checkout: Checkout, recipe_id: str | None, inventory: Path | None, stack: str | None) -> Plan:
    """The plan of `recipe_id` on `inventory` (None: a synthetic one), or of the stack that is meant.

    Raises: UsageError, DocumentError, MissingFile, PlanRefused.
    """
    if recipe_id is not None and stack is not None:
        raise UsageError("--recipe", "stands beside --stack", "a stack names its own recipe", "give one of them")
    if inventory is not None and recipe_id is None:
        raise UsageError("--inventory", "stands without --recipe", "a stack has its own inventory", "give --recipe too")
    if recipe_id is not None:
        hosts = documents.read(inventory, Inventory) if inventory else None
        return _compile(checkout, recipe.find(checkout.recipes, recipe_id), hosts)
    meant = stacks.read(checkout, stacks.choose(checkout, stack))
    return _compile(checkout, stack_recipe(checkout, meant.name, meant.recipe_id), meant.inventory)


def stack_recipe(checkout: Checkout, stack: str, recipe_id: str) -> Recipe:
    """The recipe that the file of `stack` names.

    Raises: UsageError that points at the stack's file, DocumentError, MissingFile.
    """
    try:
        return recipe.find(checkout.recipes, recipe_id)
    except UsageError as error:
        if isinstance(error, DocumentError):
            raise
        place = f"stacks/Pulumi.{stack}.yaml: slipway:recipe"
        raise UsageError(place, error.problem, error.why, error.remedy) from error


def on_hosts(checkout: Checkout, item: Recipe, hosts: Inventory) -> Plan:
    """The plan of the recipe `item` on `hosts`.

    Raises: PlanRefused, DocumentError.
    """
    return _compile(checkout, item, hosts)


def lock_digests(checkout: Checkout) -> dict[str, str]:
    """`repo@revision` → digest of every lock file of the checkout."""
    locks = [lock.read(path) for path in sorted(checkout.locks.glob("*.lock.json"))]
    return {f"{locked.repo}@{locked.revision}": lock.digest(locked) for locked in locks}


def _compile(checkout: Checkout, item: Recipe, hosts: Inventory | None) -> Plan:
    schemas = _schemas(checkout, (item.engine,))
    return plan.compile_plan(item, hosts, lock_digests(checkout), schemas, *_images(checkout))


def _images(checkout: Checkout) -> tuple[Catalogue, Caches]:
    """What the checkout knows about images, and where engines keep compiled kernels."""
    known = catalogue.read(checkout.images, checkout.stacks / "data" / "gpus.yaml")
    return known, kernels.read(checkout.images / "caches.yaml")


SCHEMA_OF: dict[Engine, tuple[SchemaEngine, ...]] = {"sglang": ("sglang", "router"), "vllm": ("vllm",), "reference": ()}
"""Engine of a recipe → the flag schemas that its command lines need."""


def _schemas(checkout: Checkout, engines: tuple[Engine, ...]) -> dict[str, dict[str, FlagSchema]]:
    names = {name for engine in engines for name in SCHEMA_OF[engine]}
    return {name: schema.read_all(checkout.images, name) for name in sorted(names)}


def _row(item: Recipe) -> Row:
    cell = item.cell
    return {
        "id": item.id,
        "model": item.model,
        "engine": item.engine,
        "engine_version": item.engine_version,
        "hardware": cell.hardware,
        "quantization": cell.quantization,
        "strategy": cell.strategy,
        "topology": cell.topology,
        "verified": cell.verified.as_json() if cell.verified else None,
    }
