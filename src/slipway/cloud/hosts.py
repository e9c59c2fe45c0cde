"""The inventory that a stack has or will have: from settings before it exists, from its outputs afterwards."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipway import documents
from slipway.cloud.instance_types import InstanceType, nics
from slipway.cloud.settings import AwsHosts
from slipway.errors import UsageError
from slipway.inventory import Gpu, Inventory, Node, Paths, RdmaDevice
from slipway.recipe.words import Fabric

OUTPUT = "inventory"
"""The one output of the Pulumi program."""

USER = "ubuntu"
"""Who logs in on the AMIs that the docs name."""


def gpu_names(hosts: AwsHosts) -> tuple[str, ...]:
    """The logical names of the GPU hosts, in order."""
    return tuple(f"gpu-{number}" for number in range(1, hosts.count + 1))


def expected_devices(kind: InstanceType) -> list[RdmaDevice]:
    """The EFA devices that a host of type `kind` should show, in the order of the GPUs; only for a plan before the host exists.

    Where nobody wrote down the names they are called by their position, which no host does.
    """
    cards = [card for card in sorted(kind.cards, key=lambda card: card.index) if card.efa_gbps]
    if kind.expected_devices:
        pairs = zip(kind.expected_devices, cards, strict=True)
        return [RdmaDevice(name=device.name, rate_gbps=card.efa_gbps, gpu=device.gpu) for device, card in pairs]
    return [RdmaDevice(name=f"rdmap-card-{card.index}", rate_gbps=card.efa_gbps) for card in cards]


def gpu_node(name: str, hosts: AwsHosts, kind: InstanceType) -> Node:
    """A GPU host of the stack as far as it is known before it exists; its address is reserved for examples."""
    fabric: Fabric = "efa" if any(nic.kind != "interface" for nic in nics(kind)) else "tcp"
    gpu = Gpu(model=kind.gpu_model, memory_gib=int(kind.gpu_memory_mib / 1024))
    return Node(
        name=name,
        address=_example(10 + int(name.rpartition("-")[2])),
        ssh=f"{USER}@{name}",
        gpus=[gpu] * kind.gpus,
        fabric=fabric,
        paths=Paths(models=hosts.models),
    )


def router_node(hosts: AwsHosts) -> Node:
    """The router's host, as far as it is known before it exists."""
    return Node(name="router", address=_example(10), ssh=f"{USER}@router", paths=Paths(models=hosts.models))


def expected(stack: str, hosts: AwsHosts, kind: InstanceType) -> Inventory:
    """The inventory that the stack should write: names and addresses are examples, devices are what such hosts show."""
    devices = expected_devices(kind)
    gpus = [gpu_node(name, hosts, kind) for name in gpu_names(hosts)]
    nodes = [node.model_copy(update={"rdma_devices": devices}) for node in gpus]
    if hosts.router:
        nodes.append(router_node(hosts))
    return Inventory(schema_="slipway/inventory/v1", name=stack, runtime="docker", nodes=nodes)


def resolved(stack: str, hosts: AwsHosts, kind: InstanceType, known: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The inventory of hosts that exist, as plain JSON values; `known` has name, address and instance id of each.

    Their EFA devices are left out: only the host itself knows their names.
    """
    nodes = []
    for host in known:
        made = router_node(hosts) if host["name"] == "router" else gpu_node(host["name"], hosts, kind)
        nodes.append(made.model_copy(update={"address": host["address"], "ssh": f"{USER}@{host['id']}"}))
    return Inventory(schema_="slipway/inventory/v1", name=stack, runtime="docker", nodes=nodes).as_json()


def from_outputs(stack: str, outputs: Mapping[str, Any]) -> Inventory:
    """The inventory in the outputs of `pulumi stack output --json`.

    Raises: UsageError when there is none, DocumentError when it does not say what an inventory needs.
    """
    place = f"pulumi stack output --stack {stack}"
    if OUTPUT not in outputs:
        why = f"outputs: {', '.join(outputs) or 'none'}; the program writes it as its last act"
        raise UsageError(place, f"has no {OUTPUT}", why, f"run `pulumi up --stack {stack}` to its end first")
    return documents.parse(json.dumps(outputs[OUTPUT]), Inventory, place)


def with_known_devices(new: Inventory, old: Inventory | None) -> Inventory:
    """`new` with the RDMA devices that `old` lists for hosts that are still the same: only a person or preflight knows them."""
    if old is None:
        return new
    known = {(node.name, node.ssh): node.rdma_devices for node in old.nodes}
    nodes = [
        node if node.rdma_devices else node.model_copy(update={"rdma_devices": known.get((node.name, node.ssh), [])})
        for node in new.nodes
    ]
    return new.model_copy(update={"nodes": nodes})


def _example(number: int) -> str:
    """An address reserved for documentation (RFC 5737)."""
    return str(ipaddress.IPv4Address("192.0.2.0") + number)
