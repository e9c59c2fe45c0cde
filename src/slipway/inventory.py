"""Where it runs: nodes with their GPUs, fabric and paths. Written by `invoke inventory` or by hand; one schema for both."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from slipway.documents import Document, Matching
from slipway.recipe.words import DriverVersion, Fabric, Word

Runtime = Literal["docker", "process"]


def _address(value: str) -> str:
    """`value`, unless it has colons and is no IPv6 address."""
    if ":" in value:
        try:
            ipaddress.IPv6Address(value)
        except ValueError:
            raise ValueError("must be a host name or an IP address, without a port") from None
    return value


HostName = Annotated[
    str,
    Matching(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?", "a host name or an IP address"),
    AfterValidator(_address),
]
SshTarget = Annotated[
    str, Matching(r"([A-Za-z_][\w.-]*@)?[A-Za-z0-9][\w.:-]{0,253}", "a host as ssh takes it: [user@]host")
]
FolderPath = Annotated[
    str,
    Matching(
        r"(?!.*\.\.)(/|\./|\.)[\w][\w ./-]*",
        "a path that begins with / or with a dot (from the checkout), without ~ and colons",
    ),
]
DeviceName = Annotated[str, Matching(r"[a-zA-Z0-9_-]{1,40}", "a device name as in /sys/class/infiniband")]


class Gpu(Document):
    """One GPU; its index on the node is its place in the list."""

    model: Word
    memory_gib: float = Field(gt=0, le=1024)


class RdmaDevice(Document):
    """One RDMA device as the node's kernel names it, resolved by preflight or written by hand."""

    name: DeviceName
    rate_gbps: int = Field(gt=0, le=10_000)
    gpu: int | None = Field(default=None, ge=0, description="the GPU on the same PCIe switch")


class Paths(Document):
    """Folders on the node. A relative path is taken from the checkout, so that a plan is the same on every laptop."""

    models: FolderPath = "/models"
    caches: FolderPath = Field(
        default="/var/cache/slipway", description="compiled kernels, one folder per cache key (docs/caches.md)"
    )


class Node(Document):
    """One host. `address` is what the other nodes reach it by; `ssh` is how Slipway does (null: this machine)."""

    name: Word
    address: HostName
    ssh: SshTarget | None = None
    gpus: list[Gpu] = Field(default_factory=list)
    driver: DriverVersion | None = Field(
        default=None, description="of NVIDIA; null: not known, and then a plan cannot compare it with the image's CUDA"
    )
    fabric: Fabric = "tcp"
    rdma_devices: list[RdmaDevice] = Field(
        default_factory=list, description="data ports only, in the order of the GPUs"
    )
    paths: Paths = Field(default_factory=Paths)

    @model_validator(mode="after")
    def _devices_make_sense(self) -> Node:
        names = [device.name for device in self.rdma_devices]
        if len(set(names)) != len(names):
            raise ValueError("rdma_devices: a device stands twice; each data port once, in the order of the GPUs")
        for device in self.rdma_devices:
            if device.gpu is not None and device.gpu >= len(self.gpus):
                raise ValueError(f"rdma_devices: {device.name} names GPU {device.gpu}, the node has {len(self.gpus)}")
        return self


class Inventory(Document):
    """The hosts of one stack."""

    schema_: Literal["slipway/inventory/v1"] = Field(alias="schema")
    name: Word
    runtime: Runtime = "docker"
    nodes: list[Node] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Inventory:
        for what in ("name", "address"):
            values = [getattr(node, what).lower() for node in self.nodes]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"nodes: two nodes have the {what} {', '.join(twice)}; give each its own")
        return self

    def node(self, name: str) -> Node:
        """The node called `name`; raises KeyError, since placement only names nodes of this inventory."""
        return {node.name: node for node in self.nodes}[name]


def this_machine(name: str, models: str) -> Inventory:
    """The inventory of a stack that runs on this machine without GPUs: the same on every machine."""
    node = Node(name="this-machine", address="127.0.0.1", paths=Paths(models=models, caches=".slipway/caches"))
    return Inventory(schema_="slipway/inventory/v1", name=name, runtime="process", nodes=[node])
