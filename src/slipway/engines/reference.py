"""The reference engine's command lines: the numpy server of this package and its router, run by the checkout's own Python."""

from __future__ import annotations

from slipway import engines
from slipway.engines import Command, Launch
from slipway.recipe import Recipe, Role
from slipway.recipe.words import FlagValue

TYPED_FLAGS = frozenset(
    {
        "model",
        "served-model-name",
        "max-model-len",
        "reasoning-parser",
        "tool-call-parser",
        "default-chat-template-kwargs",
        "disaggregation-mode",
        "disaggregation-transfer-backend",
        "disaggregation-bootstrap-port",
        "host",
        "port",
    }
)
"""Flags that Slipway writes from typed fields; a recipe must not spell them itself."""


def command(recipe: Recipe, role: Role, launch: Launch) -> Command:
    """The argv and environment of one reference engine."""
    cell = recipe.cell
    typed: dict[str, FlagValue | None] = {
        "model": launch.model_path,
        "served-model-name": cell.served_name,
        "max-model-len": role.context_tokens,
        "reasoning-parser": cell.parsers.reasoning,
        "tool-call-parser": cell.parsers.tool_call,
        "default-chat-template-kwargs": engines.thinking_kwargs(recipe),
        **_disaggregation(recipe, role),
        "host": role.bind,
        "port": role.port,
    }
    return Command(("python", "-m", "slipway.reference.engine", *engines.flags(typed, role.flags)), dict(role.env))


def router_command(_: Recipe, role: Role, launch: Launch) -> Command:
    """The argv and environment of the router in front of two reference engines; its flags are those of SGLang's router."""
    words = ["python", "-m", "slipway.reference.router", "--pd-disaggregation", *engines.worker_flags(launch)]
    return Command(
        (*words, *engines.flags({}, role.flags), *engines.flags({"host": role.bind, "port": role.port}, {})),
        dict(role.env),
    )


def _disaggregation(recipe: Recipe, role: Role) -> dict[str, FlagValue | None]:
    transfer = recipe.cell.transfer
    if transfer is None:
        return {}
    return {
        "disaggregation-mode": role.name,
        "disaggregation-transfer-backend": transfer.backend,
        "disaggregation-bootstrap-port": transfer.bootstrap_port if role.name == "prefill" else None,
    }
