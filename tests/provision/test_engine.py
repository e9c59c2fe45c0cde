"""The program on the real engine, killed on the way: what it makes, that it makes it once, and that nothing is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from slipway import provision
from slipway.errors import UsageError
from slipway.progress import silent
from slipway.stacks import Checkout

pytestmark = pytest.mark.needs("pulumi")

WANTED = {
    "association": 1,
    "bucket": 1,
    "instance": 2,
    "instance-profile": 1,
    "launch-template": 1,
    "placement-group": 1,
    "repository": 1,
    "role": 1,
    "route-table": 2,  # the network's main one comes with it
    "rule": 6,  # one of them the default group's
    "security-group": 3,  # and so does its default group
    "subnet": 1,
    "vpc": 1,
    "vpc-endpoint": 6,
    "dns-names": 1,
    "profile-role": 1,
    "policy": 1,
    "versioning": 1,
    "bucket-tags": 1,
}
"""What m1-pd has in AWS."""


def test_the_life_of_a_stack_from_interrupted_runs_to_an_empty_account(
    project: Any, account: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stack, because each run of the engine takes seconds; benchmarks/interrupted.py kills at 30 moments more."""
    for name, value in project.env.items():
        monkeypatch.setenv(name, value)
    _kill(project, "up", "4:after")
    _find_no_capacity(project)
    _make_the_rest_by_plain_pulumi(project)
    assert account.kinds() == WANTED
    assert oct((project.root / ".slipway" / "pulumi" / "passphrase").stat().st_mode & 0o777) == "0o600"
    _assert_network_cards(account.client("ec2"))
    _replace_and_mend(project, account)
    _interrupt(project, "down")
    _kill(project, "down", "5:before")
    gone = project.invoke("down", "--stack", "m1-pd", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert account.things() == set()


def _interrupt(project: Any, command: str) -> None:
    """Ctrl-C in the middle of `command`: it stops in good order and leaves no lock."""
    project.calls.unlink(missing_ok=True)
    words = [sys.executable, "-m", "invoke", "--search-root", str(project.root), command, "--stack", "m1-pd", "--yes"]
    process = subprocess.Popen(words, cwd=project.root, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    pause = threading.Event()
    while process.poll() is None and project.provider_calls() < 3:
        pause.wait(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not list((project.root / ".slipway/pulumi/.pulumi/locks").rglob("*.json"))


def _kill(project: Any, command: str, moment: str) -> None:
    """Run `command`, whose CLI gets SIGKILL at `moment`, a provider call of this run."""
    project.calls.unlink(missing_ok=True)
    ran = project.invoke(command, "--stack", "m1-pd", "--yes", SLIPWAY_STANDIN_KILL=moment)
    assert ran.returncode == 1, (moment, ran.stderr)
    assert "was killed" in ran.stderr, ran.stderr
    project.calls.unlink()


def _find_no_capacity(project: Any) -> None:
    """The run that takes in what the killed one made, and stops at AWS's refusal."""
    fails = "run_instances=InsufficientInstanceCapacity"
    ran = project.invoke("up", "--stack", "m1-pd", "--yes", SLIPWAY_STANDIN_FAIL=fails)
    said = ran.stderr.strip().splitlines()[-1]
    assert ran.returncode == 1, ran.stderr
    assert "released 1 lock of a run that died" in ran.stderr
    assert said.startswith("stack m1-pd: AWS has no such hosts free in the zone (")
    assert "api error InsufficientInstanceCapacity" in said


def _make_the_rest_by_plain_pulumi(project: Any) -> None:
    """Plain `pulumi up` goes on with our state, and holds everything against the policy pack."""
    plain = project.pulumi("up", "--stack", "m1-pd", "--yes", "--skip-preview", "--policy-pack", "infra/policy")
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert "slipway@v0.1.0 (local: infra/policy)" in plain.stdout
    assert " created" in plain.stdout  # the hosts, and whatever had not begun when AWS refused them


def _replace_and_mend(project: Any, account: Any) -> None:
    """A host was terminated, one is forgotten, one is of another state; and the image changes: hosts are replaced."""
    ec2 = account.client("ec2")
    old = {one["InstanceId"] for one in account.instances()}
    ec2.terminate_instances(InstanceIds=[min(old)])
    forgotten, stranger = _started(ec2), _started(ec2, {"Key": "slipway:owner", "Value": "somebody"})
    project.set("m1-pd", ami="ami-0123456789abcdef1")
    checkout, before, asked = Checkout(project.root), account.things(), []
    with pytest.raises(UsageError, match="not confirmed"):
        provision.up(checkout, "m1-pd", confirm=lambda question: bool(asked.append(question)), progress=silent)
    # Nothing else is to change: the run before this one left the stack as its file says.
    lines = sorted(asked[0].splitlines())
    assert lines[0].startswith("  create gpu-")
    assert lines[1].startswith("  replace gpu-")
    assert lines[2:] == ["  update gpu (aws:ec2/launchTemplate:LaunchTemplate)", "up stack m1-pd?"]
    assert account.things() == before

    mended = project.invoke("up", "--stack", "m1-pd", "--yes", "--json")
    assert mended.returncode == 0, mended.stderr
    assert json.loads(mended.stdout)["changes"] == {"create": 1, "replace": 1, "update": 1}
    assert [one["id"] for one in json.loads(mended.stdout)["orphans"]["orphans"]] == [forgotten]
    removal = provision.Removal(delete=True)
    found = provision.orphans(checkout, "m1-pd", removal=removal, confirm=None, progress=silent)
    assert found.removed == (forgotten,)
    assert f"{forgotten} (gpu-1, p6-b200.48xlarge, running" in found.text()
    assert "113.93 USD an hour" in found.text()
    assert [one.id for one in found.strangers] == [stranger]
    hosts = {one["InstanceId"]: one["ImageId"] for one in account.instances()}
    assert hosts.pop(stranger) == "ami-0"
    assert set(hosts.values()) == {"ami-0123456789abcdef1"}
    assert len(hosts) == 2 and not old & set(hosts)
    everything = provision.Removal(delete=True, strangers=True)
    found = provision.orphans(checkout, "m1-pd", removal=everything, confirm=None, progress=silent)
    assert found.removed == (stranger,)
    assert account.kinds() == WANTED


def _started(ec2: Any, *more: dict[str, str]) -> str:
    """A host with the stack's tags that no state of ours knows."""
    tags = [{"Key": "slipway:stack", "Value": "m1-pd"}, {"Key": "slipway:resource", "Value": "gpu-1"}, *more]
    kind = {"ImageId": "ami-0", "InstanceType": "p6-b200.48xlarge"}
    specification = [{"ResourceType": "instance", "Tags": tags}]
    answer = ec2.run_instances(MinCount=1, MaxCount=1, TagSpecifications=specification, **kind)
    return str(answer["Instances"][0]["InstanceId"])


def _assert_network_cards(ec2: Any) -> None:
    template = ec2.describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateId"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"]
    nics = versions[0]["LaunchTemplateData"]["NetworkInterfaces"]
    assert len(nics) == 17
    places = {(nic["NetworkCardIndex"], nic["DeviceIndex"]): nic["InterfaceType"] for nic in nics}
    assert places == {(0, 0): "interface", (0, 1): "efa-only", **{(card, 0): "efa-only" for card in range(1, 16)}}
