"""A hub that serves a small checkpoint, its lock, and where it is to be published; a module that needs another one serves its own."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from slipway.checkpoints import lock as locks
from slipway.checkpoints.lock import CheckpointLock
from slipway.reference.hub import Hub, serve
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the hub serves, by owner and name."""
    served = tmp_path_factory.mktemp("served")
    write_sample(served / REPO)
    return served


@pytest.fixture(scope="module")
def running(served: Path) -> Iterator[Hub]:
    """The hub of a module's tests."""
    with serve(served) as running:
        yield running


@pytest.fixture(scope="module")
def lock(running: Hub) -> CheckpointLock:
    """The lock of the checkpoint as the hub serves it."""
    return locks.resolve(REPO, "main", endpoint=running.url, token=None)


@pytest.fixture
def hub(running: Hub, lock: CheckpointLock) -> Hub:
    """The hub without faults, which nobody has asked anything."""
    running.faults.clear()
    running.requests.clear()
    return running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The models folder, which is not there yet."""
    return tmp_path / "models"


@contextmanager
def _answering(*answers: bytes, reset: bool = False) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            left = list(answers)
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(left.pop(0) if len(left) > 1 else left[0])
                    if reset:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture(scope="session")
def answering() -> Callable[..., AbstractContextManager[str]]:
    """A server that gives one raw answer per connection, the last one again and again; then it closes, or resets."""
    return _answering
