"""A host of its own for the router, for stacks that want one."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from slipway.cloud.policies import Tags
from slipway.cloud.settings import AwsHosts, RouterHost
from slipway.host_setup import scripts


@dataclass(frozen=True)
class RouterNodeArgs:
    """What the router's host is made from."""

    tags: Tags
    aws: AwsHosts
    host: RouterHost
    subnet_id: pulumi.Input[str]
    security_group_id: pulumi.Input[str]
    instance_profile: pulumi.Input[str]


class RouterNode(pulumi.ComponentResource):
    """One host without GPUs; `node` has its name, address and instance id."""

    def __init__(self, args: RouterNodeArgs) -> None:
        super().__init__("slipway:aws:RouterNode", "router-node")
        instance = aws.ec2.Instance(
            "router",
            ami=args.aws.ami,
            instance_type=args.host.instance_type,
            subnet_id=args.subnet_id,
            vpc_security_group_ids=[args.security_group_id],
            associate_public_ip_address=False,
            iam_instance_profile=args.instance_profile,
            metadata_options=aws.ec2.InstanceMetadataOptionsArgs(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=2
            ),
            root_block_device=aws.ec2.InstanceRootBlockDeviceArgs(
                encrypted=True, volume_size=args.host.root_volume_gib, volume_type="gp3"
            ),
            user_data=scripts.router(args.aws),
            user_data_replace_on_change=True,
            tags=args.tags("router"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.node = {"name": "router", "address": instance.private_ip, "id": instance.id}
        self.register_outputs({"address": instance.private_ip})
