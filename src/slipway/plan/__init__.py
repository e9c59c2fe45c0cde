"""The plan: exactly which processes start where, with which argv. Dry run prints it, launch executes it, the digest names it."""

from slipway.plan.compiler import Schemas, compile_plan
from slipway.plan.model import (
    FrontDoor,
    LockedCheckpoint,
    Mount,
    Plan,
    PlanWarning,
    Process,
    PublishedPort,
)
from slipway.plan.render import changes, docker_argv, shell_text

__all__ = [
    "FrontDoor",
    "LockedCheckpoint",
    "Mount",
    "Plan",
    "PlanWarning",
    "Process",
    "PublishedPort",
    "Schemas",
    "changes",
    "compile_plan",
    "docker_argv",
    "shell_text",
]
