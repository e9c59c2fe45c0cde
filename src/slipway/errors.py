"""Every error that Slipway raises on purpose, with the exit code of the command that meets it.

::

    SlipwayError                    exit
      CheckFailed                      1   a gate or a check said no
      UsageError                       2   a command line that cannot be meant
        DocumentError                  2   a YAML or JSON document with one or more problems
        PlanRefused                    2   a rule or the placement refuses the plan
      LockDrift                        3   upstream, lock and recipe no longer agree
      IntegrityMismatch                4   bytes differ from what the lock says
      MissingFile                      5   a file, shard or object that must exist does not
      DiskFailure                      6   no space, no permission, a read or write error
      AuthFailure                      7   a token is missing, refused, or the repository is gated
      NetworkFailure                   8   a host or hub did not answer as it must
      EngineFailed                     9   an engine did not start, or does not generate

The text is always `place: what is wrong (got X); what is allowed or why; what to do next`.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


class SlipwayError(Exception):
    """An error meant for the user: `place`, `problem`, `why` (what is allowed) and `remedy`, printed in this order."""

    exit_code: ClassVar[int] = 1

    def __init__(self, place: object, problem: str, why: str = "", remedy: str = "") -> None:
        self.place = str(place)
        self.problem = problem
        self.why = why
        self.remedy = remedy
        super().__init__(place, problem, why, remedy)

    def __str__(self) -> str:
        text = f"{self.place}: {self.problem}"
        for part in filter(None, (self.why, self.remedy)):
            # A part that is a list of lines ends with a newline; what follows stands on a line of its own.
            text += part if text.endswith("\n") else f"; {part}"
        return text

    def as_json(self) -> dict[str, object]:
        """What `--json` prints when a command fails."""
        return {
            "error": type(self).__name__,
            "place": self.place,
            "problem": self.problem,
            "why": self.why,
            "remedy": self.remedy,
            "exit_code": self.exit_code,
        }


class CheckFailed(SlipwayError):
    """A gate or a check ran and said no."""

    exit_code = 1


class UsageError(SlipwayError):
    """The command line cannot be meant."""

    exit_code = 2


@dataclass(frozen=True)
class Problem:
    """One thing wrong in a document; `path` is the dotted key, `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    path: str
    text: str

    def __str__(self) -> str:
        key = f" {self.path}:" if self.path else ""
        return f"{self.file}:{self.line}:{self.column}:{key} {self.text}"


class DocumentError(UsageError):
    """A document that does not say what its schema needs; carries every problem found, in file order."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        first = self.problems[0]
        super().__init__(f"{first.file}:{first.line}:{first.column}", first.text)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = [str(problem) for problem in self.problems]
        return "\n".join(
            [*lines, f"{count} problem{'s' if count > 1 else ''}; correct the file and run the command again"]
        )

    def as_json(self) -> dict[str, object]:
        """The same shape as its base, with one entry per problem."""
        return {**super().as_json(), "problems": [problem.__dict__ for problem in self.problems]}


class PlanRefused(UsageError):
    """The plan must not be launched; `rule` is the id of the rule that says so."""

    def __init__(self, rule: str, place: object, problem: str, why: str = "", remedy: str = "") -> None:
        self.rule = rule
        super().__init__(place, f"{problem} [{rule}]", why, remedy)

    def as_json(self) -> dict[str, object]:
        """The same shape as its base, with the rule's id."""
        return {**super().as_json(), "rule": self.rule}


class LockDrift(SlipwayError):
    """Upstream, lock and recipe no longer agree."""

    exit_code = 3


class IntegrityMismatch(SlipwayError):
    """Bytes differ from what the lock says."""

    exit_code = 4


class MissingFile(SlipwayError):
    """A file, shard or object that must exist does not."""

    exit_code = 5


class DiskFailure(SlipwayError):
    """No space, no permission, or a read or write error."""

    exit_code = 6


class AuthFailure(SlipwayError):
    """A token is missing or refused, or the repository is gated."""

    exit_code = 7


class NetworkFailure(SlipwayError):
    """A host or hub did not answer as it must."""

    exit_code = 8


class EngineFailed(SlipwayError):
    """An engine did not start, or does not generate."""

    exit_code = 9


def from_os_error(error: OSError, place: Path | str, doing: str) -> SlipwayError:
    """The user's error for a failed read or write of `place`; `doing` names the act, as in "writing the lock"."""
    said = error.strerror or type(error).__name__
    if isinstance(error, FileNotFoundError):
        return MissingFile(place, f"{doing}: no such file or folder", "", "check the path")
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFailure(
            place,
            f"{doing}: {said.lower()}",
            "nothing half-written is left in use",
            "free space, then run the same command again",
        )
    return DiskFailure(place, f"{doing}: {said.lower()}", "", "check owner, permissions and the disk")
