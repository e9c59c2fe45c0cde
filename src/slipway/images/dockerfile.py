"""The Dockerfile linter: every line that could take in something which the image lock does not name is a problem.

The table of rules is `dockerfile_rules.RULES`. What the linter lets pass, the source policy holds the builder to as well.
"""

from __future__ import annotations

from slipway.errors import DocumentError, Problem
from slipway.images.allowed import AllowedInputs
from slipway.images.dockerfile_reader import read
from slipway.images.dockerfile_rules import RULES
from slipway.images.dockerfile_stages import declared, sheet

_SHOWN = 160
"""Characters of what was found that a problem repeats."""


def problems(text: str, allowed: AllowedInputs, file: str = "Dockerfile") -> tuple[Problem, ...]:
    """Every problem of the Dockerfile `text` for a build with the inputs `allowed`, in file order; empty when there is none.

    `path` of a problem is the id of the rule that says so.
    """
    view = sheet(read(text), allowed)
    found: dict[tuple[int, int, str], Problem] = {}
    for rule in RULES:
        for finding in rule.check(view):
            got = finding.got if len(finding.got) <= _SHOWN else f"{finding.got[:_SHOWN]} …"
            said = f"{rule.message} (got {got!r}); {rule.why}; {rule.remedy}"
            line, column = finding.place.line, finding.place.column
            # What one word hides is said once.
            found.setdefault((line, column, rule.id), Problem(file, line, column, rule.id, said))
    return tuple(sorted(found.values(), key=lambda problem: (problem.line, problem.column)))


def declared_arguments(text: str) -> frozenset[str]:
    """The names of every ARG in the Dockerfile `text`: those that the builder must be given."""
    found = read(text).instructions
    return frozenset(name for one in found if one.keyword == "ARG" for name, _, _ in declared(one))


def require_locked(text: str, allowed: AllowedInputs, file: str = "Dockerfile") -> None:
    """Return only when the Dockerfile has no problem. Raises: DocumentError with all of them."""
    found = problems(text, allowed, file)
    if found:
        raise DocumentError(list(found))
