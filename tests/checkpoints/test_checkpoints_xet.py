"""The hub's chunk store: used where it can be, never trusted, and never missed. Everything here runs the real hf-xet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from slipway.checkpoints import bundle, xet
from slipway.checkpoints.fetch import FetchResult, fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.part import Io
from slipway.checkpoints.publish import MANIFEST
from slipway.checkpoints.transfer import Patience
from slipway.checkpoints.transport import Failed
from slipway.checkpoints.verify import verify
from slipway.errors import IntegrityMismatch
from slipway.reference.hub import Hub, Options, serve
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"
CHUNK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    served = tmp_path_factory.mktemp("served")
    write_sample(served / REPO, rows=20_000)
    return served


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def running(served: Path, store: Path) -> Iterator[Hub]:
    with serve(served, options=Options(xet=store)) as running:
        yield running


class Notes(list[str]):
    """Keeps what is said, and what the bar was told."""

    told = 0

    def note(self, text: str) -> None:
        self.append(text)

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Callable[[int], None]]:
        def advance(amount: int) -> None:
            self.told += amount

        yield advance


def get(
    lock: CheckpointLock, root: Path, hub: Hub, notes: Notes, stall_s: float = 20, sources: tuple[str, ...] = ()
) -> FetchResult:
    """A fetch as the command does it: with the carrier that the environment allows."""
    address = HubAddress(hub.url)
    return fetch(
        lock,
        root,
        hub=address,
        carrier=xet.carrier(lock, address),
        sources=sources,
        io=Io(chunk_bytes=CHUNK_BYTES),
        patience=Patience(attempts=2, stall_s=stall_s, wait=lambda _: None),
        progress=notes,
    )


def by_http(hub: Hub) -> set[str]:
    """The shards that were asked for over HTTP."""
    return {Path(seen.path).name for seen in hub.requests if seen.path.endswith(".safetensors")}


def equal(folder: Path, served: Path) -> bool:
    mine = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST}
    return mine == {path.name: path.read_bytes() for path in (served / REPO).rglob("*") if path.is_file()}


@contextmanager
def spoilt(store: Path) -> Iterator[None]:
    """One byte in the middle of each container of chunks is another one."""
    containers = [path for path in (store / "xet" / "xorbs" / "xorbs").iterdir() if path.suffix != ".tagset"]
    kept = {path: path.read_bytes() for path in containers if path.is_file() and path.stat().st_size > 10_000}
    assert kept
    for path, data in kept.items():
        middle = len(data) // 2
        path.chmod(0o644)
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    try:
        yield
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_the_lock_names_each_shard_as_the_chunk_store_does(lock: CheckpointLock) -> None:
    named = {file.path for file in lock.files if file.xet_hash}
    assert named == {file.path for file in lock.files if file.sha256}
    assert len({file.xet_hash for file in lock.files if file.xet_hash}) == 3


def test_shards_come_from_the_chunk_store_and_the_rest_by_http(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, served: Path
) -> None:
    notes = Notes()
    result = get(lock, tmp_path, hub, notes)
    assert (result.carried_files, by_http(hub)) == (3, set())
    assert sum("xet-read-token" in seen.path for seen in hub.requests) == 1
    assert equal(result.folder, served)
    assert notes.told == lock.summary.total_bytes
    assert [note for note in notes if f"fetched {SHARD} by xet" in note]
    verify(lock, tmp_path / "Laguna-tiny")


def test_a_chunk_of_what_came_by_xet_is_mended_alone(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, served: Path
) -> None:
    shard = get(lock, tmp_path, hub, Notes()).folder / SHARD
    data = bytearray(shard.read_bytes())
    data[CHUNK_BYTES + 5] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    hub.requests.clear()
    result = get(lock, tmp_path, hub, Notes())
    assert [seen.range for seen in hub.requests] == [f"bytes={CHUNK_BYTES}-{2 * CHUNK_BYTES - 1}"]
    assert (result.carried_files, equal(result.folder, served)) == (0, True)


def test_the_hubs_own_library_gets_the_same_bytes_from_the_same_store(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, served: Path
) -> None:
    assert not constants.HF_HUB_DISABLE_XET
    folder = snapshot_download(
        REPO, revision=lock.revision, endpoint=hub.url, token=False, local_dir=tmp_path / "theirs"
    )
    assert (Path(folder) / SHARD).read_bytes() == (served / REPO / SHARD).read_bytes()
    assert any("xet-read-token" in seen.path for seen in hub.requests)


@pytest.mark.parametrize("way", ["switched off", "not installed", "another source", "offline"])
def test_without_xet_everything_comes_by_http(
    way: str, lock: CheckpointLock, tmp_path: Path, hub: Hub, served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "switched off":
        monkeypatch.setenv(xet.VARIABLE, "1")
    if way == "not installed":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    if way == "offline":
        assert xet.carrier(lock, HubAddress(hub.url, offline=True)) is None
        return
    sources = (hub.url, "hub") if way == "another source" else ()
    notes = Notes()
    result = get(lock, tmp_path, hub, notes, sources=sources)
    assert (result.carried_files, len(by_http(hub))) == (0, 3)
    assert not [note for note in notes if "xet" in note]
    assert equal(result.folder, served)


def test_a_lock_without_xet_hashes_asks_for_no_token(lock: CheckpointLock, hub: Hub) -> None:
    files = tuple(file.model_copy(update={"xet_hash": None}) for file in lock.files)
    assert xet.carrier(lock.model_copy(update={"files": files}), HubAddress(hub.url)) is None


@pytest.mark.parametrize("status", [404, 500])
def test_a_store_that_cannot_be_asked_is_asked_once_and_http_takes_over(
    status: int, lock: CheckpointLock, tmp_path: Path, hub: Hub, served: Path
) -> None:
    hub.faults.add(Fault("xet-read-token", "status", status=status))
    notes = Notes()
    result = get(lock, tmp_path, hub, notes)
    assert (result.carried_files, len(by_http(hub))) == (0, 3)
    assert [note for note in notes if "no token for the chunk store" in note and note.endswith("fetching it by HTTP")]
    assert sum("xet-read-token" in seen.path for seen in hub.requests) == 1
    assert equal(result.folder, served)
    assert notes.told == lock.summary.total_bytes


def test_wrong_bytes_from_the_store_are_refused_and_come_by_http(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, served: Path, store: Path
) -> None:
    notes = Notes()
    with spoilt(store):
        result = get(lock, tmp_path, hub, notes)
    assert 0 < len(by_http(hub)) == 3 - result.carried_files
    assert [note for note in notes if "fetching it by HTTP" in note]
    assert equal(result.folder, served)
    assert notes.told == lock.summary.total_bytes
    verify(lock, tmp_path / "Laguna-tiny")


def test_wrong_bytes_from_both_are_never_published(lock: CheckpointLock, tmp_path: Path, hub: Hub, store: Path) -> None:
    hub.faults.add(Fault(r"GET .*\.safetensors", "flip", at=1000))
    with spoilt(store), pytest.raises(IntegrityMismatch, match="upstream serves other bytes than the lock names"):
        get(lock, tmp_path, hub, Notes())
    assert not (tmp_path / "Laguna-tiny").exists()


def test_a_name_that_the_store_does_not_have_is_fetched_by_http(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, served: Path
) -> None:
    files = tuple(
        file.model_copy(update={"xet_hash": "0" * 64 if file.path == SHARD else file.xet_hash}) for file in lock.files
    )
    notes = Notes()
    result = get(lock.model_copy(update={"files": files}), tmp_path, hub, notes)
    assert (result.carried_files, by_http(hub)) == (2, {SHARD})
    assert [note for note in notes if note.startswith(f"{SHARD}: not by xet (hf-xet: ")]
    assert equal(result.folder, served)


def test_a_store_that_says_nothing_is_given_up(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, served: Path, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    # Nothing listens there: hf-xet itself would try again for minutes.
    answer = {
        "X-Xet-Cas-Url": f"http://127.0.0.1:{unused_port}",
        "X-Xet-Access-Token": "t",
        "X-Xet-Token-Expiration": "9999999999",
    }
    monkeypatch.setattr("slipway.reference.hub_xet.ChunkStore.headers", lambda _: answer)
    notes = Notes()
    result = get(lock, tmp_path, hub, notes, stall_s=1)
    assert (result.carried_files, len(by_http(hub))) == (0, 3)
    assert equal(result.folder, served)


def test_a_fetch_that_is_ended_does_not_wait_for_the_store(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    answer = {
        "X-Xet-Cas-Url": f"http://127.0.0.1:{unused_port}",
        "X-Xet-Access-Token": "t",
        "X-Xet-Token-Expiration": "9999999999",
    }
    monkeypatch.setattr("slipway.reference.hub_xet.ChunkStore.headers", lambda _: answer)
    carrier = xet.carrier(lock, HubAddress(hub.url))
    assert carrier is not None
    file = next(file for file in lock.files if file.path == SHARD)
    ends = threading.Timer(0.3, carrier.cancel)
    ends.start()
    with pytest.raises(Failed, match="hf-xet: "):
        carrier.bring(file, tmp_path / "shard", lambda _: None, 60)
    ends.join()


@pytest.mark.parametrize(
    ("endpoint", "store", "taken"),
    [
        ("https://huggingface.co", "https://cas-server.xethub.hf.co", True),
        ("https://huggingface.co", "http://cas-server.xethub.hf.co", False),
        ("https://huggingface.co", "local:///etc", False),
        ("http://mirror.example", "http://mirror.example:9", True),
        ("http://mirror.example", "local:///etc", False),
        ("http://127.0.0.1:1", "local:///tmp/store", True),
        ("https://huggingface.co", "", False),
        ("https://huggingface.co", "https://", False),
    ],
)
def test_a_hub_elsewhere_cannot_name_a_folder_of_this_machine_nor_drop_tls(
    endpoint: str, store: str, taken: bool
) -> None:
    assert (xet.store_problem(store, HubAddress(endpoint)) == "") is taken


def test_the_bundle_for_hosts_has_no_xet() -> None:
    assert not [name for name in bundle.MODULES if "xet" in name]
