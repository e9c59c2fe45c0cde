"""Prefill and decode of the tiny model through the user's commands: launch, status, verify, a dead half, stop."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

PORTS = ("8431", "8432", "8433", "8434")
"""Router, prefill, decode, and where the KV is handed over."""


@pytest.fixture
def checkout(tmp_path: Any, copy_checkout: Any, free_port: Any) -> Any:
    made = copy_checkout(tmp_path)
    recipe = made.root / "recipes" / "laguna-tiny.reference.yaml"
    text = recipe.read_text()
    for port in PORTS:
        assert text.count(port) == 1
        text = text.replace(port, str(free_port()))
    recipe.write_text(text)
    fetched = made.run("fetch-models", "--stack", "laptop-pd")
    assert fetched.returncode == 0, fetched.stderr
    yield made
    if (made.root / ".slipway/run/laptop-pd/plan.json").exists():
        made.run("stop", "--stack", "laptop-pd")


def test_the_pair_is_launched_proved_watched_and_stopped(checkout: Any) -> None:
    launched = checkout.run("launch", "--stack", "laptop-pd")
    assert launched.returncode == 0, launched.stderr
    assert "started laptop-pd-prefill, laptop-pd-decode, laptop-pd-router; generated" in launched.stdout
    assert checkout.run("verify", "--stack", "laptop-pd").returncode == 0
    decode = (checkout.root / ".slipway/run/laptop-pd/logs/laptop-pd-decode.log").read_text()
    assert "KV of " in decode and "from http://127.0.0.1:" in decode
    # A router in front of a dead decode server is alive, and serves nothing.
    record = checkout.root / ".slipway/run/laptop-pd/processes/laptop-pd-decode.json"
    pid = json.loads(record.read_text())["pid"]
    os.killpg(pid, signal.SIGKILL)
    dead = checkout.run("status", "--stack", "laptop-pd")
    assert dead.returncode == 1
    assert "laptop-pd-router: running" in dead.stdout
    assert "laptop-pd-decode: exited" in dead.stdout
    assert "not serving" in dead.stdout
    stopped = checkout.run("stop", "--stack", "laptop-pd")
    assert stopped.stdout == "stopped laptop-pd-router, laptop-pd-prefill\n"
