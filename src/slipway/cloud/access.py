"""Who may talk to whom in a cloud stack: one list of rules, from which the security groups are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slipway.cloud.settings import AwsHosts

Group = Literal["nodes", "router", "endpoints"]
SERVER_PORTS = (30000, 30001)
"""First and last port that the recipes' servers listen on, for a router on a host of its own."""

BOOTSTRAP_PORT = 8998
HTTPS = 443


@dataclass(frozen=True)
class Access:
    """One rule of one security group. `peer` is a group, a network, or `s3` for the region's S3 addresses."""

    name: str
    group: Group
    direction: Literal["in", "out"]
    peer: str
    first_port: int | None
    last_port: int | None
    reason: str

    @property
    def protocol(self) -> str:
        """`-1` (everything, as EFA needs) where no port is named, else TCP."""
        return "-1" if self.first_port is None else "tcp"


def groups(hosts: AwsHosts) -> tuple[Group, ...]:
    """The security groups of the stack."""
    return ("nodes", "router", "endpoints") if hosts.router else ("nodes", "endpoints")


def rules(hosts: AwsHosts) -> tuple[Access, ...]:
    """Every rule of the stack. EFA traffic is dropped unless everything to and from the group itself is allowed, both ways.

    Source: the EC2 user guide on EFA security groups, read 2026-11-30.
    """
    members: tuple[Group, ...] = ("nodes", "router") if hosts.router else ("nodes",)
    front: Group = "router" if hosts.router else "nodes"
    port = hosts.front_door_port
    found = [
        Access("nodes-self-in", "nodes", "in", "nodes", None, None, "EFA between the hosts"),
        Access("nodes-self-out", "nodes", "out", "nodes", None, None, "EFA between the hosts"),
    ]
    for member in members:
        found += [
            Access(f"{member}-endpoints-out", member, "out", "endpoints", HTTPS, HTTPS, "SSM and ECR"),
            Access(f"{member}-s3-out", member, "out", "s3", HTTPS, HTTPS, "model mirror and image layers"),
            Access(f"endpoints-{member}-in", "endpoints", "in", member, HTTPS, HTTPS, "SSM and ECR"),
        ]
    for number, network in enumerate(hosts.clients, start=1):
        found.append(Access(f"clients-{number}-in", front, "in", network, port, port, "clients at the front door"))
    if hosts.router:
        low, high = SERVER_PORTS
        for first, last, what in ((low, high, "servers"), (BOOTSTRAP_PORT, BOOTSTRAP_PORT, "bootstrap")):
            found += [
                Access(f"router-{what}-out", "router", "out", "nodes", first, last, "router to the servers"),
                Access(f"nodes-{what}-in", "nodes", "in", "router", first, last, "router to the servers"),
            ]
    return tuple(found)
