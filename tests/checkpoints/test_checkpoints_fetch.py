"""Fetching: every public failure of downloads is injected, and none of them publishes a wrong byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slipway.checkpoints import fetch as fetching
from slipway.checkpoints import lock as locks
from slipway.checkpoints.fetch import FetchResult, fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.publish import MANIFEST
from slipway.checkpoints.transfer import Patience
from slipway.checkpoints.verify import verify
from slipway.errors import (
    AuthFailure,
    DiskFailure,
    IntegrityMismatch,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)
from slipway.reference.hub import Hub, Options, serve
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"
ROWS = 40_000
"""5 MB in the first shard: more than sockets buffer, so a fault half-way is half-way."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    served = tmp_path_factory.mktemp("served")
    write_sample(served / REPO, rows=ROWS)
    return served


class Waits(list[float]):
    """Remembers each wait and takes no time."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def quick(waits: Waits | None = None, **changes: object) -> Patience:
    return Patience(**{"stall_s": 5.0, "wait": waits if waits is not None else Waits(), **changes})  # type: ignore[arg-type]


def get(
    lock: CheckpointLock, root: Path, hub: Hub | str, patience: Patience | None = None, **more: object
) -> FetchResult:
    address = HubAddress(hub if isinstance(hub, str) else hub.url, **more)  # type: ignore[arg-type]
    return fetch(lock, root, hub=address, patience=patience or quick())


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def asked_for(hub: Hub) -> list[str]:
    return [seen.path.rpartition("/")[2] for seen in hub.requests if "/resolve/" in seen.path]


def nothing_is_left(root: Path) -> bool:
    """Whether a failed fetch has left neither a link, nor a folder in the store, nor staging."""
    left = [path for path in root.rglob("*") if not path.is_dir() and path.suffix != ".lock"]
    return not left and not any((root / ".store" / ".staging").glob("*"))


def test_a_checkpoint_is_fetched_byte_for_byte_and_read_only(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    result = get(lock, root, hub)
    assert content(root / "Laguna-tiny") == content(served / REPO)
    assert (result.fetched_files, result.fetched_bytes) == (8, lock.summary.total_bytes)
    assert (result.reused_files, result.skipped) == (0, False)
    assert result.folder == root / ".store" / REPO / lock.revision
    assert os.readlink(root / "Laguna-tiny") == f".store/{REPO}/{lock.revision}"
    assert {path.stat().st_mode & 0o777 for path in result.folder.rglob("*") if path.is_file()} == {0o444}
    assert {path.stat().st_mode & 0o777 for path in [result.folder, result.folder / "code"]} == {0o555}
    assert verify(lock, root / "Laguna-tiny").files == 8
    assert not any((root / ".store" / ".staging").iterdir())


def test_the_index_comes_first_and_then_the_largest_file(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    fetch(lock, root, hub=HubAddress(hub.url), workers=1)
    largest_first = sorted(lock.files, key=lambda file: (not file.path.endswith(".index.json"), -file.size_bytes))
    assert asked_for(hub) == [file.path.rpartition("/")[2] for file in largest_first]


def test_a_second_fetch_asks_nobody(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    first = get(lock, root, hub)
    hub.requests.clear()
    notes: list[str] = []
    again = fetch(lock, root, hub=HubAddress(hub.url, offline=True), progress=Recorder(notes))
    assert (again.folder, again.skipped, again.reused_files, again.fetched_bytes) == (first.folder, True, 8, 0)
    assert hub.requests == []
    assert "not fetched" in notes[0]


class Recorder:
    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.done = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[object]:  # type: ignore[override]
        self.total = total
        yield self.advance

    def advance(self, amount: int) -> None:
        self.done += amount


def test_progress_counts_every_byte_once_even_when_some_come_twice(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(
        Fault(f"GET .*{SHARD}", "flip", at=9, times=1),
        Fault(f"GET .*{SHARD}", "close", at=3_000_000, times=1, after=1),
        Fault("GET .*", "ignore-range", times=1),
    )
    recorder = Recorder([])
    fetch(lock, root, hub=HubAddress(hub.url), progress=recorder, patience=quick())  # type: ignore[arg-type]
    assert recorder.done == recorder.total == lock.summary.total_bytes


@pytest.mark.parametrize(
    "fault",
    [
        Fault(f"GET .*{SHARD}", "flip", at=5_000_000),
        Fault(f"GET .*{SHARD}", "flip", at=0),
        Fault(f"GET .*{SHARD}", "zero-tail", at=4_000_000),
        Fault(f"GET .*{SHARD}", "short-length", at=4_000_000),
        Fault(f"GET .*{SHARD}", "short-length", at=0),
        Fault("GET .*config.json", "flip", at=3),
        Fault("GET .*modeling_laguna.py", "zero-tail", at=3),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.at}",
)
def test_wrong_bytes_are_fetched_once_more_and_then_refused_by_name(
    lock: CheckpointLock, root: Path, hub: Hub, fault: Fault
) -> None:
    hub.faults.add(fault)
    with pytest.raises(IntegrityMismatch) as refused:
        get(lock, root, hub)
    name = fault.match.removeprefix("GET .*")
    assert name in refused.value.place
    assert "expected " in refused.value.problem
    assert "got " in refused.value.problem
    assert asked_for(hub).count(name) == 2
    assert nothing_is_left(root)


def test_wrong_bytes_that_do_not_come_again_are_repaired(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "flip", at=1000, times=1), Fault("config.json", "short-length", times=1))
    get(lock, root, hub)
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_a_connection_that_ends_early_is_continued_where_it_ended(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "close", at=3_000_000, times=1))
    waits = Waits()
    get(lock, root, hub, quick(waits))
    ranges = [seen.range for seen in hub.requests if seen.path.endswith(SHARD)]
    assert ranges == ["", "bytes=3000000-"]
    assert len(waits) == 1
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_a_server_that_ignores_ranges_is_read_from_the_start(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "close", at=3_000_000, times=1), Fault(f"GET .*{SHARD}", "ignore-range"))
    get(lock, root, hub)
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_a_file_that_shrank_while_it_was_fetched_is_a_mismatch(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(
        Fault(f"GET .*{SHARD}", "close", at=3_000_000, times=1),
        Fault(f"GET .*{SHARD}", "short-length", at=2_000_000, after=1),
    )
    with pytest.raises(IntegrityMismatch, match="got a shorter file"):
        get(lock, root, hub)


def test_a_stalled_connection_is_given_up_and_continued(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "stall", at=2_000_000, times=1))
    get(lock, root, hub, quick(stall_s=0.3))
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_a_connection_that_trickles_is_as_good_as_stalled(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "slow", at=2_000_000, times=1))
    began_s = time.monotonic()
    get(lock, root, hub, quick(stall_s=0.4))
    assert time.monotonic() - began_s < 5
    assert [seen.range for seen in hub.requests if seen.path.endswith(SHARD)][1].startswith("bytes=20000")


def test_attempts_end_when_nothing_new_comes(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    # Each time 2 MB come and the server starts at 0 again: progress that is none.
    hub.faults.add(Fault(f"GET .*{SHARD}", "close", at=2_000_000), Fault(".*", "ignore-range"))
    waits = Waits()
    with pytest.raises(NetworkFailure, match=r"connection ended after 2000000 of .* after 4 attempts"):
        get(lock, root, hub, quick(waits, attempts=4))
    assert asked_for(hub).count(SHARD) <= 5
    assert nothing_is_left(root)


def test_waits_grow_and_are_jittered(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "status", status=503))
    waits = Waits()
    with pytest.raises(NetworkFailure, match="HTTP 503 after 6 attempts"):
        get(lock, root, hub, quick(waits, base_wait_s=1, max_wait_s=5))
    assert len(waits) == 5
    for wait_s, most_s in zip(waits, [1, 2, 4, 5, 5], strict=True):
        assert most_s / 2 <= wait_s <= most_s


def test_trouble_that_passes_is_waited_out_as_long_as_the_hub_asks(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault("GET .*config.json", "status", status=429, retry_after_s=17, times=2))
    waits = Waits()
    get(lock, root, hub, quick(waits))
    assert waits == [17, 17]


def test_a_hub_that_asks_for_too_much_patience_is_not_waited_for(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault("GET .*config.json", "status", status=429, retry_after_s=3600))
    waits = Waits()
    with pytest.raises(NetworkFailure, match=r"HTTP 429 after 1 attempt; Retry-After is 3600 s"):
        get(lock, root, hub, quick(waits))
    assert waits == []


def test_a_refused_token_says_how_to_set_one(lock: CheckpointLock, served: Path, root: Path) -> None:
    with serve(served, options=Options(tokens=frozenset({"hf_good"}), gated=frozenset({REPO}))) as hub:
        with pytest.raises(AuthFailure, match=r"HTTP 401 GatedRepo.*HF_TOKEN"):
            get(lock, root, hub)
        with pytest.raises(AuthFailure) as refused:
            get(lock, root, hub, token="hf_secretbad")
        assert "hf_secretbad" not in str(refused.value)
        assert not get(lock, root, hub, token="hf_good").skipped


def test_a_gated_repository_and_a_lost_file_are_told_apart(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault("resolve", "gated"))
    with pytest.raises(AuthFailure, match="HTTP 403 GatedRepo"):
        get(lock, root, hub)
    hub.faults.clear()
    with pytest.raises(MissingFile, match=r"RevisionNotFound.*lock-models"):
        get(lock.model_copy(update={"revision": "0" * 40}), root, hub)
    with pytest.raises(MissingFile, match="RepoNotFound"):
        get(lock.model_copy(update={"repo": "poolside/none"}), root, hub)
    assert nothing_is_left(root)


def test_the_token_never_follows_a_redirect_to_another_host(lock: CheckpointLock, served: Path, root: Path) -> None:
    with serve(served, options=Options(redirect=True)) as hub:
        locks.resolve(REPO, "main", endpoint=hub.url, token=None)
        hub.requests.clear()
        # A signed address that has expired is asked for again.
        hub.faults.add(Fault(f"GET /cdn/.*{SHARD}", "status", status=403, times=1))
        get(lock, root, hub, token="hf_good")
        hosts = {(seen.host.partition(":")[0], seen.authorized) for seen in hub.requests if "/api/" not in seen.path}
    assert hosts == {("127.0.0.1", True), ("localhost", False)}


def test_a_hub_that_is_not_there_is_a_network_failure(lock: CheckpointLock, root: Path, unused_port: int) -> None:
    with pytest.raises(NetworkFailure, match="connection refused after 3 attempts"):
        get(lock, root, f"http://127.0.0.1:{unused_port}", quick(attempts=3))
    assert nothing_is_left(root)


def test_offline_mode_forbids_a_fetch(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    with pytest.raises(NetworkFailure, match="unset HF_HUB_OFFLINE"):
        get(lock, root, hub, offline=True)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n", "not followed"),
        (b"HTTP/1.1 302 Found\r\nLocation: /again?sig=secret\r\nContent-Length: 0\r\n\r\n", "more than 5 redirects"),
        (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "redirects"),
        (
            b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 7-9/10\r\nContent-Length: 3\r\n\r\nabc",
            "another range",
        ),
        (b"HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n", "HTTP 418 after 1 attempt"),
        (b"garbage\r\n\r\n", "after 2 attempts"),
        (b"", "after 2 attempts"),
    ],
)
def test_answers_that_no_hub_gives_are_network_failures(
    lock: CheckpointLock, answering: Any, root: Path, answer: bytes, said: str
) -> None:
    with answering(answer) as url, pytest.raises(NetworkFailure, match=said) as refused:
        get(lock, root, url, quick(attempts=2))
    assert "secret" not in str(refused.value)


def test_a_body_without_a_length_or_with_too_much_is_measured(lock: CheckpointLock, answering: Any, root: Path) -> None:
    one = lock.model_copy(update={"files": tuple(file for file in lock.files if file.path == "config.json")})
    with (
        answering(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000) as url,
        pytest.raises(IntegrityMismatch, match="more than"),
    ):
        get(one, root, url)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"
    with answering(chunked) as url, pytest.raises(NetworkFailure, match="after 2 attempts"):
        get(one, root, url, quick(attempts=2))


def test_a_proxy_from_the_environment_is_used(lock: CheckpointLock, answering: Any, root: Path) -> None:
    with answering(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n") as proxy:
        os.environ["http_proxy"] = proxy
        with pytest.raises(NetworkFailure, match="HTTP 407"):
            get(lock, root, "http://hub.invalid")


def test_a_disk_that_is_too_small_is_refused_before_the_first_byte(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small:
        f_bavail, f_frsize, f_files, f_favail = 100, 4096, 1000, 1000

    monkeypatch.setattr(fetching.os, "statvfs", lambda _: Small)
    needed = lock.summary.total_bytes + int(lock.summary.total_bytes * 0.02)
    with pytest.raises(DiskFailure, match=f"409600 bytes are free, {needed} are needed"):
        get(lock, root, hub)
    Small.f_bavail, Small.f_favail = 10**9, 3
    with pytest.raises(DiskFailure, match="3 inodes are free, 24 are needed"):
        get(lock, root, hub)
    assert hub.requests == []
    assert nothing_is_left(root)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "none", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting a tmpfs needs root and mount")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_fills_up_half_way_publishes_nothing(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer takes the space after the preflight: the preflight sees a disk of plenty."""
    with mounted(root, "-o", "size=3m"):

        class Plenty:
            f_bavail, f_frsize, f_files, f_favail = 10**9, 4096, 0, 0

        with monkeypatch.context() as patched:
            patched.setattr(fetching.os, "statvfs", lambda _: Plenty)
            with pytest.raises(DiskFailure, match=r"no space left on device.*free space"):
                get(lock, root, hub)
        assert nothing_is_left(root)


def test_a_folder_that_cannot_be_written_is_a_disk_failure(
    lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path
) -> None:
    with mounted(root, "-o", "ro"), pytest.raises(DiskFailure, match="read-only file system"):
        get(lock, root, hub)
    (tmp_path / "file").touch()
    with pytest.raises(DiskFailure, match="not a directory"):
        get(lock, tmp_path / "file" / "models", hub)


def test_a_limit_on_file_size_is_a_disk_failure(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    program = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, 1000000)); "
    done = run_fetch(lock, root, hub, program)
    assert "files may have 1000000 bytes here" in done.stderr
    assert done.returncode == DiskFailure.exit_code


def fetch_program(lock: CheckpointLock, root: Path, hub: Hub, before: str = "") -> list[str]:
    """A fetch in a process of its own, as on a host: no package but slipway, the lock as plain JSON."""
    (root.parent / "lock.json").write_text(lock.model_dump_json())
    program = (
        "import json, sys; from pathlib import Path; from types import SimpleNamespace\n"
        "from slipway.checkpoints.fetch import fetch; from slipway.checkpoints.hub import Hub\n"
        f"from slipway.errors import SlipwayError\n{before}\n"
        f"text = Path({str(root.parent / 'lock.json')!r}).read_text()\n"
        "lock = json.loads(text, object_hook=lambda pairs: SimpleNamespace(**pairs))\n"
        f"try: print(fetch(lock, Path({str(root)!r}), hub=Hub({hub.url!r})))\n"
        "except SlipwayError as error: print(error, file=sys.stderr); sys.exit(error.exit_code)"
    )
    return [sys.executable, "-c", program]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(fetching.__file__).parents[2])}


def run_fetch(lock: CheckpointLock, root: Path, hub: Hub, before: str = "") -> subprocess.CompletedProcess[str]:
    command = fetch_program(lock, root, hub, before)
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=60)


def until(condition: object, limit_s: float = 20) -> None:
    ends_s, pause = time.monotonic() + limit_s, threading.Event()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends_s, "did not happen in time"
        pause.wait(0.02)


def test_a_killed_fetch_leaves_litter_only_and_the_next_one_removes_it(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "stall", at=3_000_000, times=1))
    staged = root / ".store" / ".staging"
    with subprocess.Popen(fetch_program(lock, root, hub), env=environment()) as process:
        until(lambda: any(path.stat().st_size >= 2_000_000 for path in staged.glob("*/parts/*.part")))
        # While its owner lives, nobody takes the litter away.
        assert len(list(staged.iterdir())) == 1
        process.send_signal(signal.SIGKILL)
    assert not (root / "Laguna-tiny").exists()
    assert len(list(staged.iterdir())) == 1
    notes: list[str] = []
    fetch(lock, root, hub=HubAddress(hub.url), progress=Recorder(notes), patience=quick())  # type: ignore[arg-type]
    assert any("interrupted fetch" in note for note in notes)
    assert list(staged.iterdir()) == []
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_an_interrupted_fetch_ends_soon_and_cleans_up(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "stall", at=3_000_000))
    staged = root / ".store" / ".staging"
    with subprocess.Popen(fetch_program(lock, root, hub), env=environment(), stderr=subprocess.PIPE) as process:
        until(lambda: any(path.stat().st_size >= 2_000_000 for path in staged.glob("*/parts/*.part")))
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=10)[1]
    assert nothing_is_left(root)


def test_one_failure_ends_the_other_files_at_once(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "stall", at=1000), Fault("GET .*config.json", "status", status=404))
    began_s = time.monotonic()
    with pytest.raises(MissingFile, match=r"config\.json"):
        get(lock, root, hub, quick(stall_s=30))
    assert time.monotonic() - began_s < 10


def test_concurrent_fetchers_in_processes_download_once(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    command = fetch_program(lock, root, hub)
    fetchers = [subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [fetcher.communicate(timeout=60)[0] for fetcher in fetchers]
    assert [fetcher.returncode for fetcher in fetchers] == [0, 0, 0]
    assert sorted("skipped=True" in text for text in said) == [False, True, True]
    assert asked_for(hub).count(SHARD) == 1
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_without_working_locks_concurrent_fetchers_still_publish_right(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    """Threads of one process share POSIX locks, so here every fetcher believes to be alone (as on a bad file system)."""
    results: list[FetchResult | BaseException] = []

    def one() -> None:
        try:
            results.append(get(lock, root, hub))
        except (SlipwayError, OSError) as error:
            results.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(isinstance(result, FetchResult) for result in results), results
    assert content(root / "Laguna-tiny") == content(served / REPO)
    assert verify(lock, root / "Laguna-tiny", level="stat").files == 8
    assert list((root / ".store" / ".staging").iterdir()) == []


def test_main_that_moves_during_a_fetch_changes_nothing(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path, tmp_path: Path
) -> None:
    write_sample(tmp_path / "next", shards=2, seed=5)
    hub.faults.add(Fault(".", "main-moves", folder=tmp_path / "next", after=2))
    get(lock, root, hub)
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_a_checkpoint_that_was_published_broken_is_not_published_again(served: Path, root: Path, hub: Hub) -> None:
    write_sample(served / "poolside" / "Laguna-broken")
    (served / "poolside" / "Laguna-broken" / "model-00002-of-00003.safetensors").unlink()
    broken = locks.resolve("poolside/Laguna-broken", "main", endpoint=hub.url, token=None)
    with pytest.raises(MissingFile, match=r"is absent, but model.safetensors.index.json.*the repository itself"):
        get(broken, root, hub)
    assert nothing_is_left(root)


@pytest.mark.parametrize("path", ["../../evil", "/tmp/evil", "a/../../evil"])
def test_a_lock_that_leads_out_of_its_folder_is_refused(lock: CheckpointLock, root: Path, hub: Hub, path: str) -> None:
    bad = lock.files[0].model_copy(update={"path": path})
    with pytest.raises(UsageError, match="evil"):
        get(lock.model_copy(update={"files": (bad,)}), root, hub)
    with pytest.raises(UsageError, match="owner/name"):
        get(lock.model_copy(update={"repo": "../../evil"}), root, hub)
    with pytest.raises(UsageError, match="40 hex"):
        get(lock.model_copy(update={"revision": "../evil"}), root, hub)
    assert not root.exists()


def test_the_fetcher_needs_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; import slipway.checkpoints.fetch\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    isolated = {**os.environ, "PYTHONPATH": str(Path(fetching.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=isolated, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['__main__', 'slipway']"


def test_every_failure_is_one_of_ours(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    for number, fault in enumerate(
        [Fault("GET", "close", at=0), Fault("GET", "status", status=400), Fault("GET", "status", status=500)]
    ):
        hub.faults.clear()
        hub.faults.add(fault)
        with pytest.raises(SlipwayError):
            get(lock, root / str(number), hub, quick(attempts=2))
