"""What every test gets: a clean environment, an empty home, no network but loopback, and the real local services."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import pytest_socket

ROOT = Path(__file__).resolve().parent.parent

# Machines are busy; how long one example takes says nothing about the code.
hypothesis.settings.register_profile("slipway", deadline=None, max_examples=60)
hypothesis.settings.load_profile("slipway")

# Two threads of one small matrix product wait for each other longer than they work; set before numpy is first loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_KEPT = {"PATH", "LANG", "LC_ALL", "TERM", "TMPDIR", "CI", "VIRTUAL_ENV"}
"""Variables that a test may see from the outside; coverage's own are kept too, so that subprocesses are measured."""


def pytest_runtest_setup() -> None:
    """Only loopback and Unix sockets; anything else is a bug in the test."""
    pytest_socket.socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)


@pytest.fixture(autouse=True)
def clean_environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each test starts with an empty HOME and none of the caller's variables, and leaves no change behind."""
    before = dict(os.environ)
    for name in before:
        if name not in _KEPT and not name.startswith(("COV", "PYTEST", "OPENBLAS_")):
            del os.environ[name]
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI a test of a real service that was skipped is a failure: its absence must not look like success."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") and item.get_closest_marker("needs"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"


@pytest.fixture
def unused_port() -> int:
    """A TCP port on loopback that nothing listens on at the moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
