"""`pulumi up --stack S --yes` from the repository root, for every stack that is shipped, on the real CLI."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.needs("pulumi")


def test_plain_pulumi_up_works_for_every_stack(project: Any, account: Any) -> None:
    """m1-pd, whose whole life test_engine.py follows, is the only one left out."""
    reserved = {"kind": "block", "id": "cr-0123456789abcdef0"}
    project.set("m1-b200", ami="ami-0123456789abcdef0", capacity=reserved, protect=False)
    for stack in ("m1-pd-ib", "s21-3090"):
        project.write_own_addresses(stack)
    names = sorted(file.name.split(".")[1] for file in (project.root / "stacks").glob("Pulumi.*.yaml"))
    assert names == ["laptop", "laptop-pd", "m1-b200", "m1-pd", "m1-pd-ib", "s21-3090"]
    own = {"PULUMI_BACKEND_URL": f"file://{project.root}/state", "PULUMI_CONFIG_PASSPHRASE": ""}
    (project.root / "state").mkdir()
    for stack in names:
        if stack == "m1-pd":
            continue
        made = project.pulumi("stack", "init", stack, **own)
        assert made.returncode == 0, made.stderr
        ran = project.pulumi("up", "--stack", stack, "--yes", "--skip-preview", **own)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        said = json.loads(project.pulumi("stack", "output", "--json", "--stack", stack, **own).stdout)["inventory"]
        assert said["name"] == stack
        assert len(said["nodes"]) == {"m1-b200": 3, "m1-pd-ib": 2}.get(stack, 1)
    assert account.kinds()["instance"] == 3
    router = next(one for one in account.instances() if one["InstanceType"] == "c7i.2xlarge")
    assert "PublicIpAddress" not in router
