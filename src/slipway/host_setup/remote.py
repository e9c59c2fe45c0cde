"""Runs the set-up script on each host over the system's ssh, so that its settings, jump hosts and agents all count."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from slipway import stacks
from slipway.cloud import settings
from slipway.errors import CheckFailed, NetworkFailure, SlipwayError, UsageError
from slipway.host_setup import conversation
from slipway.host_setup import scripts as bodies
from slipway.host_setup.conversation import Ran
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


@dataclass(frozen=True)
class Limits:
    """How long a host may take until it is reached and the script begins, and how long it may say nothing from then on."""

    reach_s: float = 30.0
    silence_s: float = 600.0


LIMITS = Limits()


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


def run(
    node: Node, script: str, *, progress: Progress, command: tuple[str, ...] = SSH, limits: Limits = LIMITS
) -> tuple[str, ...]:
    """What the script said on `node`, line by line; each line goes to `progress` as it comes.

    The script is sent between two lines that print words made up for this run: only they prove that it began and reached its end.

    Raises: NetworkFailure when the host cannot be reached, runs no script, or is lost; CheckFailed with the last lines when the
    script stops or falls silent.
    """
    words = (*command, node.ssh, AS_ROOT) if node.ssh else ("sh", "-c", AS_ROOT)
    begin, end = (f"slipway-{point}-{secrets.token_hex(8)}" for point in ("began", "ended"))
    said: list[str] = []
    proved: set[str] = set()

    def heard(is_stdout: bool, line: str) -> None:
        if line in (begin, end):
            proved.add(line)
            return
        line = line.removeprefix("slipway: ")
        progress.note(f"{node.name}: {line}")
        if is_stdout:
            said.append(line)

    sent = f"echo {begin}\n{script}\necho {end}\n"
    reached_by = time.monotonic() + limits.reach_s
    ran = conversation.hold(words, sent, heard, lambda last: last + limits.silence_s if begin in proved else reached_by)
    ran.lines = deque((line for line in ran.lines if line not in proved), ran.lines.maxlen)
    if ran.exit_code == 0 and {begin, end} <= proved:
        return tuple(said[-conversation.MAX_LINES :])
    raise (_stopped if begin in proved else _never_began)(node, ran, limits)


def reach(node: Node, command: tuple[str, ...] = SSH, limits: Limits = LIMITS) -> None:
    """Nothing when `node` answers over ssh; nothing is changed on it.

    Raises: NetworkFailure, UsageError without ssh.
    """
    if node.ssh is None:
        return
    reached_by = time.monotonic() + limits.reach_s
    ran = conversation.hold((*command, node.ssh, "true"), "", lambda _, __: None, lambda _: reached_by)
    if ran.exit_code != 0:
        raise _unreachable(node, ran, limits)


def _never_began(node: Node, ran: Ran, limits: Limits) -> SlipwayError:
    if node.ssh and ran.exit_code in {None, SSH_ITSELF_FAILED}:
        return _unreachable(node, ran, limits)
    place, shown = f"node {node.name}", _last_lines(ran)
    if ran.exit_code == 0:
        why = f"a forced command or a login file that exits may stand in between; it said:\n{shown}\n"
        remedy = f"make `ssh {node.ssh} id` print a user"
        return NetworkFailure(place, "ran no script, though it answered; nothing was set up", why, remedy)
    problem = "gave no answer" if ran.exit_code is None else f"stopped with exit code {ran.exit_code}"
    why = f"nothing was changed; it said:\n{shown}\n"
    return CheckFailed(
        place, f"set-up did not begin: {problem}", why, "log in as root or allow sudo without a password"
    )


def _stopped(node: Node, ran: Ran, limits: Limits) -> SlipwayError:
    place, shown = f"node {node.name}", f"it said:\n{_last_lines(ran)}\n"
    again = "run it again after mending that; what was done stays done"
    if ran.exit_code is None:
        return CheckFailed(place, f"set-up had begun and then said nothing for {limits.silence_s:.0f} s", shown, again)
    if ran.exit_code == SSH_ITSELF_FAILED and node.ssh:
        problem = "the connection was lost after the script had begun"
        return NetworkFailure(place, problem, shown, "run it again; what was done stays done")
    if ran.exit_code == 0:
        return CheckFailed(place, "set-up ended before the script's last line", shown, again)
    return CheckFailed(place, f"set-up stopped with exit code {ran.exit_code}", shown, again)


def _unreachable(node: Node, ran: Ran, limits: Limits) -> NetworkFailure:
    problem = f"cannot be reached (got {node.ssh})"
    if ran.exit_code is None:
        problem = f"cannot be reached: no answer in {limits.reach_s:.0f} s (got {node.ssh})"
    why, remedy = f"ssh said:\n{_last_lines(ran)}\n", f"make `ssh {node.ssh}` work without a question"
    return NetworkFailure(f"node {node.name}", problem, why, remedy)


def _last_lines(ran: Ran) -> str:
    return "\n".join(f"  {line}" for line in list(ran.lines)[-LAST_LINES:]) or "  nothing"
