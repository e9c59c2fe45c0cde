"""A state that is empty, damaged or of another region beside living hosts: nothing is made twice, nothing living is removed."""

from __future__ import annotations

import io
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway import provision
from slipway.errors import CheckFailed, UsageError
from slipway.progress import Lines, silent
from slipway.provision import failures, kinds, state
from slipway.provision.kinds import Found
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent.parent
INSTANCE = kinds.INSTANCE
HOST = Found(INSTANCE, "i-0", "gpu-0", "p5en.48xlarge", price_item="p5en.48xlarge")
PROGRAM = """#!/bin/sh
echo "$*" >> {root}/calls
case "$1 $2" in
  version*) echo v3.274.1 ;;
  "stack export") cat {root}/exported ;;
esac
"""


class Aws:
    """An account as far as `provision` asks it; what is asked and removed is kept."""

    found: tuple[Found, ...] = ()
    removed: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()

    def __init__(self, region: str) -> None:
        self.region = region
        Aws.asked += (region,)

    def identity(self) -> str:
        return "arn:aws:iam::123456789012:user/me"

    def tagged(self, stack: str) -> tuple[Found, ...]:
        return Aws.found

    def remove(self, thing: Found) -> None:
        Aws.removed += (thing.id,)


def entry(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "urn": f"urn::{kind}::x", "id": "x", **fields}


def exported(*resources: dict[str, Any], pending: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    operations = [{"type": "creating", "resource": one} for one in pending]
    return {"version": 3, "deployment": {"resources": list(resources), "pending_operations": operations}}


@pytest.fixture
def project(bare_project: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A checkout with a `pulumi` that exports what the test writes, and an account with one living host."""
    program = bare_project.root / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(root=bare_project.root))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(provision, "Account", Aws)
    monkeypatch.setattr(Aws, "found", (HOST,))
    monkeypatch.setattr(Aws, "removed", ())
    monkeypatch.setattr(Aws, "asked", ())
    write(bare_project, exported())
    return bare_project


def write(project: Any, recorded: dict[str, Any]) -> None:
    (project.root / "exported").write_text(json.dumps(recorded))


def up(project: Any) -> provision.Provisioned:
    return provision.up(Checkout(project.root), "m1-pd", confirm=None, progress=silent)


def operations(project: Any) -> list[str]:
    """The calls of the CLI that change something in AWS."""
    calls = (project.root / "calls").read_text().splitlines()
    return [call for call in calls if call.startswith(("up", "destroy", "stack import"))]


@pytest.mark.parametrize("owner", [None, "somebody"])
def test_an_empty_state_beside_living_hosts_makes_nothing_a_second_time(
    project: Any, owner: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Aws, "found", (replace(HOST, owner=owner),))
    with pytest.raises(UsageError) as caught:
        up(project)
    assert "its state is empty and its account is not" in str(caught.value)
    assert "i-0 (gpu-0, p5en.48xlarge)" in str(caught.value) and "USD an hour" in str(caught.value)
    assert "another stack name" in caught.value.remedy and "--delete --strangers" in caught.value.remedy
    assert operations(project) == []


def test_a_state_that_knows_its_hosts_goes_on_and_so_does_an_account_without_any(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="state is empty"):
        up(project)
    monkeypatch.setattr(Aws, "found", ())
    monkeypatch.setattr(provision._Run, "save_inventory", lambda run: project.root / "x")
    assert "nothing to do" in up(project).text()
    monkeypatch.setattr(Aws, "found", (HOST,))
    write(project, exported(entry(INSTANCE)))
    assert "--delete` removes them" in up(project).text()


def test_the_orphans_of_an_empty_state_are_removed_only_when_strangers_are_meant(project: Any) -> None:
    def orphans(**words: bool) -> Any:
        removal = provision.Removal(**words)
        return provision.orphans(Checkout(project.root), "m1-pd", removal=removal, confirm=None, progress=silent)

    assert "`--delete` needs `--strangers` too" in orphans().text()
    with pytest.raises(UsageError, match=r"its state is empty; .*another checkout"):
        orphans(delete=True)
    assert Aws.removed == ()
    assert orphans(delete=True, strangers=True).removed == ("i-0",)
    write(project, exported(entry(INSTANCE)))
    assert orphans(delete=True).removed == ("i-0",)


def test_what_is_being_made_counts_as_known_and_a_provider_alone_does_not() -> None:
    assert state.is_empty({"version": 3})
    assert state.is_empty(exported(entry(state.PROVIDER), entry("pulumi:pulumi:Stack")))
    assert not state.is_empty(exported(pending=(entry(INSTANCE),)))


OLD = {"id": "1", "urn": "provider", "inputs": {"region": "eu-west-1"}}
ZONE = {"availabilityZone": "us-east-2b"}
ARN = {"arn": "arn:aws:ec2:us-gov-west-1:123456789012:vpc/vpc-0"}


@pytest.mark.parametrize(
    ("fields", "region"),
    [
        ({"outputs": ARN, "provider": "provider::1"}, "us-gov-west-1"),
        ({"outputs": {"arn": "arn:aws:s3:::models-0", "region": "ap-south-1"}}, "ap-south-1"),
        ({"inputs": {"availabilityZone": "us-west-2-lax-1a"}, "provider": "provider::1"}, "us-west-2"),
        ({"inputs": ZONE}, "us-east-2"),
        ({"outputs": {}, "inputs": None, "provider": "provider::1"}, "eu-west-1"),
        ({"provider": "other::1"}, None),
    ],
)
def test_a_resource_or_else_its_provider_says_its_region(fields: dict[str, Any], region: str | None) -> None:
    provider = entry(state.PROVIDER, **OLD)
    wanted = frozenset({region} - {None})
    assert state.regions(exported(provider, entry(INSTANCE, **fields))) == wanted
    assert state.regions(exported(provider, pending=(entry(INSTANCE, **fields),))) == wanted
    assert state.regions(exported(provider, entry(kinds.ROLE, **fields))) == frozenset()


@pytest.mark.parametrize("command", [provision.up, provision.down])
@pytest.mark.parametrize("pending", [False, True])
def test_another_region_in_the_file_than_in_the_state_is_refused_before_anything_is_asked(
    project: Any, command: Any, pending: bool
) -> None:
    host = entry(INSTANCE, inputs={"availabilityZone": "eu-west-1a"})
    write(project, exported(pending=(host,)) if pending else exported(host))
    with pytest.raises(UsageError) as caught:
        command(Checkout(project.root), "m1-pd", confirm=None, progress=silent)
    assert "aws:region differs from where the stack's resources are (got us-east-2)" in str(caught.value)
    assert "set it back to eu-west-1" in caught.value.remedy
    assert caught.value.place.endswith("Pulumi.m1-pd.yaml")
    assert operations(project) == [] and Aws.asked == ()


def test_orphans_are_looked_for_where_the_state_says(project: Any) -> None:
    host = entry(INSTANCE, inputs={"availabilityZone": "eu-west-1a"})
    write(project, exported(host))
    found = provision.orphans(
        Checkout(project.root), "m1-pd", removal=provision.Removal(), confirm=None, progress=silent
    )
    assert [one.id for one in found.orphans] == ["i-0"]
    assert set(Aws.asked) == {"eu-west-1"}


def test_orphans_of_two_regions_are_told_one_region_at_a_time(project: Any) -> None:
    write(
        project,
        exported(*(entry(INSTANCE, inputs={"availabilityZone": zone}) for zone in ("eu-west-1a", "us-east-2b"))),
    )
    stream = io.StringIO()
    said = Lines(stream)
    provision.orphans(Checkout(project.root), "m1-pd", removal=provision.Removal(), confirm=None, progress=said)
    assert set(Aws.asked) == {"us-east-2"}
    assert "also has resources in eu-west-1" in stream.getvalue()


def hold(project: Any, pid: int, host: str = "") -> None:
    """A backend that is no folder of ours, whose lock `pid` holds until `pulumi cancel`, and a state to be mended."""
    said = f"created by me@{host or socket.gethostname()} (pid {pid}) at 2200-01-01T00:00:00Z"
    root = project.root
    # Longer than a message that is shown, so that the holder must be read from the whole of it.
    refusal = f"error: the stack is currently locked by 1 lock(s). {'x' * 400} s3://b/1.json: {said}"
    held = f"[ -e {root}/held ] && echo '{refusal}' >&2 && exit 255"
    (root / "held").touch()
    locked = PROGRAM.format(root=root).replace(
        "esac", f"  cancel*) rm {root}/held ;;\n  'stack import') {held}; cp {root}/empty {root}/exported ;;\nesac"
    )
    (root / "bin" / "pulumi").write_text(locked)
    (root / "empty").write_text(json.dumps(exported()))
    write(project, exported(pending=(entry("pulumi:pulumi:Stack"),)))


def test_the_lock_of_a_dead_run_in_a_backend_without_folder_is_cancelled(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://state")
    monkeypatch.setattr(Aws, "found", ())
    hold(project, 2**22 + 1)
    done = provision.down(Checkout(project.root), "m1-pd", confirm=None, progress=silent)
    assert "released 1 lock of a run that died" in json.dumps(done.as_json())
    assert "cancel --yes --stack m1-pd" in (project.root / "calls").read_text()


@pytest.mark.parametrize(
    ("host", "problem"), [("", "another run holds its lock"), ("far", "pulumi cancel --stack m1-pd")]
)
def test_a_lock_whose_holder_lives_or_is_elsewhere_is_never_cancelled(
    project: Any, monkeypatch: pytest.MonkeyPatch, host: str, problem: str
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://state")
    hold(project, os.getpid(), host)
    with pytest.raises(CheckFailed, match=problem):
        provision.down(Checkout(project.root), "m1-pd", confirm=None, progress=silent)
    assert (project.root / "held").exists()


def test_a_lock_whose_holder_is_not_named_says_which_command_frees_it() -> None:
    error = failures.explain("stack m1-pd", ["[409] Conflict: Another update is currently in progress."], "up")
    assert isinstance(error, failures.Locked)
    assert "pulumi cancel" in error.remedy
