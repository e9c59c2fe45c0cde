"""What goes wrong before, around and inside Pulumi is one line with the next step and the right exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipway import provision
from slipway.errors import (
    AuthFailure,
    CheckFailed,
    DiskFailure,
    MissingFile,
    NetworkFailure,
    PlanRefused,
    SlipwayError,
    UsageError,
)
from slipway.progress import silent
from slipway.provision import backend, failures
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent.parent


def said(ran: Any) -> str:
    """The error of a command: its last line."""
    return str(ran.stderr.strip().splitlines()[-1])


def test_without_the_cli_the_command_says_how_to_get_it(bare_project: Any) -> None:
    ran = bare_project.invoke("up", "--stack", "m1-pd", "--yes", PATH="/nowhere")
    assert ran.returncode == 5
    assert said(ran).startswith("pulumi: not found on PATH; provisioning needs it")
    assert "tools/pulumi/build" in said(ran)


def test_a_script_must_say_yes(bare_project: Any) -> None:
    ran = bare_project.invoke("down", "--stack", "m1-pd")
    assert (ran.returncode, said(ran)[:20]) == (2, "--yes: is missing; t")


def test_an_unknown_stack_is_named_with_the_known_ones(bare_project: Any) -> None:
    ran = bare_project.invoke("up", "--stack", "m1-dp", "--yes")
    assert ran.returncode == 2
    assert "no such stack (got m1-dp)" in said(ran)


@pytest.mark.needs("pulumi")
def test_a_backend_that_cannot_be_reached_is_no_traceback(project: Any, unused_port: int) -> None:
    url = f"s3://state?endpoint=127.0.0.1:{unused_port}&disableSSL=true&s3ForcePathStyle=true&region=us-east-2"
    ran = project.invoke("up", "--stack", "m1-pd", "--yes", PULUMI_BACKEND_URL=url)
    assert ran.returncode == 8, ran.stderr
    assert "the state backend cannot be reached" in said(ran)


@pytest.mark.needs("pulumi")
def test_no_credentials_and_a_wrong_passphrase_are_told_apart(project: Any) -> None:
    keys = {name: project.env.pop(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    ran = project.invoke("up", "--stack", "m1-pd", "--yes")
    assert ran.returncode == 7, ran.stderr
    assert "no AWS credentials" in said(ran)
    assert "aws sso login" in said(ran)
    # The state was made by then, with our own passphrase.
    project.env.update(keys)
    ran = project.invoke("up", "--stack", "m1-pd", "--yes", PULUMI_CONFIG_PASSPHRASE="another")
    assert ran.returncode == 7, ran.stderr
    assert "wrong passphrase" in said(ran)
    # Neither a new passphrase nor another backend is taken for the old one.
    (project.root / ".slipway" / "pulumi" / "passphrase").unlink()
    with pytest.raises(MissingFile, match="a new one cannot open it"):
        backend.choose(project.root, project.root / ".slipway", "m1-pd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULUMI_BACKEND_URL", "file:///elsewhere")
        with pytest.raises(UsageError, match="a second state would make every host a second time"):
            backend.choose(project.root, project.root / ".slipway", "m1-pd")


def test_before_the_first_up_there_is_no_inventory_and_the_next_step_is_named(project: Any) -> None:
    ran = project.invoke("inventory", "--stack", "m1-pd")
    assert ran.returncode == 2, ran.stderr
    assert "the backend has no state of this stack" in said(ran)
    assert "`invoke up` makes it" in said(ran)


class TestWithoutPulumi:
    """What is refused before Pulumi is asked anything."""

    @pytest.fixture(autouse=True)
    def program(self, bare_project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A `pulumi` that says its version and refuses everything else."""
        script = bare_project.root / "bin" / "pulumi"
        script.parent.mkdir()
        script.write_text(
            '#!/bin/sh\n[ "$1" = version ] && echo v3.274.1 && exit\nprintf "\\377 boom\\n" >&2; exit 3\n'
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")

    def up(self, project: Any, stack: str = "m1-pd") -> SlipwayError:
        with pytest.raises(SlipwayError) as caught:
            provision.up(Checkout(project.root), stack, confirm=None, progress=silent)
        return caught.value

    def test_example_values_are_named(self, bare_project: Any) -> None:
        error = self.up(bare_project, "m1-b200")
        assert isinstance(error, UsageError)
        assert "still has example values: slipway:aws.ami, slipway:aws.capacity.id" in str(error)

    def test_a_recipe_that_the_hosts_cannot_run_is_refused(self, bare_project: Any) -> None:
        with bare_project.edited("m1-pd") as config:
            config["slipway:recipe"] = "laguna-m.1.sglang/b200-nvfp4"
        assert isinstance(self.up(bare_project), PlanRefused)

    def test_a_full_disk_is_refused_before_it_tears_the_state(
        self, bare_project: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backend, "LEAST_FREE_BYTES", 1 << 62)
        error = self.up(bare_project)
        assert isinstance(error, DiskFailure)
        assert "is lost when the disk fills up on the way" in str(error)

    def test_a_program_that_speaks_in_odd_bytes_is_shown(self, bare_project: Any) -> None:
        assert "\N{REPLACEMENT CHARACTER} boom" in str(self.up(bare_project))

    @pytest.mark.parametrize(
        ("script", "problem"),
        [("\x7fELF", "cannot be run"), ("#!/bin/sh\necho v3.100.0\n", "is too old"), ("#!/bin/sh\n", "is too old")],
    )
    def test_a_program_that_cannot_be_it_is_named(self, bare_project: Any, script: str, problem: str) -> None:
        (bare_project.root / "bin" / "pulumi").write_text(script)
        assert problem in str(self.up(bare_project))

    def test_an_answer_that_is_no_json_is_no_traceback(self, bare_project: Any) -> None:
        (bare_project.root / "bin" / "pulumi").write_text(
            '#!/bin/sh\n[ "$1" = version ] && echo v3.274.1 || echo hello\n'
        )
        with bare_project.edited("m1-pd") as config:
            config.clear()
            config.update({"slipway:recipe": "laguna-tiny.reference/laptop", "slipway:hosts": "local"})
        assert "printed no JSON; it begins 'hello'" in str(self.up(bare_project))

    def test_two_commands_at_a_time_are_one_too_many(self, bare_project: Any) -> None:
        folder = bare_project.root / ".slipway" / "provision" / "m1-pd"
        with_lock = f"with locks.alone(Path({str(folder)!r}), 'm1-pd'): print(1, flush=True); input()"
        hold = f"from slipway.provision import locks; from pathlib import Path\n{with_lock}"
        words = [sys.executable, "-c", hold]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"1\n"
            assert "another command is at work on it" in str(self.up(bare_project))
            other.communicate(b"\n")
        assert "boom" in str(self.up(bare_project))

    def test_a_living_lock_stops_the_run(self, bare_project: Any) -> None:
        host, pid = os.uname().nodename, os.getpid()
        holder = {"pid": pid, "username": "me", "hostname": host, "timestamp": "2200-01-01T00:00:00Z"}
        lock = bare_project.root / ".slipway/pulumi/.pulumi/locks/organization/slipway/m1-pd/x.json"
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.write_text(json.dumps(holder))
        assert f"another run holds its lock (me@{host}, pid {pid}" in str(self.up(bare_project))

    @pytest.mark.parametrize("record", ["[1]", "{", '"x"'])
    def test_a_damaged_record_of_backends_is_named(self, bare_project: Any, record: str) -> None:
        path = bare_project.root / ".slipway" / "pulumi" / "backends.json"
        path.parent.mkdir(parents=True)
        path.write_text(record)
        error = self.up(bare_project)
        assert "cannot be read" in str(error)
        assert error.place == str(path)


REAL = "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 500, RequestID: 1, api error {}: words"


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        (REAL.format("InsufficientInstanceCapacity"), CheckFailed, "no such hosts free"),
        (REAL.format("ReservationCapacityExceeded"), CheckFailed, "no place left"),
        (REAL.format("VcpuLimitExceeded"), CheckFailed, "vCPU quota is too small"),
        (REAL.format("InvalidCapacityReservationId.NotFound"), UsageError, "no capacity reservation of this id"),
        (REAL.format("InvalidAMIID.NotFound"), UsageError, "no image of this id"),
        (REAL.format("UnauthorizedOperation"), AuthFailure, "refuses the call"),
        (REAL.format("ExpiredToken"), AuthFailure, "have expired"),
        (REAL.format("RequestLimitExceeded"), NetworkFailure, "throttling"),
        (REAL.format("SecurityGroupLimitExceeded"), CheckFailed, "account quota"),
        ("error: no stack named 'x' found", UsageError, "no state of this stack"),
        ("error: the stack is currently locked by 1 lock(s).", failures.Locked, "another run holds the stack's lock"),
        (
            "error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions",
            AuthFailure,
            "not logged in",
        ),
        ("Resource urn:x cannot be deleted\nbecause it is protected.", CheckFailed, "protected"),
        ("something new", CheckFailed, "failed (something new)"),
        ("", CheckFailed, "it said nothing"),
    ],
)
def test_known_words_become_the_right_kind_of_error(text: str, kind: type[SlipwayError], problem: str) -> None:
    error = failures.explain("stack s", [text], "`pulumi up`")
    assert type(error) is kind
    assert problem in str(error)
    assert "\n" not in str(error)


def test_every_known_failure_has_a_next_step() -> None:
    for known in (*failures.AWS, *failures.PULUMI):
        assert known.remedy
        assert known.problem


def test_a_passphrase_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    state = tmp_path / ".slipway"
    first = backend.choose(tmp_path, state, "m1-pd")
    file = Path(first.env["PULUMI_CONFIG_PASSPHRASE_FILE"])
    text = file.read_text()
    assert len(text) > 40
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert backend.choose(tmp_path, state, "m1-pd") == first
    assert file.read_text() == text


def test_the_users_own_passphrase_and_login_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    home = Path(os.environ["HOME"]) / ".pulumi"
    home.mkdir()
    (home / "credentials.json").write_text('{"current": "https://example.invalid"}')
    chosen = backend.choose(tmp_path, tmp_path / ".slipway", "m1-pd")
    assert (chosen.url, dict(chosen.env)) == (None, {})
    assert str(chosen) == "the backend that Pulumi is logged in to"
    assert not (tmp_path / ".slipway").exists()
    # Once the stack has a state of ours, a later login does not take it elsewhere.
    ours = backend.Backend(f"file://{tmp_path}/state", {})
    backend.remember(tmp_path / ".slipway", "m1-pd", ours)
    assert backend.choose(tmp_path, tmp_path / ".slipway", "m1-pd").folder == tmp_path / "state"
