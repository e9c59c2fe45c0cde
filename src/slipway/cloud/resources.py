"""What a stack creates at AWS, as a list to show: the same types and names that the Pulumi program registers."""

from __future__ import annotations

from dataclasses import dataclass

from slipway.cloud import access, hosts
from slipway.cloud.instance_types import InstanceType, nics
from slipway.cloud.settings import AwsHosts

INTERFACE_ENDPOINTS = ("ecr.api", "ecr.dkr", "ssm", "ssmmessages", "ec2messages")
"""AWS services that hosts without internet reach through an address of their own subnet; S3 comes through its gateway."""


@dataclass(frozen=True)
class Planned:
    """One resource: Pulumi's type token, its logical name, what it is, and what `prices.yaml` calls it (empty: free)."""

    type: str
    name: str
    says: str
    item: str = ""
    quantity: int = 1


def planned(aws: AwsHosts, kind: InstanceType, ports: access.Ports) -> tuple[Planned, ...]:
    """Every resource of the stack, in the order of the program's parts."""
    return (*_network(aws, ports), *_storage(aws), *_gpu_nodes(aws, kind), *_router(aws))


def endpoint_name(service: str) -> str:
    """The logical name of the endpoint of `service`."""
    return f"endpoint-{service.replace('.', '-')}"


def _network(aws: AwsHosts, ports: access.Ports) -> list[Planned]:
    found = [
        Planned("aws:ec2/vpc:Vpc", "vpc", f"{aws.network}, no internet gateway"),
        Planned("aws:ec2/subnet:Subnet", "private", f"{aws.network} in {aws.zone}, no public addresses"),
        Planned("aws:ec2/routeTable:RouteTable", "private", "no route out of the network"),
        Planned("aws:ec2/routeTableAssociation:RouteTableAssociation", "private", ""),
    ]
    found += [
        Planned("aws:ec2/securityGroup:SecurityGroup", group, "rules below and nothing else")
        for group in access.groups(aws)
    ]
    for rule in access.rules(aws, ports):
        kind = "Ingress" if rule.direction == "in" else "Egress"
        what = "everything" if rule.port is None else f"TCP {rule.port}"
        way = "from" if rule.direction == "in" else "to"
        token = f"aws:vpc/securityGroup{kind}Rule:SecurityGroup{kind}Rule"
        found.append(Planned(token, rule.name, f"{what} {way} {rule.peer}: {rule.reason}"))
    found.append(Planned("aws:ec2/vpcEndpoint:VpcEndpoint", endpoint_name("s3"), "gateway, free of charge"))
    found += [
        Planned("aws:ec2/vpcEndpoint:VpcEndpoint", endpoint_name(service), "interface", "interface-endpoint")
        for service in INTERFACE_ENDPOINTS
    ]
    return found


def _storage(aws: AwsHosts) -> list[Planned]:
    return [
        Planned("aws:s3/bucket:Bucket", "models", "model mirror, billed by what it holds"),
        Planned("aws:s3/bucketVersioning:BucketVersioning", "models", ""),
        Planned(
            "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration", "models", "AES256"
        ),
        Planned(
            "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
            "models",
            "no public access, whatever a policy says",
        ),
        *(
            Planned("aws:ecr/repository:Repository", name, "immutable tags, billed by what it holds")
            for name in aws.repositories
        ),
    ]


def _gpu_nodes(aws: AwsHosts, kind: InstanceType) -> list[Planned]:
    efa = sum(nic.kind != "interface" for nic in nics(kind))
    capacity = aws.capacity.kind if aws.capacity.id is None else f"{aws.capacity.kind} {aws.capacity.id}"
    found = [
        Planned("aws:iam/role:Role", "node", "the hosts' own"),
        Planned("aws:iam/rolePolicy:RolePolicy", "node", "read the mirror, pull images, SSM sessions"),
        Planned("aws:iam/instanceProfile:InstanceProfile", "node", ""),
        Planned("aws:ec2/placementGroup:PlacementGroup", "gpu", "cluster: all hosts close together"),
        Planned(
            "aws:ec2/launchTemplate:LaunchTemplate", "gpu", f"{len(nics(kind))} network interfaces, {efa} of them EFA"
        ),
    ]
    for name in hosts.gpu_names(aws):
        says = f"{kind.name}, {kind.gpus}x {kind.gpu_model}, {capacity}"
        found.append(Planned("aws:ec2/instance:Instance", name, says, kind.name))
    return found


def _router(aws: AwsHosts) -> list[Planned]:
    if aws.router is None:
        return []
    return [
        Planned("aws:ec2/instance:Instance", "router", f"{aws.router.instance_type}, no GPU", aws.router.instance_type)
    ]
