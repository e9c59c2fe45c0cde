"""Who holds a stack's lock, and whether that process still lives."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from slipway.errors import CheckFailed, from_os_error

CLOCK_SLACK_S = 2.0
"""A process start is known to the tick, a lock's time to the nanosecond; between them a process may look younger than its lock."""


@dataclass(frozen=True)
class Holder:
    """A process that has locked a stack; `file` is its lock where the backend is a folder."""

    user: str
    host: str
    pid: int
    since: str
    file: Path | None = None

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, pid {self.pid}, since {self.since}"


def in_folder(folder: Path, stack: str) -> tuple[Holder, ...]:
    """The holders of `stack` in the `file://` backend at `folder`, in the order of their file names."""
    files = sorted(folder.glob(f".pulumi/locks/*/*/{stack}/*.json"))
    return tuple(holder for file in files if (holder := _read(file)) is not None)


def in_message(said: str) -> tuple[Holder, ...]:
    """The holders that Pulumi's own refusal names; object stores have no folder to look into.

    Source: pkg/backend/diy/lock.go of Pulumi 3.274.
    """
    found = re.findall(r"created by (\S+)@(\S+) \(pid (\d+)\) at ([^\s]+)", said)
    return tuple(Holder(user, host, int(pid), since) for user, host, pid, since in found)


def state_of(holder: Holder) -> Literal["alive", "dead", "elsewhere"]:
    """Whether the holder lives; of a process on another host nothing is known from here."""
    if holder.host != socket.gethostname():
        return "elsewhere"
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return "dead"
    except PermissionError:
        return "alive"  # another user's
    return "dead" if _is_younger(holder) else "alive"


def refuse_living(stack: str, holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """The dead holders among `holders`.

    Raises: CheckFailed that names the first one that lives, or that cannot be judged from here.
    """
    dead = []
    for holder in holders:
        state = state_of(holder)
        if state == "alive":
            why = "two runs at a time would make hosts twice"
            raise CheckFailed(f"stack {stack}", f"another run holds its lock ({holder})", why, "wait for it to end")
        if state == "elsewhere":
            why = "whether it still runs cannot be seen from this host"
            remedy = f"if it is gone: `pulumi cancel --stack {stack}`, then run the same command again"
            raise CheckFailed(f"stack {stack}", f"a run on another host holds its lock ({holder})", why, remedy)
        dead.append(holder)
    return tuple(dead)


@contextmanager
def alone(folder: Path, stack: str) -> Iterator[None]:
    """One command of this checkout on `stack` at a time, for as long as the block runs; the kernel frees the lock of one that dies.

    Pulumi locks a stack only while an operation runs; what is looked up between two of them must not be another command's.

    Raises: CheckFailed, DiskFailure.
    """
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise from_os_error(error, path, "locking the stack") from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        why = "two runs at a time would make hosts twice"
        raise CheckFailed(f"stack {stack}", "another command is at work on it", why, "wait for it to end") from None
    try:
        yield
    finally:
        os.close(descriptor)


def release(holder: Holder) -> None:
    """Remove the lock of a dead holder: its own file only, so that a run that began meanwhile keeps its own.

    Raises: DiskFailure.
    """
    if holder.file is None:
        return
    try:
        holder.file.unlink(missing_ok=True)
        # Pulumi's file store keeps attributes beside some files.
        holder.file.with_name(holder.file.name + ".attrs").unlink(missing_ok=True)
    except OSError as error:
        raise from_os_error(error, holder.file, "removing the lock of a run that died") from error


def _read(file: Path) -> Holder | None:
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return Holder(str(said["username"]), str(said["hostname"]), int(said["pid"]), str(said["timestamp"]), file)
    except FileNotFoundError:
        return None  # released while we looked
    except (OSError, ValueError, KeyError, TypeError):
        # A lock torn by a power cut names nobody; its owner cannot be alive, because Pulumi writes and renames.
        return Holder("unknown", socket.gethostname(), 2**22 + 1, "unknown", file)


def _is_younger(holder: Holder) -> bool:
    """Whether the process of this pid began after the lock was taken: then the number was given out again (Linux)."""
    try:
        fields = (
            Path(f"/proc/{holder.pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        boot = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(encoding="ascii"), re.MULTILINE)
        locked = datetime.fromisoformat(_to_microseconds(holder.since)).timestamp()
    except (OSError, ValueError):
        return False  # no /proc or no readable time: the process counts as the holder
    if fields[0] in {"Z", "X"}:
        return True  # dead, and only not yet reaped
    if boot is None:
        return False
    started = int(boot[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started > locked + CLOCK_SLACK_S


def _to_microseconds(timestamp: str) -> str:
    """Go writes nanoseconds, and as many digits as it needs; Python reads six."""
    return re.sub(r"\.(\d+)", lambda match: f".{match[1][:6]:0<6}", timestamp)
