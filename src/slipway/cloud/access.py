"""Who may talk to whom in a cloud stack: one list of rules, from which the security groups are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipway.cloud.settings import AwsHosts
from slipway.recipe import Recipe

Group = Literal["nodes", "router", "endpoints"]
HTTPS = 443


@dataclass(frozen=True)
class Ports:
    """The TCP ports of a recipe: where clients connect, and where a router on a host of its own reaches the servers."""

    front: int
    servers: tuple[int, ...]


def ports(recipe: Recipe) -> Ports:
    """The ports that the roles of `recipe` are reached by, bootstrap included."""
    cell = recipe.cell
    router = cell.role("router")
    front = router or cell.roles[0]
    servers = {role.host_port or role.port for role in cell.roles if role is not router}
    if cell.transfer:
        servers.add(cell.transfer.bootstrap_port)
    return Ports(front.host_port or front.port, tuple(sorted(servers)))


@dataclass(frozen=True)
class Access:
    """One rule of one security group. `peer` is a group, a network, or `s3` for the region's S3 addresses."""

    name: str
    group: Group
    direction: Literal["in", "out"]
    peer: str
    port: int | None
    reason: str

    @property
    def protocol(self) -> str:
        """`-1` (everything, as EFA needs) where no port is named, else TCP."""
        return "-1" if self.port is None else "tcp"


def groups(hosts: AwsHosts) -> tuple[Group, ...]:
    """The security groups of the stack."""
    return ("nodes", "router", "endpoints") if hosts.router else ("nodes", "endpoints")


def rules(hosts: AwsHosts, reached: Ports) -> tuple[Access, ...]:
    """Every rule of the stack. EFA traffic is dropped unless everything to and from the group itself is allowed, both ways.

    Source: the EC2 user guide on EFA security groups, read 2026-11-30.
    """
    members: tuple[Group, ...] = ("nodes", "router") if hosts.router else ("nodes",)
    front: Group = "router" if hosts.router else "nodes"
    port = reached.front
    found = [
        Access("nodes-self-in", "nodes", "in", "nodes", None, "EFA between the hosts"),
        Access("nodes-self-out", "nodes", "out", "nodes", None, "EFA between the hosts"),
    ]
    for member in members:
        found += [
            Access(f"{member}-endpoints-out", member, "out", "endpoints", HTTPS, "SSM and ECR"),
            Access(f"{member}-s3-out", member, "out", "s3", HTTPS, "model mirror and image layers"),
            Access(f"endpoints-{member}-in", "endpoints", "in", member, HTTPS, "SSM and ECR"),
        ]
    for number, network in enumerate(hosts.clients, start=1):
        found.append(Access(f"clients-{number}-in", front, "in", network, port, "clients at the front door"))
    if hosts.router:
        for server in reached.servers:
            found += [
                Access(f"router-{server}-out", "router", "out", "nodes", server, "router to the servers"),
                Access(f"nodes-{server}-in", "nodes", "in", "router", server, "router to the servers"),
            ]
    return tuple(found)
