"""A stack's deployment on its host, its endpoint, and the proof that it serves."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from slipway import book, models, stacks
from slipway.checkpoints.verify import verify
from slipway.endpoint import Client, Endpoint
from slipway.errors import (
    CheckFailed,
    EngineFailed,
    IntegrityMismatch,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)
from slipway.hosts.local import LocalHost
from slipway.launch import PROOF_S, Deployment, Launched, Status, foreign, refuse_foreign
from slipway.plan import Plan
from slipway.progress import Progress
from slipway.stacks import Checkout


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
            raise CheckFailed(f"stack {self.stack}", f"does not serve ({problem})", "", self._remedy())

    def _remedy(self) -> str:
        """What brings this stack up; where something answered, what it needs instead."""
        plan = self.status.plan
        if plan is None or self.complaint is None:
            return "run `invoke launch`"
        if isinstance(self.complaint, NetworkFailure):
            return _start(self.stack, plan) if foreign(plan) else "read `invoke logs`"
        return self.complaint.remedy or "read `invoke logs`"


def _start(stack: str, plan: Plan) -> str:
    """What to do about a plan that launch does not start, and nothing answers for."""
    nodes = ", ".join(dict.fromkeys(process.node for process in plan.processes))
    start = f"where it is not started yet, run on {nodes} what `invoke plan --stack {stack}` prints"
    return f"{start}; where it is, read {_their_logs(plan)}"


def _their_logs(plan: Plan) -> str:
    """How the logs of a plan are read that launch does not start."""
    ways = [
        f"`docker logs {process.name}` on {process.node}"
        if process.runtime == "docker"
        else f"{process.name}'s output on {process.node}"
        for process in plan.processes
    ]
    return ", ".join(ways)


def logs(checkout: Checkout, stack: str, lines: int) -> dict[str, list[str]]:
    """The last `lines` lines of each process of the stack that was launched here.

    Raises: UsageError, MissingFile where nothing was; for containers with the command that shows their logs.
    """
    try:
        return deployment(checkout, stack).logs(lines)
    except MissingFile as error:
        plan = served_plan(checkout, stack)
        if plan is None:
            raise
        why = "launch keeps the logs of what it starts; this stack is started by the printed commands"
        raise MissingFile(f"stack {stack}", "no log is kept here", why, f"read {_their_logs(plan)}") from error


def stop(checkout: Checkout, stack: str) -> tuple[tuple[str, ...], str]:
    """What was stopped, and that in words.

    Raises: EngineFailed, DiskFailure.
    """
    stopped = deployment(checkout, stack).stop()
    if stopped:
        return stopped, f"stopped {', '.join(stopped)}\n"
    plan = None
    with contextlib.suppress(SlipwayError):  # a plan that cannot be made any more keeps nobody from stopping
        plan = served_plan(checkout, stack)
    containers = [process for process in plan.processes if process.runtime == "docker"] if plan else []
    ways = ", ".join(f"`docker rm --force {process.name}` on {process.node}" for process in containers)
    said = (
        f"; launch does not start this stack's containers and does not stop them: {ways}" if ways else "; nothing ran"
    )
    return (), f"stopped nothing{said}\n"


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
    refuse_foreign(plan)
    # A key that the proof cannot send would be found only when everything runs.
    Endpoint.from_environment(plan.front_door.url, plan.front_door.served_name)
    _refuse_touched_weights(checkout, plan)
    launched = deployment(checkout, plan.inventory).up(plan, prove, timeout_s=timeout_s, progress=progress)
    return Up(plan, launched)


def _refuse_touched_weights(checkout: Checkout, plan: Plan) -> None:
    """A stat of every locked file before anything starts: weights that were touched since they were proved are not served."""
    for checkpoint in plan.checkpoints:
        lock = models.lock_of(checkout, checkpoint.repo, checkpoint.revision)
        if lock is None:
            continue  # said by the rule checkpoint-unlocked
        folder = checkout.models / checkpoint.folder
        try:
            verify(lock, folder, level="stat")
        except (MissingFile, IntegrityMismatch) as error:
            why = "what is served must be what was locked"
            remedy = f"run `invoke fetch-models --stack {plan.inventory}`; it fetches what is missing or wrong"
            raise EngineFailed(error.place, f"not started: {error.problem}", f"{error.why}; {why}", remedy) from error


def status(checkout: Checkout, stack: str) -> Seen:
    """How the stack is, with a generation asked for just now; green processes prove nothing."""
    now = deployment(checkout, stack).status()
    plan = served_plan(checkout, stack)
    if plan is None:
        return Seen(stack, now, None, None)
    try:
        _refuse_strangers(now)
        return Seen(stack, Status(plan, now.processes), prove(plan), None)
    except SlipwayError as error:
        return Seen(stack, Status(plan, now.processes), None, error)


def _refuse_strangers(now: Status) -> None:
    """Where a process of the launched plan is gone, whoever answers on its port is somebody else."""
    for process in now.processes:
        if process.state != "running":
            why = "what answers on its port now, if anything, is not this deployment"
            raise EngineFailed(process.name, "is not running", why, "read `invoke logs`, then `invoke launch`")


def served_plan(checkout: Checkout, stack: str) -> Plan | None:
    """The plan that was launched here, or that of a stack which is started by the printed commands."""
    now = deployment(checkout, stack).status()
    if now.plan is not None:
        return now.plan
    plan = book.compiled(checkout, None, None, stack)
    return plan if foreign(plan) else None


def prove(plan: Plan, timeout_s: float = PROOF_S) -> str:
    """What came back through the front door within `timeout_s`, in words.

    Raises: NetworkFailure, AuthFailure, CheckFailed, EngineFailed.
    """
    door = plan.front_door
    with Client(Endpoint.from_environment(door.url, door.served_name, timeout_s)) as client:
        generation = client.generate_once()
    usage = generation.usage
    tokens = usage.completion_tokens if usage else 0
    said = json.dumps((generation.text or generation.reasoning)[:40], ensure_ascii=False)
    return f"generated {tokens} tokens ({said}, finish_reason {generation.finish_reason})"


def endpoint(checkout: Checkout, stack: str | None, url: str | None, model: str | None) -> Endpoint:
    """The endpoint at `url`, or the front door of the stack that is meant.

    Raises: UsageError, MissingFile when the stack was not launched.
    """
    if url is not None:
        if stack:
            raise UsageError("--endpoint", "stands beside --stack", "each says what is asked", "give one of them")
        if not model:
            raise UsageError("--model", "is missing", "--endpoint needs the name that clients send", "give --model")
        return Endpoint.from_environment(url, model)
    name = stacks.choose(checkout, stack)
    _refuse_strangers(deployment(checkout, name).status())
    plan = served_plan(checkout, name)
    if plan is None:
        raise MissingFile(
            f"stack {name}", "nothing is launched", "", "run `invoke launch`, or give --endpoint and --model"
        )
    return Endpoint.from_environment(plan.front_door.url, model or plan.front_door.served_name)
