"""`invoke demo`: the main job on the embedded default, each step with what it proved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway import bench, book, evidence, gates, models, recipe, serving, stacks, steps
from slipway.bench import BenchResult, Load
from slipway.checkpoints import lock as locks
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.publish import published
from slipway.errors import SlipwayError
from slipway.evidence import Saved
from slipway.gates import GateResult, smoke
from slipway.plan import Plan
from slipway.progress import Progress, human_bytes
from slipway.reference import embedded
from slipway.stacks import Checkout, Stack
from slipway.steps import Done, Step, StepResult

STACK = "laptop"

LOAD = Load(concurrency=2, requests=24, input_tokens=64, output_tokens=64)
"""Small enough for two cores, large enough for medians."""


def run(checkout: Checkout, *, keep: bool, progress: Progress) -> Saved:
    """The report of the whole job: lock, fetch, plan, launch, gates, bench. The engine is stopped at the end unless `keep`.

    A step that fails leaves a report too. Raises: what the failing step raises.
    """
    stack = stacks.read(checkout, STACK)
    plan = book.compiled(checkout, None, None, STACK)
    (checkpoint,) = recipe.find(checkout.recipes, stack.recipe_id).checkpoints
    lock = locks.read(checkout.root / locks.default_path(checkpoint.repo))
    journey = Journey(checkout, stack, plan, lock, progress)
    results: list[StepResult] = []
    with _stopped_afterwards(journey, keep):
        try:
            for result in steps.run(journey.steps(), journey.folder, progress):
                results.append(result)
        except SlipwayError as error:
            name = journey.steps()[len(results)].name
            results.append(StepResult(name=name, status="failed", proved=str(error), seconds=0))
            with contextlib.suppress(SlipwayError):  # a full disk must not hide why the step failed
                journey.keep(results)
            raise
    return journey.keep(results)


@contextlib.contextmanager
def _stopped_afterwards(journey: Journey, keep: bool) -> Iterator[None]:
    """Stop the engine when the block ends, however it ends, if this demo started it."""
    try:
        yield
    finally:
        if journey.started and not keep:
            serving.deployment(journey.checkout, STACK).stop()
            journey.progress.note("stopped the engine (keep it with --keep)")
        elif serving.deployment(journey.checkout, STACK).status().running:
            journey.progress.note(f"left running: `invoke status --stack {STACK}`, `invoke stop --stack {STACK}`")


@dataclass
class Journey:
    """The steps of the demo and what they hand to each other."""

    checkout: Checkout
    stack: Stack
    plan: Plan
    lock: CheckpointLock
    progress: Progress
    started: bool = False
    gates: list[GateResult] = field(default_factory=list)
    bench: BenchResult | None = None

    @property
    def folder(self) -> Path:
        """Where the steps keep their evidence."""
        return self.checkout.state / "steps" / STACK

    def steps(self) -> list[Step]:
        """The steps in order; those that prove something about now always run."""
        inputs = {"lock": locks.digest(self.lock)}
        return [
            Step("lock", inputs, self._compare_lock, self._lock_compared),
            Step("fetch", inputs, self._fetch, self._fetched),
            Step("plan", {}, self._plan),
            Step("launch", {}, self._launch),
            Step("gates", {}, self._gates),
            Step("bench", {}, self._bench),
        ]

    def keep(self, results: list[StepResult]) -> Saved:
        """The report of `results`, saved."""
        return evidence.keep(self.checkout, self.plan, steps=results, gates=self.gates, bench=self.bench)

    def _compare_lock(self) -> Done:
        repo = self.lock.repo
        models.lock(self.checkout, repo, "main", self._lock_path, check=True, progress=self.progress)
        count, size = len(self.lock.files), human_bytes(self.lock.summary.total_bytes)
        proved = f"{repo}@{self.lock.revision[:12]}: {count} files, {size}; hub and {self._lock_path.name} agree"
        return Done(proved=proved, evidence={})

    def _lock_compared(self, _: dict[str, Any]) -> str | None:
        if not (self.checkout.state / "hub" / embedded.REPO).is_dir():
            return None
        return f"{self._lock_path.name} is unchanged since it was compared with the hub"

    def _fetch(self) -> Done:
        _, text = models.fetch(self.checkout, [self.lock], None, workers=4, progress=self.progress)
        return Done(proved=text.strip(), evidence={})

    def _fetched(self, _: dict[str, Any]) -> str | None:
        folder = published(self.lock, self.checkout.models)
        return f"{len(self.lock.files)} files in {folder}, none touched since its digest was proved" if folder else None

    def _plan(self) -> Done:
        stacks.save_inventory(self.checkout, self.stack)
        return Done(proved=f"{self.plan.recipe}, deployment {self.plan.deployment_digest}", evidence={})

    def _launch(self) -> Done:
        up = serving.up(self.checkout, self.plan, timeout_s=120, progress=self.progress)
        self.started = bool(up.launched.started)
        return Done(proved=up.text().strip().replace("\n", "; "), evidence={})

    def _gates(self) -> Done:
        result = smoke.run(serving.endpoint(self.checkout, STACK, None, None), progress=self.progress)
        self.gates.append(result)
        gates.refuse_failed(self.gates)
        return Done(proved=f"gate {result.gate} passed, {len(result.checks)} checks", evidence={})

    def _bench(self) -> Done:
        self.bench = bench.run(serving.endpoint(self.checkout, STACK, None, None), LOAD, progress=self.progress)
        bench.refuse_failed(self.bench)
        return Done(proved=bench.sentence(self.bench), evidence={})

    @property
    def _lock_path(self) -> Path:
        return self.checkout.root / locks.default_path(self.lock.repo)
