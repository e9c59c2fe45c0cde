"""Hosts that run a plan's processes: one protocol, and one module per kind of host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from slipway.plan import Process

State = Literal["absent", "running", "exited"]


@dataclass(frozen=True)
class ProcessStatus:
    """How a process is: `running`, `exited` (it was started and is gone), or `absent` (never started, or stopped)."""

    name: str
    state: State
    pid: int | None = None
    since: str | None = None


class Host(Protocol):
    """What launch needs from a host. Every call is safe to repeat."""

    def start(self, process: Process) -> None:
        """Start `process`; it outlives the caller. Raises: SlipwayError."""

    def status(self, name: str) -> ProcessStatus:
        """How the process called `name` is now."""

    def stop(self, name: str, grace_s: float) -> bool:
        """Stop it, by force after `grace_s`, and forget it; False when it was not running. Never signals a stranger."""

    def log(self, name: str, lines: int) -> list[str]:
        """The last `lines` lines it wrote; empty when it wrote none."""

    def recorded(self) -> tuple[str, ...]:
        """The processes that were started and not stopped since."""

    def logged(self) -> tuple[str, ...]:
        """The processes whose output is kept, running or not."""
