"""A stack's deployment on its host, its endpoint, and the proof that it serves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from slipway import stacks
from slipway.endpoint import Client, Endpoint
from slipway.errors import CheckFailed, MissingFile, SlipwayError, UsageError
from slipway.hosts.local import LocalHost
from slipway.launch import Deployment, Launched, Status
from slipway.plan import Plan
from slipway.progress import Progress
from slipway.stacks import Checkout

PROOF_TIMEOUT_S = 120
"""One short generation; a first one may wait for a kernel to be compiled."""


@dataclass(frozen=True)
class Up:
    """What `launch` came to, for people and for scripts."""

    plan: Plan
    launched: Launched

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.launched), "endpoint": self.plan.front_door.as_json()}

    def text(self) -> str:
        did = (
            f"started {', '.join(self.launched.started)}" if self.launched.started else "already running, the same plan"
        )
        door = self.plan.front_door
        return f"{did}; {self.launched.proof}\nready: {door.url}/v1 serves {door.served_name}\n"


@dataclass(frozen=True)
class Seen:
    """What `status` saw: the processes, and whether a generation came back just now."""

    stack: str
    status: Status
    proof: str | None
    complaint: SlipwayError | None

    def as_json(self) -> dict[str, Any]:
        plan = self.status.plan
        return {
            "stack": self.stack,
            "deployment_digest": plan.deployment_digest if plan else None,
            "endpoint": plan.front_door.as_json() if plan else None,
            "processes": [asdict(process) for process in self.status.processes],
            "serving": self.proof is not None,
            "proof": self.proof,
            "complaint": str(self.complaint) if self.complaint else None,
        }

    def text(self) -> str:
        if self.status.plan is None:
            return f"{self.stack}: nothing is launched\n"
        lines = [f"{self.stack}: {self.status.plan.recipe}, deployment {self.status.plan.deployment_digest}"]
        for process in self.status.processes:
            lines.append(f"  {process.name}: {process.state} (pid {process.pid}, since {process.since})")
        lines.append(f"  serving: {self.proof}" if self.proof else f"  not serving: {self.complaint}")
        return "\n".join(lines) + "\n"

    def refuse_unless_serving(self) -> None:
        """Raises: CheckFailed when nothing is launched or nothing generates."""
        if self.proof is None:
            problem = self.complaint.problem if self.complaint else "nothing is launched"
            raise CheckFailed(f"stack {self.stack}", f"does not serve ({problem})", "", "run `invoke launch`")


def deployment(checkout: Checkout, stack: str) -> Deployment:
    """The deployment of `stack` on this machine."""
    folder = checkout.run_folder(stack)
    return Deployment(folder, LocalHost(folder, checkout.root))


def up(checkout: Checkout, plan: Plan, *, timeout_s: float, progress: Progress) -> Up:
    """The stack of `plan`, started and proved to generate.

    Raises: UsageError, EngineFailed, MissingFile, CheckFailed.
    """
    if timeout_s <= 0:
        raise UsageError("--timeout-s", f"must be positive (got {timeout_s})", "", "give seconds")
    launched = deployment(checkout, plan.inventory).up(plan, prove, timeout_s=timeout_s, progress=progress)
    return Up(plan, launched)


def status(checkout: Checkout, stack: str) -> Seen:
    """How the stack is, with a generation asked for just now; green processes prove nothing."""
    now = deployment(checkout, stack).status()
    if now.plan is None:
        return Seen(stack, now, None, None)
    try:
        return Seen(stack, now, prove(now.plan), None)
    except SlipwayError as error:
        return Seen(stack, now, None, error)


def prove(plan: Plan) -> str:
    """What came back through the front door, in words.

    Raises: NetworkFailure, AuthFailure, CheckFailed, EngineFailed.
    """
    door = plan.front_door
    with Client(Endpoint.from_environment(door.url, door.served_name, PROOF_TIMEOUT_S)) as client:
        generation = client.generate_once()
    usage = generation.usage
    tokens = usage.completion_tokens if usage else 0
    said = json.dumps((generation.text or generation.reasoning)[:40], ensure_ascii=False)
    return f"generated {tokens} tokens ({said}, finish_reason {generation.finish_reason})"


def endpoint(checkout: Checkout, stack: str | None, url: str | None, model: str | None) -> Endpoint:
    """The endpoint at `url`, or the front door of the stack that is meant.

    Raises: UsageError, MissingFile when the stack was not launched.
    """
    if url:
        if stack:
            raise UsageError("--endpoint", "stands beside --stack", "each says what is asked", "give one of them")
        if not model:
            raise UsageError("--model", "is missing", "--endpoint needs the name that clients send", "give --model")
        return Endpoint.from_environment(url, model)
    name = stacks.choose(checkout, stack)
    plan = deployment(checkout, name).status().plan
    if plan is None:
        raise MissingFile(
            f"stack {name}", "nothing is launched", "", "run `invoke launch`, or give --endpoint and --model"
        )
    return Endpoint.from_environment(plan.front_door.url, model or plan.front_door.served_name)
