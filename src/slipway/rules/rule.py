"""What a rule is, and what it is asked about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slipway.engines.schema import release
from slipway.recipe import Recipe, Role
from slipway.recipe.words import FlagValue

BLACKWELL = frozenset({"b200", "b300", "gb200", "gb300", "rtx-pro-6000", "gb10"})


@dataclass(frozen=True)
class Case:
    """One role of a recipe, and whether its checkpoints are locked."""

    recipe: Recipe
    role: Role
    locked: bool

    @property
    def version(self) -> tuple[int, ...]:
        """The engine's release numbers, as (0, 5, 18)."""
        return release(self.recipe.engine_version)

    @property
    def speculates(self) -> bool:
        """Whether the cell has a drafter."""
        return self.recipe.cell.speculation is not None

    @property
    def windowed(self) -> bool:
        """Whether some layers of the model attend to a window only."""
        return self.recipe.architecture.sliding_window_tokens > 0

    def serves_with(self, engine: str) -> bool:
        """Whether the role is a server of `engine`, not its router."""
        return self.recipe.engine == engine and self.role.name != "router"

    def flag(self, name: str) -> FlagValue | None:
        """The value of a verbatim flag, None where it is not set."""
        return self.role.flags.get(name)

    def has(self, name: str) -> bool:
        """Whether the role sets the switch `name`."""
        return self.flag(name) is True

    def sets_any(self, *names: str) -> bool:
        """Whether one of the flags is set to anything but off."""
        return any(self.flag(name) not in (None, False, 0, 1, "none") or self.has(name) for name in names)


@dataclass(frozen=True)
class Rule:
    """One rule: it speaks where `broken` is true. `refuse` stops the plan, `warn` is printed with it."""

    id: str
    severity: Literal["refuse", "warn"]
    broken: Callable[[Case], bool]
    message: str
    why: str
    remedy: str
    source: str
    once: bool = False
    """Said of the recipe, not of each role."""
