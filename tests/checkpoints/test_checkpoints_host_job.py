"""What a node does when it is asked over ssh, as a process of its own: fetch, serve, and end when nobody is there any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipway.checkpoints import lock as locks
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.verify import verify
from slipway.reference.hub import Hub
from slipway.reference.hub_faults import Fault

SOURCE = Path(__file__).resolve().parents[2] / "src"
REPO = "poolside/Laguna-tiny"
CODE = (
    "import json, pathlib, sys\nfrom slipway.checkpoints.host_job import main\n"
    "sys.exit(main(json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])))"
)


@contextmanager
def job(lock: CheckpointLock, place: Path, **more: object) -> Iterator[subprocess.Popen[str]]:
    """The job's process; its stdin stays open while the block runs."""
    whole = {"locks": [locks.text(lock)], "dest": str(place / "models"), "env": {}, **more}
    (place / "job").mkdir(exist_ok=True)
    with subprocess.Popen(
        (sys.executable, "-c", CODE, json.dumps(whole), place / "job"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "HF_TOKEN": "hf_of_the_node"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def fetch(lock: CheckpointLock, place: Path, hub: Hub) -> tuple[int, str]:
    env = {"HF_ENDPOINT": hub.url, "HF_TOKEN": None}
    with job(lock, place, do="fetch", argv=["--quiet"], env=env) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        return process.wait(), said


def test_a_node_fetches_with_the_environment_that_it_is_given(lock: CheckpointLock, hub: Hub, tmp_path: Path) -> None:
    code, said = fetch(lock, tmp_path, hub)
    assert (code, json.loads(said)["fetched_files"]) == (0, 8)
    assert verify(lock, tmp_path / "models" / "Laguna-tiny").files == 8
    assert not any(request.authorized for request in hub.requests)


def test_a_node_serves_until_the_lifeline_ends(lock: CheckpointLock, hub: Hub, served: Path, tmp_path: Path) -> None:
    fetch(lock, tmp_path, hub)
    with job(lock, tmp_path, do="serve", address="127.0.0.1") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with urllib.request.urlopen(f"{url}/{REPO}/resolve/{lock.revision}/config.json") as answer:
            assert answer.read() == (served / REPO / "config.json").read_bytes()
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_a_fetch_ends_when_the_lifeline_ends(lock: CheckpointLock, hub: Hub, tmp_path: Path) -> None:
    hub.faults.add(Fault("resolve", "stall", at=10))
    with job(lock, tmp_path, do="fetch", argv=[], env={"HF_ENDPOINT": hub.url}) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert "fetching" in process.stderr.readline()
        process.stdin.close()
        assert process.wait(timeout=30) == 130
    assert not (tmp_path / "models" / "Laguna-tiny").exists()


@pytest.mark.parametrize(("address", "code"), [("127.0.0.1", 5), ("192.0.2.1", 6)])
def test_a_node_that_cannot_serve_says_why(
    lock: CheckpointLock, hub: Hub, tmp_path: Path, address: str, code: int
) -> None:
    if code == 6:
        fetch(lock, tmp_path, hub)
    with job(lock, tmp_path, do="serve", address=address) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["exit_code"] == code
        assert process.wait(timeout=30) == code
