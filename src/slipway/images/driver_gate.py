"""Whether the driver of a host can run the CUDA of an image: pure arithmetic on two dated tables.

A container brings its own CUDA, and the host's driver must know it. Three cases are told apart:

- *The driver is as new as the image's CUDA*: nothing to say.
- *Same major version, older minor*: compiled kernels run, PTX of the newer compiler does not. An image that carries NVIDIA's
  compatibility libraries makes it worse on GeForce, where loading them ends in error 804; a data-centre GPU may use them.
- *Older than the major version's minimum*: nothing starts, except through those libraries on GPUs that may use them.

Refused is what cannot work; what depends on things that neither table knows is a warning.
Source: NVIDIA's CUDA compatibility guide and release notes; github.com/noonghunna/club-3090 issue 633 (CUDA 13.2, driver 580, RTX
3090: error 804); PTX 9.0 was taken and 9.1 and 9.2 were refused with error 222 on an H200 with driver 580.159.04, 2026-12-01.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from slipway import documents
from slipway.documents import Document, Matching
from slipway.images.spec import Cuda
from slipway.recipe.words import Day, DriverVersion, Word

Line = Literal["geforce", "data-center", "workstation", "integrated"]
CudaVersion = Annotated[str, Matching(r"\d{2}\.\d", 'a CUDA version in quotes, as "13.0"')]

GUIDE = "https://docs.nvidia.com/deploy/cuda-compatibility/"


class Source(Document):
    """Where rows of the table were read, and when."""

    name: Word
    url: str
    date: Day


class Major(Document):
    """What every program of one CUDA major version needs."""

    major: int = Field(gt=0)
    minimum: DriverVersion
    source: Word
    forward_from_branch: int | None = Field(
        description="oldest driver branch that compatibility libraries are made for; null: not known"
    )
    forward_source: Word | None = None


class Release(Document):
    """The driver that came with the first release of a CUDA minor version, and knows all of it."""

    cuda: CudaVersion
    driver: DriverVersion
    source: Word


class CudaDrivers(Document):
    """images/cuda-drivers.yaml: CUDA versions and their drivers on Linux."""

    schema_: Literal["slipway/cuda-drivers/v1"] = Field(alias="schema")
    sources: list[Source] = Field(min_length=1)
    majors: list[Major] = Field(min_length=1)
    releases: list[Release] = Field(min_length=1)

    @model_validator(mode="after")
    def _rows_have_sources_and_stand_once(self) -> CudaDrivers:
        known = {source.name for source in self.sources}
        named = {row.source for row in self.majors} | {row.source for row in self.releases}
        named |= {row.forward_source for row in self.majors if row.forward_source}
        if named - known:
            raise ValueError(f"sources: has no {', '.join(sorted(named - known))}, which a row names")
        for what, keys in (
            ("majors", [row.major for row in self.majors]),
            ("releases", [r.cuda for r in self.releases]),
        ):
            if len(set(keys)) != len(keys):
                raise ValueError(f"{what}: a version stands twice; one row each")
        return self


class GpuLine(Document):
    """A GPU model under the name that inventories use, and the product line it belongs to."""

    model: Word
    line: Line


class GpuLines(Document):
    """stacks/data/gpus.yaml."""

    schema_: Literal["slipway/gpus/v1"] = Field(alias="schema")
    date: Day
    source: str
    gpus: list[GpuLine]


@dataclass(frozen=True)
class DriverFacts:
    """Both tables, ready to be asked."""

    drivers: CudaDrivers
    lines: dict[str, Line]

    def line(self, gpu_model: str) -> Line | None:
        """The product line of a GPU, by its name in an inventory or by what nvidia-smi calls it; None: not known."""
        return "geforce" if "geforce" in gpu_model.lower() else self.lines.get(gpu_model)

    def minimum(self, cuda: str) -> str | None:
        """The oldest driver that a program of `cuda` starts on by itself; None for a major version without a row."""
        return next((row.minimum for row in self.drivers.majors if row.major == _cuda(cuda)[0]), None)

    def newest_cuda(self, driver: str) -> str | None:
        """The newest CUDA that `driver` knows all of; None when it is older than the table."""
        known = [row.cuda for row in self.drivers.releases if _driver(row.driver) <= _driver(driver)]
        return max(known, key=_cuda, default=None)


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a driver: `refuse` cannot work, `warn` depends on what the tables do not know."""

    severity: Literal["refuse", "warn"]
    problem: str
    why: str
    remedy: str
    source: str = GUIDE

    def __str__(self) -> str:
        return f"{self.problem}; {self.why}; {self.remedy}"


def read(drivers: Path, gpus: Path) -> DriverFacts:
    """The tables at `drivers` (images/cuda-drivers.yaml) and `gpus` (stacks/data/gpus.yaml).

    Raises: MissingFile, DocumentError, DiskFailure.
    """
    lines = documents.read(gpus, GpuLines)
    return DriverFacts(documents.read(drivers, CudaDrivers), {row.model: row.line for row in lines.gpus})


def problem(cuda: Cuda, driver: str, gpu_models: Sequence[str], facts: DriverFacts) -> str | None:
    """Why containers with `cuda` cannot run on these GPUs under `driver`; None when nothing certain speaks against it."""
    verdict = check(cuda, driver, gpu_models, facts)
    return str(verdict) if verdict and verdict.severity == "refuse" else None


def check(cuda: Cuda, driver: str, gpu_models: Sequence[str], facts: DriverFacts) -> Verdict | None:
    """What is to say about running containers with `cuda` on these GPUs under `driver`; None: all of that CUDA is supported.

    `driver` is what nvidia-smi prints; `gpu_models` are names of the inventory or of nvidia-smi.
    """
    minimum = facts.minimum(cuda.version)
    if minimum is None:
        why = "images/cuda-drivers.yaml has no row for this major version"
        return Verdict("warn", f"CUDA {cuda.version} is not known", why, "look up its minimum driver and add the row")
    if _driver(driver) < _driver(minimum):
        return _below_the_major(_Case(cuda, driver, _lines(gpu_models, facts), facts), minimum)
    return _within_the_major(_Case(cuda, driver, _lines(gpu_models, facts), facts))


@dataclass(frozen=True)
class _Case:
    cuda: Cuda
    driver: str
    lines: frozenset[Line | None]
    facts: DriverFacts

    def remedy(self, needed: str) -> str:
        newest = self.facts.newest_cuda(self.driver)
        other = f", or choose an image of CUDA {newest} or older" if newest else ""
        return f"upgrade the driver to {needed} or newer{other}"


def _lines(gpu_models: Sequence[str], facts: DriverFacts) -> frozenset[Line | None]:
    return frozenset(facts.line(model) for model in gpu_models)


def _below_the_major(case: _Case, minimum: str) -> Verdict:
    cuda, major = case.cuda, _cuda(case.cuda.version)[0]
    said = f"driver {case.driver} is too old for CUDA {cuda.version}, which needs {minimum} or newer"
    row = next(row for row in case.facts.drivers.majors if row.major == major)
    if "geforce" in case.lines:
        why = "GeForce never runs a newer CUDA than its driver's (error 804)"
        return Verdict("refuse", said, why, case.remedy(minimum))
    if not cuda.forward_compatibility:
        why = "the image carries no compatibility libraries that would let a data-centre GPU run it"
        return Verdict("refuse", said, why, case.remedy(minimum))
    if row.forward_from_branch is not None and _driver(case.driver)[0] < row.forward_from_branch:
        why = f"the image's compatibility libraries are made for branch {row.forward_from_branch} and newer"
        return Verdict("refuse", said, why, case.remedy(minimum))
    why = "the image's compatibility libraries may bridge it, for the driver branches that NVIDIA made them for"
    if case.lines != {"data-center"}:
        why = f"{why}, and on selected cards only outside data-centre GPUs"
    said = f"driver {case.driver} is older than CUDA {cuda.version} needs ({minimum})"
    return Verdict("warn", said, why, case.remedy(minimum))


def _within_the_major(case: _Case) -> Verdict | None:
    needed, exact = _full_support(case)
    if _driver(case.driver) >= _driver(needed):
        if exact:
            return None
        why = f"images/cuda-drivers.yaml ends before it; the driver covers what is listed, up to {needed}"
        remedy = "look up the driver in the CUDA release notes and add the row"
        return Verdict("warn", f"the driver for all of CUDA {case.cuda.version} is not known", why, remedy)
    than = "" if exact else " at least"
    said = f"driver {case.driver} is older than CUDA {case.cuda.version}, which came with{than} {needed}"
    if "geforce" in case.lines and case.cuda.forward_compatibility:
        why = "the image's compatibility libraries are then loaded, and GeForce refuses them (error 804)"
        source = "https://github.com/noonghunna/club-3090/issues/633"
        return Verdict("refuse", said, why, case.remedy(needed), source)
    why = "compiled kernels run within a major version, PTX of the newer compiler does not (error 222)"
    if case.cuda.forward_compatibility:
        why = f"{why}, unless the container uses the image's compatibility libraries"
    return Verdict("warn", said, why, case.remedy(needed))


def _full_support(case: _Case) -> tuple[str, bool]:
    """The driver that knows all of the image's CUDA, and whether the table says so or only knows older minor versions."""
    wanted = _cuda(case.cuda.version)
    rows = [row for row in case.facts.drivers.releases if _cuda(row.cuda)[0] == wanted[0] and _cuda(row.cuda) <= wanted]
    newest = max(rows, key=lambda row: _cuda(row.cuda), default=None)
    if newest is None:
        return case.facts.minimum(case.cuda.version) or case.driver, False
    return newest.driver, _cuda(newest.cuda) == wanted


def _cuda(version: str) -> tuple[int, int]:
    """ "13.0" as numbers; "12.10" would be newer than "12.9"."""
    major, _, minor = version.partition(".")
    return int(major), int(minor)


def _driver(version: str) -> tuple[int, ...]:
    """A driver version as three numbers: 580.159.04 is newer than 580.95.05, and 570.26 equals 570.26.0."""
    numbers = tuple(int(part) for part in version.split("."))
    return numbers + (0,) * (3 - len(numbers))
