"""Launch: ready means served, the same plan is started once, and nothing half-started is left behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway import documents
from slipway.errors import CheckFailed, EngineFailed, MissingFile, NetworkFailure, SlipwayError, UsageError
from slipway.hosts.local import LocalHost
from slipway.launch import Deployment
from slipway.plan import FrontDoor, Plan, Process, PublishedPort

SERVE = "import socket, signal; s = socket.create_server(('127.0.0.1', {port})); print('listening', flush=True); signal.pause()"


def plan_of(port: int, script: str = SERVE, **changes: object) -> Plan:
    argv = ("python", "-c", script.replace("{port}", str(port)))
    process = Process(
        name="test-server",
        role="server",
        node="this-machine",
        ssh=None,
        runtime="process",
        image=None,
        argv=argv,
        env={},
        mounts=(),
        devices=(),
        all_gpus=False,
        network="host",
        capabilities=(),
        ports=(PublishedPort(host=port, container=port),),
        ulimits={},
        ipc="private",
        shm_size_bytes=None,
        after=(),
    )
    values = {
        "schema_": "slipway/plan/v1",
        "recipe": "test.reference/test",
        "engine": "reference",
        "engine_version": "0.1.0",
        "inventory": "test",
        "synthetic_inventory": False,
        "deployment_digest": documents.digest(argv),
        "checkpoints": (),
        "front_door": FrontDoor(url=f"http://127.0.0.1:{port}", served_name="test"),
        "fit": (),
        "transfer": None,
        "warnings": (),
        "processes": (process,),
        **changes,
    }
    return Plan(**values)  # type: ignore[arg-type]


def connects(plan: Plan, _: float = 1) -> str:
    """Stands where a generation is proved: the launch logic does not care what the proof is."""
    try:
        with socket.create_connection(("127.0.0.1", plan.processes[0].ports[0].host), 1):
            return "connected"
    except OSError as error:
        raise NetworkFailure(plan.front_door.url, "does not listen") from error


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path / "run", LocalHost(tmp_path / "run", tmp_path))
    yield made
    made.stop(grace_s=0.2)


def test_a_launch_is_ready_when_it_served_and_stops_completely(deployment: Deployment, unused_port: int) -> None:
    launched = deployment.up(plan_of(unused_port), connects)
    assert launched.started == ("test-server",)
    assert launched.proof == "connected"
    assert deployment.status().running
    assert deployment.logs(5) == {"test-server": ["listening"]}
    assert deployment.stop() == ("test-server",)
    assert deployment.stop() == ()
    assert deployment.status().plan is None


def test_the_same_plan_is_started_once(deployment: Deployment, unused_port: int) -> None:
    deployment.up(plan_of(unused_port), connects)
    pid = deployment.status().processes[0].pid
    assert deployment.up(plan_of(unused_port), connects).started == ()
    assert deployment.status().processes[0].pid == pid


def test_a_changed_plan_is_named_with_what_changed(deployment: Deployment, unused_port: int) -> None:
    deployment.up(plan_of(unused_port), connects)
    with pytest.raises(UsageError, match=r"another plan is running") as caught:
        deployment.up(plan_of(unused_port, SERVE + " # changed"), connects)
    assert "processes[0].argv.command" in str(caught.value)
    assert deployment.status().running


def test_a_process_that_is_gone_is_started_again(deployment: Deployment, unused_port: int, tmp_path: Path) -> None:
    deployment.up(plan_of(unused_port), connects)
    first = deployment.status().processes[0].pid
    LocalHost(tmp_path / "run", tmp_path).stop("test-server")
    assert deployment.up(plan_of(unused_port), connects).started == ("test-server",)
    assert deployment.status().processes[0].pid != first


def test_an_engine_that_ends_shows_its_last_words_and_leaves_nothing(deployment: Deployment, unused_port: int) -> None:
    with pytest.raises(EngineFailed, match="shard-00002 is truncated") as caught:
        deployment.up(plan_of(unused_port, "raise SystemExit('shard-00002 is truncated')"), connects)
    assert caught.value.exit_code == 9
    assert deployment.status().plan is None


def test_an_engine_that_never_serves_is_stopped_in_time(deployment: Deployment, unused_port: int) -> None:
    with pytest.raises(EngineFailed, match="does not generate in time"):
        deployment.up(
            plan_of(unused_port, "import signal; print('busy', flush=True); signal.pause()"), connects, timeout_s=0.5
        )
    assert deployment.status().plan is None


def test_a_wrong_answer_fails_at_once_and_stops_what_was_started(deployment: Deployment, unused_port: int) -> None:
    def wrong(plan: Plan, _: float) -> str:
        connects(plan)
        raise CheckFailed(plan.front_door.url, "answered without tokens")

    with pytest.raises(CheckFailed):
        deployment.up(plan_of(unused_port), wrong)
    assert deployment.status().plan is None


def test_an_interrupt_stops_what_was_started(deployment: Deployment, unused_port: int) -> None:
    def interrupted(plan: Plan, _: float) -> str:
        connects(plan)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deployment.up(plan_of(unused_port), interrupted)
    with pytest.raises(NetworkFailure):
        connects(plan_of(unused_port))


def test_a_port_in_use_is_named_before_anything_starts(deployment: Deployment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineFailed, match=f"port {port}: is in use"):
            deployment.up(plan_of(port), connects)
    assert deployment.status().plan is None


def test_two_launches_at_once_are_refused(deployment: Deployment, unused_port: int, tmp_path: Path) -> None:
    outcomes: list[SlipwayError] = []

    def second(plan: Plan, _: float) -> str:
        # lockf knows processes, not threads: another process must ask.
        outcome = _launch_elsewhere(tmp_path)
        outcomes.append(UsageError("second", outcome))
        return connects(plan)

    deployment.up(plan_of(unused_port), second)
    assert "another launch or stop is at work here" in str(outcomes[0])


def _launch_elsewhere(folder: Path) -> str:

    script = (
        "import sys; from pathlib import Path; from slipway.hosts.local import LocalHost; from slipway.launch import Deployment\n"
        "from slipway.errors import SlipwayError\n"
        "folder = Path(sys.argv[1])\n"
        "try: Deployment(folder / 'run', LocalHost(folder / 'run', folder)).stop()\n"
        "except SlipwayError as error: print(error)\n"
    )
    return subprocess.run(
        (sys.executable, "-c", script, str(folder)), capture_output=True, text=True, check=True
    ).stdout


def test_a_plan_for_docker_is_not_started_here(deployment: Deployment, unused_port: int) -> None:
    plan = plan_of(unused_port)
    process = plan.processes[0].model_copy(update={"runtime": "docker", "image": "x@sha256:" + "0" * 64})
    with pytest.raises(UsageError, match="runs in Docker"):
        deployment.up(plan.model_copy(update={"processes": (process,)}), connects)


def test_a_damaged_record_is_said_and_never_guessed_at(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "plan.json").write_text("{")
    with pytest.raises(EngineFailed, match="is damaged"):
        deployment.status()
    (tmp_path / "run" / "plan.json").unlink()


def test_logs_of_nothing_are_missing(deployment: Deployment) -> None:
    with pytest.raises(MissingFile, match="nothing was launched here"):
        deployment.logs(5)


def test_stopping_tries_every_process_even_when_one_refuses(deployment: Deployment, unused_port: int) -> None:
    class Refusing(LocalHost):
        def stop(self, name: str, grace_s: float = 10.0) -> bool:
            super().stop(name, grace_s)
            if refusing.is_set():
                raise EngineFailed(name, "still runs after SIGKILL")
            return True

    refusing = threading.Event()
    other = Deployment(deployment.folder, Refusing(deployment.folder, deployment.folder))
    other.up(plan_of(unused_port), connects)
    refusing.set()
    with pytest.raises(EngineFailed, match="still runs"):
        other.stop()
    refusing.clear()
    other.stop()
