"""The run's evidence as one document.

`RunReport` holds facts only; `terminal` shows them, `page` saves them as JSON and as one self-contained HTML file (it is
apart because its plots take a second to import). A report that was read back has passed the same checks as one that was
made, so a damaged or foreign file ends in a DocumentError and never in a picture.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from slipway import __version__
from slipway.bench import BenchResult
from slipway.documents import Document
from slipway.errors import DocumentError, Problem, UsageError, from_os_error
from slipway.gates import GateResult
from slipway.steps import StepResult

MAX_BYTES = 200_000_000
"""Largest report read: a thousand requests with a thousand frames each have about 10 MB."""

Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=10**18)]


class Engine(Document):
    """What served the model."""

    name: str
    version: str


class CheckpointFacts(Document):
    """Which weights were served; `lock_digest` is the digest of the lock that every file was checked against."""

    repo: str
    revision: str
    files: Annotated[int, Field(ge=0)]
    total_bytes: Bytes
    lock_digest: str


class GpuFacts(Document):
    """One GPU as the host names it."""

    name: str
    memory_bytes: Bytes
    driver: str = ""


class HostFacts(Document):
    """The machine that the run was done on."""

    cpu: str
    cores: Annotated[int, Field(ge=0)]
    memory_bytes: Bytes
    os: str
    python: str
    gpus: tuple[GpuFacts, ...] = ()


class EndpointFacts(Document):
    """Where the model was served, and under which name."""

    url: str
    served_name: str


class RunReport(Document):
    """Everything a run has to show for itself."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_: Literal["slipway/run-report/v1"] = Field("slipway/run-report/v1", alias="schema")
    created_at: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC))
    slipway_version: str = __version__
    stack: str | None = None
    recipe: str
    deployment_digest: str
    engine: Engine
    checkpoint: CheckpointFacts | None = None
    host: HostFacts
    steps: tuple[StepResult, ...] = ()
    gates: tuple[GateResult, ...] = ()
    bench: BenchResult | None = None
    endpoint: EndpointFacts | None = None

    @property
    def passed(self) -> bool:
        """True when at least one gate ran, every gate passed, no step failed, and every request of the bench completed."""
        return (
            bool(self.gates)
            and all(gate.passed for gate in self.gates)
            and all(step.status != "failed" for step in self.steps)
            and (self.bench is None or self.bench.failed == 0)
        )

    @property
    def verdict(self) -> Literal["passed", "not passed", "measured, no gate was run"]:
        """What is said about the run as a whole; a measurement alone neither passes nor fails."""
        if self.passed:
            return "passed"
        failed = any(step.status == "failed" for step in self.steps) or (self.bench is not None and self.bench.failed)
        return "not passed" if self.gates or failed or self.bench is None else "measured, no gate was run"

    def saved_text(self) -> str:
        """The document as it is saved: indented, with each list of numbers on one line."""
        text = json.dumps(self.model_dump(mode="json", by_alias=True), indent=1, ensure_ascii=False)
        # A newline inside a string is escaped in JSON, so this never matches within one.
        return re.sub(r"\[\n[-+0-9.eE,\s]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


def from_json(path: Path | str) -> RunReport:
    """The report saved at `path`.

    Raises: MissingFile, DiskFailure, DocumentError with every problem when the file is damaged or not a run report.
    """
    file = Path(path)
    try:
        size_bytes = file.stat().st_size
        if size_bytes > MAX_BYTES:
            raise _problem(path, f"is {size_bytes} bytes; a report has at most {MAX_BYTES}")
        raw = file.read_bytes()
    except OSError as error:
        raise from_os_error(error, path, "reading the report") from error
    try:
        return RunReport.model_validate_json(raw)
    except ValidationError as error:
        raise DocumentError([_explained(str(path), detail) for detail in error.errors()[:20]]) from None
    except UsageError as error:
        raise _problem(path, f"bench.load: {error}") from None


def _explained(name: str, detail: ErrorDetails) -> Problem:
    """One pydantic error as a problem of the file; `loc` is named as in the file, where it is JSON with no useful lines."""
    if detail["type"] == "json_invalid":
        return Problem(name, 1, 1, "", f"is not valid JSON: {detail['msg'].removeprefix('Invalid JSON: ')}")
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).lstrip(".")
    got = "" if isinstance(detail["input"], dict | list) else f" (got {str(detail['input'])[:60]!r})"
    return Problem(name, 1, 1, where, f"{detail['msg'][:1].lower()}{detail['msg'][1:]}{got}")


def _problem(path: Path | str, text: str) -> DocumentError:
    return DocumentError([Problem(str(path), 1, 1, "", text)])
