"""What a user is asked before anything changes, and what Ctrl-C leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from slipway import provision
from slipway.errors import UsageError
from slipway.progress import silent
from slipway.stacks import Checkout

pytestmark = pytest.mark.needs("pulumi")


def test_a_no_changes_nothing_and_the_question_lists_what_would_be_made(
    project: Any, account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in project.env.items():
        monkeypatch.setenv(name, value)
    asked: list[str] = []

    def no(question: str) -> bool:
        asked.append(question)
        return False

    for command in (provision.up, provision.down):
        with pytest.raises(UsageError, match="not confirmed"):
            command(Checkout(project.root), "m1-pd", confirm=no, progress=silent)
    assert "  create gpu-1 (aws:ec2/instance:Instance)\n" in asked[0]
    assert asked[0].endswith("up stack m1-pd?")
    assert asked[1] == "  no change\ndestroy stack m1-pd?"
    assert account.things() == set()


def test_ctrl_c_stops_in_good_order_and_leaves_nothing_to_mend(project: Any, account: Any) -> None:
    words = [sys.executable, "-m", "invoke", "--search-root", str(project.root), "up", "--stack", "m1-pd", "--yes"]
    process = subprocess.Popen(
        words,
        cwd=project.root,
        env={**os.environ, **project.env},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for_calls(project.calls, 3, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not list((project.root / ".slipway/pulumi/.pulumi/locks").rglob("*.json"))
    gone = project.invoke("down", "--stack", "m1-pd", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert "no run was interrupted" in gone.stderr
    assert account.things() == set()


def _wait_for_calls(calls: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Until the provider was asked for `count` things; the run is then in its middle."""
    pause = threading.Event()
    while process.poll() is None and not (calls.exists() and len(calls.read_text().splitlines()) >= count):
        pause.wait(0.05)
