"""What no stack may create, as plain functions over resource records: what the engine is asked for, before it is asked.

A record has the engine's own words: Pulumi's type token and camelCase inputs. The program holds every resource against
`violations` before it is registered, and the whole list against `stack_violations` at its end; tests do the same offline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipway.cloud.settings import PLACEHOLDER

STACK_TAG = "slipway:stack"
NAME_TAG = "slipway:resource"
OWNER_TAG = "slipway:owner"
OPEN = frozenset({"0.0.0.0/0", "::/0"})

UNTAGGED = frozenset(
    {
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        "aws:iam/rolePolicy:RolePolicy",
        "aws:s3/bucketVersioning:BucketVersioning",
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
    }
)
"""Types that AWS cannot tag: they are parts of a tagged resource and go with it."""

PUBLIC_TYPES = frozenset(
    {
        "aws:ec2/eip:Eip",
        "aws:ec2/eipAssociation:EipAssociation",
        "aws:ec2/internetGateway:InternetGateway",
        "aws:ec2/natGateway:NatGateway",
    }
)
"""Types that exist to join a network to the internet."""


@dataclass(frozen=True)
class Record:
    """One resource as the engine is asked for it."""

    type: str
    name: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Violation:
    """A policy that a resource breaks."""

    policy: str
    type: str
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name} ({self.type}): {self.message} [{self.policy}]"


@dataclass(frozen=True)
class Tags:
    """The tags of one stack's resources; `owner` tells its state from another one of the same name in the same account."""

    stack: str
    owner: str | None = None

    def __call__(self, name: str) -> dict[str, str]:
        """The tags of the resource called `name`: by them it is found again when a run was cut off before it wrote it down."""
        owned = {OWNER_TAG: self.owner} if self.owner else {}
        return {**self.lasting(name), **owned}

    def lasting(self, name: str) -> dict[str, str]:
        """Those that never change: for a launch template's words, a change of which replaces hosts."""
        return {STACK_TAG: self.stack, NAME_TAG: name, "Name": f"{self.stack}-{name}"}


def violations(record: Record) -> tuple[Violation, ...]:
    """What `record` breaks on its own."""
    return tuple(
        Violation(policy, record.type, record.name, message)
        for policy, check in POLICIES.items()
        for message in check(record)
    )


def stack_violations(records: Sequence[Record]) -> tuple[Violation, ...]:
    """What the `records` of one stack break together, or by something that is missing."""
    return tuple(
        Violation(policy, record.type, record.name, message)
        for policy, check in STACK_POLICIES.items()
        for record, message in check(records)
    )


def _open_to_all(record: Record) -> Iterator[str]:
    rules: list[Mapping[str, Any]] = []
    if record.type.startswith("aws:vpc/securityGroup"):
        rules = [record.inputs]
    elif record.type == "aws:ec2/securityGroup:SecurityGroup":
        rules = [*_items(record, "ingress"), *_items(record, "egress")]
    elif record.type in {"aws:ec2/routeTable:RouteTable", "aws:ec2/route:Route"}:
        rules = [*_items(record, "routes"), record.inputs]
    for rule in rules:
        found = {rule.get(key) for key in ("cidrIpv4", "cidrIpv6", "cidrBlock", "destinationCidrBlock")}
        found |= {*rule.get("cidrBlocks", ()), *rule.get("ipv6CidrBlocks", ())}
        for network in sorted(OPEN & found):
            yield f"{network} is the whole internet; name the networks that need it"


def _public_address(record: Record) -> Iterator[str]:
    if record.type in PUBLIC_TYPES:
        yield "joins the network to the internet; hosts are reached through SSM and endpoints"
    asked = [record.inputs.get("mapPublicIpOnLaunch"), record.inputs.get("associatePublicIpAddress")]
    asked += [nic.get("associatePublicIpAddress") for nic in _items(record, "networkInterfaces")]
    if any(value in (True, "true") for value in asked):
        yield "asks for a public address; AWS refuses it for several network interfaces, and nothing here needs one"


def _unencrypted(record: Record) -> Iterator[str]:
    if record.type == "aws:ec2/launchTemplate:LaunchTemplate":
        disks = [item.get("ebs", {}) for item in _items(record, "blockDeviceMappings")]
        if not disks:
            yield "names no root volume, so the image decides whether it is encrypted"
    elif record.type == "aws:ec2/instance:Instance" and "launchTemplate" not in record.inputs:
        disks = [record.inputs.get("rootBlockDevice", {}), *_items(record, "ebsBlockDevices")]
    elif record.type == "aws:ebs/volume:Volume":
        disks = [record.inputs]
    else:
        return
    if not all(disk.get("encrypted") in (True, "true") for disk in disks):
        yield "has a volume that is not encrypted; set encrypted"


def _old_metadata_service(record: Record) -> Iterator[str]:
    template = record.type == "aws:ec2/launchTemplate:LaunchTemplate"
    bare = record.type == "aws:ec2/instance:Instance" and "launchTemplate" not in record.inputs
    if (template or bare) and record.inputs.get("metadataOptions", {}).get("httpTokens") != "required":
        yield "answers metadata requests without a token (IMDSv1); set httpTokens: required"


def _untagged(record: Record) -> Iterator[str]:
    if not record.type.startswith("aws:") or record.type in UNTAGGED:
        return
    found = record.inputs.get("tags") or {}
    if not found.get(STACK_TAG) or found.get(NAME_TAG) != record.name:
        yield f"lacks the tags {STACK_TAG} and {NAME_TAG}: {record.name}; an interrupted run could not find it again"


def _mutable_images(record: Record) -> Iterator[str]:
    if record.type == "aws:ecr/repository:Repository" and record.inputs.get("imageTagMutability") != "IMMUTABLE":
        yield "lets a tag move to another image; set imageTagMutability: IMMUTABLE"


def _moving_image(record: Record) -> Iterator[str]:
    image = record.inputs.get("imageId") or record.inputs.get("ami")
    # An example value passes a preview; the program refuses it in `up` before anything is registered.
    if image not in (None, PLACEHOLDER) and not str(image).startswith("ami-"):
        yield f"names its machine image by something that moves (got {image}); write down its id (ami-…)"


def _public_bucket(record: Record) -> Iterator[str]:
    if str(record.inputs.get("acl", "private")).startswith("public") and record.type.startswith("aws:s3/"):
        yield "is readable by everyone; remove the acl"
    if record.type == "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock":
        switches = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
        off = [switch for switch in switches if record.inputs.get(switch) is not True]
        if off:
            yield f"leaves a way to publish the bucket: {', '.join(off)}; set all four"


POLICIES: dict[str, Callable[[Record], Iterator[str]]] = {
    "closed-to-the-internet": _open_to_all,
    "no-public-address": _public_address,
    "volumes-encrypted": _unencrypted,
    "imdsv2-only": _old_metadata_service,
    "tagged": _untagged,
    "image-tags-immutable": _mutable_images,
    "machine-image-pinned": _moving_image,
    "bucket-private": _public_bucket,
}
"""Policies about one resource, by name."""


def _efa_without_self_rules(records: Sequence[Record]) -> Iterator[tuple[Record, str]]:
    for record in records:
        groups = {
            group
            for nic in _items(record, "networkInterfaces")
            if nic.get("interfaceType") in {"efa", "efa-only"}
            for group in nic.get("securityGroups") or [""]
        }
        for way, kind in (("in", "Ingress"), ("out", "Egress")):
            allowed = {
                rule.inputs.get("securityGroupId")
                for rule in records
                if rule.type == f"aws:vpc/securityGroup{kind}Rule:SecurityGroup{kind}Rule"
                and rule.inputs.get("ipProtocol") == "-1"
                and rule.inputs.get("securityGroupId") == rule.inputs.get("referencedSecurityGroupId")
            }
            if groups - allowed:
                yield (
                    record,
                    f"has EFA, but its security group does not allow everything {way} from itself: EFA drops it",
                )


def _bucket_parts_missing(records: Sequence[Record]) -> Iterator[tuple[Record, str]]:
    for bucket in (record for record in records if record.type == "aws:s3/bucket:Bucket"):
        for part, what in (
            ("bucketVersioning:BucketVersioning", "versioning"),
            ("bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration", "encryption"),
            ("bucketPublicAccessBlock:BucketPublicAccessBlock", "a block on public access"),
        ):
            if not any(record.type == f"aws:s3/{part}" and record.name == bucket.name for record in records):
                yield bucket, f"lacks {what}; register {part.rpartition(':')[2]} under the bucket's name"


STACK_POLICIES: dict[str, Callable[[Sequence[Record]], Iterator[tuple[Record, str]]]] = {
    "efa-self-rules": _efa_without_self_rules,
    "bucket-complete": _bucket_parts_missing,
}
"""Policies about all resources of a stack together, by name."""


def _items(record: Record, key: str) -> Iterable[Mapping[str, Any]]:
    value = record.inputs.get(key) or ()
    return [item for item in value if isinstance(item, Mapping)]
