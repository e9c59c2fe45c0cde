"""What a fetch need not ask for: proved chunks of a killed one, good chunks of damaged files, other revisions, hand-copied files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.checkpoints import io_choice, part, publish, reuse, staging
from slipway.checkpoints import lock as locks
from slipway.checkpoints.fetch import FetchResult, fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.part import Io
from slipway.checkpoints.publish import MANIFEST, published
from slipway.checkpoints.transfer import Patience
from slipway.checkpoints.verify import verify
from slipway.errors import DiskFailure, IntegrityMismatch, NetworkFailure, UsageError
from slipway.reference.hub import Hub
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"
CHUNK = 1 << 18
"""A chunk for tests; the shard has 20 of them, the last one short."""

IO = Io(chunk_bytes=CHUNK)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    served = tmp_path_factory.mktemp("served")
    write_sample(served / REPO, rows=40_000)
    return served


def get(lock: CheckpointLock, root: Path, hub: Hub, **more: object) -> FetchResult:
    patience = Patience(attempts=2, stall_s=5, wait=lambda _: None)
    return fetch(lock, root, hub=HubAddress(hub.url), patience=patience, **{"io": IO, **more})  # type: ignore[arg-type]


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def ranges(hub: Hub) -> list[str]:
    """The ranges that were asked of the shard, in order; "" is all of it."""
    return [seen.range for seen in hub.requests if seen.path.endswith(SHARD)]


def size_of(lock: CheckpointLock) -> int:
    return next(file.size_bytes for file in lock.files if file.path == SHARD)


def damage(path: Path, *places: int) -> None:
    """One bit of each of these bytes is another."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as stream:
        for place in places:
            stream.seek(place)
            byte = stream.read(1)[0]
            stream.seek(place)
            stream.write(bytes([byte ^ 1]))
    path.chmod(mode)


def until(condition: object, limit_s: float = 20) -> None:
    ends_s, pause = time.monotonic() + limit_s, threading.Event()
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends_s, "did not happen in time"
        pause.wait(0.02)


def kill_one(lock: CheckpointLock, root: Path, hub: Hub, at: int) -> Path:
    """The part of the shard that a fetcher left when it was killed after `at` bytes."""
    hub.faults.add(Fault(f"GET .*{SHARD}", "stall", at=at, times=1))
    (root.parent / "lock.json").write_text(lock.model_dump_json())
    program = (
        "import json; from pathlib import Path; from types import SimpleNamespace\n"
        "from slipway.checkpoints.fetch import fetch; from slipway.checkpoints.hub import Hub\n"
        "from slipway.checkpoints.part import Io\n"
        f"text = Path({str(root.parent / 'lock.json')!r}).read_text()\n"
        "lock = json.loads(text, object_hook=lambda pairs: SimpleNamespace(**pairs))\n"
        f"fetch(lock, Path({str(root)!r}), hub=Hub({hub.url!r}), io=Io(chunk_bytes={CHUNK}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(part.__file__).parents[2])}
    left: list[Path] = []

    def journaled() -> bool:
        left[:] = [
            path for path in root.glob(".store/.staging/*/parts/*.part") if len(part.read_journal(path)) >= at // CHUNK
        ]
        return bool(left)

    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        until(journaled)
        process.send_signal(signal.SIGKILL)
    hub.requests.clear()
    return left[0]


def test_a_killed_fetch_is_continued_at_the_last_proved_chunk(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    kill_one(lock, root, hub, 3_000_000)
    get(lock, root, hub)
    assert ranges(hub) == [f"bytes={3_000_000 // CHUNK * CHUNK}-"]
    assert content(root / "Laguna-tiny") == content(served / REPO)
    assert list((root / ".store" / ".staging").iterdir()) == []


def test_what_a_power_loss_spoiled_of_a_part_comes_again_and_nothing_else(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    left = kill_one(lock, root, hub, 3_000_000)
    damage(left, 3 * CHUNK, 3 * CHUNK + 9, 7 * CHUNK - 1)
    with left.with_suffix(".journal").open("a") as journal:
        journal.write("4194304 sha256:12")  # a line cut by the loss
    get(lock, root, hub)
    bad = [f"bytes={3 * CHUNK}-{4 * CHUNK - 1}", f"bytes={6 * CHUNK}-{7 * CHUNK - 1}"]
    assert ranges(hub) == [*bad, f"bytes={11 * CHUNK}-"]
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_a_part_that_is_whole_is_not_asked_for(lock: CheckpointLock, root: Path, hub: Hub, served: Path) -> None:
    hub.faults.add(Fault("GET .*config.json", "status", status=404))
    with pytest.raises(Exception, match=r"config\.json"):
        get(lock, root, hub, workers=1)
    assert len(list(root.glob(".store/.staging/*/parts/*.part"))) == 1
    assert not (root / "Laguna-tiny").exists()
    hub.faults.clear()
    hub.requests.clear()
    get(lock, root, hub)
    assert ranges(hub) == []
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_a_fetch_that_lost_the_network_is_continued(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "close", at=2 * CHUNK + 5), Fault(f"GET .*{SHARD}", "status", after=1))
    with pytest.raises(NetworkFailure):
        get(lock, root, hub)
    hub.faults.clear()
    hub.requests.clear()
    get(lock, root, hub)
    assert ranges(hub) == [f"bytes={2 * CHUNK}-"]


def test_a_part_with_wrong_bytes_is_given_up_and_fetched_whole(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    """A spoiled byte came from the network, so the journal proves the wrong thing; the digest of the whole file does not."""
    hub.faults.add(Fault(f"GET .*{SHARD}", "flip", at=5000))
    kill_one(lock, root, hub, 3_000_000)
    hub.faults.clear()
    get(lock, root, hub)
    assert ranges(hub) == [f"bytes={11 * CHUNK}-", ""]
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_bytes_that_are_wrong_twice_leave_nothing_to_continue(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "flip", at=5))
    with pytest.raises(IntegrityMismatch, match="upstream serves other bytes"):
        get(lock, root, hub)
    assert list((root / ".store" / ".staging").iterdir()) == []


def test_parts_of_a_fetch_on_another_host_are_read_and_left_alone(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    left = kill_one(lock, root, hub, 3_000_000)
    owner = left.parent.parent / "owner.json"
    owner.write_text(json.dumps({**json.loads(owner.read_text()), "host": "another"}))
    inode = left.stat().st_ino
    result = get(lock, root, hub)
    assert ranges(hub) == [f"bytes={11 * CHUNK}-"]
    assert left.stat().st_ino == inode != (result.folder / SHARD).stat().st_ino
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_parts_that_nobody_wants_are_removed_after_a_week(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    left = kill_one(lock, root, hub, 3_000_000)
    small = lock.model_copy(update={"files": tuple(file for file in lock.files if file.path == "config.json")})
    get(small, root, hub)
    assert left.exists()
    for path in left.parent.parent.rglob("*"):
        os.utime(path, (time.time() - 8 * 86400,) * 2)
    os.utime(left.parent.parent, (time.time() - 8 * 86400,) * 2)
    staging.remove_litter(root, Notes())  # type: ignore[arg-type]
    assert not left.exists()


class Notes(list[str]):
    def note(self, text: str) -> None:
        self.append(text)


def test_only_the_wrong_chunks_of_a_published_shard_are_fetched(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    first = get(lock, root, hub).folder
    last = size_of(lock) - 1
    damage(first / SHARD, 0, 5 * CHUNK + 17, last)
    hub.requests.clear()
    again = get(lock, root, hub)
    tail = f"bytes={last // CHUNK * CHUNK}-"
    assert ranges(hub) == [f"bytes=0-{CHUNK - 1}", f"bytes={5 * CHUNK}-{6 * CHUNK - 1}", tail]
    assert content(again.folder) == content(served / REPO)
    assert publish.read_chunks(again.folder)[SHARD].keys() == {CHUNK * n for n in range(1, last // CHUNK + 1)}
    assert published(lock, root) == again.folder
    assert not first.exists()


def test_a_truncated_shard_keeps_what_it_has(lock: CheckpointLock, root: Path, hub: Hub, served: Path) -> None:
    first = get(lock, root, hub).folder
    (first / SHARD).chmod(0o600)
    os.truncate(first / SHARD, 10 * CHUNK + 100)
    hub.requests.clear()
    assert content(get(lock, root, hub).folder) == content(served / REPO)
    assert ranges(hub)[0] == f"bytes={10 * CHUNK}-{11 * CHUNK - 1}"
    assert ranges(hub)[-1].startswith(f"bytes={size_of(lock) // CHUNK * CHUNK}-")


def test_a_repair_from_a_server_without_ranges_fetches_the_file(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    damage(get(lock, root, hub).folder / SHARD, 5 * CHUNK)
    hub.faults.add(Fault(".", "ignore-range"))
    assert content(get(lock, root, hub).folder) == content(served / REPO)


def test_a_manifest_that_lies_about_chunks_costs_a_download_and_no_wrong_byte(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    first = get(lock, root, hub).folder
    damage(first / SHARD, 5)
    chunks = publish.read_chunks(first)
    chunks[SHARD] = {end: f"sha256:{end:064x}" for end in chunks[SHARD]}
    publish.write_manifest(lock, first, chunks)
    damage(first / SHARD, 6)
    assert content(get(lock, root, hub).folder) == content(served / REPO)


def second_revision(hub: Hub, served: Path, tmp_path: Path) -> CheckpointLock:
    shutil.copytree(served / REPO, tmp_path / "next")
    (tmp_path / "next" / "README.md").write_text("---\nlicense: mit\n---\n")
    hub.faults.add(Fault(".", "main-moves", folder=tmp_path / "next"))
    return locks.resolve(REPO, "main", endpoint=hub.url, token=None)


def test_a_revision_that_changed_one_file_costs_one_file(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path, tmp_path: Path
) -> None:
    first = get(lock, root, hub).folder
    later = second_revision(hub, served, tmp_path)
    hub.requests.clear()
    second = get(later, root, hub)
    assert (second.fetched_files, second.reused_files) == (1, 7)
    assert [seen.path.rpartition("/")[2] for seen in hub.requests] == ["README.md"]
    assert (second.folder / SHARD).stat().st_ino == (first / SHARD).stat().st_ino
    assert publish.read_chunks(second.folder) == publish.read_chunks(first)
    for locked, folder in ((lock, first), (later, second.folder)):
        assert publish.survey(locked, folder).intact
        assert verify(locked, folder, level="full").files == 8
    reuse.remove(root, first)
    assert publish.survey(later, second.folder).intact


def test_another_revisions_touched_file_is_not_taken(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path, tmp_path: Path
) -> None:
    first = get(lock, root, hub).folder
    damage(first / SHARD, 5)
    later = second_revision(hub, served, tmp_path)
    hub.requests.clear()
    assert content(get(later, root, hub).folder) == content(tmp_path / "next")
    assert ranges(hub) == [""]


def test_where_links_do_not_work_the_other_revision_is_copied(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(lock, root, hub)
    later = second_revision(hub, served, tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    hub.requests.clear()
    assert content(get(later, root, hub).folder) == content(tmp_path / "next")
    assert ranges(hub) == []


def test_equal_files_of_a_lock_come_once(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    shard = next(file for file in lock.files if file.path.endswith("00003.safetensors"))
    twins = lock.model_copy(update={"files": (shard, shard.model_copy(update={"path": "b/copy.safetensors"}))})
    folder = get(twins, root, hub).folder
    assert (folder / "b" / "copy.safetensors").read_bytes() == (folder / shard.path).read_bytes()
    assert len(hub.requests) == 1


def test_a_hand_copied_folder_is_adopted_when_asked(lock: CheckpointLock, root: Path, hub: Hub, served: Path) -> None:
    shutil.copytree(served / REPO, root / "Laguna-tiny")
    inode = (root / "Laguna-tiny" / SHARD).stat().st_ino
    with pytest.raises(UsageError, match="--adopt"):
        get(lock, root, hub)
    hub.requests.clear()
    result = get(lock, root, hub, adopt=True)
    assert (hub.requests, result.reused_files) == ([], 8)
    assert (root / "Laguna-tiny").is_symlink()
    assert (result.folder / SHARD).stat().st_ino == inode
    assert (result.folder / SHARD).stat().st_nlink == 1
    assert published(lock, root) == result.folder
    assert [path.name for path in root.iterdir() if not path.name.startswith(".")] == ["Laguna-tiny"]


def test_what_is_wrong_in_an_adopted_folder_is_fetched_and_what_is_not_ours_stays(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    shutil.copytree(served / REPO, root / "Laguna-tiny")
    damage(root / "Laguna-tiny" / SHARD, 77)
    (root / "Laguna-tiny" / "notes.txt").write_text("mine")
    hub.faults.add(Fault(f"GET .*{SHARD}", "status", status=404))
    with pytest.raises(Exception, match=SHARD):
        get(lock, root, hub, adopt=True)
    assert (root / "Laguna-tiny" / "notes.txt").read_text() == "mine"
    hub.faults.clear()
    result = get(lock, root, hub, adopt=True)
    assert (result.fetched_files, result.reused_files) == (1, 7)
    assert content(root / "Laguna-tiny") == content(served / REPO)
    (aside,) = root.glob("Laguna-tiny.replaced-*")
    assert sorted(path.name for path in aside.iterdir()) == [SHARD, "notes.txt"]
    assert get(lock, root, hub).skipped


class Mirror(SimpleHTTPRequestHandler):
    """A static server without ranges; remembers what it was asked, and whether a token came with it."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, "Authorization" in self.headers))  # type: ignore[attr-defined]
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    (tmp_path / "mirror").mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: Mirror(*args, directory=str(tmp_path / "mirror")))
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(server: ThreadingHTTPServer) -> str:
    return f"http://localhost:{server.server_address[1]}"


def test_another_nodes_store_is_a_source_and_never_sees_the_token(
    lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path, mirror: ThreadingHTTPServer, served: Path
) -> None:
    get(lock, tmp_path / "first", hub)
    (tmp_path / "mirror").rmdir()
    (tmp_path / "mirror").symlink_to(tmp_path / "first" / ".store")
    hub.requests.clear()
    address_of_hub = HubAddress(hub.url, token="hf_secret", offline=True)
    result = fetch(lock, root, hub=address_of_hub, sources=[address(mirror)])
    assert (result.fetched_files, hub.requests) == (8, [])
    assert content(root / "Laguna-tiny") == content(served / REPO)
    assert {token for _, token in mirror.asked} == {False}  # type: ignore[attr-defined]


def test_blobs_are_asked_for_by_digest_and_a_source_that_lacks_one_is_left_for_the_next(
    lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path, mirror: ThreadingHTTPServer, served: Path
) -> None:
    blobs = tmp_path / "mirror" / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    shards = [file for file in lock.files if file.sha256]
    for file in shards[1:]:
        shutil.copy(served / REPO / file.path, blobs / str(file.sha256))
    damage(blobs / str(shards[1].sha256), 100)
    get(lock, root, hub, sources=[f"{address(mirror)}/blobs/sha256", "hub"])
    assert content(root / "Laguna-tiny") == content(served / REPO)
    asked = {path for path, _ in mirror.asked}  # type: ignore[attr-defined]
    assert asked == {f"/blobs/sha256/{f.sha256}" if f.sha256 else f"/blobs/git-sha1/{f.git_sha1}" for f in lock.files}
    from_hub = {seen.path.rpartition("/")[2] for seen in hub.requests}
    assert {shards[0].path, shards[1].path} < from_hub
    assert shards[2].path not in from_hub


@pytest.mark.parametrize(
    "text", ["ftp://host/x", "http://", "nowhere", "http://me:pw@host/", "http://host/?a=1", "http://h:x/"]
)
def test_a_source_that_is_no_address_is_refused(lock: CheckpointLock, root: Path, hub: Hub, text: str) -> None:
    with pytest.raises(UsageError, match="--source"):
        get(lock, root, hub, sources=[text])
    assert not root.exists()


@pytest.mark.parametrize("io", [Io(direct=True, keep_cached=False, chunk_bytes=CHUNK), "direct", "buffered", "auto"])
def test_files_are_equal_however_they_are_written(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path, io: object
) -> None:
    hub.faults.add(Fault(f"GET .*{SHARD}", "close", at=1_234_567, times=1))
    get(lock, root, hub, io=io)
    assert content(root / "Laguna-tiny") == content(served / REPO)


@pytest.mark.parametrize("when", ["open", "pwrite"])
def test_where_direct_writes_do_not_work_buffered_ones_do(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    real, refused = getattr(os, when), []

    def refuse(*args: object, **more: object) -> object:
        import fcntl  # noqa: PLC0415

        flags = args[1] if when == "open" else fcntl.fcntl(args[0], fcntl.F_GETFL)  # type: ignore[call-overload]
        if flags & os.O_DIRECT:  # type: ignore[operator]
            refused.append(args)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(*args, **more)

    monkeypatch.setattr(os, when, refuse)
    get(lock, root, hub, io=Io(direct=True, keep_cached=False, chunk_bytes=CHUNK))
    assert refused
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_memory_decides_whether_the_page_cache_is_kept_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert io_choice.choose("auto", 0) == Io(direct=False, keep_cached=True)
    assert io_choice.choose("", 1 << 60) == Io(direct=True, keep_cached=False)
    assert io_choice.choose("buffered", 1 << 60).keep_cached
    monkeypatch.setenv(io_choice.VARIABLE, "direct")
    assert io_choice.choose("", 0).direct
    with pytest.raises(UsageError, match="auto, buffered, direct"):
        io_choice.choose("fast", 0)


@given(text=st.binary(max_size=200))
def test_any_journal_is_read_without_complaint(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = tmp_path_factory.mktemp("journal") / "a.part"
    path.with_suffix(".journal").write_bytes(text + b"\n7 sha256:" + b"a" * 64 + b"\n8 sha256:short")
    assert part.read_journal(path)[7] == "sha256:" + "a" * 64


@pytest.mark.parametrize("problem", [None, errno.EOPNOTSUPP, errno.ENOSPC])
def test_space_is_taken_before_the_first_byte_where_the_file_system_can(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path, monkeypatch: pytest.MonkeyPatch, problem: int | None
) -> None:
    taken: list[int] = []
    take = os.posix_fallocate

    def fallocate(descriptor: int, start: int, length: int) -> None:
        taken.append(length)
        if problem:
            raise OSError(problem, os.strerror(problem))
        take(descriptor, start, length)

    monkeypatch.setattr(part, "_PREALLOCATE_FROM_BYTES", 1 << 20)
    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    if problem == errno.ENOSPC:
        with pytest.raises(DiskFailure, match="taking space for the file: no space left"):
            get(lock, root, hub)
        assert ranges(hub) == []
        return
    get(lock, root, hub)
    assert taken == [size_of(lock)]
    assert content(root / "Laguna-tiny") == content(served / REPO)


def test_a_journal_says_nothing_before_its_bytes_are_on_disk(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, write = os.fdatasync, os.write

    def fdatasync(descriptor: int) -> None:
        done.append("sync")
        sync(descriptor)

    def note(descriptor: int, data: bytes) -> int:
        if b" sha256:" in data:
            done.append("journal")
        return write(descriptor, data)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    monkeypatch.setattr(os, "write", note)
    get(lock, root, hub)
    chunks = size_of(lock) // CHUNK
    assert done == ["sync", "journal", "sync"] * chunks + [
        "journal",
        "sync",
    ]  # the last one follows the fsync of the whole file
