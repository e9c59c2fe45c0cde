"""What carries a stack's tag in an AWS account, and its removal: boto3 at the rim, data inside.

The tag is asked of each service itself. The Resource Groups Tagging API would be one call, but it leaves out IAM roles and lags
minutes behind, and a machine that is missed here is a machine that is paid for.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from slipway.provision import failures, kinds, unanswered
from slipway.provision.kinds import EC2, NAME_TAG, OWNER_TAG, STACK_TAG, Found

ABSENT = re.compile(r"NoSuch.*|.*NotFound(Exception)?|InvalidPlacementGroup\.Unknown")
"""The codes with which services say that a thing is not there. Only codes: the texts name anything, and botocore writes
"Unknown" where AWS left the text out. Source: EC2, IAM, ECR and S3 API references, 2026-11."""

GONE = ("terminated", "shutting-down", "deleted", "deleting", "cancelled", "expired")

CLIENT = Config(connect_timeout=5, read_timeout=60, retries={"mode": "standard", "total_max_attempts": 5})
"""An endpoint that swallows packets is given up after half a minute, not after five."""


class Account:
    """One AWS account in one region, reached with boto3's own settings (AWS_PROFILE, AWS_ENDPOINT_URL and so on).

    Raises: AuthFailure, UsageError when those settings cannot be used; so do all of its methods.
    """

    def __init__(self, region: str) -> None:
        self.region = region
        self._session = self._said(lambda: boto3.Session(region_name=region))
        self._client = functools.cache(self._new_client)

    def identity(self) -> str:
        """Who asks, as `arn:aws:iam::123456789012:user/me`.

        Raises: AuthFailure, NetworkFailure.
        """
        return str(self._said(lambda: self._client("sts").get_caller_identity())["Arn"])

    def tagged(self, stack: str) -> tuple[Found, ...]:
        """Everything that carries the tag of `stack` and still exists, in the order in which it can be removed.

        Volumes and network interfaces of a host are the host's, and go with it.

        Raises: AuthFailure, NetworkFailure.
        """
        found = self._said(
            lambda: [
                *self._ec2(stack),
                *self._instance_profiles(stack),
                *self._roles(stack),
                *self._repositories(stack),
                *self._buckets(stack),
            ]
        )
        return tuple(sorted(found, key=lambda one: (kinds.ORDER_OF_REMOVAL.index(one.type), one.name, one.id)))

    def bucket_without_tags(self, name: str) -> bool:
        """Whether the bucket `name` is ours, empty and untagged: S3 takes a bucket's tags only in a second call."""

        def look() -> bool:
            client = self._client("s3")
            if name not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                return False
            empty = not client.list_objects_v2(Bucket=name, MaxKeys=1).get("KeyCount")
            return empty and not self._bucket_tags(name)

        return bool(self._said(look))

    def association(self, subnet: str, table: str) -> str | None:
        """The id of the association between a subnet and a route table, which AWS cannot tag."""
        answer = self._said(lambda: self._client("ec2").describe_route_tables(RouteTableIds=[table]), absent=True)
        for found in (answer or {"RouteTables": []})["RouteTables"]:
            for link in found.get("Associations", []):
                if link.get("SubnetId") == subnet:
                    return str(link["RouteTableAssociationId"])
        return None

    def remove(self, thing: Found) -> None:
        """Remove one thing; one that is gone meanwhile is no error.

        Raises: CheckFailed, AuthFailure, NetworkFailure in AWS's words.
        """
        answer = self._said(lambda: _REMOVE[thing.type](self._client, thing), absent=True)
        # Calls for several things at once succeed as a whole and list what they refused.
        for refused in answer.get("Unsuccessful", []) if isinstance(answer, dict) else []:
            error = refused["Error"]
            if not ABSENT.fullmatch(error["Code"]):
                text = f"api error {error['Code']}: {error.get('Message', '')}"
                raise failures.explain(f"AWS {thing.id}", [text], "its removal")

    def _new_client(self, service: str) -> Any:
        return self._session.client(service, config=CLIENT)

    def _said(self, ask: Callable[[], Any], absent: bool = False) -> Any:
        try:
            return ask()
        except unanswered.RAISED as error:
            if absent and isinstance(error, ClientError) and _says_absent(error):
                return None
            raise unanswered.explain(error) from error

    def _ec2(self, stack: str) -> Iterator[Found]:
        names = self._ec2_names(stack)
        instances = [identity for identity, (kind, _) in names.items() if kind == "instance"]
        hosts = {one["InstanceId"]: one for one in self._living_instances(instances)}
        for identity, (kind, said) in names.items():
            name = said.get(NAME_TAG, "")
            if kind == "instance":
                found = [_instance(hosts[identity], name)] if identity in hosts else []
            else:
                found = self._looked_at(kind, identity, name) if kind in _LOOK else []
            yield from (replace(one, owner=said.get(OWNER_TAG)) for one in found)

    def _ec2_names(self, stack: str) -> dict[str, tuple[str, dict[str, str]]]:
        """Kind and tags of every EC2 resource of `stack`, by id."""
        pages = self._client("ec2").get_paginator("describe_tags")
        filters = [{"Name": "key", "Values": [STACK_TAG, NAME_TAG, OWNER_TAG]}]
        tags: dict[str, dict[str, str]] = {}
        kind: dict[str, str] = {}
        for page in pages.paginate(Filters=filters):
            for tag in page["Tags"]:
                tags.setdefault(tag["ResourceId"], {})[tag["Key"]] = tag["Value"]
                kind[tag["ResourceId"]] = tag["ResourceType"]
        return {identity: (kind[identity], said) for identity, said in tags.items() if said.get(STACK_TAG) == stack}

    def _living_instances(self, identities: list[str]) -> Iterator[Mapping[str, Any]]:
        # By filter, not by id: an id that EC2 has forgotten would fail the whole call.
        pages = self._client("ec2").get_paginator("describe_instances")
        if not identities:
            return
        for page in pages.paginate(Filters=[{"Name": "instance-id", "Values": identities}]):
            for reservation in page["Reservations"]:
                for instance in reservation["Instances"]:
                    if instance["State"]["Name"] not in GONE:
                        yield instance

    def _looked_at(self, kind: str, identity: str, name: str) -> list[Found]:
        try:
            return list(_LOOK[kind](self._client("ec2"), identity, name))
        except ClientError as error:
            # Tags outlive what they stood on by a while.
            if _says_absent(error):
                return []
            raise

    def _roles(self, stack: str) -> Iterator[Found]:
        client = self._client("iam")
        for page in client.get_paginator("list_roles").paginate():
            for role in page["Roles"]:
                if role["Path"].startswith("/aws-service-role/"):
                    continue
                tags = client.list_role_tags(RoleName=role["RoleName"])["Tags"]
                yield from _ours(tags, stack, kinds.ROLE, role["RoleName"])

    def _instance_profiles(self, stack: str) -> Iterator[Found]:
        client = self._client("iam")
        for page in client.get_paginator("list_instance_profiles").paginate():
            for profile in page["InstanceProfiles"]:
                name = profile["InstanceProfileName"]
                tags = client.get_instance_profile(InstanceProfileName=name)["InstanceProfile"].get("Tags", [])
                yield from _ours(tags, stack, kinds.INSTANCE_PROFILE, name)

    def _repositories(self, stack: str) -> Iterator[Found]:
        client = self._client("ecr")
        for page in client.get_paginator("describe_repositories").paginate():
            for repository in page["repositories"]:
                tags = client.list_tags_for_resource(resourceArn=repository["repositoryArn"])["tags"]
                yield from _ours(tags, stack, kinds.REPOSITORY, repository["repositoryName"])

    def _buckets(self, stack: str) -> Iterator[Found]:
        for bucket in self._client("s3").list_buckets()["Buckets"]:
            yield from _ours(self._bucket_tags(bucket["Name"]), stack, kinds.BUCKET, bucket["Name"])

    def _bucket_tags(self, name: str) -> list[Mapping[str, str]]:
        try:
            return list(self._client("s3").get_bucket_tagging(Bucket=name)["TagSet"])
        except ClientError as error:
            # AccessDenied and redirects concern other people's buckets in the same account.
            if unanswered.code(error) in {"NoSuchTagSet", "NoSuchBucket", "AccessDenied", "PermanentRedirect"}:
                return []
            raise


def _says_absent(error: ClientError) -> bool:
    return bool(ABSENT.fullmatch(unanswered.code(error)))


def _ours(tags: list[Mapping[str, str]], stack: str, kind: str, identity: str) -> Iterator[Found]:
    said = {tag["Key"]: tag["Value"] for tag in tags}
    if said.get(STACK_TAG) == stack:
        yield Found(kind, identity, said.get(NAME_TAG, ""), owner=said.get(OWNER_TAG))


def _instance(instance: Mapping[str, Any], name: str) -> Found:
    since = instance.get("LaunchTime")
    detail = (
        f"{instance['InstanceType']}, {instance['State']['Name']}, since {since:%Y-%m-%d %H:%M} UTC" if since else ""
    )
    return Found(kinds.INSTANCE, instance["InstanceId"], name, detail, instance["InstanceType"])


def _rules(client: Any, identity: str, name: str) -> Iterator[Found]:
    for rule in client.describe_security_group_rules(SecurityGroupRuleIds=[identity])["SecurityGroupRules"]:
        kind = kinds.EGRESS_RULE if rule["IsEgress"] else EC2["security-group-rule"]
        yield Found(kind, identity, name, rule["GroupId"])


def _volumes(client: Any, identity: str, name: str) -> Iterator[Found]:
    for volume in client.describe_volumes(VolumeIds=[identity])["Volumes"]:
        if not volume.get("Attachments"):
            yield Found(EC2["volume"], identity, name, f"{volume['Size']} GiB", "volume-gib", volume["Size"])


def _interfaces(client: Any, identity: str, name: str) -> Iterator[Found]:
    for interface in client.describe_network_interfaces(NetworkInterfaceIds=[identity])["NetworkInterfaces"]:
        if not interface.get("Attachment"):
            yield Found(EC2["network-interface"], identity, name)


def _placement_groups(client: Any, identity: str, name: str) -> Iterator[Found]:
    # Pulumi's id of a placement group is its name.
    for group in client.describe_placement_groups(GroupIds=[identity])["PlacementGroups"]:
        if group["State"] not in GONE:
            yield Found(EC2["placement-group"], group["GroupName"], name)


def _key_pairs(client: Any, identity: str, name: str) -> Iterator[Found]:
    for pair in client.describe_key_pairs(KeyPairIds=[identity])["KeyPairs"]:
        yield Found(EC2["key-pair"], pair["KeyName"], name)


def _endpoints(client: Any, identity: str, name: str) -> Iterator[Found]:
    for endpoint in client.describe_vpc_endpoints(VpcEndpointIds=[identity])["VpcEndpoints"]:
        if endpoint.get("State", "").lower() not in GONE:
            item = "interface-endpoint" if endpoint.get("VpcEndpointType") == "Interface" else None
            yield Found(EC2["vpc-endpoint"], identity, name, endpoint.get("ServiceName", ""), item)


def _reservations(client: Any, identity: str, name: str) -> Iterator[Found]:
    answer = client.describe_capacity_reservations(CapacityReservationIds=[identity])
    for one in answer["CapacityReservations"]:
        if one["State"] not in GONE:
            detail = f"{one['TotalInstanceCount']} × {one['InstanceType']}"
            yield Found(
                EC2["capacity-reservation"], identity, name, detail, one["InstanceType"], one["TotalInstanceCount"]
            )


def _gateways(client: Any, identity: str, name: str) -> Iterator[Found]:
    for gateway in client.describe_nat_gateways(NatGatewayIds=[identity])["NatGateways"]:
        if gateway["State"] not in GONE:
            yield Found(EC2["natgateway"], identity, name)


def _plain(kind: str, method: str, key: str, answer: str) -> Callable[[Any, str, str], Iterator[Found]]:
    """How a thing is looked at of which nothing but its existence matters: `method` with its id under `key`."""

    def look(client: Any, identity: str, name: str) -> Iterator[Found]:
        if getattr(client, method)(**{key: [identity]})[answer]:
            yield Found(EC2[kind], identity, name)

    return look


_PLAIN = (
    ("vpc", "describe_vpcs", "VpcIds", "Vpcs"),
    ("subnet", "describe_subnets", "SubnetIds", "Subnets"),
    ("route-table", "describe_route_tables", "RouteTableIds", "RouteTables"),
    ("security-group", "describe_security_groups", "GroupIds", "SecurityGroups"),
    ("internet-gateway", "describe_internet_gateways", "InternetGatewayIds", "InternetGateways"),
    ("elastic-ip", "describe_addresses", "AllocationIds", "Addresses"),
    ("launch-template", "describe_launch_templates", "LaunchTemplateIds", "LaunchTemplates"),
)

_LOOK: dict[str, Callable[[Any, str, str], Iterator[Found]]] = {
    **{row[0]: _plain(*row) for row in _PLAIN},
    "security-group-rule": _rules,
    "volume": _volumes,
    "network-interface": _interfaces,
    "placement-group": _placement_groups,
    "key-pair": _key_pairs,
    "vpc-endpoint": _endpoints,
    "capacity-reservation": _reservations,
    "natgateway": _gateways,
}


def _remove_instance(client: Callable[[str], Any], thing: Found) -> None:
    ec2 = client("ec2")
    ec2.terminate_instances(InstanceIds=[thing.id])
    # What the host uses can go only after it has; the host itself is no longer paid for from the moment it stops.
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[thing.id])


def _unless_gone(step: Callable[..., object], **named: str) -> None:
    """Do one `step` on the way to a removal; what it undoes may be gone, and the thing itself still there."""
    try:
        step(**named)
    except ClientError as error:
        if not _says_absent(error):
            raise


def _remove_table(client: Callable[[str], Any], thing: Found) -> None:
    ec2 = client("ec2")
    for table in ec2.describe_route_tables(RouteTableIds=[thing.id])["RouteTables"]:
        for link in table.get("Associations", []):
            if not link.get("Main"):
                _unless_gone(ec2.disassociate_route_table, AssociationId=link["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=thing.id)


def _remove_gateway(client: Callable[[str], Any], thing: Found) -> None:
    ec2 = client("ec2")
    for gateway in ec2.describe_internet_gateways(InternetGatewayIds=[thing.id])["InternetGateways"]:
        for link in gateway.get("Attachments", []):
            _unless_gone(ec2.detach_internet_gateway, InternetGatewayId=thing.id, VpcId=link["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=thing.id)


def _remove_profile(client: Callable[[str], Any], thing: Found) -> None:
    iam = client("iam")
    for role in iam.get_instance_profile(InstanceProfileName=thing.id)["InstanceProfile"]["Roles"]:
        _unless_gone(iam.remove_role_from_instance_profile, InstanceProfileName=thing.id, RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=thing.id)


def _remove_role(client: Callable[[str], Any], thing: Found) -> None:
    iam = client("iam")
    for policy in iam.list_attached_role_policies(RoleName=thing.id)["AttachedPolicies"]:
        _unless_gone(iam.detach_role_policy, RoleName=thing.id, PolicyArn=policy["PolicyArn"])
    for name in iam.list_role_policies(RoleName=thing.id)["PolicyNames"]:
        _unless_gone(iam.delete_role_policy, RoleName=thing.id, PolicyName=name)
    iam.delete_role(RoleName=thing.id)


_REMOVE: dict[str, Callable[[Callable[[str], Any], Found], object]] = {
    kinds.INSTANCE: _remove_instance,
    EC2["volume"]: lambda client, one: client("ec2").delete_volume(VolumeId=one.id),
    EC2["capacity-reservation"]: lambda client, one: client("ec2").cancel_capacity_reservation(
        CapacityReservationId=one.id
    ),
    EC2["launch-template"]: lambda client, one: client("ec2").delete_launch_template(LaunchTemplateId=one.id),
    EC2["key-pair"]: lambda client, one: client("ec2").delete_key_pair(KeyName=one.id),
    EC2["placement-group"]: lambda client, one: client("ec2").delete_placement_group(GroupName=one.id),
    EC2["natgateway"]: lambda client, one: client("ec2").delete_nat_gateway(NatGatewayId=one.id),
    EC2["elastic-ip"]: lambda client, one: client("ec2").release_address(AllocationId=one.id),
    EC2["vpc-endpoint"]: lambda client, one: client("ec2").delete_vpc_endpoints(VpcEndpointIds=[one.id]),
    EC2["network-interface"]: lambda client, one: client("ec2").delete_network_interface(NetworkInterfaceId=one.id),
    EC2["security-group-rule"]: lambda client, one: client("ec2").revoke_security_group_ingress(
        GroupId=one.detail, SecurityGroupRuleIds=[one.id]
    ),
    kinds.EGRESS_RULE: lambda client, one: client("ec2").revoke_security_group_egress(
        GroupId=one.detail, SecurityGroupRuleIds=[one.id]
    ),
    EC2["security-group"]: lambda client, one: client("ec2").delete_security_group(GroupId=one.id),
    EC2["route-table"]: _remove_table,
    EC2["internet-gateway"]: _remove_gateway,
    EC2["subnet"]: lambda client, one: client("ec2").delete_subnet(SubnetId=one.id),
    EC2["vpc"]: lambda client, one: client("ec2").delete_vpc(VpcId=one.id),
    kinds.INSTANCE_PROFILE: _remove_profile,
    kinds.ROLE: _remove_role,
    kinds.REPOSITORY: lambda client, one: client("ecr").delete_repository(repositoryName=one.id),
    kinds.BUCKET: lambda client, one: client("s3").delete_bucket(Bucket=one.id),
}
