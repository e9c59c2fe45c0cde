"""The policies, held against every resource as the engine is asked for it: a violation stops preview and up alike."""

from __future__ import annotations

from typing import Any

import pulumi

from slipway.cloud import policies
from slipway.cloud.policies import Record, Violation

UNKNOWN = "(known when it exists)"


class Guard:
    """Collects what the engine is asked for, and refuses what a policy forbids."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def check(self, args: pulumi.ResourceTransformArgs) -> None:
        """Nothing when the resource may be created; the inputs are those that the engine sees.

        Raises: pulumi.RunError.
        """
        if not args.custom:
            return
        record = Record(args.type_, args.name, plain(args.props))
        self.records.append(record)
        refuse(policies.violations(record))

    def finish(self, created: pulumi.Output[Any]) -> None:
        """Hold all resources together against the policies, once `created` is known: in a preview ids are not, so not then."""
        created.apply(lambda _: refuse(policies.stack_violations(self.records)) if self.records else None)


def install() -> Guard:
    """The guard of this run, told of every resource from now on."""
    guard = Guard()
    pulumi.runtime.register_resource_transform(guard.check)
    return guard


def refuse(found: tuple[Violation, ...]) -> None:
    """Nothing when `found` is empty.

    Raises: pulumi.RunError that names every violation.
    """
    if found:
        raise pulumi.RunError("refused by policy:\n" + "\n".join(f"  {violation}" for violation in found))


def plain(value: Any) -> Any:
    """`value` with everything that is not known yet replaced by one word."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else UNKNOWN
