"""What every test gets: a clean environment, an empty home, no network but loopback, and the real local services."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
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

# A shell starts what it runs in the background with Ctrl-C ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_KEPT = {"PATH", "LANG", "LC_ALL", "TERM", "TMPDIR", "CI", "VIRTUAL_ENV"}
"""Variables that a test may see from the outside; coverage's own are kept too, so that subprocesses are measured.

SLIPWAY_TEST_* are the addresses of the services that `.ci/services` started."""


def pytest_runtest_setup() -> None:
    """Only loopback and Unix sockets; anything else is a bug in the test."""
    pytest_socket.socket_allow_hosts(["127.0.0.1", "::1", "localhost"], allow_unix_socket=True)


@pytest.fixture(autouse=True)
def clean_environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each test starts with an empty HOME and none of the caller's variables, and leaves no change behind."""
    before = dict(os.environ)
    for name in before:
        if name not in _KEPT and not name.startswith(("COV", "PYTEST", "OPENBLAS_", "SLIPWAY_TEST_")):
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


_SERVICE_OF = {
    "docker": "docker",
    "docker_daemon": "docker",
    "registry": "registry",
    "base_image": "docker",
    "small_base": "docker",
}
"""Fixture → service: a test that asks for the fixture needs the service, marked or not."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that uses a fixture of a real service is marked so, and CI cannot skip it silently."""
    for item in items:
        for fixture in _SERVICE_OF.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.needs(_SERVICE_OF[fixture]))


def _service(name: str) -> str:
    if name not in os.environ:
        pytest.skip(f"{name} is not set; `eval $(.ci/services start)` starts Docker, a registry and a base image")
    return os.environ[name]


class Docker:
    """The daemon for image tests; `host` and `config` are what DOCKER_HOST and DOCKER_CONFIG hold while a test runs.

    It has no bridge: every build and every run needs `--network host`.
    """

    def __init__(self, host: str, config: Path) -> None:
        self.host = host
        self.config = config

    @property
    def env(self) -> dict[str, str]:
        """What leads a client to it."""
        return {"DOCKER_HOST": self.host, "DOCKER_CONFIG": str(self.config)}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `docker WORDS`; a failure fails the test with what Docker said."""
        env = {**os.environ, **self.env}
        ran = subprocess.run(("docker", *words), capture_output=True, text=True, check=False, env=env)
        assert ran.returncode == 0, f"docker {' '.join(words)}: {ran.stderr}"
        return ran


@pytest.fixture(scope="session")
def docker_daemon(tmp_path_factory: pytest.TempPathFactory) -> Docker:
    """A real dockerd with BuildKit; `docker` is what a test usually wants."""
    config = tmp_path_factory.mktemp("docker-config")
    # Buildx keeps state beside its plugin; no two sessions share it.
    (config / "cli-plugins").symlink_to(Path(_service("SLIPWAY_TEST_DOCKER_CONFIG")) / "cli-plugins")
    return Docker(_service("SLIPWAY_TEST_DOCKER_HOST"), config)


@pytest.fixture
def docker(docker_daemon: Docker, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """A real dockerd with BuildKit, reached through the environment as a user's is."""
    for name, value in docker_daemon.env.items():
        monkeypatch.setenv(name, value)
    return docker_daemon


@pytest.fixture(scope="session")
def registry() -> str:
    """`127.0.0.1:PORT` of a real registry, plain HTTP; it is shared, so use repository names of your own."""
    return _service("SLIPWAY_TEST_REGISTRY")


class BaseImage:
    """An image to build from, in the registry as `ref` (by digest) and as an OCI layout; `epoch` is when it was created."""

    def __init__(self, ref: str, layout: Path) -> None:
        self.ref = ref
        self.layout = layout
        self.digest = ref.partition("@")[2]
        config = self._blob(self._blob(self.digest)["config"]["digest"])
        self.epoch = int(datetime.datetime.fromisoformat(config["created"]).timestamp())

    def _blob(self, digest: str) -> dict[str, typing.Any]:
        return dict(json.loads((self.layout / "blobs" / digest.replace(":", "/")).read_text()))


@pytest.fixture(scope="session")
def base_image() -> BaseImage:
    """The base that engine images of tests are built from."""
    return BaseImage(_service("SLIPWAY_TEST_BASE"), Path(_service("SLIPWAY_TEST_BASE_LAYOUT")))


@pytest.fixture(scope="session")
def small_base() -> BaseImage:
    """One static busybox with its names, 2 MB: where it is the build that is tested, not what is in the image."""
    return BaseImage(_service("SLIPWAY_TEST_SMALL_BASE"), Path(_service("SLIPWAY_TEST_SMALL_BASE_LAYOUT")))


@pytest.fixture
def unused_port() -> int:
    """A TCP port on loopback that nothing listens on at the moment."""
    return _free_port()


class CheckoutCopy:
    """The checkout's data and commands in a folder of a test's own, so that no test writes into the real one."""

    copied = ("tasks", "recipes", "stacks", "checkpoints", "images")
    lock = "checkpoints/laguna-tiny.lock.json"

    def __init__(self, root: Path, port: int | None = None) -> None:
        self.root = root
        self.port = port or 8421
        for name in self.copied:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, root / name)
        recipe = root / "recipes" / "laguna-tiny.reference.yaml"
        recipe.write_text(recipe.read_text().replace("port: 8421", f"port: {self.port}"))

    @property
    def published(self) -> Path:
        """Where the tiny checkpoint is found after a fetch."""
        return self.root / ".slipway" / "models" / "Laguna-Tiny"

    def command(self, *words: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "invoke", "--search-root", str(self.root), *words)

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end; a traceback or an unforeseen error in it fails the test whatever it asserts."""
        ran = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=self.root,
            env={**os.environ, **env},
        )
        assert "Traceback" not in ran.stderr, ran.stderr
        assert "unexpected error" not in ran.stderr, ran.stderr
        return ran

    def listening(self) -> bool:
        """Whether something answers on the stack's port."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(scope="session")
def copy_checkout() -> type[CheckoutCopy]:
    """Call it with an empty folder (and a port) for a copy of the checkout."""
    return CheckoutCopy


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Call it for a TCP port on loopback that nothing listens on at the moment."""
    return _free_port


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
