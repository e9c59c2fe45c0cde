"""Local processes: started once, known by more than a PID, stopped with everything they started, never a stranger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway.errors import DiskFailure, MissingFile
from slipway.hosts.local import LocalHost, _until
from slipway.plan import Process

SLEEPER = ("python", "-u", "-c", "import signal; print('up'); signal.pause()")
STUBBORN = (
    "python",
    "-u",
    "-c",
    "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('up')\nwhile True: signal.pause()",
)


def process(argv: tuple[str, ...], name: str = "test-server", **env: str) -> Process:
    return Process(
        name=name,
        role="server",
        node="this-machine",
        ssh=None,
        runtime="process",
        image=None,
        argv=argv,
        env=env,
        mounts=(),
        devices=(),
        all_gpus=False,
        network="host",
        capabilities=(),
        ports=(),
        ulimits={},
        ipc="private",
        shm_size_bytes=None,
        after=(),
    )


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalHost]:
    local = LocalHost(tmp_path / "run", tmp_path)
    yield local
    local.stop("test-server", grace_s=0.1)


def wait_for_line(host: LocalHost, line: str) -> None:
    assert _until(lambda: line in host.log("test-server", 50), 10), host.log("test-server", 50)


def test_a_started_process_runs_and_its_output_is_kept(host: LocalHost) -> None:
    host.start(process(SLEEPER))
    wait_for_line(host, "up")
    status = host.status("test-server")
    assert status.state == "running"
    assert status.pid
    assert host.stop("test-server")
    assert host.status("test-server").state == "absent"
    assert not host.stop("test-server")


def test_another_host_object_finds_the_process_by_its_record(host: LocalHost, tmp_path: Path) -> None:
    host.start(process(SLEEPER))
    again = LocalHost(tmp_path / "run", tmp_path)
    assert again.status("test-server").pid == host.status("test-server").pid
    assert again.stop("test-server")
    assert host.status("test-server").state == "absent"


def test_a_process_that_ignores_sigterm_is_killed(host: LocalHost) -> None:
    host.start(process(STUBBORN))
    wait_for_line(host, "up")
    assert host.stop("test-server", grace_s=0.2)
    assert host.status("test-server").state == "absent"


def test_what_the_process_started_is_stopped_with_it(host: LocalHost) -> None:
    child = "import subprocess, signal; p = subprocess.Popen(['sleep', '60']); print(p.pid); signal.pause()"
    host.start(process(("python", "-u", "-c", child)))
    assert _until(lambda: bool(host.log("test-server", 1)), 10)
    grandchild = int(host.log("test-server", 1)[0])
    host.stop("test-server")
    assert _until(lambda: not alive(grandchild), 5)


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}


def test_a_process_that_ended_by_itself_has_exited(host: LocalHost) -> None:
    host.start(process(("python", "-c", "import signal; signal.alarm(1); signal.pause()")))
    assert _until(lambda: host.status("test-server").state == "exited", 10)
    assert not host.stop("test-server")


def test_a_stranger_with_the_same_pid_is_never_signalled(host: LocalHost, tmp_path: Path) -> None:
    """The record names a PID that the kernel has given to somebody else since."""
    script = "import signal; print('up', flush=True); signal.pause()"
    stranger = subprocess.Popen((sys.executable, "-c", script), start_new_session=True, stdout=subprocess.PIPE)
    try:
        # The kernel counts start times in hundredths of a second: let the stranger be older than that.
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"up\n"
        host.start(process(SLEEPER))
        record = tmp_path / "run" / "processes" / "test-server.json"
        values = json.loads(record.read_text())
        os.killpg(values["pid"], signal.SIGKILL)
        assert _until(lambda: not alive(values["pid"]), 5)
        record.write_text(json.dumps({**values, "pid": stranger.pid}))
        assert host.status("test-server").state == "exited"
        assert not host.stop("test-server")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.communicate()


def test_a_damaged_record_names_nobody(host: LocalHost, tmp_path: Path) -> None:
    record = tmp_path / "run" / "processes" / "test-server.json"
    record.parent.mkdir(parents=True)
    record.write_text("{")
    assert host.status("test-server").state == "absent"
    assert not host.stop("test-server")


def test_only_the_plans_variables_reach_the_process(host: LocalHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_NET_DEVICES", "eth0")
    monkeypatch.setenv("SLIPWAY_API_KEY", "secret")
    script = "import os; print(sorted(k for k in os.environ if k in ('UCX_NET_DEVICES', 'SLIPWAY_API_KEY', 'A')), flush=True)"
    host.start(process(("python", "-c", script), A="1"))
    assert _until(lambda: bool(host.log("test-server", 1)), 10)
    assert host.log("test-server", 1) == ["['A', 'SLIPWAY_API_KEY']"]


def test_an_earlier_log_is_kept_beside_the_new_one(host: LocalHost) -> None:
    for word in ("first", "second"):
        host.start(process(("python", "-c", f"print('{word}', flush=True)")))
        wait_for_line(host, word)
        host.stop("test-server")
    path = host.log_path("test-server")
    assert path.with_suffix(".log.1").read_text() == "first\n"


def test_a_program_that_does_not_exist_is_missing(host: LocalHost) -> None:
    with pytest.raises(MissingFile, match="no-such-engine: no such program"):
        host.start(process(("no-such-engine", "--port", "1")))


def test_a_folder_that_cannot_be_written_is_a_disk_failure(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a folder must be")
    with pytest.raises(DiskFailure):
        LocalHost(tmp_path / "run", tmp_path).start(process(SLEEPER))


def test_a_process_whose_record_cannot_be_written_is_not_left_running(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "run" / "processes" / "test-server.tmp").mkdir(parents=True)
    marker = f"marker-{os.getpid()}"
    with pytest.raises(DiskFailure, match="recording the process"):
        host.start(process(("python", "-c", "import signal; signal.pause()", marker)))
    lines = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists() and p.parent.name != "self"]
    assert not any(marker.encode() in line for line in lines)


def test_no_log_is_no_lines(host: LocalHost) -> None:
    assert host.log("never-started", 5) == []


def cached(folder: str) -> Process:
    return process(SLEEPER).model_copy(update={"cache_folder": folder})


def test_the_kernel_cache_is_made_for_this_user_alone_and_kept(host: LocalHost, tmp_path: Path) -> None:
    folder = tmp_path / "caches" / "sglang-0.5.18-h200-0123456789ab"
    host.start(cached("caches/sglang-0.5.18-h200-0123456789ab"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.iterdir()) == [], "the engine makes the rest"
    host.stop("test-server")
    (folder / "kernel.cubin").write_bytes(b"compiled")
    folder.chmod(0o750)
    host.start(cached(str(folder)))
    assert folder.stat().st_mode & 0o777 == 0o750, "what a user chose stays"
    assert (folder / "kernel.cubin").read_bytes() == b"compiled"


def test_a_cache_that_cannot_be_made_is_said_before_anything_starts(host: LocalHost, tmp_path: Path) -> None:
    (tmp_path / "caches").write_text("a file where the folder should be")
    with pytest.raises(DiskFailure, match="making the kernel cache of test-server"):
        host.start(cached("caches/key"))
    assert host.status("test-server").state == "absent"


def test_a_process_without_a_cache_makes_none(host: LocalHost, tmp_path: Path) -> None:
    host.start(process(SLEEPER))
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
