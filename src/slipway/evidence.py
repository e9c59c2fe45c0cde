"""The report of what was done to a stack: written by the demo, by the gates and by the bench, read by `invoke report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from slipway import models
from slipway.bench import BenchResult
from slipway.checkpoints import lock as locks
from slipway.gates import GateResult
from slipway.plan import Plan
from slipway.report import CheckpointFacts, EndpointFacts, Engine, RunReport, terminal
from slipway.report.host import this_host
from slipway.report.page import Paths, save
from slipway.stacks import Checkout
from slipway.steps import StepResult


@dataclass(frozen=True)
class Saved:
    """A report and where it lies."""

    report: RunReport
    paths: Paths

    def as_json(self) -> dict[str, Any]:
        """The report, with the paths of its files."""
        return {**self.report.as_json(), "files": {"json": str(self.paths.json), "html": str(self.paths.html)}}

    def show(self, console: Console) -> None:
        """Draw the summary; the last line is where to look next."""
        terminal.show(self.report, console)
        self.show_path(console)

    def show_path(self, console: Console) -> None:
        """Say where the page is."""
        console.print(f"report: {self.paths.html}", soft_wrap=True, markup=False)


def keep(
    checkout: Checkout,
    plan: Plan,
    *,
    steps: Sequence[StepResult] = (),
    gates: Sequence[GateResult] = (),
    bench: BenchResult | None = None,
) -> Saved:
    """The report of what was found about the stack of `plan`, written into a folder of its own.

    Raises: DiskFailure.
    """
    now = datetime.now(UTC)
    door = plan.front_door
    report = RunReport(
        created_at=now,
        stack=plan.inventory,
        recipe=plan.recipe,
        deployment_digest=plan.deployment_digest,
        engine=Engine(name=plan.engine, version=plan.engine_version),
        checkpoint=_checkpoint(checkout, plan),
        host=this_host(),
        steps=tuple(steps),
        gates=tuple(gates),
        bench=bench,
        endpoint=EndpointFacts(url=door.url, served_name=door.served_name),
    )
    return Saved(report, save(report, checkout.reports / f"{now:%Y%m%dT%H%M%S.%fZ}-{plan.inventory}"))


def _checkpoint(checkout: Checkout, plan: Plan) -> CheckpointFacts | None:
    """What the target's lock says; None where it has none."""
    lock = models.lock_of(checkout, plan.checkpoints[0].repo, plan.checkpoints[0].revision)
    if lock is None:
        return None
    return CheckpointFacts(
        repo=lock.repo,
        revision=lock.revision,
        files=len(lock.files),
        total_bytes=lock.summary.total_bytes,
        lock_digest=locks.digest(lock),
    )
