"""The keys of a stack file that describe cloud hosts; the Pulumi program and Slipway read them through this one model."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from slipway.documents import Document
from slipway.errors import UsageError
from slipway.inventory import FolderPath, Node
from slipway.recipe.words import Word

PLACEHOLDER = "replace-me"
"""What a shipped stack says where only the user knows the value; `pulumi up` refuses it."""


OWN_USE = tuple(ipaddress.IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
"""Networks for anybody's own use (RFC 1918). What Python calls private holds loopback and reserved ones too, which AWS refuses."""


def _network(text: str) -> ipaddress.IPv4Network:
    """`text` as the network that it is the one spelling of; raises ValueError."""
    network = ipaddress.IPv4Network(text)
    if str(network) != text:
        raise ValueError(f"is written {network}")
    return network


def _private(text: str) -> str:
    """`text` as a private IPv4 network; raises ValueError."""
    network = _network(text)
    if not 16 <= network.prefixlen <= 24 or not any(network.subnet_of(own) for own in OWN_USE):
        allowed = ", ".join(map(str, OWN_USE))
        raise ValueError(f"a private IPv4 network between /16 and /24 is needed (within {allowed}), as 10.60.0.0/20")
    return text


def _closed(text: str) -> str:
    """`text` as an IPv4 network that is not the whole internet; raises ValueError."""
    if _network(text).prefixlen < 8:
        raise ValueError(
            "a network of this size is the open internet; the servers ask for no key; name your own networks"
        )
    return text


def _absolute(text: str) -> str:
    """`text` as a path from the root, since hosts on AWS have no checkout; raises ValueError."""
    if not text.startswith("/"):
        raise ValueError("a path that begins with / is needed; a host on AWS has no checkout")
    return text


def _each_once(names: list[str]) -> list[str]:
    """`names` without a repetition, since each is a resource of its own name; raises ValueError."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"each may stand once; {', '.join(twice)} stands more than once; remove one")
    return names


Cidr = Annotated[str, Field(pattern=r"^\d+(\.\d+){3}/\d+$"), AfterValidator(_closed)]
Zone = Annotated[
    str,
    Field(
        pattern=r"^([a-z]{2}(-[a-z]+)+-\d[a-z]|[a-z]{3,4}\d-az\d)$",
        description="name (us-east-2b) or id (use2-az2); letters differ between accounts, ids do not",
    ),
]
ImageId = Annotated[str, Field(pattern=rf"^(ami-[0-9a-f]{{8}}([0-9a-f]{{9}})?|{PLACEHOLDER})$")]
ReservationId = Annotated[str, Field(pattern=rf"^(cr-[0-9a-f]{{8,17}}|{PLACEHOLDER})$")]


class Capacity(Document):
    """How the GPU hosts get their capacity. It is named, never bought: a bought block cannot be given back."""

    kind: Literal["block", "reservation", "on-demand"]
    id: ReservationId | None = Field(default=None, description="cr-…, of a block or reservation in the stack's zone")

    @model_validator(mode="after")
    def _named(self) -> Capacity:
        if (self.id is None) != (self.kind == "on-demand"):
            raise ValueError("id: a block or a reservation is named by its id (cr-…), on-demand has none")
        return self


class RouterHost(Document):
    """A host without GPUs for the router; left out, the router runs beside the first server."""

    instance_type: str = Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")
    root_volume_gib: int = Field(default=50, ge=20, le=1000)


class AwsHosts(Document):
    """GPU hosts on AWS: one private subnet in one zone, no public address."""

    zone: Zone
    instance_type: str = Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")
    count: int = Field(ge=1, le=16)
    ami: ImageId = Field(description="pinned per stack; `latest` moves about weekly")
    capacity: Capacity
    network: Annotated[str, Field(pattern=r"^\d+(\.\d+){3}/\d+$"), AfterValidator(_private)] = "10.60.0.0/20"
    clients: Annotated[list[Cidr], AfterValidator(_each_once)] = Field(
        default_factory=list, description="networks that may reach the front door; empty: none"
    )
    root_volume_gib: int = Field(default=300, ge=75, le=16000)
    repositories: Annotated[list[Word], AfterValidator(_each_once)] = Field(
        default_factory=lambda: ["engine"], description="image repositories in ECR"
    )
    router: RouterHost | None = None
    ssh_keys: list[Annotated[str, Field(pattern=r"^ssh-(ed25519|rsa) [A-Za-z0-9+/=]+( [\w.@-]+)?$")]] = Field(
        default_factory=list, description="public keys that may log in, through SSM"
    )
    models: Annotated[FolderPath, AfterValidator(_absolute)] = "/opt/dlami/nvme/models"
    protect: bool = Field(default=True, description="false lets `pulumi destroy` remove hosts and model mirror")


class Workstation(Document):
    """What host set-up does to hosts that are reached by SSH."""

    gpu_power_limit_w: int | None = Field(default=None, ge=100, le=1500, description="a systemd unit sets it at boot")


class StackConfig(Document):
    """Slipway's own keys of a stack file, without their `slipway:` prefix, and the region that Pulumi's provider uses."""

    recipe: str
    region: str | None = Field(default=None, alias="aws:region", pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")
    hosts: str | None = Field(default=None, pattern="^local$", description="local: this machine, without GPUs")
    nodes: list[Node] | None = Field(default=None, min_length=1, description="hosts reached by SSH, as in an inventory")
    aws: AwsHosts | None = None
    setup: Workstation = Field(default_factory=Workstation)

    @model_validator(mode="after")
    def _one_kind_of_host(self) -> StackConfig:
        kinds = [name for name in ("hosts", "nodes", "aws") if getattr(self, name) is not None]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)}: a stack has one kind of host; keep one of them")
        return self

    @model_validator(mode="after")
    def _zone_in_region(self) -> StackConfig:
        if self.aws is None:
            return self
        if self.region is None:
            raise ValueError("aws:region: is missing; hosts on AWS need it beside slipway:aws")
        named = re.fullmatch(r"(.*-\d)[a-z]", self.aws.zone)
        if named and named[1] != self.region:
            raise ValueError(f"aws.zone: {self.aws.zone} is not in aws:region {self.region}; a host needs its own zone")
        return self


def refuse_placeholders(config: StackConfig, nodes: Sequence[Node], stack: str) -> None:
    """Nothing when every value that only the user can know was written in; `nodes` are the hosts that are there already.

    Raises: UsageError that names all of them.
    """
    left = placeholders(config, nodes)
    if left:
        raise UsageError(
            f"stack {stack}",
            f"still has example values: {', '.join(left)}",
            "; ".join(f"{key}: {remedy}" for key, remedy in left.items()),
            "write yours in, as docs/provision.md shows, and run the command again",
        )


def placeholders(config: StackConfig, nodes: Sequence[Node]) -> dict[str, str]:
    """Where an example value still stands → what belongs there."""
    found = {}
    if config.aws and config.aws.ami == PLACEHOLDER:
        found["slipway:aws.ami"] = f"the id (ami-…) that `aws ssm get-parameter --name {AMI_PARAMETER}` names today"
    if config.aws and config.aws.capacity.id == PLACEHOLDER:
        found["slipway:aws.capacity.id"] = "the id (cr-…) of the capacity block or reservation that you have"
    for node in nodes:
        if is_example_address(node.address):
            found[f"node {node.name}"] = f"its address ({node.address} is reserved for examples) and its ssh name"
    return found


AMI_PARAMETER = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
"""Where AWS publishes the id of the newest image with driver, container toolkit and EFA."""

EXAMPLES = tuple(ipaddress.ip_network(text) for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"))
"""Addresses reserved for documentation (RFC 5737)."""


def is_example_address(address: str) -> bool:
    """Whether `address` is one that no host can have."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in EXAMPLES)
