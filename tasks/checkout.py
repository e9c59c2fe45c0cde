"""What every command shares: the checkout they work on, the stack that is meant, and the words of common flags."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipway.plan import Plan
    from slipway.stacks import Checkout, Stack

ROOT = Path(__file__).resolve().parent.parent

JSON = "print one JSON document on stdout"
STACK = "the stack that is meant (default: SLIPWAY_STACK, the selected one, or the only one with an inventory)"
YES = "do it without asking"
RECIPE = "recipe id, as laguna-m.1.sglang/h200-bf16"


def this_checkout() -> Checkout:
    """The checkout that these commands belong to."""
    from slipway.stacks import Checkout

    return Checkout(ROOT)


def stack_meant(stack: str | None) -> Stack:
    """The stack that is meant, read."""
    from slipway import stacks

    return stacks.read(this_checkout(), stacks.choose(this_checkout(), stack))


def name_meant(stack: str | None) -> str:
    """The name of the stack that is meant."""
    from slipway import stacks

    return stacks.choose(this_checkout(), stack)


def plan_meant(recipe: str | None, inventory: str | None, stack: str | None) -> Plan:
    """The plan of a recipe on an inventory, or of a stack."""
    from slipway import book

    return book.compiled(this_checkout(), recipe, Path(inventory) if inventory is not None else None, stack)
