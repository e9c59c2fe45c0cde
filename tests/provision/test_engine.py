"""The program on the real engine, killed on the way: what it makes, that it makes it once, and that nothing is left."""

from __future__ import annotations

import json
from typing import Any

import pytest

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

KILLS = ("4:after", "6:middle", "5:before")
"""Provider calls in which the run is killed, one run after the other; benchmarks/interrupted.py tries more moments."""


def test_killed_and_repeated_runs_make_the_stack_once_mend_drift_and_leave_nothing(project: Any, account: Any) -> None:
    for moment in KILLS:
        _killed(project, "up", moment)
    made = project.invoke("up", "--stack", "m1-pd", "--yes", "--json")
    assert made.returncode == 0, made.stderr
    assert account.kinds() == WANTED
    assert json.loads(made.stdout)["orphans"]["orphans"] == []
    assert (project.root / ".slipway" / "inventory" / "m1-pd.yaml").is_file()
    assert oct((project.root / ".slipway" / "pulumi" / "passphrase").stat().st_mode & 0o777) == "0o600"
    _assert_network_cards(account.client("ec2"))

    # Plain `pulumi up` on the same state finds nothing to do either.
    before = account.things()
    plain = project.pulumi("up", "--stack", "m1-pd", "--yes", "--skip-preview", "--expect-no-changes", "--refresh")
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert account.things() == before

    # Somebody terminates one host and forgets another with the stack's tags.
    ec2 = account.client("ec2")
    host = account.instances()[0]["InstanceId"]
    ec2.terminate_instances(InstanceIds=[host])
    tags = [{"Key": "slipway:stack", "Value": "m1-pd"}, {"Key": "slipway:resource", "Value": "gpu-1"}]
    specification = [{"ResourceType": "instance", "Tags": tags}]
    forgotten = ec2.run_instances(
        MinCount=1, MaxCount=1, ImageId="ami-0", InstanceType="p6-b200.48xlarge", TagSpecifications=specification
    )["Instances"][0]["InstanceId"]
    mended = project.invoke("up", "--stack", "m1-pd", "--yes", "--json")
    assert mended.returncode == 0, mended.stderr
    assert json.loads(mended.stdout)["changes"] == {"create": 1}
    assert [one["id"] for one in json.loads(mended.stdout)["orphans"]["orphans"]] == [forgotten]
    removed = project.invoke("orphans", "--stack", "m1-pd", "--delete", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert f"{forgotten} (gpu-1, p6-b200.48xlarge, running" in removed.stdout
    assert "113.93 USD an hour" in removed.stdout
    assert account.kinds() == WANTED
    assert host not in {one["InstanceId"] for one in account.instances()}

    for moment in KILLS:
        _killed(project, "down", moment)
    gone = project.invoke("down", "--stack", "m1-pd", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert account.things() == set()


def _killed(project: Any, command: str, moment: str) -> None:
    """Run `command`, whose CLI gets SIGKILL at `moment` of this run."""
    project.calls.unlink(missing_ok=True)
    ran = project.invoke(command, "--stack", "m1-pd", "--yes", SLIPWAY_STANDIN_KILL=moment)
    assert ran.returncode == 1, (moment, ran.stderr)
    assert "was killed" in ran.stderr, ran.stderr
    project.calls.unlink()


def _assert_network_cards(ec2: Any) -> None:
    template = ec2.describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateId"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"]
    nics = versions[0]["LaunchTemplateData"]["NetworkInterfaces"]
    assert len(nics) == 17
    places = {(nic["NetworkCardIndex"], nic["DeviceIndex"]): nic["InterfaceType"] for nic in nics}
    assert places == {(0, 0): "interface", (0, 1): "efa-only", **{(card, 0): "efa-only" for card in range(1, 16)}}
