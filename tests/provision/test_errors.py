"""What goes wrong before, around and inside Pulumi is one line with the next step and the right exit code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import AuthFailure, CheckFailed, NetworkFailure, SlipwayError, UsageError
from slipway.provision import backend, failures


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
    (project.root / ".slipway" / "pulumi" / "passphrase").unlink()
    ran = project.invoke("up", "--stack", "m1-pd", "--yes")
    assert ran.returncode == 5, ran.stderr
    assert "a new one cannot open it" in said(ran)
    other = project.invoke("up", "--stack", "m1-pd", "--yes", PULUMI_BACKEND_URL="file:///elsewhere")
    assert other.returncode == 2
    assert "a second state would make every host a second time" in said(other)


@pytest.mark.needs("pulumi")
def test_no_capacity_is_said_in_one_line_and_a_living_lock_stops_the_run(project: Any, account: Any) -> None:
    fails = "run_instances=InsufficientInstanceCapacity,create_vpc=VpcLimitExceeded"
    ran = project.invoke("up", "--stack", "m1-pd", "--yes", SLIPWAY_STANDIN_FAIL=fails)
    assert ran.returncode == 1, ran.stderr
    assert said(ran).startswith("stack m1-pd: an account quota is used up (")
    assert "api error VpcLimitExceeded" in said(ran)
    lock = project.root / ".slipway/pulumi/.pulumi/locks/organization/slipway/m1-pd/x.json"
    lock.parent.mkdir(parents=True, exist_ok=True)
    host = os.uname().nodename
    lock.write_text(
        f'{{"pid": {os.getpid()}, "username": "me", "hostname": "{host}", "timestamp": "2200-01-01T00:00:00Z"}}'
    )
    held = project.invoke("down", "--stack", "m1-pd", "--yes")
    assert held.returncode == 1
    assert f"another run holds its lock (me@{host}, pid {os.getpid()}" in said(held)
    lock.unlink()
    assert project.invoke("down", "--stack", "m1-pd", "--yes").returncode == 0
    assert account.things() == set()


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
