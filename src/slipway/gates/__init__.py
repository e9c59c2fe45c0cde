"""What a gate found: one check per claim, each with the values it was decided on.

A gate passes only when every check passed. What could not be decided is a failed check with the reason, never a pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from slipway.documents import Document
from slipway.errors import CheckFailed

Measured = str | int | float | bool | None


class Check(Document):
    """One claim: whether it holds, why, and the values that decided it."""

    id: str
    passed: bool
    detail: str
    measured: dict[str, Measured] = Field(default_factory=dict)


class GateResult(Document):
    """The verdict of one gate; `passed` says exactly what the checks say, which is checked again on reading."""

    gate: str
    passed: bool
    seconds: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    checks: tuple[Check, ...] = Field(min_length=1)

    @classmethod
    def of(cls, gate: str, checks: Iterable[Check], seconds: float) -> GateResult:
        """The result that `checks` amount to."""
        checks = tuple(checks)
        return cls(gate=gate, passed=all(check.passed for check in checks), seconds=seconds, checks=checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    @model_validator(mode="after")
    def _verdict_follows_from_checks(self) -> Self:
        if self.passed != all(check.passed for check in self.checks):
            message = "passed does not follow from the checks"
            raise ValueError(message)
        return self


def told(checks: Iterable[Check]) -> list[tuple[str, str]]:
    """The checks' names and what they found, those that found the same together."""
    found: dict[str, list[str]] = {}
    for check in checks:
        found.setdefault(check.detail, []).append(check.id)
    return [(", ".join(names), detail) for detail, names in found.items()]


def refuse_failed(results: Iterable[GateResult], log: str = "`invoke logs`") -> None:
    """Nothing when every gate passed; `log` says where the server's own words are read.

    Raises: CheckFailed naming the checks that did not pass.
    """
    for result in results:
        if not result.passed:
            failed = "; ".join(f"{names}: {detail}" for names, detail in told(result.failures))
            problem = f"{len(result.failures)} of {len(result.checks)} checks failed"
            raise CheckFailed(f"gate {result.gate}", problem, failed, f"look at {log}, mend the cause, verify again")
