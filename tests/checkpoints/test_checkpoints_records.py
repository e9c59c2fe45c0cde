"""What is remembered about a published folder: when it was proved, and the digests that let a sample be checked."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.checkpoints import lock as locks
from slipway.checkpoints import records
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.pins import ChunkDigests
from slipway.checkpoints.verify import verify
from slipway.errors import DiskFailure, IntegrityMismatch, MissingFile
from slipway.progress import silent
from slipway.reference.hub import serve
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
CHUNK = 1000
SHARD = "model-00001-of-00003.safetensors"


@pytest.fixture
def made(tmp_path: Path) -> tuple[CheckpointLock, Path]:
    write_sample(tmp_path / "served" / REPO)
    with serve(tmp_path / "served") as hub:
        lock = locks.resolve(REPO, "main", endpoint=hub.url, token=None)
        fetch(lock, tmp_path / "models", hub=HubAddress(hub.url))
    return lock, tmp_path / "models" / "Laguna-tiny"


@pytest.fixture
def lock(made: tuple[CheckpointLock, Path]) -> CheckpointLock:
    return made[0]


@pytest.fixture
def folder(made: tuple[CheckpointLock, Path]) -> Path:
    return made[1]


def damage(path: Path, place: int) -> None:
    """Flip a bit so that stat sees nothing: size and mtime stay, and the manifest is told the new ctime, as bit rot would be."""
    real = path.resolve()
    before = real.stat()
    real.chmod(0o644)
    data = bytearray(real.read_bytes())
    data[place] ^= 1
    with real.open("r+b") as stream:
        stream.write(data)
    real.chmod(0o444)
    os.utime(real, ns=(before.st_atime_ns, before.st_mtime_ns))
    manifest = real.parent / ".slipway-manifest.json"
    known = json.loads(manifest.read_bytes())
    known["files"][path.name]["ctime_ns"] = real.stat().st_ctime_ns
    real.parent.chmod(0o755)
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(known))
    real.parent.chmod(0o555)


@given(data=st.binary(max_size=300), size=st.integers(1, 50), cuts=st.lists(st.integers(1, 60), max_size=20))
def test_chunk_digests_do_not_depend_on_how_the_bytes_come(data: bytes, size: int, cuts: list[int]) -> None:
    whole, pieces = ChunkDigests(size), ChunkDigests(size)
    whole.update(memoryview(data))
    rest = memoryview(data)
    for cut in [*cuts, len(data) + 1]:
        pieces.update(rest[:cut])
        rest = rest[cut:]
    assert whole.digests == pieces.digests
    assert len(whole.digests) == max(-(-len(data) // size), 1)


def test_what_was_proved_when_is_remembered_per_level(lock: CheckpointLock, folder: Path) -> None:
    assert records.read_proved(folder) == {}
    verify(lock, folder, level="stat")
    verify(lock, folder, level="full")
    proved = records.read_proved(folder)
    assert set(proved) == {"stat", "full"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", when) for when in proved.values())
    assert locks.text(lock)  # the folder itself holds nothing new
    verify(lock, folder, level="stat")


def test_a_failed_check_is_not_remembered(lock: CheckpointLock, folder: Path) -> None:
    damage(folder / SHARD, -1)
    with pytest.raises(IntegrityMismatch):
        verify(lock, folder, level="full")
    assert records.read_proved(folder) == {}


def test_a_sample_needs_recorded_digests_of_large_files(lock: CheckpointLock, folder: Path) -> None:
    with pytest.raises(MissingFile, match="--level full once"):
        verify(lock, folder, level="sample", chunk_bytes=CHUNK)
    verify(lock, folder, level="full", chunk_bytes=CHUNK)
    assert verify(lock, folder, level="sample", chunk_bytes=CHUNK, sampled_chunks=3).bytes <= 3 * CHUNK
    assert verify(lock, folder, level="sample", chunk_bytes=CHUNK, sampled_chunks=999).bytes == lock.summary.total_bytes


@pytest.mark.parametrize("place", [-1, 4500])
def test_a_flipped_bit_in_a_sampled_chunk_is_found_and_placed(lock: CheckpointLock, folder: Path, place: int) -> None:
    verify(lock, folder, level="full", chunk_bytes=CHUNK)
    damage(folder / SHARD, place)
    assert verify(lock, folder, level="structure").files == 8
    start = ((folder / SHARD).stat().st_size - 1 if place < 0 else place) // CHUNK * CHUNK
    with pytest.raises(IntegrityMismatch, match=f"{SHARD}: bytes {start} to "):
        verify(lock, folder, level="sample", chunk_bytes=CHUNK, sampled_chunks=999)


def test_a_wrong_record_of_a_right_file_is_made_anew(lock: CheckpointLock, folder: Path) -> None:
    verify(lock, folder, level="full", chunk_bytes=CHUNK)
    right = records.read_chunks(lock, folder, CHUNK)
    records.write_chunks(lock, folder, {SHARD: ["0" * 64, *right[SHARD][1:]]}, CHUNK)
    with pytest.raises(IntegrityMismatch, match=f"{SHARD}: bytes 0 to "):
        verify(lock, folder, level="sample", chunk_bytes=CHUNK, sampled_chunks=999)
    fetch(lock, folder.parent, hub=HubAddress("http://127.0.0.1:9"))  # hashes what is in doubt, and asks nobody
    verify(lock, folder, level="full", chunk_bytes=CHUNK)
    assert records.read_chunks(lock, folder, CHUNK) == right
    assert verify(lock, folder, level="sample", chunk_bytes=CHUNK, sampled_chunks=999).files == 8


def test_a_flipped_bit_in_a_file_of_one_chunk_is_found_without_a_record(lock: CheckpointLock, folder: Path) -> None:
    damage(folder / SHARD, -1)
    with pytest.raises(IntegrityMismatch, match=SHARD):
        verify(lock, folder, level="sample")


def test_chunks_recorded_for_other_bytes_are_not_used(lock: CheckpointLock, folder: Path) -> None:
    verify(lock, folder, level="full", chunk_bytes=CHUNK)
    assert SHARD in records.read_chunks(lock, folder, CHUNK)
    files = tuple(file.model_copy(update={"sha256": "0" * 64}) if file.path == SHARD else file for file in lock.files)
    assert SHARD not in records.read_chunks(lock.model_copy(update={"files": files}), folder, CHUNK)
    assert records.read_chunks(lock, folder, CHUNK + 1) == {}


def test_a_folder_that_slipway_did_not_publish_keeps_no_record(lock: CheckpointLock, tmp_path: Path) -> None:
    plain = tmp_path / "served" / REPO
    assert verify(lock, plain, level="full").files == 8
    assert records.place_of(plain, "proved") is None
    assert records.read_proved(plain) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "other"}', '{"schema": "slipway/checkpoint-proved/v1"}'])
def test_a_damaged_record_claims_nothing(lock: CheckpointLock, folder: Path, text: str) -> None:
    verify(lock, folder, level="stat")
    place = records.place_of(folder, "proved")
    assert place is not None
    place.write_text(text)
    assert records.read_proved(folder) == {}


def test_a_record_that_cannot_be_written_is_said_and_the_proof_stands(
    lock: CheckpointLock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    class Noting:
        def note(self, text: str) -> None:
            said.append(text)

        track = staticmethod(silent.track)

    def full(*_: object) -> None:
        raise DiskFailure("x", "no space left on device")

    monkeypatch.setattr(records, "write_durably", full)
    assert verify(lock, folder, level="stat", progress=Noting()).files == 8
    assert "is not recorded" in said[-1]


def test_a_chunk_that_cannot_be_read_is_a_disk_failure(
    lock: CheckpointLock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(lock, folder, level="full", chunk_bytes=CHUNK)

    def refuse(*_: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(DiskFailure, match="Input/output error"):
        verify(lock, folder, level="sample", chunk_bytes=CHUNK, sampled_chunks=999)
