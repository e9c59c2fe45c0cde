"""What becomes of interrupted operations in an exported state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.provision import kinds, state
from slipway.provision.interrupted import Finder
from slipway.provision.kinds import Found

VPC, SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"


def resource(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:s::slipway::{kind}::{name}", "type": kind, "custom": True, "inputs": {"a": 1}, **fields}


def exported(resources: list[dict[str, Any]], operations: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"version": 3, "deployment": {"resources": resources, "pending_operations": operations or []}}


def test_a_creation_that_is_found_is_taken_in_with_its_id_and_one_that_is_not_is_cleared() -> None:
    made, unmade = resource(VPC, "vpc"), resource(SUBNET, "private")
    before = exported([], [{"type": "creating", "resource": made}, {"type": "creating", "resource": unmade}])
    kept = copy.deepcopy(before)
    mended = state.mend(before, lambda what: "vpc-1" if what.name == "vpc" else None)
    assert before == kept
    assert mended.state["deployment"]["pending_operations"] == []
    assert [(one["urn"], one["id"], one["outputs"]) for one in mended.state["deployment"]["resources"]] == [
        (made["urn"], "vpc-1", {"a": 1})
    ]
    assert [what.name for what in mended.cleared] == ["private"]
    assert state.ids(mended.state) == {(VPC, "vpc-1")}


@pytest.mark.parametrize("kind", ["updating", "deleting", "reading", "importing"])
def test_other_operations_are_cleared_because_the_state_has_their_resource(kind: str) -> None:
    has = resource(VPC, "vpc", id="vpc-1")
    mended = state.mend(exported([has], [{"type": kind, "resource": has}]), lambda _: "vpc-2")
    assert mended.state["deployment"] == {"resources": [has], "pending_operations": []}
    assert mended.adopted == ()


def test_the_provider_itself_is_never_looked_for() -> None:
    provider = resource("pulumi:providers:aws", "default")
    mended = state.mend(exported([], [{"type": "creating", "resource": provider}]), lambda _: "x")
    assert mended.state["deployment"]["resources"] == []


def test_a_replacement_marks_what_it_replaces_for_deletion() -> None:
    old = resource(VPC, "vpc", id="vpc-1")
    mended = state.mend(exported([old], [{"type": "creating", "resource": resource(VPC, "vpc")}]), lambda _: "vpc-2")
    shown = [(one["id"], one.get("delete", False)) for one in mended.state["deployment"]["resources"]]
    assert shown == [("vpc-2", False), ("vpc-1", True)]


def test_a_replacement_takes_the_place_of_what_was_deleted_first() -> None:
    old = resource(VPC, "vpc", id="vpc-1", pendingReplacement=True)
    mended = state.mend(exported([old], [{"type": "creating", "resource": resource(VPC, "vpc")}]), lambda _: "vpc-2")
    assert [one["id"] for one in mended.state["deployment"]["resources"]] == ["vpc-2"]


@given(st.lists(st.tuples(st.sampled_from(["creating", "updating", "deleting"]), st.booleans()), max_size=8))
def test_every_operation_is_either_adopted_or_cleared(operations: list[tuple[str, bool]]) -> None:
    pending = [{"type": kind, "resource": resource(VPC, f"vpc{n}")} for n, (kind, _) in enumerate(operations)]
    exists = {f"vpc{n}" for n, (_, there) in enumerate(operations) if there}
    mended = state.mend(exported([], pending), lambda what: f"id-{what.name}" if what.name in exists else None)
    assert len(mended.adopted) + len(mended.cleared) == len(operations)
    assert {what.name for what, _ in mended.adopted} == {
        f"vpc{n}" for n, (kind, there) in enumerate(operations) if there and kind == "creating"
    }
    assert state.pending(mended.state) == ()


def test_a_stack_without_any_resource_has_nothing_pending() -> None:
    assert state.pending({"version": 3, "deployment": {}}) == ()
    assert state.pending({"version": 3, "deployment": None}) == ()
    assert state.ids({"version": 3, "deployment": {}}) == frozenset()


class Aws:
    """What an account would answer; the real lookups run against a real server in test_account.py."""

    def __init__(self, *found: Found) -> None:
        self.found = found
        self.asked = 0

    def remove(self, thing: Found) -> None:
        self.removed = thing

    def tagged(self, stack: str) -> tuple[Found, ...]:
        self.asked += 1
        return self.found


def pending(kind: str, logical: str, **inputs: Any) -> state.Pending:
    return state.Pending("creating", kind, f"urn:pulumi:s::slipway::{kind}::{logical}", inputs)


def test_what_the_state_knows_is_not_adopted_a_second_time() -> None:
    aws = Aws(Found(VPC, "vpc-1", "vpc"), Found(VPC, "vpc-2", "vpc"), Found(SUBNET, "subnet-1", "vpc"))
    find = Finder("s", lambda: aws, {(VPC, "vpc-1")})  # type: ignore[arg-type, return-value]
    assert find(pending(VPC, "vpc")) == "vpc-2"
    assert find(pending(VPC, "vpc")) is None
    assert find(pending(VPC, "other")) is None
    assert aws.asked == 1


def test_a_half_made_security_group_is_removed_because_it_may_still_let_everything_out() -> None:
    group = Found(kinds.EC2["security-group"], "sg-1", "nodes")
    aws = Aws(group)
    find = Finder("s", lambda: aws, ())  # type: ignore[arg-type, return-value]
    assert find(pending(group.type, "nodes")) is None
    assert aws.removed == group


def test_a_part_that_cannot_be_tagged_has_the_id_that_its_inputs_say() -> None:
    find = Finder("s", Aws, ())  # type: ignore[arg-type]
    assert find(pending("aws:iam/rolePolicy:RolePolicy", "node", role="r", name="p")) == "r:p"
    assert find(pending("aws:iam/rolePolicy:RolePolicy", "node", name="p")) is None


def test_every_kind_has_its_place_in_the_order_of_removal() -> None:
    known = {*kinds.EC2.values(), kinds.EGRESS_RULE, kinds.BUCKET, kinds.REPOSITORY, kinds.ROLE, kinds.INSTANCE_PROFILE}
    assert known == set(kinds.ORDER_OF_REMOVAL)
    assert len(kinds.ORDER_OF_REMOVAL) == len(set(kinds.ORDER_OF_REMOVAL))


def test_what_another_state_made_is_never_taken_in() -> None:
    class Reached:
        def tagged(self, stack: str) -> tuple[Found, ...]:
            return (Found(VPC, "vpc-theirs", "vpc", owner="theirs"), Found(VPC, "vpc-ours", "vpc", owner="ours"))

    what = state.Pending("creating", VPC, "urn:pulumi:s::slipway::x::vpc", {})
    finder = Finder("s", Reached, frozenset(), "ours")  # type: ignore[arg-type]
    assert finder(what) == "vpc-ours"
    assert finder(what) is None
