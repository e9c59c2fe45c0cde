"""Instance types as data, and the network interfaces that a host of a type gets.

Source of the rule: the EC2 user guide's page on accelerated instance types and EFA, read 2026-11-30.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from slipway import documents
from slipway.documents import Document
from slipway.errors import UsageError

InterfaceType = Literal["interface", "efa", "efa-only"]


class Card(Document):
    """One network card of an instance type."""

    index: int = Field(ge=0)
    interface_types: tuple[InterfaceType, ...]
    max_interfaces: int = Field(gt=0)
    efa_gbps: int = Field(ge=0, description="0: the card has no EFA")


class ExpectedDevice(Document):
    """An EFA device as such hosts were seen to name it, and the GPU nearest to it."""

    name: str
    gpu: int = Field(ge=0)


class InstanceType(Document):
    """One instance type, as DescribeInstanceTypes tells."""

    name: str
    vcpus: int = Field(gt=0)
    memory_gib: int = Field(gt=0)
    gpu_model: str
    gpus: int = Field(gt=0)
    gpu_memory_mib: int = Field(gt=0)
    nvme_gb: int = Field(ge=0)
    usage_classes: tuple[str, ...]
    efa_max: int = Field(ge=0)
    expected_devices: tuple[ExpectedDevice, ...] = ()
    cards: tuple[Card, ...] = Field(min_length=1)


class InstanceTypes(Document):
    """The instance types that Slipway can lay out."""

    schema_: Literal["slipway/instance-types/v1"] = Field(alias="schema")
    date: str
    source: str
    types: tuple[InstanceType, ...]


@dataclass(frozen=True)
class Nic:
    """One network interface of a host: which card, which device index on it, and what it can do."""

    card: int
    device: int
    kind: InterfaceType


def find(folder: Path, name: str) -> InstanceType:
    """The instance type called `name` from `folder`/instance-types.json.

    Raises: UsageError with the known names, MissingFile, DocumentError.
    """
    known = {item.name: item for item in documents.read_json(folder / "instance-types.json", InstanceTypes).types}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        why = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        remedy = "correct it, or add the type to stacks/data/instance-types.json from DescribeInstanceTypes"
        raise UsageError("slipway:aws.instance_type", f"no such GPU instance type here (got {name})", why, remedy)
    return known[name]


def nics(kind: InstanceType) -> tuple[Nic, ...]:
    """Every network interface of a host of type `kind`, primary first, then by card.

    The primary is a plain one, since an EFA-only interface has no IP address. A first card that has EFA carries its EFA-only
    interface at device 1, every further card at device 0.
    """
    layout = [Nic(0, 0, "interface")]
    for card in sorted(kind.cards, key=lambda card: card.index):
        device = 1 if card.index == 0 else 0
        if "efa-only" in card.interface_types and device < card.max_interfaces:
            layout.append(Nic(card.index, device, "efa-only"))
    return tuple(layout)
