"""Set-up over ssh against hosts that do nothing, hang, drop the line or write to the terminal; `ssh` is a script here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.errors import CheckFailed, NetworkFailure
from slipway.host_setup import remote
from slipway.host_setup.remote import Limits
from slipway.inventory import Node
from slipway.progress import Lines, silent

ROOT = Path(__file__).resolve().parent.parent
NODE = Node(name="n1", address="10.0.0.1", ssh="n1")
SHORT = Limits(reach_s=0.3, silence_s=0.3)


class Said:
    """A stream that keeps what is written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def ssh(folder: Path, body: str) -> tuple[str, ...]:
    path = folder / "ssh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return (str(path),)


def test_every_line_of_a_script_that_ends_is_told_as_it_comes(tmp_path: Path) -> None:
    stream = Said()
    command = ssh(tmp_path, "exec sh -s")
    said = remote.run(NODE, "echo slipway: one\necho two >&2", progress=Lines(stream), command=command)  # type: ignore[arg-type]
    assert said == ("one",)
    assert sorted(stream.text.splitlines()) == ["n1: one", "n1: two"]


@pytest.mark.parametrize("body", ["exit 0", "cat", "cat >/dev/null; echo welcome", "echo this host is set up"])
def test_a_host_that_runs_no_script_is_never_called_set_up(tmp_path: Path, body: str) -> None:
    with pytest.raises(NetworkFailure, match=r"(?s)ran no script.*make `ssh n1 id` print a user"):
        remote.run(NODE, "echo slipway: this host is set up", progress=silent, command=ssh(tmp_path, body))


@pytest.mark.parametrize("script", ["exit 0", "exec true"])
def test_a_script_that_does_not_reach_its_last_line_has_not_set_up(tmp_path: Path, script: str) -> None:
    with pytest.raises(CheckFailed, match="ended before the script's last line"):
        remote.run(NODE, script, progress=silent, command=ssh(tmp_path, "exec sh -s"))


def test_a_host_that_never_answers_is_given_up(tmp_path: Path) -> None:
    command = ssh(tmp_path, "sleep 300")
    with pytest.raises(NetworkFailure, match=r"cannot be reached: no answer in 0 s \(got n1\)"):
        remote.run(NODE, "true", progress=silent, command=command, limits=SHORT)
    with pytest.raises(NetworkFailure, match="cannot be reached: no answer"):
        remote.reach(NODE, command, SHORT)
    with pytest.raises(NetworkFailure, match="cannot be reached: no answer"):
        remote.reach(NODE, ssh(tmp_path, "exec >&- 2>&-; sleep 300"), SHORT)


def test_a_host_that_greets_for_ever_is_given_up_too(tmp_path: Path) -> None:
    command = ssh(tmp_path, "while :; do echo hello; sleep 0.05; done")
    for ask in (
        lambda: remote.run(NODE, "true", progress=silent, command=command, limits=SHORT),
        lambda: remote.reach(NODE, command, SHORT),
    ):
        with pytest.raises(NetworkFailure, match=r"(?s)no answer in.*  hello"):
            ask()


def test_a_script_that_falls_silent_is_given_up_and_what_it_said_is_shown(tmp_path: Path) -> None:
    limits = Limits(reach_s=20.0, silence_s=0.3)
    with pytest.raises(CheckFailed, match=r"(?s)had begun and then said nothing for 0 s.*  running: apt"):
        remote.run(
            NODE,
            "echo running: apt; sleep 300",
            progress=silent,
            command=ssh(tmp_path, "exec sh -s"),
            limits=limits,
        )


def test_something_left_behind_with_the_output_open_does_not_hold_the_command(tmp_path: Path) -> None:
    # As ssh's own master connection does (ControlPersist).
    command = ssh(tmp_path, f"sleep 300 & echo $! >{tmp_path}/left; exec sh -s")
    assert remote.run(NODE, "echo one", progress=silent, command=command) == ("one",)
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_a_connection_lost_in_mid_script_says_that_the_script_had_begun(tmp_path: Path) -> None:
    command = ssh(tmp_path, "sh -s; echo client_loop: broken >&2; exit 255")
    with pytest.raises(NetworkFailure, match=r"(?s)lost after the script had begun.*  one.*what was done stays done"):
        remote.run(NODE, "echo one\nexit 1", progress=silent, command=command)
    with pytest.raises(NetworkFailure, match=r"(?s)cannot be reached \(got n1\).*  broken"):
        remote.run(NODE, "true", progress=silent, command=ssh(tmp_path, "echo broken >&2; exit 255"))


def test_sudo_that_wants_a_password_is_no_network_failure(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"(?s)did not begin: stopped with exit code 1.*allow sudo"):
        remote.run(NODE, "true", progress=silent, command=ssh(tmp_path, "echo a password is required >&2; exit 1"))


def test_no_control_character_of_a_host_reaches_the_terminal(tmp_path: Path) -> None:
    stream = Said()
    script = "printf 'a\\033[2Jb\\rc\\007\\n'; printf '\\033]0;x\\007\\n' >&2; exit 3"
    with pytest.raises(CheckFailed) as caught:
        remote.run(NODE, script, progress=Lines(stream), command=ssh(tmp_path, "exec sh -s"))  # type: ignore[arg-type]
    for text in (stream.text, str(caught.value)):
        assert "[2Jb" in text
        assert all(character.isprintable() or character == "\n" for character in text)


def test_sigterm_ends_the_ssh_without_a_traceback(tmp_path: Path) -> None:
    command = ssh(tmp_path, f"echo $$ >{tmp_path}/pid; echo here >&2; sleep 300")
    code = (
        "import sys\nfrom slipway import cli\nfrom slipway.host_setup import remote\nfrom slipway.inventory import Node\n"
        "with cli.command(False) as output:\n"
        f"    remote.run(Node(name='n1', address='10.0.0.1', ssh='n1'), 'true', progress=output.progress, command={command!r})\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "n1: here\n"
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=20)[1]
    assert process.returncode == 143
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
