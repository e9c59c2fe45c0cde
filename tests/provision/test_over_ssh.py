"""Hosts of one's own: a real sshd on loopback, the real CLI for the stacks, and what hosts do when they misbehave."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from slipway.cloud.settings import Workstation
from slipway.errors import CheckFailed, NetworkFailure, UsageError
from slipway.host_setup import remote, scripts
from slipway.inventory import Gpu, Node, Paths
from slipway.progress import silent

GPU = Gpu(model="rtx-3090", memory_gib=24)


def node(ssh: str | None = "workstation") -> Node:
    return Node(name="workstation", address="10.0.0.1", ssh=ssh, gpus=[GPU], paths=Paths(models="/models"))


@pytest.fixture
def command(sshd: Any) -> tuple[str, ...]:
    """Slipway's own ssh command line, with the settings that know the server."""
    return (str(sshd.ssh / "ssh"), *remote.SSH[1:])


@pytest.mark.needs("sshd")
class TestOneHost:
    def test_the_script_runs_on_the_host_and_says_what_it_did(self, command: tuple[str, ...], tmp_path: Path) -> None:
        host_root = tmp_path / "a host's root"
        script = scripts.bare_metal(node(), Workstation(gpu_power_limit_w=290), root=str(host_root))
        said = remote.run(node(), script, progress=silent, command=command)
        assert "wrote /etc/systemd/system/slipway-gpu.service" in said
        assert said[-1] == "this host is set up"
        assert (host_root / "models").is_dir()

    def test_a_script_that_stops_shows_its_last_lines_whatever_bytes_they_are(self, command: tuple[str, ...]) -> None:
        with pytest.raises(CheckFailed) as caught:
            remote.run(node(), "printf '\\377 no space\\n' >&2; exit 3", progress=silent, command=command)
        assert "stopped with exit code 3" in str(caught.value)
        assert "\N{REPLACEMENT CHARACTER} no space" in str(caught.value)

    def test_a_host_that_lets_nobody_in_is_a_network_failure(self, command: tuple[str, ...], sshd: Any) -> None:
        (sshd.folder / "user.pub").write_text("")
        with pytest.raises(NetworkFailure, match=r"(?s)cannot be reached.*Permission denied"):
            remote.run(node(), "true", progress=silent, command=command)

    def test_a_host_whose_key_changed_is_not_talked_to(self, command: tuple[str, ...], sshd: Any) -> None:
        remote.reach(node(), command)
        known = sshd.folder / "known"
        name, kind, _ = known.read_text().split()[:3]
        other = (sshd.folder / "user.pub").read_text().split()[1]
        known.write_text(f"{name} {kind} {other}\n")
        with pytest.raises(NetworkFailure, match=r"(?s)Host key verification failed.*work without a question"):
            remote.reach(node(), command)

    def test_a_host_that_answers_nothing_is_given_up(self, command: tuple[str, ...], sshd: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent_host:
            words = (*command[:1], "-o", "ConnectTimeout=1", "-p", str(silent_host.getsockname()[1]), *command[1:])
            with pytest.raises(NetworkFailure, match="timed out"):
                remote.reach(node(), words)


def test_a_host_where_nothing_listens_is_a_network_failure(unused_port: int) -> None:
    if not shutil.which("ssh"):
        pytest.skip("OpenSSH's client is not installed")
    with pytest.raises(NetworkFailure, match=r"make `ssh 127\.0\.0\.1` work without a question"):
        remote.reach(node("127.0.0.1"), (*remote.SSH, "-p", str(unused_port), "-F", "none"))


def test_without_ssh_the_error_names_it_and_this_machine_needs_none() -> None:
    with pytest.raises(UsageError, match="no-such-ssh: is not installed"):
        remote.reach(node("x"), ("no-such-ssh",))
    remote.reach(node(None), ("no-such-ssh",))


@pytest.mark.needs("pulumi")
@pytest.mark.needs("sshd")
def test_two_hosts_by_ssh_are_brought_up_set_up_and_let_go(cli: str, bare_project: Any, sshd: Any) -> None:
    bare_project.write_own_addresses("m1-pd-ib")
    bare_project.env["PATH"] = f"{sshd.ssh}:{bare_project.env['PATH']}"
    up = bare_project.invoke("up", "--stack", "m1-pd-ib", "--yes", "--json")
    assert up.returncode == 0, up.stderr
    proved = {step["name"]: step["proved"] for step in json.loads(up.stdout)["steps"]}
    assert proved["hosts"] == "prefill-1, decode-1 answered over ssh"
    assert "rdma_devices" in (bare_project.root / ".slipway/inventory/m1-pd-ib.yaml").read_text()
    # The set-up itself would change this machine: the server rehearses every script below another root.
    host_root = sshd.folder / "host root"
    rehearse = f"sed \"s|^ROOT=''$|ROOT='{host_root}'|\" | sh -s"
    (sshd.folder / "rehearse").write_text(f"#!/bin/sh\n{rehearse}\n")
    (sshd.folder / "rehearse").chmod(0o755)
    with (sshd.folder / "user.pub").open("r+") as key:
        text = key.read()
        key.seek(0)
        key.write(f'command="{sshd.folder}/rehearse" {text}')
    done = bare_project.invoke("host-setup", "--stack", "m1-pd-ib", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [lines[-1] for lines in said.values()] == ["this host is set up"] * 2
    assert (host_root / "models").is_dir()
    assert any("wrote" in line for line in said["prefill-1"])
    assert not any("wrote" in line for line in said["decode-1"])  # the same root: the second time changes nothing
    down = bare_project.invoke("down", "--stack", "m1-pd-ib", "--yes")
    assert down.returncode == 0, down.stderr


@pytest.mark.needs("pulumi")
def test_hosts_that_do_not_answer_stop_up_with_the_next_step(cli: str, bare_project: Any, unused_port: int) -> None:
    bare_project.write_own_addresses("s21-3090")
    folder = bare_project.root / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh")} -F none -p {unused_port} -o HostName=127.0.0.1 "$@"\n'
    )
    (folder / "ssh").chmod(0o755)
    up = bare_project.invoke("up", "--stack", "s21-3090", "--yes", PATH=f"{folder}:{bare_project.env['PATH']}")
    assert up.returncode == 8, up.stderr
    assert "node workstation: cannot be reached" in up.stderr
    assert up.stderr.rstrip().endswith("make `ssh workstation` work without a question")
    assert not (bare_project.root / ".slipway" / "inventory").exists()
