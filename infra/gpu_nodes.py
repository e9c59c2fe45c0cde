"""The GPU hosts: a launch template whose network cards are computed, a cluster placement group, and the hosts themselves."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from slipway.cloud import hosts, instance_types, permissions
from slipway.cloud.instance_types import InstanceType
from slipway.cloud.policies import Tags
from slipway.cloud.settings import AwsHosts
from slipway.host_setup import scripts


@dataclass(frozen=True)
class GpuNodesArgs:
    """What the hosts are made from."""

    tags: Tags
    aws: AwsHosts
    kind: InstanceType
    subnet_id: pulumi.Input[str]
    security_group_id: pulumi.Input[str]
    bucket_arn: pulumi.Input[str]
    repository_arns: Sequence[pulumi.Input[str]]


class GpuNodes(pulumi.ComponentResource):
    """`aws.count` GPU hosts in one placement group; `nodes` has name, address and instance id of each."""

    def __init__(self, args: GpuNodesArgs) -> None:
        super().__init__("slipway:aws:GpuNodes", "gpu-nodes")
        self._args, self._child = args, pulumi.ResourceOptions(parent=self)
        self.profile = self._instance_profile()
        self._group = aws.ec2.PlacementGroup(
            "gpu", name=f"slipway-{args.tags.stack}", strategy="cluster", tags=args.tags("gpu"), opts=self._child
        )
        self._template = self._launch_template()
        self.nodes = [self._host(name) for name in hosts.gpu_names(args.aws)]
        self.register_outputs({"addresses": [node["address"] for node in self.nodes]})

    def _instance_profile(self) -> aws.iam.InstanceProfile:
        args = self._args
        role = aws.iam.Role("node", assume_role_policy=permissions.ASSUME, tags=args.tags("node"), opts=self._child)
        policy = pulumi.Output.all(args.bucket_arn, *args.repository_arns).apply(
            lambda arns: permissions.node_policy(arns[0], list(arns[1:]))
        )
        aws.iam.RolePolicy("node", role=role.id, policy=policy, opts=self._child)
        return aws.iam.InstanceProfile("node", role=role.name, tags=args.tags("node"), opts=self._child)

    def _launch_template(self) -> aws.ec2.LaunchTemplate:
        args = self._args
        script = scripts.cloud(args.aws)
        return aws.ec2.LaunchTemplate(
            "gpu",
            image_id=args.aws.ami,
            instance_type=args.aws.instance_type,
            update_default_version=True,
            network_interfaces=[self._interface(nic) for nic in instance_types.nics(args.kind)],
            placement=aws.ec2.LaunchTemplatePlacementArgs(group_name=self._group.name),
            **_capacity(args.aws),
            iam_instance_profile=aws.ec2.LaunchTemplateIamInstanceProfileArgs(arn=self.profile.arn),
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
                http_endpoint="enabled",
                http_tokens="required",
                http_put_response_hop_limit=2,  # a container on a bridge is one hop further
            ),
            block_device_mappings=[
                aws.ec2.LaunchTemplateBlockDeviceMappingArgs(
                    device_name="/dev/sda1",
                    ebs=aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgs(
                        encrypted="true",
                        volume_size=args.aws.root_volume_gib,
                        volume_type="gp3",
                        delete_on_termination="true",
                    ),
                )
            ],
            tag_specifications=[
                aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=what, tags=args.tags.lasting("gpu"))
                for what in ("volume", "network-interface")
            ],
            user_data=base64.b64encode(script.encode()).decode(),
            tags=args.tags("gpu"),
            opts=self._child,
        )

    def _interface(self, nic: instance_types.Nic) -> aws.ec2.LaunchTemplateNetworkInterfaceArgs:
        # With several interfaces AWS refuses groups and subnet on the template itself: they stand on each interface.
        return aws.ec2.LaunchTemplateNetworkInterfaceArgs(
            network_card_index=nic.card,
            device_index=nic.device,
            interface_type=nic.kind,
            subnet_id=self._args.subnet_id,
            security_groups=[self._args.security_group_id],
            associate_public_ip_address="false" if nic.kind == "interface" else None,
            delete_on_termination="true",
        )

    def _host(self, name: str) -> dict[str, Any]:
        instance = aws.ec2.Instance(
            name,
            # The version is named, so that a changed template shows as a replacement here and not as silent drift.
            launch_template=aws.ec2.InstanceLaunchTemplateArgs(
                id=self._template.id, version=self._template.latest_version.apply(str)
            ),
            tags=self._args.tags(name),
            opts=pulumi.ResourceOptions(
                parent=self,
                protect=self._args.aws.protect,
                # Two hosts cannot hold one reserved place at a time.
                delete_before_replace=True,
            ),
        )
        return {"name": name, "address": instance.private_ip, "id": instance.id}


def _capacity(args: AwsHosts) -> dict[str, Any]:
    """The template's words for where the hosts get their capacity: a place that is named, never bought here."""
    if args.capacity.id is None:
        return {}
    target = aws.ec2.LaunchTemplateCapacityReservationSpecificationCapacityReservationTargetArgs(
        capacity_reservation_id=args.capacity.id
    )
    named: dict[str, Any] = {
        "capacity_reservation_specification": aws.ec2.LaunchTemplateCapacityReservationSpecificationArgs(
            capacity_reservation_target=target
        )
    }
    if args.capacity.kind == "block":
        named["instance_market_options"] = aws.ec2.LaunchTemplateInstanceMarketOptionsArgs(market_type="capacity-block")
    return named
