"""The program on the real engine: what it makes, that it makes it once, that drift is mended and nothing is left."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.needs("pulumi")

WANTED = {"vpc": 1, "subnet": 1, "instance": 2, "placement-group": 1, "launch-template": 1, "role": 1, "instance-profile": 1}


def test_up_makes_the_stack_once_mends_drift_and_down_leaves_nothing(project: Any, account: Any) -> None:
    made = project.invoke("up", "--stack", "m1-pd", "--yes", "--json")
    assert made.returncode == 0, made.stderr
    first = account.things()
    assert account.kinds().items() >= WANTED.items(), account.kinds()
    assert json.loads(made.stdout)["orphans"]["orphans"] == []
    assert (project.root / ".slipway" / "inventory" / "m1-pd.yaml").is_file()
    assert oct((project.root / ".slipway" / "pulumi" / "passphrase").stat().st_mode & 0o777) == "0o600"

    # Plain `pulumi up` on the same state finds nothing to do either.
    plain = project.pulumi("up", "--stack", "m1-pd", "--yes", "--expect-no-changes")
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert account.things() == first

    # Somebody terminates one host and opens the nodes' group to the world.
    ec2 = account.client("ec2")
    host = account.instances()[0]["InstanceId"]
    ec2.terminate_instances(InstanceIds=[host])
    mended = project.invoke("up", "--stack", "m1-pd", "--yes", "--json")
    assert mended.returncode == 0, mended.stderr
    assert json.loads(mended.stdout)["changes"] == {"create": 1}
    assert len(account.instances()) == 2
    assert host not in {one["InstanceId"] for one in account.instances()}

    gone = project.invoke("down", "--stack", "m1-pd", "--yes")
    assert gone.returncode == 0, gone.stderr
    assert account.things() == set()


def test_the_launch_template_has_the_network_cards_of_the_instance_type(project: Any, account: Any) -> None:
    made = project.invoke("up", "--stack", "m1-pd", "--yes")
    assert made.returncode == 0, made.stderr
    ec2 = account.client("ec2")
    template = ec2.describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateId"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"]
    nics = versions[0]["LaunchTemplateData"]["NetworkInterfaces"]
    assert len(nics) == 17
    places = {(nic["NetworkCardIndex"], nic["DeviceIndex"]): nic["InterfaceType"] for nic in nics}
    assert places == {(0, 0): "interface", (0, 1): "efa-only", **{(card, 0): "efa-only" for card in range(1, 16)}}
