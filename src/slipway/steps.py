"""An ordered list of resumable steps, each skipped while its recorded evidence still matches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from slipway.documents import Document, digest, read_json
from slipway.errors import DocumentError, MissingFile, from_os_error
from slipway.progress import Progress


class Done(Document):
    """What a step came to; `evidence` is what must still hold for the step to be skipped next time."""

    proved: str
    evidence: dict[str, Any]


class StepResult(Document):
    """One line of a run: what was done or skipped, what it proved, and how long it took."""

    name: str
    status: Literal["done", "skipped", "failed"]
    proved: str
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)


class StepRecord(Document):
    """What is kept about a step that was done."""

    inputs_digest: str
    done: Done


@dataclass(frozen=True)
class Step:
    """One step. `inputs` name everything it depends on; `holds` says why recorded evidence is still true, or None.

    A step without `holds` proves something about now (a gate, a benchmark), so it always runs.
    """

    name: str
    inputs: dict[str, Any]
    run: Callable[[], Done]
    holds: Callable[[dict[str, Any]], str | None] | None = None


def run(steps: Sequence[Step], folder: Path, progress: Progress) -> Iterator[StepResult]:
    """The results of `steps`, one at a time and in order; evidence is kept in `folder`, one file per step.

    Raises: whatever a step raises; the steps before it keep their evidence, so the next run goes on from there.
    """
    for number, step in enumerate(steps, 1):
        begin = time.monotonic()
        label = f"[{number}/{len(steps)}] {step.name}"
        why = _still_holds(step, folder)
        if why is not None:
            progress.note(f"{label}: skipped, {why}")
            yield StepResult(name=step.name, status="skipped", proved=why, seconds=time.monotonic() - begin)
            continue
        done = step.run()
        seconds = time.monotonic() - begin
        _record(step, done, folder)
        progress.note(f"{label}: {done.proved} ({seconds:.1f} s)")
        yield StepResult(name=step.name, status="done", proved=done.proved, seconds=seconds)


def _still_holds(step: Step, folder: Path) -> str | None:
    if step.holds is None:
        return None
    try:
        record = read_json(_path(step, folder), StepRecord)
    except (MissingFile, DocumentError):
        return None  # no evidence, or evidence nobody can read: the step runs
    if record.inputs_digest != digest(step.inputs):
        return None
    return step.holds(record.done.evidence)


def _record(step: Step, done: Done, folder: Path) -> None:
    if step.holds is None:
        return
    path = _path(step, folder)
    record = StepRecord(inputs_digest=digest(step.inputs), done=done)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(record.as_json(), indent=1), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise from_os_error(error, path, f"recording the evidence of {step.name}") from error


def _path(step: Step, folder: Path) -> Path:
    return folder / f"{step.name.replace(' ', '-')}.json"
