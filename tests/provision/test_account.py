"""What carries a stack's tag is found in a real account's answers, priced, and removed in an order that AWS accepts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from slipway.errors import AuthFailure, CheckFailed, NetworkFailure
from slipway.progress import silent
from slipway.provision import kinds, leftovers
from slipway.provision.account import Account

ROOT = Path(__file__).resolve().parent.parent.parent
PRICES = ROOT / "stacks" / "data"


def tags(name: str, stack: str = "m1-pd") -> list[dict[str, str]]:
    return [{"Key": kinds.STACK_TAG, "Value": stack}, {"Key": kinds.NAME_TAG, "Value": name}]


def spec(kind: str, name: str, stack: str = "m1-pd") -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tags(name, stack)}]


@pytest.fixture
def reached(account: Any, monkeypatch: pytest.MonkeyPatch) -> Account:
    """The account as Slipway reaches it, by boto3's own variables."""
    for name, value in (("AWS_ENDPOINT_URL", account.url), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x")):
        monkeypatch.setenv(name, value)
    return Account("us-east-2")


def furnish(account: Any) -> None:
    """One of everything that the program makes, tagged, and the same untagged or of another stack."""
    ec2, iam, s3, ecr = (account.client(name) for name in ("ec2", "iam", "s3", "ecr"))
    for stack in ("m1-pd", "other"):
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=spec("vpc", "vpc", stack))["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(
            VpcId=vpc, CidrBlock="10.0.0.0/24", TagSpecifications=spec("subnet", "private", stack)
        )["Subnet"]["SubnetId"]
        table = ec2.create_route_table(VpcId=vpc, TagSpecifications=spec("route-table", "private", stack))["RouteTable"]
        ec2.associate_route_table(SubnetId=subnet, RouteTableId=table["RouteTableId"])
        group = ec2.create_security_group(
            GroupName=f"nodes-{stack}",
            Description="d",
            VpcId=vpc,
            TagSpecifications=spec("security-group", "nodes", stack),
        )["GroupId"]
        permission = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        for way in (ec2.authorize_security_group_ingress, ec2.authorize_security_group_egress):
            way(GroupId=group, IpPermissions=permission, TagSpecifications=spec("security-group-rule", "self", stack))
        ec2.create_vpc_endpoint(
            VpcId=vpc,
            ServiceName="com.amazonaws.us-east-2.ssm",
            VpcEndpointType="Interface",
            SubnetIds=[subnet],
            TagSpecifications=spec("vpc-endpoint", "endpoint-ssm", stack),
        )
        ec2.create_placement_group(
            GroupName=f"slipway-{stack}", Strategy="cluster", TagSpecifications=spec("placement-group", "gpu", stack)
        )
        ec2.create_launch_template(
            LaunchTemplateName=f"gpu-{stack}",
            LaunchTemplateData={"InstanceType": "p6-b200.48xlarge"},
            TagSpecifications=spec("launch-template", "gpu", stack),
        )
        ec2.run_instances(
            MinCount=1,
            MaxCount=1,
            ImageId="ami-0123456789abcdef0",
            InstanceType="p6-b200.48xlarge",
            SubnetId=subnet,
            TagSpecifications=[*spec("instance", "gpu-1", stack), *spec("volume", "gpu", stack)],
        )
        trust = '{"Version": "2012-10-17", "Statement": []}'
        iam.create_role(RoleName=f"node-{stack}", AssumeRolePolicyDocument=trust, Tags=tags("node", stack))
        iam.put_role_policy(
            RoleName=f"node-{stack}",
            PolicyName="p",
            PolicyDocument='{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}',
        )
        iam.create_instance_profile(InstanceProfileName=f"node-{stack}", Tags=tags("node", stack))
        iam.add_role_to_instance_profile(InstanceProfileName=f"node-{stack}", RoleName=f"node-{stack}")
        s3.create_bucket(Bucket=f"models-{stack}", CreateBucketConfiguration={"LocationConstraint": "us-east-2"})
        s3.put_bucket_tagging(Bucket=f"models-{stack}", Tagging={"TagSet": tags("models", stack)})
        ecr.create_repository(repositoryName=f"slipway/{stack}/engine", tags=tags("engine", stack))


def test_all_of_a_stack_is_found_priced_and_removed_in_an_order_that_aws_accepts(
    account: Any, reached: Account
) -> None:
    furnish(account)
    every = reached.tagged("m1-pd")
    assert sorted((one.kind, one.name) for one in every) == [
        ("Bucket", "models"),
        ("Instance", "gpu-1"),
        ("InstanceProfile", "node"),
        ("LaunchTemplate", "gpu"),
        ("PlacementGroup", "gpu"),
        ("Repository", "engine"),
        ("Role", "node"),
        ("RouteTable", "private"),
        ("SecurityGroup", "nodes"),
        ("SecurityGroupEgressRule", "self"),
        ("SecurityGroupIngressRule", "self"),
        ("Subnet", "private"),
        ("Vpc", "vpc"),
        ("VpcEndpoint", "endpoint-ssm"),
    ]
    assert reached.tagged("third") == ()
    others = len(reached.tagged("other"))

    # What the state knows is no orphan.
    found, _ = leftovers.find("m1-pd", reached, frozenset((one.type, one.id) for one in every), None, PRICES)
    assert found.orphans == ()
    assert found.text() == "m1-pd: everything that carries its tag is in its state\n"

    found, things = leftovers.find("m1-pd", reached, frozenset(), None, PRICES)
    host = next(one for one in found.orphans if one.name == "gpu-1")
    assert host.hourly == 113.9328
    assert "p6-b200.48xlarge, running, since" in found.text()
    assert "an hour (prices of 20" in found.text()

    # A mirror with objects stays, and is named after everything else was tried.
    s3 = account.client("s3")
    s3.put_object(Bucket="models-m1-pd", Key="shard", Body=b"x")
    with pytest.raises(CheckFailed, match="still has objects"):
        leftovers.remove(things, reached, silent)
    assert [one.kind for one in reached.tagged("m1-pd")] == ["Bucket"]
    s3.delete_object(Bucket="models-m1-pd", Key="shard")
    # Removing what is gone is no error.
    assert len(leftovers.remove(things, reached, silent)) == len(found.orphans) == 14
    assert reached.tagged("m1-pd") == ()
    assert len(reached.tagged("other")) == others
    assert reached.association("subnet-0", "rtb-0") is None


def test_what_another_state_of_the_name_made_is_told_apart_and_counted_in_only_when_asked(
    account: Any, reached: Account
) -> None:
    ec2 = account.client("ec2")
    for owner in ("ours", "theirs", None):
        more = [{"Key": kinds.OWNER_TAG, "Value": owner}] if owner else []
        specification = [{"ResourceType": "vpc", "Tags": [*tags("vpc"), *more]}]
        ec2.create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=specification)
    found, things = leftovers.find("m1-pd", reached, frozenset(), "ours", PRICES)
    assert {one.owner for one in things} == {"ours", None}
    assert [one.owner for one in found.strangers] == ["theirs"]
    assert "1 made by another state that is called m1-pd too, left alone" in found.text()
    assert "owner theirs): free" in found.text()
    everything, things = leftovers.find("m1-pd", reached, frozenset(), None, PRICES)
    assert (len(things), everything.strangers) == (3, ())


def test_a_bucket_is_recognised_as_a_half_made_one_only_while_it_is_empty_and_untagged(
    account: Any, reached: Account
) -> None:
    s3 = account.client("s3")
    s3.create_bucket(Bucket="models-abc", CreateBucketConfiguration={"LocationConstraint": "us-east-2"})
    assert reached.bucket_without_tags("models-abc")
    assert not reached.bucket_without_tags("models-absent")
    s3.put_object(Bucket="models-abc", Key="k", Body=b"x")
    assert not reached.bucket_without_tags("models-abc")


def test_no_credentials_and_no_answer_are_told_apart(
    reached: Account, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_port}")
    with pytest.raises(NetworkFailure, match="did not answer"):
        Account("us-east-2").identity()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(AuthFailure, match="no AWS credentials"):
        Account("us-east-2").identity()


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Account, dict[str, Stubber]]]:
    """An account whose services answer what a test lists, and botocore parses and checks as ever."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    clients = {name: boto3.client(name, region_name="us-east-2") for name in ("ec2", "iam", "ecr", "s3")}
    stubs = {name: Stubber(client) for name, client in clients.items()}
    account = Account("us-east-2")
    monkeypatch.setattr(account, "_client", clients.__getitem__)
    for stub in stubs.values():
        stub.activate()
    yield account, stubs
    for stub in stubs.values():
        stub.assert_no_pending_responses()


VPC = kinds.Found(kinds.EC2["vpc"], "vpc-0", "vpc")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("UnauthorizedOperation", "Unknown"),
        ("DependencyViolation", "the subnet does not exist here NotFound"),
        ("InternalError", "NoSuchThing"),
        ("UnknownParameter", ""),
    ],
)
def test_what_aws_refuses_to_remove_is_never_taken_for_gone(
    stubbed: tuple[Account, dict[str, Stubber]], code: str, text: str
) -> None:
    account, stubs = stubbed
    stubs["ec2"].add_client_error("delete_vpc", code, text)
    with pytest.raises((AuthFailure, CheckFailed), match=code):
        account.remove(VPC)


@pytest.mark.parametrize(
    ("thing", "service", "call", "code"),
    [
        (VPC, "ec2", "delete_vpc", "InvalidVpcID.NotFound"),
        (
            kinds.Found(kinds.EC2["placement-group"], "g", "g"),
            "ec2",
            "delete_placement_group",
            "InvalidPlacementGroup.Unknown",
        ),
        (kinds.Found(kinds.REPOSITORY, "repo", "r"), "ecr", "delete_repository", "RepositoryNotFoundException"),
        (kinds.Found(kinds.BUCKET, "bucket", "b"), "s3", "delete_bucket", "NoSuchBucket"),
    ],
)
def test_what_is_gone_meanwhile_is_told_by_its_code(
    stubbed: tuple[Account, dict[str, Stubber]], thing: kinds.Found, service: str, call: str, code: str
) -> None:
    account, stubs = stubbed
    stubs[service].add_client_error(call, code, "Unknown")
    account.remove(thing)


def test_an_endpoint_that_aws_lists_as_not_deleted_is_not_removed(stubbed: tuple[Account, dict[str, Stubber]]) -> None:
    account, stubs = stubbed
    endpoint = kinds.Found(kinds.EC2["vpc-endpoint"], "vpce-0", "ssm")
    for code in ("DependencyViolation", "InvalidVpcEndpoint.NotFound"):
        refused = {"ResourceId": "vpce-0", "Error": {"Code": code, "Message": "no"}}
        stubs["ec2"].add_response("delete_vpc_endpoints", {"Unsuccessful": [refused]})
    with pytest.raises(CheckFailed, match="DependencyViolation"):
        account.remove(endpoint)
    account.remove(endpoint)


def test_a_role_is_removed_though_its_policy_went_meanwhile(stubbed: tuple[Account, dict[str, Stubber]]) -> None:
    account, stubs = stubbed
    stubs["iam"].add_response("list_attached_role_policies", {"AttachedPolicies": []})
    stubs["iam"].add_response("list_role_policies", {"PolicyNames": ["p"]})
    stubs["iam"].add_client_error("delete_role_policy", "NoSuchEntity")
    stubs["iam"].add_response("delete_role", {})
    account.remove(kinds.Found(kinds.ROLE, "node", "node"))
