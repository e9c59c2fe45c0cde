"""The Pulumi program against recorded registrations: what it creates for every stack, and what it refuses to create."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulumi
import pytest

from slipway import recipe, stacks
from slipway.cloud import access, hosts, instance_types, policies, resources
from slipway.errors import DocumentError, PlanRefused, UsageError
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent.parent
CHECKOUT = Checkout(ROOT)
ON_AWS = [name for name in stacks.names(CHECKOUT) if stacks.config(CHECKOUT, name).aws]
ELSEWHERE = [name for name in stacks.names(CHECKOUT) if name not in ON_AWS]
INTERFACES = {"p5.48xlarge": 33, "p5e.48xlarge": 33, "p5en.48xlarge": 17, "p6-b200.48xlarge": 9, "p6-b300.48xlarge": 17}


@pytest.mark.parametrize("stack", ON_AWS)
def test_a_cloud_stack_creates_what_the_preview_lists_and_nothing_else(program: Any, stack: str) -> None:
    recorder = program.run(stack, program.values(stack))
    aws = stacks.config(CHECKOUT, stack).aws
    assert aws is not None
    kind = instance_types.find(CHECKOUT.stacks / "data", aws.instance_type)
    ports = access.ports(recipe.find(CHECKOUT.recipes, stacks.config(CHECKOUT, stack).recipe))
    listed = sorted((item.type, item.name) for item in resources.planned(aws, kind, ports))
    assert sorted((record.type, record.name) for record in recorder.records) == listed


@pytest.mark.parametrize("stack", ON_AWS)
def test_a_cloud_stack_breaks_no_policy(program: Any, stack: str) -> None:
    records = program.run(stack, program.values(stack, clients=["10.1.0.0/16"])).records
    assert [str(found) for record in records for found in policies.violations(record)] == []
    assert policies.stack_violations(records) == ()


@pytest.mark.parametrize("stack", ON_AWS)
def test_every_rule_has_one_group_and_one_peer(program: Any, stack: str) -> None:
    records = program.run(stack, program.values(stack, clients=["10.1.0.0/16"])).records
    rules = [record for record in records if record.type.startswith("aws:vpc/securityGroup")]
    peers = ("referencedSecurityGroupId", "prefixListId", "cidrIpv4")
    for rule in rules:
        assert rule.inputs["securityGroupId"].startswith("SecurityGroup-")
        assert len([key for key in peers if rule.inputs.get(key)]) == 1, rule
        assert ("fromPort" in rule.inputs) == (rule.inputs["ipProtocol"] == "tcp")
    assert sum(rule.inputs.get("cidrIpv4") == "10.1.0.0/16" for rule in rules) == 1


@pytest.mark.parametrize("stack", ON_AWS)
def test_the_output_is_an_inventory_that_reads_back_without_secrets_or_guessed_devices(
    program: Any, stack: str
) -> None:
    seen: list[Any] = []
    program.run(stack, program.values(stack), then=seen.append)
    made = hosts.from_outputs(stack, {"inventory": seen[0]})
    assert made.name == stack
    assert all(node.address.startswith("10.60.0.") for node in made.nodes)
    assert [str(node.ssh).partition("@")[2] for node in made.nodes] == [
        f"Instance-{name}" for name in ("gpu-1", "gpu-2", "router")[: len(made.nodes)]
    ]
    assert all(node.rdma_devices == [] for node in made.nodes)
    assert {node.fabric for node in made.nodes if node.gpus} == {"efa"}


@pytest.mark.parametrize("stack", ELSEWHERE)
def test_hosts_that_are_there_already_need_no_cloud_resource(program: Any, stack: str) -> None:
    seen: list[Any] = []
    recorder = program.run(stack, program.values(stack), then=seen.append)
    assert recorder.records == []
    made = hosts.from_outputs(stack, {"inventory": seen[0]})
    assert made.name == stack and made.nodes


@pytest.mark.parametrize(("kind", "count"), INTERFACES.items())
def test_the_launch_template_has_exactly_the_interfaces_of_its_type(program: Any, kind: str, count: int) -> None:
    values = program.values("m1-pd", instance_type=kind, count=1)
    values["slipway:recipe"] = "laguna-s-2.1.vllm/4x3090-int4-champion"  # fits on every one of them
    template = program.run("m1-pd", values).named("LaunchTemplate")["gpu"].inputs
    nics = template["networkInterfaces"]
    assert len(nics) == count
    assert len({(nic["networkCardIndex"], nic["deviceIndex"]) for nic in nics}) == count
    assert {nic["subnetId"] for nic in nics} == {"Subnet-private"}
    assert all(nic["securityGroups"] == ["SecurityGroup-nodes"] for nic in nics)
    assert "vpcSecurityGroupIds" not in template


def test_capacity_is_named_and_never_bought(program: Any) -> None:
    reserved = {"capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"}}
    block = program.run("m1-pd", program.values("m1-pd")).named("LaunchTemplate")["gpu"].inputs
    assert block["instanceMarketOptions"] == {"marketType": "capacity-block"}
    assert block["capacityReservationSpecification"] == reserved
    values = program.values("m1-pd", capacity={"kind": "reservation", "id": "cr-0123456789abcdef0"})
    reservation = program.run("m1-pd", values).named("LaunchTemplate")["gpu"].inputs
    assert "instanceMarketOptions" not in reservation
    assert reservation["capacityReservationSpecification"] == reserved
    recorder = program.run("m1-pd", program.values("m1-pd", capacity={"kind": "on-demand"}))
    assert "capacityReservationSpecification" not in recorder.named("LaunchTemplate")["gpu"].inputs
    assert not any("apacity" in record.type for record in recorder.records)


def test_hosts_are_protected_and_leave_before_their_replacement_comes(program: Any) -> None:
    kept = program.run("m1-pd", program.values("m1-pd")).options
    assert kept["Instance/gpu-1"] == {"protect": True, "delete_before_replace": True}
    assert kept["Bucket/models"]["protect"]
    freed = program.run("m1-pd", program.values("m1-pd", protect=False)).options
    assert not any(options["protect"] for options in freed.values())


def test_the_zone_may_be_an_id(program: Any) -> None:
    subnet = program.run("m1-pd", program.values("m1-pd", zone="use2-az2")).named("Subnet")["private"].inputs
    assert subnet["availabilityZoneId"] == "use2-az2" and "availabilityZone" not in subnet


def test_the_hosts_role_names_its_own_bucket_and_repositories(program: Any) -> None:
    policy = program.run("m1-pd", program.values("m1-pd")).named("RolePolicy")["node"].inputs["policy"]
    assert "arn:aws:test:::Bucket-models/*" in policy
    assert "arn:aws:test:::Repository-sglang-efa" in policy
    actions = [action for item in json.loads(policy)["Statement"] for action in item["Action"]]
    assert {action.partition(":")[0] for action in actions} == {"s3", "ecr", "ssm", "ssmmessages", "ec2messages"}
    assert all(action.startswith(("s3:Get", "s3:List")) for action in actions if action.startswith("s3:"))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"count": 1}, "placement-nodes"),
        ({"instance_type": "p5.48xlarge"}, "placement-gpus"),
    ],
)
def test_hosts_that_cannot_run_the_recipe_are_refused_before_anything_is_registered(
    program: Any, change: dict[str, Any], rule: str
) -> None:
    with pytest.raises(PlanRefused) as caught:
        program.run("m1-pd", program.values("m1-pd", **change), preview=True)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("wanted", "rule"),
    [
        ("laguna-m.1.sglang/b200-nvfp4", "nvfp4-needs-blackwell"),
        ("laguna-m.1.sglang/h200-bf16-pd-nixl", "placement-fabric"),
        ("laguna-m.1.sglang/h200-bf16-pd-mooncake-1nic", "placement-fabric"),
    ],
)
def test_recipes_that_these_hosts_cannot_run_are_refused_with_their_rule(program: Any, wanted: str, rule: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        program.run("m1-pd", {**program.values("m1-pd"), "slipway:recipe": wanted}, preview=True)
    assert caught.value.rule == rule


def test_mlx5_devices_on_efa_are_refused(program: Any) -> None:
    values = program.values("m1-pd-ib")
    for node in values["slipway:nodes"]:
        node["fabric"] = "efa"
    with pytest.raises(PlanRefused) as caught:
        program.run("m1-pd-ib", values)
    assert caught.value.rule == "efa-has-no-mlx5"


@pytest.mark.parametrize("stack", ["m1-pd", "m1-b200", "m1-pd-ib", "s21-3090"])
def test_example_values_pass_a_preview_and_stop_up(program: Any, stack: str) -> None:
    values = program.values(stack)
    for node in values.get("slipway:nodes", []):
        node["address"] = "192.0.2." + node["address"].rpartition(".")[2]
    if "slipway:aws" in values:
        values["slipway:aws"] |= {"ami": "replace-me", "capacity": {"kind": "block", "id": "replace-me"}}
    shown = program.run(stack, values, preview=True).records
    assert [str(found) for record in shown for found in policies.violations(record)] == []
    with pytest.raises(UsageError, match="still has example values"):
        program.run(stack, values)


def test_a_misspelt_key_is_refused_with_the_right_one(program: Any) -> None:
    with pytest.raises(DocumentError, match="did you mean instance_type"):
        program.run("m1-pd", program.values("m1-pd", instance_typ="p5en.48xlarge"))
    with pytest.raises(DocumentError, match="did you mean aws"):
        program.run("m1-pd", {**program.values("m1-pd"), "slipway:awss": "x"})


def test_the_guard_stops_a_resource_that_breaks_a_policy(program: Any) -> None:
    guard = program.load("guard").Guard()
    args = pulumi.ResourceTransformArgs(True, "aws:ec2/eip:Eip", "address", {"tags": {}}, pulumi.ResourceOptions())
    with pytest.raises(pulumi.RunError, match="no-public-address"):
        guard.check(args)
    component = pulumi.ResourceTransformArgs(False, "slipway:aws:Network", "network", {}, pulumi.ResourceOptions())
    assert guard.check(component) is None


def test_the_guard_sees_values_that_are_not_known_yet_as_such(program: Any) -> None:
    guard = program.load("guard")
    assert guard.plain({"a": [1, object()], "b": None}) == {"a": [1, guard.UNKNOWN], "b": None}


def test_errors_of_ours_reach_pulumi_as_one_message_without_a_traceback(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = program.load("program")

    def refused() -> None:
        raise PlanRefused("placement-nodes", "inventory x", "has too few nodes")

    monkeypatch.setattr(module, "inventory", refused)
    with pytest.raises(pulumi.RunError, match="has too few nodes"):
        module.run()
