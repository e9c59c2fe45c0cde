"""The network of a cloud stack: one private subnet, the endpoints that stand in for the internet, and who may talk to whom."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from slipway.cloud import access
from slipway.cloud.policies import Tags
from slipway.cloud.resources import INTERFACE_ENDPOINTS, endpoint_name
from slipway.cloud.settings import AwsHosts


@dataclass(frozen=True)
class NetworkArgs:
    """What a network is made from; `region` names the endpoints' services."""

    tags: Tags
    region: str
    aws: AwsHosts
    ports: access.Ports


class Network(pulumi.ComponentResource):
    """VPC, private subnet, endpoints for S3, ECR and SSM, and one security group per kind of host."""

    def __init__(self, args: NetworkArgs) -> None:
        super().__init__("slipway:aws:Network", "network")
        self._args, self._child = args, pulumi.ResourceOptions(parent=self)
        self._vpc = aws.ec2.Vpc(
            "vpc",
            cidr_block=args.aws.network,
            enable_dns_support=True,
            enable_dns_hostnames=True,  # the endpoints' private names resolve only with both
            tags=args.tags("vpc"),
            opts=self._child,
        )
        self.subnet, table = self._private_subnet()
        self.groups: dict[str, aws.ec2.SecurityGroup] = {name: self._group(name) for name in access.groups(args.aws)}
        s3 = self._endpoints(table)
        for rule in access.rules(args.aws, args.ports):
            self._rule(rule, s3)
        self.register_outputs({"subnet": self.subnet.id})

    def _private_subnet(self) -> tuple[aws.ec2.Subnet, aws.ec2.RouteTable]:
        zone = self._args.aws.zone
        by_id = "-az" in zone
        subnet = aws.ec2.Subnet(
            "private",
            vpc_id=self._vpc.id,
            cidr_block=self._args.aws.network,
            # EFA traffic cannot leave the subnet's zone, so there is one subnet, where the capacity is.
            availability_zone=None if by_id else zone,
            availability_zone_id=zone if by_id else None,
            map_public_ip_on_launch=False,
            tags=self._args.tags("private"),
            opts=self._child,
        )
        table = aws.ec2.RouteTable("private", vpc_id=self._vpc.id, tags=self._args.tags("private"), opts=self._child)
        aws.ec2.RouteTableAssociation("private", subnet_id=subnet.id, route_table_id=table.id, opts=self._child)
        return subnet, table

    def _group(self, name: str) -> aws.ec2.SecurityGroup:
        # No rules inline: they are resources of their own, so that groups can name each other.
        return aws.ec2.SecurityGroup(
            name,
            vpc_id=self._vpc.id,
            description=f"slipway {self._args.tags.stack}: {name}",
            tags=self._args.tags(name),
            opts=self._child,
        )

    def _endpoints(self, table: aws.ec2.RouteTable) -> aws.ec2.VpcEndpoint:
        """The S3 gateway; the interface endpoints need no mention by others."""
        prefix = f"com.amazonaws.{self._args.region}"
        for service in INTERFACE_ENDPOINTS:
            name = endpoint_name(service)
            aws.ec2.VpcEndpoint(
                name,
                vpc_id=self._vpc.id,
                service_name=f"{prefix}.{service}",
                vpc_endpoint_type="Interface",
                subnet_ids=[self.subnet.id],
                security_group_ids=[self.groups["endpoints"].id],
                private_dns_enabled=True,
                tags=self._args.tags(name),
                opts=self._child,
            )
        name = endpoint_name("s3")
        return aws.ec2.VpcEndpoint(
            name,
            vpc_id=self._vpc.id,
            service_name=f"{prefix}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id],
            tags=self._args.tags(name),
            opts=self._child,
        )

    def _rule(self, rule: access.Access, s3: aws.ec2.VpcEndpoint) -> None:
        ours = self.groups.get(rule.peer)
        in_or_out = aws.vpc.SecurityGroupIngressRule if rule.direction == "in" else aws.vpc.SecurityGroupEgressRule
        in_or_out(
            rule.name,
            security_group_id=self.groups[rule.group].id,
            referenced_security_group_id=ours.id if ours else None,
            prefix_list_id=s3.prefix_list_id if rule.peer == "s3" else None,
            cidr_ipv4=rule.peer if ours is None and rule.peer != "s3" else None,
            ip_protocol=rule.protocol,
            from_port=rule.port,
            to_port=rule.port,
            description=rule.reason,
            tags=self._args.tags(rule.name),
            opts=self._child,
        )
