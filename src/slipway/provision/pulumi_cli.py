"""The Pulumi CLI as a subprocess: where it is, what it is told, and the events it reports.

Decision 004 says why the CLI and not the Automation API.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.errors import CheckFailed, MissingFile, SlipwayError
from slipway.progress import Progress
from slipway.provision import failures

OLDEST = (3, 200)
"""The oldest CLI that knows what is used here; Pulumi.yaml's stackConfigDir and `--json` of `up` are older."""


@dataclass(frozen=True)
class Cli:
    """One Pulumi CLI on one project; `env` is what its processes get besides the caller's environment."""

    program: str
    root: Path
    version: str
    env: Mapping[str, str]

    def text(self, *words: str, stdin: str | None = None) -> str:
        """What `pulumi WORDS` prints on stdout.

        Raises: SlipwayError in the words of `failures`.
        """
        ran = subprocess.run(
            self._argv(words),
            cwd=self.root,
            env=self._environment(),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if ran.returncode:
            raise failures.explain(_place(words), [*_said(ran.stderr), ran.stdout], f"`pulumi {words[0]}`")
        return ran.stdout

    def json(self, *words: str) -> Any:
        """What `pulumi WORDS` prints, read as JSON.

        Raises: SlipwayError.
        """
        said = self.text(*words)
        try:
            return json.loads(said)
        except ValueError:
            why = f"it begins {said.strip()[:60]!r}"
            raise CheckFailed(
                f"`pulumi {words[0]}`", "printed no JSON", why, "check which `pulumi` stands on PATH"
            ) from None

    def run(self, words: tuple[str, ...], progress: Progress) -> Outcome:
        """Run an operation that reports events (up, destroy, refresh, preview) and tell `progress` of each resource.

        On Ctrl-C or SIGTERM the CLI is asked to stop in good order, and waited for: it then records what it did.

        Raises: SlipwayError in the words of `failures`; Locked is left to the caller, through `Outcome.failed`.
        """
        outcome = Outcome()
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
            process = subprocess.Popen(
                self._argv((*words, "--json")),
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                # A group of its own: a terminal's Ctrl-C reaches it through us, once.
                start_new_session=True,
            )
            with process, _stopped_in_good_order(process):
                assert process.stdout is not None
                for event in _events(process.stdout):
                    outcome.take(event, progress)
                outcome.exit_code = process.wait()
            errors.seek(0)
            outcome.stderr = errors.read()
        return outcome

    def _argv(self, words: tuple[str, ...]) -> list[str]:
        return [self.program, *words, "--non-interactive", "--color", "never"]

    def _environment(self) -> dict[str, str]:
        # A preview otherwise prints one document at its end instead of the events that `up` prints.
        events = {"PULUMI_ENABLE_STREAMING_JSON_PREVIEW": "true"}
        return {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true", **events, **self.env}


@dataclass
class Outcome:
    """What an operation did, event by event."""

    exit_code: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    planned: list[tuple[str, str, str]] = field(default_factory=list)
    diagnostics: list[str] = field(default_factory=list)
    stderr: str = ""

    def take(self, event: Mapping[str, Any], progress: Progress) -> None:
        """Count one event of the engine."""
        before = event.get("resourcePreEvent", {}).get("metadata")
        after = event.get("resOutputsEvent", {}).get("metadata")
        said = event.get("diagnosticEvent")
        if before and before["op"] not in QUIET | PARTS_OF_REPLACE:
            self.planned.append((before["op"], before["type"], name_of(before["urn"])))
        if after and after["op"] not in QUIET:
            progress.note(f"  {DONE.get(after['op'], after['op'])} {name_of(after['urn'])} ({after['type']})")
        if said and said.get("severity") == "error":
            self.diagnostics.append(said["message"])
        if said and said.get("severity") == "warning":
            progress.note(f"  warning: {' '.join(said['message'].split())}")
        if "summaryEvent" in event:
            self.changes = event["summaryEvent"].get("resourceChanges") or {}

    def failed(self, place: str, doing: str) -> SlipwayError | None:
        """The user's error when the operation failed."""
        if self.exit_code == 0:
            return None
        if self.exit_code == -signal.SIGKILL:
            why = "usually for want of memory (`dmesg` tells); what was done is recorded, what was under way is found again"
            return CheckFailed(
                place, f"{doing} was killed", why, "run the same command again; it goes on where it stopped"
            )
        return failures.explain(place, [*self.diagnostics, *_said(self.stderr)], doing)


QUIET = {"same", "read", "read-discard", "read-replacement", "refresh", "discard"}
"""Steps that change nothing."""

PARTS_OF_REPLACE = {"create-replacement", "delete-replaced"}
"""Steps that are announced by a `replace` of the same resource."""

DONE = {
    "create": "created",
    "create-replacement": "created the replacement of",
    "delete": "removed",
    "delete-replaced": "removed the old",
    "update": "updated",
    "replace": "replaced",
    "import": "adopted",
}


def find(root: Path, env: Mapping[str, str]) -> Cli:
    """The CLI on PATH for the project in `root`.

    Raises: MissingFile when there is none, CheckFailed when it is too old.
    """
    program = shutil.which("pulumi")
    if program is None:
        why = "provisioning needs it; launch, status, logs and stop do not"
        remedy = "install Pulumi in the ordinary way, or build it: PATH=$(tools/pulumi/build):$PATH"
        raise MissingFile("pulumi", "not found on PATH", why, remedy)
    try:
        version = Cli(program, root, "", env).text("version").strip()
    except OSError as error:
        why = f"{error.strerror or error}"
        raise CheckFailed(program, "cannot be run", why, "install Pulumi for this machine again") from error
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) < OLDEST:
        need = ".".join(map(str, OLDEST))
        raise CheckFailed(
            program, f"is too old (got {version or 'no version'})", f"{need} or newer is needed", "update it"
        )
    return Cli(program, root, version, env)


def name_of(urn: str) -> str:
    """The logical name in a resource's URN."""
    return urn.rpartition("::")[2]


def _events(lines: Iterator[str] | Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # some versions print a first line for people
        if isinstance(event, dict):
            yield event


def _said(stderr: str) -> list[str]:
    """The lines of `stderr` that say something, errors first."""
    lines = [line for line in stderr.splitlines() if line.strip() and not line.startswith("warning: using pulumi-")]
    text = " ".join(lines)
    return [text[text.index("error:") :]] if "error:" in text else [text] if text else []


def _place(words: tuple[str, ...]) -> str:
    stack = words[words.index("--stack") + 1] if "--stack" in words else ""
    return f"stack {stack}" if stack else "pulumi"


@contextmanager
def _stopped_in_good_order(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _end(process, (signal.SIGINT, signal.SIGTERM))
        raise


def _end(process: subprocess.Popen[str], signals: tuple[signal.Signals, ...]) -> None:
    """Ask the CLI to stop; a second Ctrl-C asks harder. It records what it did before it ends."""
    for number in signals:
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            if process.stdout:
                process.stdout.read()
            process.wait()
        except KeyboardInterrupt:
            continue


Confirm = Callable[[str], bool]
"""Asks the user; True means yes."""
