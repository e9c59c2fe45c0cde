"""What the program does: check that recipe and hosts belong together, then create, then write the inventory."""

from __future__ import annotations

from typing import Any

import pulumi

import guard
import settings
from bare_metal import BareMetal
from gpu_nodes import GpuNodes, GpuNodesArgs
from network import Network, NetworkArgs
from router import RouterNode, RouterNodeArgs
from slipway import book, preview, stacks
from slipway.cloud import access, hosts, instance_types
from slipway.cloud import settings as cloud_settings
from slipway.cloud.policies import Tags
from slipway.cloud.settings import StackConfig
from slipway.errors import SlipwayError
from storage import Storage, StorageArgs


def run() -> None:
    """Register the stack's resources and its one output.

    Raises: pulumi.RunError with Slipway's own message, which Pulumi prints without a traceback.
    """
    try:
        pulumi.export(hosts.OUTPUT, inventory())
    except SlipwayError as error:
        raise pulumi.RunError(str(error)) from error


def inventory() -> pulumi.Output[Any]:
    """The inventory of the stack that runs, known when its hosts exist; everything that it needs is registered.

    Raises: PlanRefused when recipe and hosts do not belong together; UsageError in `up` while example values are left.
    """
    stack, config = pulumi.get_stack(), settings.read()
    preview.refuse_wrong_combination(settings.CHECKOUT, stack, config)
    existing = None if config.aws else stacks.hosts(settings.CHECKOUT, stack, config)
    nodes = existing.nodes if existing else []
    if pulumi.runtime.is_dry_run():
        for key in cloud_settings.placeholders(config, nodes):
            pulumi.log.warn(f"{key} still has an example value; `pulumi up` will refuse it")
    else:
        cloud_settings.refuse_placeholders(config, nodes, stack)
    return BareMetal(existing).inventory if existing else _on_aws(stack, config)


def _on_aws(stack: str, config: StackConfig) -> pulumi.Output[Any]:
    """The inventory of hosts on AWS; its addresses are known when they exist."""
    aws = config.aws
    assert aws is not None
    checks = guard.install()
    tags = Tags(stack, stacks.owner(settings.CHECKOUT, stack))
    kind = instance_types.find(settings.CHECKOUT.stacks / "data", aws.instance_type)
    ports = access.ports(book.stack_recipe(settings.CHECKOUT, stack, config.recipe))
    network = Network(NetworkArgs(tags, str(config.region), aws, ports))
    storage = Storage(StorageArgs(tags, aws))
    nodes = GpuNodes(
        GpuNodesArgs(
            tags=tags,
            aws=aws,
            kind=kind,
            subnet_id=network.subnet.id,
            security_group_id=network.groups["nodes"].id,
            bucket_arn=storage.bucket.arn,
            repository_arns=[repository.arn for repository in storage.repositories],
        )
    )
    found = list(nodes.nodes)
    if aws.router:
        router = RouterNode(
            RouterNodeArgs(
                tags=tags,
                aws=aws,
                host=aws.router,
                subnet_id=network.subnet.id,
                security_group_id=network.groups["router"].id,
                instance_profile=nodes.profile.name,
            )
        )
        found.append(router.node)
    checks.finish(pulumi.Output.all(*(node["address"] for node in found)))
    return pulumi.Output.all(*(pulumi.Output.all(**node) for node in found)).apply(
        lambda known: hosts.resolved(stack, aws, kind, known)
    )
