"""Every node of an inventory in the same state, with the hub asked once; other machines over a real sshd on loopback."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway import spread, stacks
from slipway.checkpoints import lock as locks
from slipway.checkpoints import records
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.verify import verify
from slipway.errors import DiskFailure, IntegrityMismatch, MissingFile, NetworkFailure, UsageError
from slipway.inventory import Inventory, Node, Paths
from slipway.progress import silent
from slipway.reference.hub import Hub, Options, serve
from slipway.reference.hub_sample import write_sample
from slipway.stacks import Checkout, Stack

ROOT = Path(__file__).resolve().parent.parent
REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"
SSHD = shutil.which("sshd", path=f"/usr/sbin:/usr/local/sbin:{os.environ['PATH']}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    write_sample(root / REPO)
    return root


@pytest.fixture
def hub(served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    options = Options(tokens=frozenset({"hf_secret"}), gated=frozenset({REPO}))
    with serve(served, options=options) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield running


@pytest.fixture
def lock(hub: Hub) -> CheckpointLock:
    found = locks.resolve(REPO, "main", endpoint=hub.url, token="hf_secret")
    hub.requests.clear()
    return found


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose `ssh` reaches a real sshd on loopback, with keys made for it; host names are of no matter to it."""
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd here")
    place = tmp_path_factory.mktemp("sshd")
    for name in ("host_key", "user_key"):
        subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / name), check=True)
    shutil.copy(place / "user_key.pub", place / "authorized_keys")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (place / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {place}/host_key\nAuthorizedKeysFile {place}/authorized_keys\n"
        f"PidFile {place}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    user = pwd.getpwuid(os.geteuid()).pw_name
    (place / "config").write_text(
        f"Host nobody\n User no-such-user\nHost *\n HostName 127.0.0.1\n Port {port}\n User {user}\n"
        f" IdentityFile {place}/user_key\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {place}/known\n StrictHostKeyChecking accept-new\n"
    )
    (place / "bin").mkdir()
    wrapper = place / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {place}/config "$@"\n')
    wrapper.chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen((SSHD, "-D", "-e", "-f", place / "sshd_config"), stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if "listening on" in line:
                break
        else:
            pytest.fail("sshd did not start")
        yield place
        server.terminate()


@pytest.fixture
def over_ssh(sshd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{sshd / 'bin'}:{os.environ['PATH']}")


def stack(tmp_path: Path, *ssh: str | None) -> Stack:
    nodes = [
        Node(
            name=f"n{number}", address=f"127.0.0.{number}", ssh=target, paths=Paths(models=str(tmp_path / f"n{number}"))
        )
        for number, target in enumerate(ssh, 1)
    ]
    return Stack("s", "r", Inventory(schema_="slipway/inventory/v1", name="s", runtime="process", nodes=nodes))


def fetched_from(hub: Hub) -> list[str]:
    return sorted(request.path.rpartition("/")[2] for request in hub.requests if request.method == "GET")


class Notes:
    track = staticmethod(silent.track)

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_two_nodes_on_this_machine_ask_the_hub_once(hub: Hub, lock: CheckpointLock, tmp_path: Path) -> None:
    meant = stack(tmp_path, None, None)
    entries, text = spread.fetch(Checkout(tmp_path), meant, [lock], spread.Options(), silent)
    assert [(entry["node"], entry["fetched_files"]) for entry in entries] == [("n1", 8), ("n2", 8)]
    assert len(fetched_from(hub)) == 8
    assert "n2: poolside/Laguna-tiny@" in text
    for node in ("n1", "n2"):
        assert verify(lock, tmp_path / node / "Laguna-tiny").files == 8
        assert "full" in records.read_proved(tmp_path / node / "Laguna-tiny")
    again, _ = spread.fetch(Checkout(tmp_path), meant, [lock], spread.Options(), silent)
    assert [entry["skipped"] for entry in again] == [True, True]
    assert len(fetched_from(hub)) == 8


def test_a_folder_that_was_damaged_before_it_is_served_is_refused_by_the_receiver(
    hub: Hub, lock: CheckpointLock, tmp_path: Path
) -> None:
    meant = stack(tmp_path, None, None)
    checkout = Checkout(tmp_path)
    spread.fetch(checkout, stack(tmp_path, None), [lock], spread.Options(), silent)
    worker = spread._Worker(checkout, [lock], spread.Options(), silent)
    with worker.served(meant.inventory.nodes[0]) as url:
        shard = (tmp_path / "n1" / "Laguna-tiny" / SHARD).resolve()
        shard.chmod(0o644)
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        with pytest.raises(IntegrityMismatch, match=SHARD):
            worker.from_node(meant.inventory.nodes[1], url)
    assert not (tmp_path / "n2" / "Laguna-tiny").exists()
    with pytest.raises(MissingFile, match="whole and untouched"), worker.served(meant.inventory.nodes[0]):
        pass


@pytest.mark.needs("sshd")
def test_nodes_behind_ssh_fetch_from_this_machine(
    hub: Hub, lock: CheckpointLock, tmp_path: Path, over_ssh: None
) -> None:
    notes = Notes()
    entries, text = spread.fetch(
        Checkout(tmp_path), stack(tmp_path, "host-a", None, "host-b"), [lock], spread.Options(), notes
    )
    assert [(entry["node"], entry["fetched_files"]) for entry in entries] == [("n1", 8), ("n2", 8), ("n3", 8)]
    assert len(fetched_from(hub)) == 8
    assert text.count("every digest equal to the lock") == 3
    for node in ("n1", "n2", "n3"):
        assert verify(lock, tmp_path / node / "Laguna-tiny").files == 8
        assert "full" in records.read_proved(tmp_path / node / "Laguna-tiny")
    assert any(said.startswith("n1: fetched ") for said in notes.said)
    assert "hf_secret" not in "".join(notes.said)


@pytest.mark.needs("sshd")
def test_the_first_of_remote_nodes_fetches_from_the_hub_and_serves_the_others(
    hub: Hub, lock: CheckpointLock, tmp_path: Path, over_ssh: None
) -> None:
    entries, _ = spread.fetch(Checkout(tmp_path), stack(tmp_path, "a", "b"), [lock], spread.Options(workers=2), silent)
    assert [(entry["node"], entry["fetched_files"]) for entry in entries] == [("n1", 8), ("n2", 8)]
    assert len(fetched_from(hub)) == 8
    assert all(request.authorized for request in hub.requests)
    assert verify(lock, tmp_path / "n2" / "Laguna-tiny").files == 8


@pytest.mark.needs("sshd")
def test_no_token_and_no_address_of_the_server_stands_in_a_command_line(
    hub: Hub, lock: CheckpointLock, tmp_path: Path, over_ssh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    popen = subprocess.Popen

    def seen(words: tuple[str, ...], **more: object) -> object:
        commands.append(" ".join(words))
        return popen(words, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(spread.subprocess, "Popen", seen)
    spread.fetch(Checkout(tmp_path), stack(tmp_path, "a", "b"), [lock], spread.Options(), silent)
    assert len(commands) == 3
    assert all("hf_secret" not in command and "http" not in command for command in commands)


@pytest.mark.needs("sshd")
def test_nodes_that_fail_are_all_named_and_the_others_are_done(
    hub: Hub, lock: CheckpointLock, tmp_path: Path, over_ssh: None
) -> None:
    (tmp_path / "n2").write_text("in the way")
    with pytest.raises(DiskFailure, match="n2, n3: 2 of 4 nodes failed") as refused:
        spread.fetch(Checkout(tmp_path), stack(tmp_path, None, "a", "nobody", "b"), [lock], spread.Options(), silent)
    assert "n3: ssh nobody failed" in str(refused.value)
    assert "Permission denied" in str(refused.value)
    assert "ssh nobody true" in str(refused.value)
    assert verify(lock, tmp_path / "n4" / "Laguna-tiny").files == 8


def test_one_failure_is_told_as_it_is_and_several_together() -> None:
    one = NetworkFailure("n1", "is away")
    with pytest.raises(NetworkFailure, match=r"^n1: is away$"):
        spread._refuse({"n1": one}, 3)
    with pytest.raises(NetworkFailure, match="2 of 3 nodes failed\n  n1: is away\n  n2: is gone"):
        spread._refuse({"n1": one, "n2": MissingFile("n2", "is gone")}, 3)
    spread._refuse({}, 3)


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("echo 'sh: python3: not found' >&2; exit 127", MissingFile, "n1: has no python3"),
        ("echo 'no route to host' >&2; exit 255", NetworkFailure, "no route to host"),
        ("cat >/dev/null & echo '{\"odd\": 1}'; exit 3", NetworkFailure, "exit code 3"),
        ("exec python3 -c 'import sys; sys.exit(1)'", NetworkFailure, "exit code 1"),
    ],
)
def test_what_ssh_comes_to_is_told(
    hub: Hub, lock: CheckpointLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: type, said: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(error, match=said):
        spread.fetch(Checkout(tmp_path), stack(tmp_path, "far"), [lock], spread.Options(), silent)


@pytest.fixture
def local_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `ssh` that runs the command here, without a server: the program is the one that a node runs."""
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.write_text('#!/bin/sh\nfor word; do last=$word; done\nexec env -i PATH="$PATH" sh -c "$last"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")


def test_a_node_reports_its_own_errors_with_its_name(
    hub: Hub, lock: CheckpointLock, served: Path, tmp_path: Path, local_ssh: None
) -> None:
    files = tuple(file.model_copy(update={"sha256": "0" * 64}) if file.path == SHARD else file for file in lock.files)
    with pytest.raises(IntegrityMismatch, match=f"n1: {SHARD}: expected sha256:0000"):
        spread.fetch(
            Checkout(tmp_path),
            stack(tmp_path, "a"),
            [lock.model_copy(update={"files": files})],
            spread.Options(),
            silent,
        )
    entries, _ = spread.fetch(
        Checkout(tmp_path), stack(tmp_path, "a", "b"), [lock], spread.Options(io="buffered"), silent
    )
    assert [entry["fetched_files"] for entry in entries] == [8, 8]


def test_a_node_whose_folder_is_not_whole_does_not_serve(
    hub: Hub, lock: CheckpointLock, tmp_path: Path, local_ssh: None
) -> None:
    worker = spread._Worker(Checkout(tmp_path), [lock], spread.Options(), silent)
    node = stack(tmp_path, "a").inventory.nodes[0]
    with pytest.raises(MissingFile, match=r"n1: .*whole and untouched"), worker.served(node):
        pass


def spoil(folder: Path) -> None:
    """One byte of a shard is another one, at the same size and mtime."""
    shard = (folder / "Laguna-tiny" / SHARD).resolve()
    status, data = shard.stat(), bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.needs("sshd")
def test_every_node_is_verified_where_it_is(hub: Hub, lock: CheckpointLock, tmp_path: Path, over_ssh: None) -> None:
    meant, checkout, notes = stack(tmp_path, "a", None, "b"), Checkout(tmp_path), Notes()
    spread.fetch(checkout, meant, [lock], spread.Options(), silent)
    entries, text = spread.verify(checkout, meant, [lock], spread.Check("sample"), notes)
    assert [(entry["node"], entry["level"], entry["files"]) for entry in entries] == [
        ("n1", "sample", 8), ("n2", "sample", 8), ("n3", "sample", 8)
    ]  # fmt: skip
    assert text.count("agree with the lock (sample)") == 3
    assert all("sample" in records.read_proved(tmp_path / node / "Laguna-tiny") for node in ("n1", "n2", "n3"))
    spoil(tmp_path / "n3")
    spoil(tmp_path / "n2")
    with pytest.raises(IntegrityMismatch, match="n2, n3: 2 of 3 nodes failed") as refused:
        spread.verify(checkout, meant, [lock], spread.Check(), notes)
    assert all(f"{node}: {tmp_path / node}" in str(refused.value) for node in ("n2", "n3"))
    assert str(refused.value).count("expected sha256:") == 2
    assert any(said.startswith("n1: poolside/Laguna-tiny@") and "agree" in said for said in notes.said)


def test_a_node_that_has_nothing_or_cannot_be_reached_does_not_pass(
    lock: CheckpointLock, tmp_path: Path, local_ssh: None
) -> None:
    with pytest.raises(MissingFile, match=r"n1: .*no such folder"):
        spread.verify(Checkout(tmp_path), stack(tmp_path, "a"), [lock], spread.Check("stat"), silent)
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\necho no route >&2; exit 255\n")
    with pytest.raises(NetworkFailure, match=r"n1: ssh a failed \(no route\)"):
        spread.verify(Checkout(tmp_path), stack(tmp_path, "a"), [lock], spread.Check("stat"), silent)


@pytest.mark.parametrize("check", [spread.Check(workers=0), spread.Check("thorough")])
def test_a_check_that_cannot_be_meant_reaches_no_node(
    lock: CheckpointLock, tmp_path: Path, check: spread.Check
) -> None:
    with pytest.raises(UsageError, match=r"--(workers|level)"):
        spread.verify(Checkout(tmp_path), stack(tmp_path, "a"), [lock], check, silent)


def test_workers_are_at_least_one(lock: CheckpointLock, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--workers"):
        spread.fetch(Checkout(tmp_path), stack(tmp_path, None), [lock], spread.Options(workers=0), silent)


def test_fetch_models_of_a_stack_fills_every_node(tmp_path: Path, local_ssh: None) -> None:
    for name in ("tasks", "recipes", "stacks", "checkpoints"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    nodes = [
        {"name": "here", "address": "127.0.0.1", "paths": {"models": "./here"}},
        {"name": "far", "address": "127.0.0.2", "ssh": "far", "paths": {"models": str(tmp_path / "far")}},
    ]
    inventory = {"schema": "slipway/inventory/v1", "name": "laptop", "runtime": "process", "nodes": nodes}
    (tmp_path / "stacks" / "inventory" / "laptop.yaml").write_text(json.dumps(inventory))
    command = (sys.executable, "-m", "invoke", "--search-root", str(tmp_path), "fetch-models", "--json")
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert ran.returncode == 0, ran.stderr
    assert [(entry["node"], entry["fetched_files"]) for entry in json.loads(ran.stdout)] == [("here", 11), ("far", 11)]
    lock = locks.read(tmp_path / "checkpoints" / "laguna-tiny.lock.json")
    assert verify(lock, tmp_path / "far" / "Laguna-Tiny").files == 11
    (tmp_path / "far" / "Laguna-Tiny").unlink()
    checkout = Checkout(tmp_path)
    with pytest.raises(MissingFile, match=r"^far: "):
        spread.verify(checkout, stacks.read(checkout, "laptop"), [lock], spread.Check("stat"), silent)
