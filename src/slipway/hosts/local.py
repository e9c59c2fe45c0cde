"""Processes on this machine, without Docker.

A process is known by its PID together with the time the kernel says it started and the boot it was started in, so that a
record left by a crash, or a PID that was given to somebody else since, is never signalled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from slipway import documents
from slipway.documents import Document
from slipway.errors import DocumentError, EngineFailed, MissingFile, from_os_error
from slipway.hosts import ProcessStatus
from slipway.plan import Process

PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME", "SLIPWAY_API_KEY")
"""Variables a process inherits. Everything else comes from the plan: an inherited UCX or NCCL setting would change what runs."""

PASSED_ON_PREFIXES = ("OPENBLAS_", "OMP_", "MKL_")
"""How this machine's CPU libraries must be tuned is a fact of the machine, not of the deployment."""


class ProcessRecord(Document):
    """What is kept about a started process; `born` is the kernel's word on when, unique together with the PID."""

    schema_: Literal["slipway/process/v1"]
    name: str
    pid: int
    born: str
    since: str
    argv: tuple[str, ...]


class LocalHost:
    """Runs processes of one stack below `folder`: records in `processes/`, output in `logs/`."""

    def __init__(self, folder: Path, working_folder: Path) -> None:
        self._folder = folder
        self._working_folder = working_folder
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, process: Process) -> None:
        """Start `process` in a session of its own, with its output in a log file; a log of an earlier run is kept as `.1`.

        Raises: MissingFile when the program does not exist, DiskFailure.
        """
        log = self.log_path(process.name)
        try:
            self._record_path(process.name).parent.mkdir(parents=True, exist_ok=True)
            log.parent.mkdir(parents=True, exist_ok=True)
            self._make_cache(process)
            if log.exists():
                log.replace(log.with_suffix(".log.1"))
            with log.open("wb") as output:
                child = subprocess.Popen(
                    self._argv(process),
                    cwd=self._working_folder,
                    env=self._environment(process),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except FileNotFoundError as error:
            why = f"{process.name} starts it"
            raise MissingFile(process.argv[0], "no such program", why, "check the recipe and PATH") from error
        except OSError as error:
            raise from_os_error(error, log, f"starting {process.name}") from error
        self._children[child.pid] = child
        try:
            self._write_record(process, child.pid)
        except BaseException:
            # Without a record nobody could stop it later.
            _signal_group(child.pid, signal.SIGKILL)
            child.wait()
            raise

    def status(self, name: str) -> ProcessStatus:
        """How the process called `name` is now; a damaged record counts as absent, since it names nobody for certain."""
        record = self._record(name)
        if record is None:
            return ProcessStatus(name, "absent")
        state = "running" if self._alive(record) else "exited"
        return ProcessStatus(name, state, record.pid, record.since)  # type: ignore[arg-type]

    def stop(self, name: str, grace_s: float = 10.0) -> bool:
        """Stop the process and forget it: SIGTERM to its group, SIGKILL after `grace_s`; False when it was not running.

        Raises: EngineFailed when it survives even SIGKILL, DiskFailure.
        """
        record = self._record(name)
        was_running = record is not None and self._alive(record)
        if record is not None and was_running:
            for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
                _signal_group(record.pid, number)
                if _until(lambda: not self._alive(record), patience_s):
                    break
            else:
                why = "the kernel does not let it go (a GPU driver call, a dead network mount)"
                raise EngineFailed(name, f"still runs after SIGKILL (pid {record.pid})", why, "look at it with ps")
        for child in self._children.values():
            child.poll()  # takes in those that ended, whoever stopped them
        try:
            self._record_path(name).unlink(missing_ok=True)
        except OSError as error:
            raise from_os_error(error, self._record_path(name), "forgetting the process") from error
        return was_running

    def log(self, name: str, lines: int) -> list[str]:
        """The last `lines` lines of its output; empty when it wrote none."""
        path = self.log_path(name)
        try:
            with path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(file.tell() - 400 * lines - 4096, 0))
                return file.read().decode("utf-8", "replace").splitlines()[-lines:]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise from_os_error(error, path, "reading the log") from error

    def recorded(self) -> tuple[str, ...]:
        """The processes that were started and not stopped since."""
        return tuple(sorted(path.stem for path in (self._folder / "processes").glob("*.json")))

    def logged(self) -> tuple[str, ...]:
        """The processes whose output is kept, running or not."""
        return tuple(sorted(path.stem for path in (self._folder / "logs").glob("*.log")))

    def _make_cache(self, process: Process) -> None:
        """The folder for compiled kernels, for this user alone: what lies there is loaded and run."""
        if process.cache_folder is None:
            return
        folder = self._working_folder / process.cache_folder
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, folder, f"making the kernel cache of {process.name}") from error

    def log_path(self, name: str) -> Path:
        """Where the process writes its output."""
        return self._folder / "logs" / f"{name}.log"

    def _record_path(self, name: str) -> Path:
        return self._folder / "processes" / f"{name}.json"

    def _write_record(self, process: Process, pid: int) -> None:
        born = _born(pid)
        if born is None:
            raise EngineFailed(process.name, "ended at once", "", f"read {self.log_path(process.name)}")
        since = datetime.now(UTC).isoformat(timespec="seconds")
        record = ProcessRecord(
            schema_="slipway/process/v1", name=process.name, pid=pid, born=born, since=since, argv=process.argv
        )
        path = self._record_path(process.name)
        temporary = path.with_suffix(".tmp")
        try:
            temporary.write_text(json.dumps(record.model_dump(mode="json")), encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise from_os_error(error, path, "recording the process") from error

    def _record(self, name: str) -> ProcessRecord | None:
        try:
            return documents.read_json(self._record_path(name), ProcessRecord)
        except (MissingFile, DocumentError):
            return None

    def _alive(self, record: ProcessRecord) -> bool:
        child = self._children.get(record.pid)
        if child is not None and child.poll() is not None:
            return False
        return _born(record.pid) == record.born

    def _argv(self, process: Process) -> tuple[str, ...]:
        # `python` means the interpreter that runs Slipway: an activated .venv and a bare ./invoke then start the same one.
        first = sys.executable if process.argv[0] == "python" else process.argv[0]
        return (first, *process.argv[1:])

    def _environment(self, process: Process) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
        }
        # Unbuffered, so that a log shows the last words of a process that dies.
        return {**kept, "PYTHONUNBUFFERED": "1", **process.env}


def _born(pid: int) -> str | None:
    """When the kernel says `pid` was started, in a form that never repeats; None when there is no such process or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return _born_without_proc(pid) if not Path("/proc/self/stat").exists() else None
    return None if fields[0] in {"Z", "X"} else f"{boot}/{fields[19]}"


def _born_without_proc(pid: int) -> str | None:
    """The same on macOS, from ps."""
    said = subprocess.run(("ps", "-o", "stat=,lstart=", "-p", str(pid)), capture_output=True, text=True, check=False)
    state, _, started = said.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        why = "it runs as another user"
        raise EngineFailed(f"pid {pid}", "may not be signalled", why, "stop it as the user who started it") from error


def _until(done: Callable[[], bool], patience_s: float, every_s: float = 0.05) -> bool:
    """Whether `done` came true within `patience_s`."""
    waited = threading.Event()
    for _ in range(max(int(patience_s / every_s), 1)):
        if done():
            return True
        waited.wait(every_s)
    return done()
