"""Bring a plan up, tell how it is, and take it down again; without Pulumi, from the plan and the host alone.

Ready means that a real generation came back through the front door. Whatever a launch started is stopped again when it
fails or is interrupted, so a half-started deployment is never left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slipway import documents
from slipway import plan as plans
from slipway.errors import (
    DocumentError,
    EngineFailed,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
    from_os_error,
)
from slipway.hosts import Host, ProcessStatus
from slipway.plan import Plan, Process
from slipway.progress import Progress, silent

Prove = Callable[[Plan, float], str]
"""Sends one request through the front door and says what came back within so many seconds. Raises SlipwayError otherwise."""

PROOF_S = 120
"""How long one proof may take where nothing else bounds it: a first generation may wait for a kernel to be compiled."""


@dataclass(frozen=True)
class Launched:
    """What a launch came to: `started` is empty when the same plan was already serving."""

    deployment_digest: str
    started: tuple[str, ...]
    ready_s: float
    proof: str


@dataclass(frozen=True)
class Status:
    """How a deployment is: the plan that was launched last (None: none), and each of its processes."""

    plan: Plan | None
    processes: tuple[ProcessStatus, ...]

    @property
    def running(self) -> bool:
        """Whether every process of the plan runs; says nothing about serving."""
        return bool(self.processes) and all(process.state == "running" for process in self.processes)


@dataclass(frozen=True)
class Deployment:
    """One stack on one host: `folder` keeps the launched plan and a lock against two launches at once."""

    folder: Path
    host: Host

    def up(self, plan: Plan, prove: Prove, *, timeout_s: float = 300, progress: Progress = silent) -> Launched:
        """The launched plan, once it has generated; a no-op when the very same plan serves already.

        Raises: UsageError when another plan is running (with what differs), EngineFailed, MissingFile, DiskFailure.
        """
        refuse_foreign(plan)
        with self._only_one():
            status = self.status()
            if status.plan and any(process.state == "running" for process in status.processes):
                if status.plan.deployment_digest != plan.deployment_digest:
                    raise _another_plan(status.plan, plan)
                if status.running:
                    return Launched(plan.deployment_digest, (), 0.0, prove(plan, min(timeout_s, PROOF_S)))
                progress.note("some processes of this plan are gone; starting it again")
            self._stop(plan if status.plan is None else status.plan, grace_s=10)
            return self._start(plan, prove, timeout_s, progress)

    def status(self) -> Status:
        """How the deployment is now.

        Raises: DocumentError when the record of the launched plan is damaged.
        """
        plan = self._recorded()
        processes = tuple(self.host.status(process.name) for process in plan.processes) if plan else ()
        return Status(plan, processes)

    def stop(self, *, grace_s: float = 10) -> tuple[str, ...]:
        """The names of the processes that were running and are stopped now; stopping twice is no error.

        Raises: EngineFailed when one cannot be stopped, DiskFailure.
        """
        with self._only_one():
            plan = self._recorded()
            if plan:
                return self._stop(plan, grace_s)
            # The plan's record is gone, but the processes may not be.
            return tuple(name for name in self.host.recorded() if self.host.stop(name, grace_s))

    def logs(self, lines: int) -> dict[str, list[str]]:
        """The last `lines` lines of each process, also of one that failed to start or was stopped.

        Raises: MissingFile when nothing was ever launched.
        """
        if lines < 1:
            raise UsageError("--lines", f"is no number of lines (got {lines})", "at least 1", "correct it")
        names = self.host.logged()
        if not names:
            raise MissingFile(self.folder, "nothing was launched here", "", "run `invoke launch` first")
        return {name: self.host.log(name, lines) for name in names}

    def _start(self, plan: Plan, prove: Prove, timeout_s: float, progress: Progress) -> Launched:
        begin = time.monotonic()
        self._record(plan)
        try:
            for process in plan.processes:
                _refuse_taken_port(process)
                self.host.start(process)
                progress.note(f"started {process.name}")
            with progress.track(f"waiting for the first generation at {plan.front_door.url}"):
                proof = self._until_ready(plan, prove, begin + timeout_s)
        except BaseException:
            # Ctrl-C included: what this launch started must not outlive it.
            self._stop(plan, grace_s=3)
            raise
        names = tuple(process.name for process in plan.processes)
        return Launched(plan.deployment_digest, names, time.monotonic() - begin, proof)

    def _until_ready(self, plan: Plan, prove: Prove, deadline: float) -> str:
        pause = threading.Event()
        while True:
            for process in plan.processes:
                if self.host.status(process.name).state != "running":
                    raise self._ended(process)
            try:
                return prove(plan, max(min(deadline - time.monotonic(), PROOF_S), 0.1))
            except NetworkFailure as error:
                # Not listening yet; any other error is an answer, and an answer that is wrong stays wrong.
                if time.monotonic() > deadline:
                    tail = self._tail(plan.processes[-1])
                    raise EngineFailed(
                        plan.front_door.url, f"does not generate in time ({error.problem})", tail
                    ) from error
            pause.wait(0.1)

    def _ended(self, process: Process) -> EngineFailed:
        return EngineFailed(
            process.name, "ended before it served", self._tail(process), "mend the cause and launch again"
        )

    def _tail(self, process: Process) -> str:
        lines = self.host.log(process.name, 10) or ["(it wrote nothing)"]
        return "its last lines:\n" + "\n".join(f"  {line}" for line in lines) + "\n"

    def _stop(self, plan: Plan, grace_s: float) -> tuple[str, ...]:
        """Stop in reverse order; every process is tried even when one refuses."""
        stopped: list[str] = []
        failures: list[SlipwayError] = []
        for process in reversed(plan.processes):
            try:
                if self.host.stop(process.name, grace_s):
                    stopped.append(process.name)
            except SlipwayError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        with contextlib.suppress(FileNotFoundError):
            self._plan_path.unlink()
        return tuple(stopped)

    @property
    def _plan_path(self) -> Path:
        return self.folder / "plan.json"

    def _record(self, plan: Plan) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self._plan_path.with_suffix(".tmp")
            temporary.write_text(json.dumps(plan.as_json(), indent=1), encoding="utf-8")
            temporary.replace(self._plan_path)
        except OSError as error:
            raise from_os_error(error, self._plan_path, "recording the plan") from error

    def _recorded(self) -> Plan | None:
        try:
            return documents.read_json(self._plan_path, Plan)
        except MissingFile:
            return None
        except DocumentError as error:
            why = "it says which processes to stop"
            remedy = "look for the processes with ps, stop them, and remove the file"
            raise EngineFailed(self._plan_path, f"is damaged ({error.problem})", why, remedy) from error

    @contextlib.contextmanager
    def _only_one(self) -> Iterator[None]:
        """One launch or stop of a stack at a time; the kernel frees the lock of one that dies."""
        path = self.folder / "lock"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise from_os_error(error, path, "locking the deployment") from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            why = "two at once would start it twice"
            raise UsageError(self.folder, "another launch or stop is at work here", why, "wait for it to end") from None
        try:
            yield
        finally:
            os.close(descriptor)


def foreign(plan: Plan) -> bool:
    """Whether launch leaves the plan to the user, who runs what `invoke plan` prints: containers, and hosts reached by SSH."""
    return any(process.runtime != "process" or process.ssh is not None for process in plan.processes)


def refuse_foreign(plan: Plan) -> None:
    """Nothing when every process is a plain one of this machine.

    Raises: UsageError with what to do instead.
    """
    for process in plan.processes:
        if process.runtime != "process":
            where = f"runs in Docker on {process.node}"
        elif process.ssh is not None:
            where = f"runs on another host ({process.ssh})"
        else:
            continue
        why = "launch starts plain processes on this machine only, in this version"
        printed = f"`invoke plan --stack {plan.inventory}`"
        raise UsageError(process.name, where, why, f"run there what {printed} prints; then `invoke status` asks it")


def _refuse_taken_port(process: Process) -> None:
    for port in process.ports:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port.host)) == 0:
                why = f"{process.name} must listen on it"
                remedy = (
                    f"stop what listens there (`ss -ltnp | grep :{port.host}` names it) or change the recipe's port"
                )
                raise EngineFailed(f"port {port.host}", "is in use", why, remedy)


def _another_plan(running: Plan, wanted: Plan) -> UsageError:
    differences = plans.changes(running, wanted)
    shown = "\n".join(f"  {line}" for line in differences[:10])
    more = f"\n  … and {len(differences) - 10} more" if len(differences) > 10 else ""
    problem = f"another plan is running ({running.deployment_digest[:19]}, wanted {wanted.deployment_digest[:19]})"
    return UsageError(
        running.inventory, problem, f"it differs in:\n{shown}{more}\n", "run `invoke stop`, then launch again"
    )
