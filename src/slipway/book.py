"""The recipe book as a table, and the plan that a recipe or a stack names."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slipway import documents, plan, recipe, stacks
from slipway.checkpoints import lock
from slipway.errors import DocumentError, UsageError
from slipway.inventory import Inventory
from slipway.plan import Plan
from slipway.recipe import Recipe
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
            known = ", ".join(sorted({row[key] for row in every}))
            raise UsageError(
                f"--{key}", f"no recipe has it (got {value})", f"known: {known}", "drop or correct the filter"
            )
    return found


def table(found: list[Row]) -> str:
    """`found` as a table for a terminal or a file."""
    stream = io.StringIO()
    grid = Table(box=None, pad_edge=False, header_style="")
    for title in ("recipe", "engine", "topology", "strategy", "run on, by its source"):
        grid.add_column(title, overflow="fold")
    for row in found:
        verified = row["verified"]
        where = f"{verified['on']}, {verified['date']}" if verified else "not run"
        grid.add_row(row["id"], f"{row['engine']} {row['engine_version']}", row["topology"], row["strategy"], where)
    Console(file=stream, width=140, color_system=None).print(grid)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def check(checkout: Checkout, found: list[Row]) -> None:
    """Compile a plan for each row; nothing when all are accepted.

    Raises: PlanRefused for the first that is not.
    """
    for row in found:
        compiled(checkout, row["id"], None, None)


def compiled(checkout: Checkout, recipe_id: str | None, inventory: Path | None, stack: str | None) -> Plan:
    """The plan of `recipe_id` on `inventory` (None: a synthetic one), or of the stack that is meant.

    Raises: UsageError, DocumentError, MissingFile, PlanRefused.
    """
    if recipe_id and stack:
        raise UsageError("--recipe", "stands beside --stack", "a stack names its own recipe", "give one of them")
    if inventory and not recipe_id:
        raise UsageError("--inventory", "stands without --recipe", "a stack has its own inventory", "give --recipe too")
    digests = lock_digests(checkout)
    if recipe_id:
        hosts = documents.read(inventory, Inventory) if inventory else None
        return plan.compile_plan(recipe.find(checkout.recipes, recipe_id), hosts, digests)
    meant = stacks.read(checkout, stacks.choose(checkout, stack))
    try:
        found = recipe.find(checkout.recipes, meant.recipe_id)
    except UsageError as error:
        if isinstance(error, DocumentError):
            raise
        place = f"stacks/Pulumi.{meant.name}.yaml: slipway:recipe"
        raise UsageError(place, error.problem, error.why, error.remedy) from error
    return plan.compile_plan(found, meant.inventory, digests)


def lock_digests(checkout: Checkout) -> dict[str, str]:
    """`repo@revision` → digest of every lock file of the checkout."""
    locks = [lock.read(path) for path in sorted(checkout.locks.glob("*.lock.json"))]
    return {f"{locked.repo}@{locked.revision}": lock.digest(locked) for locked in locks}


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
