"""From a recipe's role to the engine's own command line: pure functions, one module per engine.

What a role types (`tp`, `port`, `context_tokens` …) is spelled here in the engine's canonical flags; everything else is
taken verbatim from `flags`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slipway.recipe import Recipe
from slipway.recipe.words import FlagValue


@dataclass(frozen=True)
class Worker:
    """A server behind a router; `bootstrap_port` is set for prefill."""

    role: str
    url: str
    bootstrap_port: int | None


@dataclass(frozen=True)
class Launch:
    """What an engine needs to know beyond the recipe: addresses and paths as the process itself sees them."""

    model_path: str
    drafter_path: str | None = None
    rdma_devices: tuple[str, ...] = ()
    """The node's own devices that the role pins, in order."""
    fabric_env: dict[str, str] = field(default_factory=dict)
    """What the node's fabric asks for besides (recipe: transfer.fabrics)."""
    address: str = ""
    """How other nodes reach this one."""
    workers: tuple[Worker, ...] = ()
    """For a router: what it routes to."""


@dataclass(frozen=True)
class Command:
    """The engine's argv without its container's entrypoint, and the environment it needs; no secret stands in either."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


def spell(flag: str, value: FlagValue) -> Iterator[str]:
    """The words of `--flag value`: none for null, one for a switch, several for a list, JSON for a mapping."""
    if value is True:
        yield f"--{flag}"
    elif value is False:
        yield f"--no-{flag}"
    elif isinstance(value, dict):
        yield from (f"--{flag}", compact_json(value))
    elif isinstance(value, str) and value.startswith("-"):
        yield f"--{flag}={value}"  # argparse would take the value for a flag
    elif isinstance(value, list):
        yield from (f"--{flag}", *(str(item) for item in value))
    else:
        yield from (f"--{flag}", str(value))


def compact_json(value: object) -> str:
    """`value` as JSON without spaces, as the engines' own examples write JSON flags."""
    return json.dumps(value, separators=(",", ":"))


def flags(typed: Mapping[str, FlagValue | None], verbatim: Mapping[str, FlagValue]) -> tuple[str, ...]:
    """The words of the typed flags that are set, then those of the verbatim ones, in the recipe's order."""
    given = {flag: value for flag, value in typed.items() if value is not None}
    return tuple(word for source in (given, verbatim) for flag, value in source.items() for word in spell(flag, value))


def worker_flags(launch: Launch) -> Iterator[str]:
    """The words that name a router's servers: `--prefill URL BOOTSTRAP_PORT` and `--decode URL`."""
    for worker in launch.workers:
        yield from (f"--{worker.role}", worker.url)
        if worker.bootstrap_port is not None:
            yield str(worker.bootstrap_port)


def thinking_kwargs(recipe: Recipe) -> FlagValue | None:
    """The chat template's default arguments, or None where the recipe leaves thinking to the template."""
    thinking = recipe.cell.thinking
    return None if thinking is None else {"enable_thinking": thinking}
