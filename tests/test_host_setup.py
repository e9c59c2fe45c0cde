"""Host set-up: the script as a golden, both shells' syntax, and a rehearsal below another root."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway import stacks
from slipway.cloud.settings import AwsHosts, Capacity, Workstation
from slipway.errors import UsageError
from slipway.host_setup import remote, scripts
from slipway.host_setup.scripts import Setup
from slipway.inventory import Gpu, Inventory, Node, Paths
from slipway.progress import silent
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "data" / "host-setup"
CHECKOUT = Checkout(ROOT)
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ somebody@example"
GPU = Gpu(model="rtx-3090", memory_gib=24)


def aws(**changes: object) -> AwsHosts:
    values: dict[str, object] = {
        "zone": "us-east-2b",
        "instance_type": "p5en.48xlarge",
        "count": 2,
        "ami": "ami-0123456789abcdef0",
        "capacity": Capacity(kind="on-demand"),
        "ssh_keys": [KEY],
    }
    return AwsHosts.model_validate({**values, **changes})


def node(name: str = "workstation", ssh: str | None = None, models: str = "/models") -> Node:
    return Node(name=name, address="10.0.0.1", ssh=ssh, gpus=[GPU], paths=Paths(models=models))


KINDS = {
    "cloud": scripts.cloud(aws()),
    "router": scripts.router(aws()),
    "workstation": scripts.bare_metal(node(), Workstation(gpu_power_limit_w=290)),
    "infiniband": remote.scripts(CHECKOUT, "m1-pd-ib")["prefill-1"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_differs_between_hosts_is_the_golden_one(kind: str) -> None:
    # The body is the same file for all of them; goldens of it would only repeat it.
    head, body = KINDS[kind].split("\n\nsay() {", 1)
    assert f"{head}\n" == (GOLDEN / f"{kind}.sh").read_text()
    assert f"\nsay() {{{body}" == scripts.BODY


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_script_is_valid_in(shell: str, kind: str) -> None:
    subprocess.run([shell, "-n"], input=KINDS[kind], text=True, check=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_within_the_script_is_valid(shell: str) -> None:
    inner = scripts.BODY.split("<<'SCRIPT'\n")[1].split("\nSCRIPT\n")[0]
    subprocess.run([shell, "-n"], input=inner, text=True, check=True)


def test_user_data_is_small_enough_for_aws() -> None:
    assert len(scripts.cloud(aws(ssh_keys=[KEY] * 10)).encode()) < 16_384


def rehearse(setup: Setup, shell: str = "sh") -> str:
    ran = subprocess.run([shell], input=scripts.script(setup), text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def files(root: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(root)): (path.stat().st_mode & 0o777, path.read_text())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_a_second_run_writes_nothing(tmp_path: Path, shell: str) -> None:
    setup = Setup(
        "/models", gpus=True, nvme=True, power_limit_w=290, login="ubuntu", ssh_keys=(KEY,), root=str(tmp_path)
    )
    first = rehearse(setup, shell)
    made = files(tmp_path)
    assert "wrote /etc/systemd/system/slipway-gpu.service" in first
    assert set(made) == {
        "usr/local/sbin/slipway-models",
        "etc/systemd/system/slipway-models.service",
        "etc/systemd/system/docker.service.d/90-slipway.conf",
        "etc/security/limits.d/90-slipway.conf",
        "etc/systemd/system/slipway-gpu.service",
        "etc/apt/apt.conf.d/52slipway-driver",
        "home/ubuntu/.ssh/authorized_keys",
    }
    assert made["usr/local/sbin/slipway-models"][0] == 0o755
    assert made["home/ubuntu/.ssh/authorized_keys"] == (0o600, f"{KEY}\n")
    assert "ExecStart=/usr/bin/nvidia-smi -pl 290\n" in made["etc/systemd/system/slipway-gpu.service"][1]
    assert (tmp_path / "models").is_dir()
    second = rehearse(setup, shell)
    assert "wrote" not in second and "added a key" not in second and "made /models" not in second
    assert files(tmp_path) == made


def test_a_file_that_somebody_changed_is_put_right_again(tmp_path: Path) -> None:
    setup = Setup("/models", gpus=True, root=str(tmp_path))
    rehearse(setup)
    made = files(tmp_path)
    (tmp_path / "etc/security/limits.d/90-slipway.conf").write_text("* hard memlock 64\n")
    said = rehearse(setup)
    assert [line for line in said.splitlines() if "wrote" in line] == [
        "slipway: wrote /etc/security/limits.d/90-slipway.conf"
    ]
    assert files(tmp_path) == made


def test_a_host_without_gpus_gets_nothing_for_them(tmp_path: Path) -> None:
    said = rehearse(Setup("/models", gpus=False, root=str(tmp_path)))
    assert "nvidia" not in said
    assert not (tmp_path / "etc/systemd/system/slipway-gpu.service").exists()


def test_no_disk_of_an_owners_host_is_touched() -> None:
    for name in ("workstation", "infiniband", "router"):
        assert "NVME=no\n" in KINDS[name]
    assert scripts.BODY.count("mkfs") == 1
    assert scripts.BODY.index('if [ "$NVME" = yes ]') < scripts.BODY.index("mkfs")


@settings(max_examples=25)
@given(st.text(st.characters(exclude_characters="\x00", codec="utf-8"), min_size=1, max_size=40))
def test_no_value_can_leave_its_quotes(value: str) -> None:
    head = scripts.script(Setup(models=value, gpus=False)).split("\n\nsay() {", 1)[0]
    words = shlex.split(head, comments=True)
    assert f"MODELS={value}" in words


def test_this_machine_is_set_up_without_ssh(tmp_path: Path) -> None:
    target = node()
    script = scripts.bare_metal(target, Workstation(), root=str(tmp_path))
    hosts = Inventory(schema_="slipway/inventory/v1", name="x", nodes=[target])
    if os.geteuid() != 0:
        pytest.skip("set-up runs as root")
    assert "this host is set up" in remote.run_all(hosts, {"workstation": script}, progress=silent)["workstation"]


def test_example_addresses_are_never_connected_to() -> None:
    made = remote.scripts(CHECKOUT, "s21-3090")
    inventory = stacks.read(CHECKOUT, "s21-3090").inventory
    with pytest.raises(UsageError, match="still has an example address"):
        remote.run_all(inventory, made, progress=silent, command=("false",))


@pytest.mark.parametrize(
    ("stack", "only", "said"),
    [
        ("m1-pd", None, "their user data sets them up at the first boot"),
        ("laptop", None, "runs plain processes"),
        ("m1-pd-ib", "prefil-1", "known: prefill-1, decode-1"),
    ],
)
def test_what_needs_no_set_up_says_so(stack: str, only: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        remote.scripts(CHECKOUT, stack, only)


def test_nodes_with_one_script_share_it_on_paper() -> None:
    text = remote.text(remote.scripts(CHECKOUT, "m1-pd-ib"))
    assert text.count("#!/bin/sh\n# Slipway host set-up") == 1
    assert text.startswith("# on prefill-1, decode-1\n")


def test_the_command_shows_the_script_of_one_node_without_touching_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    words = ("host-setup", "--stack", "m1-pd-ib", "--node", "decode-1", "--dry-run", "--json")
    ran = subprocess.run(
        [sys.executable, "-m", "invoke", *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
    )
    assert json.loads(ran.stdout) == {"decode-1": KINDS["infiniband"]}
