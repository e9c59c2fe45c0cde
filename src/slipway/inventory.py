"""Where it runs: nodes with their GPUs, fabric and paths. Written by `invoke inventory` or by hand; one schema for both."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slipway.documents import Document
from slipway.recipe import Fabric, Word

Runtime = Literal["docker", "process"]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.:-]*[A-Za-z0-9])?$", max_length=253)]
SshTarget = Annotated[str, Field(pattern=r"^([A-Za-z_][\w.-]*@)?[A-Za-z0-9][\w.:-]*$", max_length=300)]


class Gpu(Document):
    """One GPU; its index on the node is its place in the list."""

    model: Word
    memory_gib: float = Field(gt=0)


class RdmaDevice(Document):
    """One RDMA device as the node's kernel names it, resolved by preflight or written by hand."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]+$")
    rate_gbps: int = Field(gt=0)
    gpu: int | None = Field(default=None, ge=0, description="the GPU on the same PCIe switch")


class Paths(Document):
    """Folders on the node. A relative path is taken from the checkout, so that a plan is the same on every laptop."""

    models: str = Field(default="/models", pattern=r"^[^:\x00]+$")


class Node(Document):
    """One host. `address` is what the other nodes reach it by; `ssh` is how Slipway does (null: this machine)."""

    name: Word
    address: HostName
    ssh: SshTarget | None = None
    gpus: list[Gpu] = Field(default_factory=list)
    fabric: Fabric = "tcp"
    rdma_devices: list[RdmaDevice] = Field(
        default_factory=list, description="data ports only, in the order of the GPUs"
    )
    paths: Paths = Field(default_factory=Paths)


class Inventory(Document):
    """The hosts of one stack."""

    schema_: Literal["slipway/inventory/v1"] = Field(alias="schema")
    name: Word
    runtime: Runtime = "docker"
    nodes: list[Node] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> Inventory:
        for what in ("name", "address"):
            values = [getattr(node, what) for node in self.nodes]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"nodes: two nodes have the {what} {', '.join(twice)}; give each its own")
        return self

    def node(self, name: str) -> Node:
        """The node called `name`; raises KeyError, since placement only names nodes of this inventory."""
        return {node.name: node for node in self.nodes}[name]


def this_machine(name: str, models: str) -> Inventory:
    """The inventory of a stack that runs on this machine without GPUs: the same on every machine."""
    node = Node(name="this-machine", address="127.0.0.1", paths=Paths(models=models))
    return Inventory(schema_="slipway/inventory/v1", name=name, runtime="process", nodes=[node])
