"""The main job end to end, through the commands, in a copy of the checkout: real bytes, a real process, real tokens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
STEPS = ["lock", "fetch", "plan", "launch", "gates", "bench"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, copy_checkout: Any, free_port: Any) -> Iterator[Any]:
    """A checkout in which the demo has run once."""
    made = copy_checkout(tmp_path_factory.mktemp("checkout"), free_port())
    first = made.run("demo", "--json")
    assert first.returncode == 0, first.stderr
    (made.root / "first.json").write_text(first.stdout)
    yield made
    made.run("stop", "--stack", "laptop")


def test_the_demo_proves_each_step_and_leaves_nothing_running(checkout: Any) -> None:
    report = json.loads((checkout.root / "first.json").read_text())
    assert [step["name"] for step in report["steps"]] == STEPS
    assert {step["status"] for step in report["steps"]} == {"done"}
    proved = {step["name"]: step["proved"] for step in report["steps"]}
    assert "11 files" in proved["fetch"]
    assert "every digest equal to the lock" in proved["fetch"]
    assert report["deployment_digest"] in proved["plan"]
    assert "generated 16 tokens" in proved["launch"]
    assert all(gate["passed"] for gate in report["gates"])
    bench = report["bench"]
    assert bench["failed"] == 0
    assert bench["completed"] == 24
    assert bench["completion_tokens"] == 24 * 64
    assert bench["cached_tokens"] == 0
    timed = {"little", "client-kept-up"}  # true of a machine that has a core to spare, so they never gate
    wrong = [check for check in bench["cross_checks"] if check["ok"] is False and check["id"] not in timed]
    assert wrong == []
    page = Path(report["files"]["html"]).read_text()
    assert "<svg" in page
    assert report["deployment_digest"] in page
    assert "http://" not in page.replace(report["endpoint"]["url"], "").replace("http://www.w3.org", "")
    assert not checkout.listening()


def test_a_second_demo_skips_what_is_proved_already(checkout: Any) -> None:
    again = checkout.run("demo")
    assert again.returncode == 0, again.stderr
    assert "[1/6] lock: skipped, laguna-tiny.lock.json is unchanged since it was compared with the hub" in again.stderr
    assert "[2/6] fetch: skipped, 11 files in" in again.stderr
    assert again.stdout.rstrip().splitlines()[-1].startswith("report: ")
    shown = checkout.run("report")
    assert "run passed" in shown.stdout


def test_launch_status_logs_verify_bench_stop(checkout: Any) -> None:
    launched = checkout.run("launch", "--stack", "laptop")
    assert launched.returncode == 0, launched.stderr
    assert "started laptop-server; generated" in launched.stdout
    try:
        # The demo has saved the inventory, so the stack is the only one and needs no naming.
        assert "already running, the same plan" in checkout.run("launch").stdout
        status = json.loads(checkout.run("status", "--json").stdout)
        assert (status["serving"], status["processes"][0]["state"]) == (True, "running")
        assert "Application startup complete." in checkout.run("logs").stdout
        assert checkout.run("verify").returncode == 0
        url = status["endpoint"]["url"]
        wrong = checkout.run("verify", "--endpoint", url, "--model", "other")
        assert wrong.returncode == 1
        assert "other is not served" in wrong.stderr
        words = ("--concurrency", "1", "--requests", "3", "--input-tokens", "64", "--output-tokens", "8")
        bench = json.loads(checkout.run("bench", *words, "--json").stdout)
        assert (bench["completed"], bench["completion_tokens"]) == (3, 24)
        recipe = checkout.root / "recipes" / "laguna-tiny.reference.yaml"
        text = recipe.read_text()
        recipe.write_text(text.replace("context_tokens: 4096", "context_tokens: 2048"))
        changed = checkout.run("launch")
        recipe.write_text(text)
        assert changed.returncode == 2
        assert "another plan is running" in changed.stderr
        assert '"4096" -> "2048"' in changed.stderr
    finally:
        assert checkout.run("stop", "--stack", "laptop").stdout == "stopped laptop-server\n"
    assert not checkout.listening()
    assert "nothing ran" in checkout.run("stop", "--stack", "laptop").stdout


def test_a_server_that_wants_another_key_is_not_to_be_launched_again(checkout: Any) -> None:
    assert checkout.run("launch", "--stack", "laptop", SLIPWAY_API_KEY="right-key").returncode == 0
    try:
        refused = checkout.run("status", "--stack", "laptop", SLIPWAY_API_KEY="wrong-key")
        assert refused.returncode == 1
        assert refused.stderr.endswith("set SLIPWAY_API_KEY to a key this server takes\n")
        assert checkout.run("status", "--stack", "laptop", SLIPWAY_API_KEY="right-key").returncode == 0
    finally:
        checkout.run("stop", "--stack", "laptop")


def test_an_engine_that_died_is_not_called_serving(checkout: Any) -> None:
    checkout.run("launch", "--stack", "laptop")
    try:
        pid = json.loads(checkout.run("status", "--stack", "laptop", "--json").stdout)["processes"][0]["pid"]
        os.killpg(pid, signal.SIGKILL)
        dead = checkout.run("status", "--stack", "laptop")
        assert dead.returncode == 1
        assert "laptop-server: exited" in dead.stdout
        assert "not serving" in dead.stdout
    finally:
        checkout.run("stop", "--stack", "laptop")


def test_a_stranger_on_the_port_of_a_dead_engine_is_not_called_serving(checkout: Any) -> None:
    checkout.run("launch", "--stack", "laptop")
    try:
        status = json.loads(checkout.run("status", "--stack", "laptop", "--json").stdout)
        os.killpg(status["processes"][0]["pid"], signal.SIGKILL)
        name_and_port = ("--served-model-name", "laguna-tiny", "--port", str(checkout.port))
        stranger = subprocess.Popen(
            (sys.executable, "-m", "slipway.reference.engine", "--model", str(checkout.published), *name_and_port),
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert stranger.stderr is not None
            assert any("startup complete" in line for line in stranger.stderr)
            assert checkout.run("status", "--stack", "laptop").returncode == 1
            refused = checkout.run("verify", "--stack", "laptop")
            assert refused.returncode == 9
            assert "is not this deployment" in refused.stderr
        finally:
            stranger.terminate()
            stranger.communicate()
    finally:
        checkout.run("stop", "--stack", "laptop")


def test_weights_that_were_touched_are_not_served(checkout: Any) -> None:
    with restored(last_shard(checkout)) as shard:
        data = bytearray(shard.read_bytes())
        data[-400_000:-1000] = b"\0" * 399_000
        shard.write_bytes(data)
        ran = checkout.run("launch", "--stack", "laptop")
        assert ran.returncode == 9
        assert "not started" in ran.stderr
        assert shard.name in ran.stderr
    assert not checkout.listening()


def test_a_demo_leaves_an_engine_that_it_did_not_start(checkout: Any) -> None:
    checkout.run("fetch-models", "--stack", "laptop")
    checkout.run("launch", "--stack", "laptop")
    try:
        assert "left running" in checkout.run("demo").stderr
        assert checkout.listening()
        assert "report: " in checkout.run("verify", "--stack", "laptop").stderr
    finally:
        checkout.run("stop", "--stack", "laptop")


def test_an_interrupted_launch_leaves_nothing_running(checkout: Any) -> None:
    with restored(last_shard(checkout)) as shard:
        # The engine waits for a shard that never comes: a real hang, without any sleeping.
        shard.unlink()
        os.mkfifo(shard)
        launching = subprocess.Popen(
            checkout.command("launch", "--stack", "laptop"),
            cwd=checkout.root,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert launching.stderr is not None
        for line in launching.stderr:
            if "waiting for the first generation" in line or "ended before it served" in line:
                break
        launching.send_signal(signal.SIGINT)
        rest = launching.stderr.read()
        launching.stderr.close()
        assert launching.wait(timeout=30) in {130, 9}, rest
        shard.unlink()
    assert "nothing is launched" in checkout.run("status", "--stack", "laptop").stdout
    assert not checkout.listening()


def last_shard(checkout: Any) -> Path:
    """The last shard of the published checkpoint, made writable."""
    real = (checkout.published / "model-00004-of-00004.safetensors").resolve()
    real.chmod(0o644)
    real.parent.chmod(0o755)
    return real


class restored:
    """Put the file's bytes back when the block ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(self.data)


def test_one_flipped_byte_is_found_with_file_expected_and_got(checkout: Any) -> None:
    with restored(last_shard(checkout)) as shard:
        data = bytearray(shard.read_bytes())
        data[-1000] ^= 1
        shard.write_bytes(data)
        ran = checkout.run("verify-models", "--lock", checkout.lock, "--dir", str(checkout.published))
        assert ran.returncode == 4
        assert "model-00004-of-00004.safetensors" in ran.stderr
        locked = json.loads((checkout.root / checkout.lock).read_text())
        (expected,) = [file["sha256"] for file in locked["files"] if file["path"] == shard.name]
        assert expected in ran.stderr
        assert "got" in ran.stderr


def test_a_truncated_shard_keeps_the_engine_from_starting(checkout: Any) -> None:
    with restored(last_shard(checkout)) as shard:
        os.truncate(shard, shard.stat().st_size - 1000)
        ran = checkout.run("launch", "--stack", "laptop")
        assert ran.returncode == 9
        assert "model-00004-of-00004.safetensors" in ran.stderr
        assert checkout.run("verify-models", "--lock", checkout.lock).returncode == 4


def test_a_missing_shard_is_missing_everywhere(checkout: Any) -> None:
    with restored(last_shard(checkout)) as shard:
        shard.unlink()
        assert checkout.run("verify-models", "--stack", "laptop", "--level", "stat").returncode == 5
        ran = checkout.run("launch", "--stack", "laptop")
        assert ran.returncode == 9
        assert "model-00004-of-00004.safetensors" in ran.stderr


def test_a_damaged_checkpoint_is_fetched_again_in_part(checkout: Any) -> None:
    last_shard(checkout).write_bytes(b"\0" * 1000)
    ran = checkout.run("fetch-models", "--stack", "laptop", "--json")
    assert ran.returncode == 0, ran.stderr
    (entry,) = json.loads(ran.stdout)
    assert (entry["fetched_files"], entry["reused_files"]) == (1, 10)
    assert checkout.run("verify-models", "--lock", checkout.lock).returncode == 0


def test_a_port_in_use_is_named(checkout: Any) -> None:
    with socket.create_server(("127.0.0.1", checkout.port)):
        ran = checkout.run("demo")
    assert ran.returncode == 9
    assert f"port {checkout.port}: is in use" in ran.stderr
    failed = json.loads(sorted((checkout.root / ".slipway" / "reports").glob("*/report.json"))[-1].read_text())
    assert failed["steps"][-1]["status"] == "failed"


@pytest.mark.parametrize(
    ("endpoint", "code", "said"),
    [("http://127.0.0.1:9", 8, "127.0.0.1:9"), ("ftp://x", 2, "HF_ENDPOINT"), ("not a url", 2, "HF_ENDPOINT")],
)
def test_a_hub_that_cannot_be_asked_is_named(checkout: Any, endpoint: str, code: int, said: str) -> None:
    words = ("lock-models", "--repo", "slipway/Laguna-Tiny", "--check")
    ran = checkout.run(*words, HF_ENDPOINT=endpoint)
    assert (ran.returncode, said in ran.stderr) == (code, True), ran.stderr


def test_an_upstream_that_moved_is_drift(checkout: Any) -> None:
    template = checkout.root / ".slipway" / "hub" / "slipway" / "Laguna-Tiny" / "chat_template.jinja"
    text = template.read_text()
    template.write_text(text + "{# moved #}")
    ran = checkout.run("lock-models", "--repo", "slipway/Laguna-Tiny", "--check")
    template.write_text(text)
    assert ran.returncode == 3
    assert "chat_template.jinja" in ran.stderr
    assert checkout.run("lock-models", "--repo", "slipway/Laguna-Tiny", "--check").returncode == 0


def test_a_lock_is_written_for_what_the_hub_has(checkout: Any, tmp_path: Path) -> None:
    out = tmp_path / "new.lock.json"
    ran = checkout.run("lock-models", "--repo", "slipway/Laguna-Tiny", "--out", str(out))
    assert ran.returncode == 0, ran.stderr
    assert out.read_bytes() == (checkout.root / checkout.lock).read_bytes()


@pytest.mark.needs("mount")
def test_a_full_disk_is_said_and_publishes_nothing(checkout: Any, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(("mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", small), check=False).returncode
    ):
        pytest.skip("mounting a small tmpfs needs root")
    try:
        ran = checkout.run("fetch-models", "--lock", checkout.lock, "--dest", str(small))
        assert ran.returncode == 6
        assert "7" in ran.stderr
        assert not (small / "Laguna-Tiny").exists()
    finally:
        subprocess.run(("umount", small), check=True)
