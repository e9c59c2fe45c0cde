"""Runs the set-up script on each host over the system's ssh, so that its settings, jump hosts and agents all count."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from slipway import stacks
from slipway.cloud import settings
from slipway.errors import CheckFailed, NetworkFailure, UsageError
from slipway.host_setup import scripts as bodies
from slipway.inventory import Inventory, Node
from slipway.progress import Progress
from slipway.stacks import Checkout

SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
)
"""Never asks: a password prompt in the middle of a list of hosts would look like a hang. A host that falls silent is given up."""

AS_ROOT = 'if [ "$(id -u)" = 0 ]; then exec sh -s; else exec sudo -n sh -s; fi'
SSH_ITSELF_FAILED = 255
LAST_LINES = 10


def scripts(checkout: Checkout, stack: str, only: str | None = None, root: str = "") -> dict[str, str]:
    """Name of each node of the stack (or of `only` one) → the script that sets it up; `root` as in `Setup`.

    Raises: UsageError for hosts that AWS sets up at their first boot, for plain processes, and for a node that is not there.
    """
    config, place = stacks.config(checkout, stack), f"stack {stack}"
    if config.aws:
        why = "their user data sets them up at the first boot"
        raise UsageError(place, "has hosts on AWS", why, "change slipway:aws and run `pulumi up`")
    inventory = stacks.hosts(checkout, stack, config)
    if inventory.runtime == "process":
        raise UsageError(
            place, "runs plain processes", "there is nothing to set up on its host", "choose another stack"
        )
    nodes = [node for node in inventory.nodes if only in (None, node.name)]
    if not nodes:
        known = ", ".join(node.name for node in inventory.nodes)
        raise UsageError("--node", f"no such node (got {only})", f"known: {known}", "correct it")
    return {node.name: bodies.bare_metal(node, config.setup, root) for node in nodes}


def text(made: Mapping[str, str]) -> str:
    """The scripts one after the other, each under the name of its node; nodes with the same script share it."""
    nodes: dict[str, list[str]] = {}
    for name, script in made.items():
        nodes.setdefault(script, []).append(name)
    return "\n".join(f"# on {', '.join(names)}\n{script}" for script, names in nodes.items())


def run_all(
    inventory: Inventory, made: Mapping[str, str], *, progress: Progress, command: tuple[str, ...] = SSH
) -> dict[str, tuple[str, ...]]:
    """Name of each node → what its script said; the nodes follow each other, and the first failure ends it.

    Raises: UsageError while addresses are examples, NetworkFailure, CheckFailed.
    """
    nodes = [inventory.node(name) for name in made]
    for node in nodes:
        if settings.is_example_address(node.address):
            why = f"{node.address} is reserved for examples"
            raise UsageError(
                f"node {node.name}", "still has an example address", why, "write yours into the stack's file"
            )
    return {node.name: run(node, made[node.name], progress=progress, command=command) for node in nodes}


def run(node: Node, script: str, *, progress: Progress, command: tuple[str, ...] = SSH) -> tuple[str, ...]:
    """What the script said on `node`, line by line.

    Raises: NetworkFailure when the host cannot be reached, CheckFailed with the last lines when the script stops.
    """
    words = (*command, node.ssh, AS_ROOT) if node.ssh else ("sh", "-c", AS_ROOT)
    ran = _ran(words, script)
    said = tuple(line.removeprefix("slipway: ") for line in ran.stdout.splitlines())
    if ran.returncode == 0:
        for line in said:
            progress.note(f"{node.name}: {line}")
        return said
    if ran.returncode == SSH_ITSELF_FAILED and node.ssh:
        raise _unreachable(node, ran)
    shown = _last_lines(ran)
    raise CheckFailed(
        f"node {node.name}",
        f"set-up stopped with exit code {ran.returncode}",
        f"it said:\n{shown}\n",
        "run it again after mending that; what was done stays done",
    )


def reach(node: Node, command: tuple[str, ...] = SSH) -> None:
    """Nothing when `node` answers over ssh; nothing is changed on it.

    Raises: NetworkFailure, UsageError without ssh.
    """
    if node.ssh is None:
        return
    ran = _ran((*command, node.ssh, "true"), "")
    if ran.returncode:
        raise _unreachable(node, ran)


def _ran(words: tuple[str, ...], script: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, input=script, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError:
        raise UsageError(
            words[0], "is not installed", "hosts are reached through it", "install OpenSSH's client"
        ) from None


def _unreachable(node: Node, ran: subprocess.CompletedProcess[str]) -> NetworkFailure:
    why, remedy = f"ssh said:\n{_last_lines(ran)}\n", f"make `ssh {node.ssh}` work without a question"
    return NetworkFailure(f"node {node.name}", f"cannot be reached (got {node.ssh})", why, remedy)


def _last_lines(ran: subprocess.CompletedProcess[str]) -> str:
    return "\n".join(f"  {line}" for line in (ran.stdout + ran.stderr).splitlines()[-LAST_LINES:])
