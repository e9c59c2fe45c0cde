"""Verification: offline, by level, and every bad file named with what was expected and what is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.checkpoints import lock as locks
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.verify import LEVELS, verify
from slipway.errors import DiskFailure, IntegrityMismatch, MissingFile, UsageError
from slipway.reference.hub import serve
from slipway.reference.hub_sample import write_sample, write_shard

REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"
OTHER = "model-00002-of-00003.safetensors"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointLock, Path]:
    base = tmp_path_factory.mktemp("verify")
    write_sample(base / "served" / REPO)
    with serve(base / "served") as hub:
        lock = locks.resolve(REPO, "main", endpoint=hub.url, token=None)
        fetch(lock, base / "models", hub=HubAddress(hub.url))
    return lock, base


@pytest.fixture
def lock(made: tuple[CheckpointLock, Path]) -> CheckpointLock:
    return made[0]


@pytest.fixture
def fetched(made: tuple[CheckpointLock, Path]) -> Path:
    """The published folder, shared: no test changes it."""
    return made[1] / "models" / "Laguna-tiny"


@pytest.fixture
def folder(made: tuple[CheckpointLock, Path], tmp_path: Path) -> Path:
    """A folder that a person has copied: no manifest, writable."""
    shutil.copytree(made[1] / "served" / REPO, tmp_path / "copy")
    return tmp_path / "copy"


def flip(path: Path, place: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("level", LEVELS)
def test_a_right_folder_passes_every_level(lock: CheckpointLock, folder: Path, fetched: Path, level: str) -> None:
    for place in (folder, fetched):
        found = verify(lock, place, level=level)
        assert (found.level, found.files, found.bytes) == (level, 8, lock.summary.total_bytes)
        assert found.seconds >= 0


def test_one_flipped_bit_of_the_right_size_is_found_by_level_full(lock: CheckpointLock, folder: Path) -> None:
    flip(folder / SHARD)
    assert verify(lock, folder, level="structure").files == 8
    with pytest.raises(IntegrityMismatch) as refused:
        verify(lock, folder, level="full")
    expected = next(file.sha256 for file in lock.files if file.path == SHARD)
    assert f"{SHARD}: expected sha256:{expected}, got sha256:" in str(refused.value)


def test_a_flipped_bit_in_code_that_would_be_run_is_found(lock: CheckpointLock, folder: Path) -> None:
    flip(folder / "code" / "modeling_laguna.py")
    with pytest.raises(IntegrityMismatch, match=r"modeling_laguna.py: expected git-sha1:"):
        verify(lock, folder)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (lambda folder: (folder / SHARD).unlink(), MissingFile, f"{SHARD}: is missing"),
        (lambda folder: os.truncate(folder / SHARD, 1000), IntegrityMismatch, "bytes, got 1000"),
        (lambda folder: (folder / SHARD).write_bytes(b""), IntegrityMismatch, "got 0"),
        (lambda folder: (folder / "model-00004-of-00004.safetensors").touch(), IntegrityMismatch, "not in the lock"),
        (lambda folder: (folder / "code" / "evil.py").touch(), IntegrityMismatch, "code/evil.py: is not in the lock"),
        (lambda folder: shutil.rmtree(folder / "code"), MissingFile, "modeling_laguna.py: is missing"),
    ],
)
def test_what_stat_can_see_fails_at_every_level(
    lock: CheckpointLock, folder: Path, level: str, spoil: Callable[[Path], None], error: type, said: str
) -> None:
    spoil(folder)
    with pytest.raises(error) as refused:
        verify(lock, folder, level=level)
    assert said in str(refused.value)


def test_every_bad_file_is_named_at_once(lock: CheckpointLock, folder: Path) -> None:
    flip(folder / SHARD)
    flip(folder / OTHER)
    (folder / "tokenizer.json").unlink()
    (folder / "stranger").touch()
    with pytest.raises(IntegrityMismatch) as refused:
        verify(lock, folder)
    text = str(refused.value)
    assert "4 files are wrong" in text
    assert all(name in text for name in (SHARD, OTHER, "tokenizer.json: is missing", "stranger"))


def test_a_header_that_lies_is_found_by_level_structure(lock: CheckpointLock, folder: Path) -> None:
    size = (folder / SHARD).stat().st_size
    (folder / SHARD).write_bytes(bytes(8) + (folder / SHARD).read_bytes()[8:])
    assert (folder / SHARD).stat().st_size == size
    assert verify(lock, folder, level="stat").files == 8
    with pytest.raises(IntegrityMismatch, match="starts with zero bytes"):
        verify(lock, folder, level="structure")


def test_a_sparse_tail_is_found_by_level_structure(lock: CheckpointLock, tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", {"a": (1024, 1024)})
    size = (tmp_path / "model.safetensors").stat().st_size
    file = lock.files[0].model_copy(
        update={"path": "model.safetensors", "size_bytes": size, "git_sha1": None, "sha256": "0" * 64}
    )
    os.truncate(tmp_path / "model.safetensors", 100_000)
    os.truncate(tmp_path / "model.safetensors", size)
    with pytest.raises(IntegrityMismatch, match="holes on disk"):
        verify(lock.model_copy(update={"files": (file,)}), tmp_path, level="structure")


@pytest.mark.parametrize("level", ["stat", "structure"])
def test_a_file_touched_after_publication_is_told_from_the_manifest(
    lock: CheckpointLock, fetched: Path, tmp_path: Path, level: str
) -> None:
    shutil.copytree(fetched, tmp_path / "moved")  # other inodes, same mtimes: as rsync -a leaves them
    with pytest.raises(IntegrityMismatch, match="touched after it was verified"):
        verify(lock, tmp_path / "moved", level=level)
    assert verify(lock, tmp_path / "moved", level="full").files == 8


def test_a_folder_that_the_hub_library_made_is_verified_as_it_is(lock: CheckpointLock, folder: Path) -> None:
    (folder / ".cache" / "huggingface").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "x.metadata").touch()
    (folder / SHARD).rename(folder.parent / "blob")
    (folder / SHARD).symlink_to("../blob")
    assert verify(lock, folder).files == 8
    (folder.parent / "blob").unlink()
    with pytest.raises(MissingFile, match=SHARD):
        verify(lock, folder)


def test_a_pipe_in_a_files_place_does_not_block(lock: CheckpointLock, folder: Path) -> None:
    (folder / SHARD).unlink()
    os.mkfifo(folder / SHARD)
    with pytest.raises(IntegrityMismatch, match="not a regular file"):
        verify(lock, folder)


def test_a_file_that_cannot_be_read_is_a_disk_failure(
    lock: CheckpointLock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: str | Path, *arguments: int) -> int:
        if Path(path).name == SHARD:
            raise OSError(5, "Input/output error")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DiskFailure, match=f"{SHARD}: cannot be read: Input/output error"):
        verify(lock, folder)


def test_a_file_that_cannot_be_looked_at_is_a_disk_failure(lock: CheckpointLock, folder: Path) -> None:
    (folder / SHARD).unlink()
    (folder / SHARD).symlink_to(SHARD)
    with pytest.raises(DiskFailure, match="cannot be looked at"):
        verify(lock, folder, level="stat")


def test_a_lock_without_shards_is_verified_by_digest_alone(lock: CheckpointLock, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "config").mkdir()
    shutil.copy(folder / "config.json", tmp_path / "config")
    only = lock.model_copy(update={"files": tuple(file for file in lock.files if file.path == "config.json")})
    assert verify(only, tmp_path / "config").files == 1


def test_an_unknown_level_and_a_folder_that_is_not_there_are_refused(lock: CheckpointLock, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stat, structure, sample, full"):
        verify(lock, tmp_path, level="deep")
    with pytest.raises(MissingFile, match="fetch-models"):
        verify(lock, tmp_path / "none")


def test_a_folder_of_something_else_is_not_scolded_file_by_file(lock: CheckpointLock, tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"letter{number}.txt").write_text("dear")
    with pytest.raises(MissingFile) as refused:
        verify(lock, tmp_path)
    assert "holds none of them" in str(refused.value)
    assert "--dir" in str(refused.value)
    assert "letter" not in str(refused.value)


def test_many_strangers_are_counted(lock: CheckpointLock, folder: Path) -> None:
    for number in range(100):
        (folder / f"letter{number:03}.txt").write_text("dear")
    with pytest.raises(IntegrityMismatch) as refused:
        verify(lock, folder)
    assert str(refused.value).count("is not in the lock") == 20
    assert "holds 80 more files that are not in the lock" in str(refused.value)
