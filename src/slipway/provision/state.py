"""A stack's recorded state, as `pulumi stack export` writes it: what it knows, and how interrupted operations are mended.

Pure: states are JSON values in and out.
Source: sdk/go/common/apitype (DeploymentV3, ResourceV3, OperationV2) of Pulumi 3.274.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PROVIDER = "pulumi:providers:aws"
GLOBAL = "aws:iam/"

_REGION_OF_ARN = re.compile(r"arn:[^:]+:[^:]+:([a-z]+(?:-[a-z0-9]+)+):")
_REGION_OF_ZONE = re.compile(r"[a-z]+(?:-[a-z]+)+-\d+")


@dataclass(frozen=True)
class Pending:
    """An operation that was begun and never ended; `inputs` are what the resource was to be made from."""

    kind: str
    type: str
    urn: str
    inputs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The resource's logical name."""
        return self.urn.rpartition("::")[2]


@dataclass(frozen=True)
class Mended:
    """A state without pending operations, and what became of each: adopted under an id, or cleared."""

    state: dict[str, Any]
    adopted: tuple[tuple[Pending, str], ...]
    cleared: tuple[Pending, ...]


def pending(state: Mapping[str, Any]) -> tuple[Pending, ...]:
    """The operations of `state` that were begun and never ended."""
    return tuple(_pending(operation) for operation in _operations(state))


def ids(state: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """Type and id of every resource that `state` knows, those included that are still to be deleted."""
    return frozenset((entry["type"], entry["id"]) for entry in _resources(state) if entry.get("id"))


def is_empty(state: Mapping[str, Any]) -> bool:
    """Whether `state` knows nothing in AWS, not even something that is still being made."""
    return not any(True for _ in _in_aws(state))


def regions(state: Mapping[str, Any]) -> frozenset[str]:
    """The AWS regions that the resources and the pending operations of `state` are in; what is global (IAM) names none."""
    providers = {f"{one['urn']}::{one['id']}": one for one in _resources(state) if one["type"] == PROVIDER}
    found = (_region(one, providers.get(one.get("provider", ""), {})) for one in _in_aws(state))
    return frozenset(region for region in found if region)


def mend(state: Mapping[str, Any], find: Callable[[Pending], str | None]) -> Mended:
    """`state` with no operation pending: what `find` finds is taken in under its id, everything else is cleared.

    Only an interrupted creation can leave something that the state does not know. An interrupted update or deletion concerns a
    resource that the state has; the refresh that follows sees how far it came.
    """
    mended = copy.deepcopy(dict(state))
    deployment = mended["deployment"]
    adopted: list[tuple[Pending, str]] = []
    cleared: list[Pending] = []
    for operation in _operations(mended):
        what = _pending(operation)
        identity = find(what) if _may_have_created(what) else None
        if identity is None:
            cleared.append(what)
        else:
            _take_in(deployment.setdefault("resources", []), operation["resource"], identity)
            adopted.append((what, identity))
    deployment["pending_operations"] = []
    return Mended(mended, tuple(adopted), tuple(cleared))


def _may_have_created(what: Pending) -> bool:
    return what.kind == "creating" and not what.type.startswith("pulumi:")


def _take_in(resources: list[dict[str, Any]], resource: Mapping[str, Any], identity: str) -> None:
    """Add the created resource; where it replaces one that is still there, that one is marked for deletion, as Pulumi does."""
    taken = {**resource, "id": identity, "outputs": resource.get("outputs") or resource.get("inputs", {})}
    for index, entry in enumerate(resources):
        if entry["urn"] == taken["urn"] and not entry.get("delete"):
            if entry.get("pendingReplacement"):
                resources[index] = taken  # deleted already; its place was kept for the dependents
                return
            entry["delete"] = True
            resources.insert(index, taken)
            return
    resources.append(taken)


def _pending(operation: Mapping[str, Any]) -> Pending:
    resource = operation["resource"]
    return Pending(operation["type"], resource["type"], resource["urn"], resource.get("inputs") or {})


def _operations(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (state.get("deployment") or {}).get("pending_operations") or []


def _resources(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (state.get("deployment") or {}).get("resources") or []


def _in_aws(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for entry in (*_resources(state), *(one["resource"] for one in _operations(state))):
        if entry["type"].startswith("aws:"):
            yield entry


def _region(entry: Mapping[str, Any], provider: Mapping[str, Any]) -> str | None:
    """What the resource itself says counts before its provider: a failed `up` may have moved the provider alone."""
    if entry["type"].startswith(GLOBAL):
        return None
    for values in (entry.get("outputs") or {}, entry.get("inputs") or {}):
        arn = _REGION_OF_ARN.match(str(values.get("arn")))
        zone = _REGION_OF_ZONE.match(str(values.get("availabilityZone")))
        if arn or zone or values.get("region"):
            return arn[1] if arn else zone[0] if zone else str(values["region"])
    said = {**(provider.get("outputs") or {}), **(provider.get("inputs") or {})}
    return str(said["region"]) if said.get("region") else None
