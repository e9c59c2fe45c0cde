"""What was right once and may not be now: files kept by a fetch, proofs that failed, manifests and links that others touched."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipway.checkpoints import lock as locks
from slipway.checkpoints import publish, records, reuse, staging
from slipway.checkpoints.early import Shards
from slipway.checkpoints.fetch import FetchResult, fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.pins import MANIFEST
from slipway.checkpoints.transfer import Patience
from slipway.checkpoints.verify import verify
from slipway.errors import DiskFailure, IntegrityMismatch, SlipwayError
from slipway.progress import silent
from slipway.reference.hub import Hub
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"


class Noting:
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)

    track = staticmethod(silent.track)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    served = tmp_path_factory.mktemp("served")
    write_sample(served / REPO)
    shutil.copytree(served / REPO, served / "later")
    (served / "later" / "README.md").write_text("another text, the same weights\n")
    return served


@pytest.fixture
def later(hub: Hub, served: Path) -> CheckpointLock:
    """A later revision, which shares all weights; the hub then serves it."""
    hub.faults.add(Fault("", "main-moves", folder=served / "later"))
    found = locks.resolve(REPO, "main", endpoint=hub.url, token=None)
    hub.requests.clear()
    return found


def get(lock: CheckpointLock, root: Path, hub: Hub, **more: Any) -> FetchResult:
    return fetch(lock, root, hub=HubAddress(hub.url), **more)


def asked_for(hub: Hub) -> list[str]:
    return sorted(seen.path.rpartition("/")[2] for seen in hub.requests if "/resolve/" in seen.path)


def spoil(path: Path) -> None:
    """Flip the last bit, as anyone who may write can."""
    path.parent.chmod(0o755)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("r+b") as stream:
        stream.write(data)


def rot(path: Path) -> None:
    """Flip the last bit so that stat and the manifest say nothing, as a bad disk would."""
    spoil(path)
    path.chmod(0o444)
    manifest = path.parent / MANIFEST
    known = json.loads(manifest.read_bytes())
    status = path.stat()
    known["files"][path.name].update(ctime_ns=status.st_ctime_ns, mtime_ns=status.st_mtime_ns)
    manifest.chmod(0o644)
    manifest.write_text(json.dumps(known))
    path.parent.chmod(0o555)


def before_download(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """`act` is done after held files were hashed and before they are linked, whenever something is fetched."""
    real = Shards.__init__

    def with_act(self: Shards, *words: Any) -> None:
        act()
        real(self, *words)

    monkeypatch.setattr(Shards, "__init__", with_act)


@pytest.mark.parametrize("held_in", ["a damaged folder", "another revision", "an adopted folder"])
def test_a_kept_file_that_changes_during_the_download_is_not_published(
    lock: CheckpointLock,
    later: CheckpointLock,
    root: Path,
    hub: Hub,
    served: Path,
    monkeypatch: pytest.MonkeyPatch,
    held_in: str,
) -> None:
    wanted, adopt = later, held_in == "an adopted folder"
    if adopt:
        shutil.copytree(served / "later", root / "Laguna-tiny")
        (root / "Laguna-tiny" / "README.md").unlink()
        here = root / "Laguna-tiny"
    elif held_in == "another revision":
        hub.faults.clear()
        here = get(lock, root, hub).folder
        hub.faults.add(Fault("", "main-moves", folder=served / "later"))
    else:
        here = get(later, root, hub).folder
        here.chmod(0o755)
        (here / "README.md").unlink()
    before_download(monkeypatch, lambda: spoil(here / SHARD))
    with pytest.raises(DiskFailure, match=f"{SHARD}: changed while"):
        get(wanted, root, hub, adopt=adopt)
    assert publish.published(wanted, root) is None
    monkeypatch.undo()
    assert verify(wanted, get(wanted, root, hub, adopt=adopt).folder, level="full").files == 8


def test_a_kept_file_that_was_only_touched_meanwhile_is_hashed_again_and_used(
    later: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = get(later, root, hub).folder
    folder.chmod(0o755)
    (folder / "README.md").unlink()
    before_download(monkeypatch, lambda: os.utime(folder / SHARD))
    result = get(later, root, hub)
    assert (result.fetched_files, result.skipped) == (1, False)
    assert verify(later, result.folder, level="stat").files == 8
    assert verify(later, result.folder, level="full").files == 8


def test_a_file_that_changes_after_it_was_linked_is_not_published(
    later: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = get(later, root, hub).folder
    folder.chmod(0o755)
    (folder / "README.md").unlink()
    real = publish.make_read_only

    def late(tree: Path, files: Any) -> None:
        spoil(tree / SHARD)
        (tree / SHARD).chmod(0o444)
        real(tree, files)

    monkeypatch.setattr(publish, "make_read_only", late)
    with pytest.raises(DiskFailure, match="changed while"):
        get(later, root, hub)
    assert publish.published(later, root) is None


def test_a_touched_file_that_changes_after_it_was_hashed_is_not_called_good(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = get(lock, root, hub).folder
    os.utime(folder / SHARD)
    real = reuse.proved

    def proved(*words: Any) -> Any:
        right = real(*words)
        spoil(folder / SHARD)
        return right

    monkeypatch.setattr(reuse, "proved", proved)
    with pytest.raises(DiskFailure, match="changed while it was hashed"):
        get(lock, root, hub)
    monkeypatch.undo()
    assert publish.published(lock, root) is None
    assert get(lock, root, hub).fetched_files == 1


@pytest.mark.parametrize("level", ["full", "sample"])
def test_a_failed_check_withdraws_the_proof_and_the_next_fetch_repairs_just_that(
    lock: CheckpointLock, root: Path, hub: Hub, level: str
) -> None:
    folder = get(lock, root, hub).folder
    verify(lock, folder)
    rot(folder / SHARD)
    assert publish.published(lock, root) == folder
    with pytest.raises(IntegrityMismatch, match=SHARD):
        verify(lock, root / "Laguna-tiny", level=level, sampled_chunks=999)
    assert records.read_proved(folder) == {}
    with pytest.raises(IntegrityMismatch, match=f"{SHARD}: was found wrong"):
        verify(lock, folder, level="stat")
    hub.requests.clear()
    result = get(lock, root, hub)
    assert (result.fetched_files, set(asked_for(hub))) == (1, {SHARD})
    assert verify(lock, root / "Laguna-tiny").files == 8


def test_a_failed_check_that_cannot_be_recorded_says_so(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = get(lock, root, hub).folder
    rot(folder / SHARD)

    def full(*_: object) -> None:
        raise DiskFailure("x", "no space left on device")

    monkeypatch.setattr(publish, "write_durably", full)
    progress = Noting()
    with pytest.raises(IntegrityMismatch, match=SHARD):
        verify(lock, folder, progress=progress)
    assert any("is not recorded" in text for text in progress.said)
    with pytest.raises(SlipwayError):
        publish.forget(folder, [SHARD])


def test_a_shared_file_that_rotted_unseen_is_fetched_and_doubted_where_it_lay(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    old = get(lock, root, hub).folder
    rot(old / SHARD)
    hub.faults.add(Fault("", "main-moves", folder=served / "later"))
    later = locks.resolve(REPO, "main", endpoint=hub.url, token=None)
    hub.requests.clear()
    progress = Noting()
    result = get(later, root, hub, progress=progress)
    assert asked_for(hub) == ["README.md", SHARD]
    assert verify(later, result.folder, level="full").files == 8
    assert any("unseen by stat" in text and SHARD in text for text in progress.said)
    with pytest.raises(IntegrityMismatch, match=SHARD):
        verify(lock, old, level="stat")


def test_a_repair_hashes_what_it_keeps(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    folder = get(lock, root, hub).folder
    rot(folder / SHARD)
    folder.chmod(0o755)
    (folder / "README.md").unlink()
    hub.requests.clear()
    result = get(lock, root, hub)
    assert set(asked_for(hub)) == {"README.md", SHARD}
    assert verify(lock, result.folder, level="full").files == 8


@pytest.mark.parametrize("harm", ["gone", "cut", "no object", "another revision", "another schema"])
def test_without_its_manifest_a_published_folder_passes_no_level_that_trusts_stat(
    lock: CheckpointLock, root: Path, hub: Hub, harm: str
) -> None:
    folder = get(lock, root, hub).folder
    spoil(folder / SHARD)
    manifest = folder / MANIFEST
    text = manifest.read_text()
    manifest.unlink()
    if harm != "gone":
        other = text.replace(lock.revision, "e" * 40)
        changed = {"cut": text[:500], "no object": "[]", "another revision": other}
        manifest.write_text(changed.get(harm, text.replace("manifest/v1", "manifest/v0")))
    for level in ("stat", "structure", "sample"):
        with pytest.raises(IntegrityMismatch, match="nobody can tell whether a file was touched"):
            verify(lock, root / "Laguna-tiny", level=level)
    assert get(lock, root, hub).fetched_files == 1
    assert verify(lock, root / "Laguna-tiny", level="stat").files == 8


KILLED = """
import os, signal, sys
from pathlib import Path
from slipway.checkpoints import publish
replace = Path.replace
def killer(self, target):
    if str(target).startswith(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
Path.replace = killer
publish.remember_links(Path(sys.argv[1]), [sys.argv[2]])
"""


def test_a_kill_while_links_are_remembered_harms_no_published_folder(
    lock: CheckpointLock, root: Path, hub: Hub
) -> None:
    folder = get(lock, root, hub).folder
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", KILLED, str(folder), SHARD], check=False, env=env)
    assert ran.returncode == -signal.SIGKILL
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]
    for level in ("stat", "full"):
        assert verify(lock, root / "Laguna-tiny", level=level).files == 8
    left = list((root / ".store" / ".staging").glob("*.tmp"))
    left += list((root / ".store" / ".staging").glob(".*.tmp"))
    assert left
    assert get(lock, root, hub).skipped
    assert folder.stat().st_mode & 0o777 == 0o555
    for path in left:
        os.utime(path, (1, 1))
    staging.remove_litter(root, silent)
    assert not [path for path in left if path.exists()]


def test_litter_of_an_older_writer_in_a_published_folder_is_passed_over_and_removed(
    lock: CheckpointLock, root: Path, hub: Hub
) -> None:
    folder = get(lock, root, hub).folder
    folder.chmod(0o755)
    litter = folder / f".{'a' * 32}.tmp"
    litter.write_text("half a manif")
    assert verify(lock, folder, level="stat").files == 8
    assert verify(lock, folder, level="full").files == 8
    assert get(lock, root, hub).skipped
    assert not litter.exists()
    assert folder.stat().st_mode & 0o777 == 0o555


def test_a_folder_that_cannot_be_tidied_is_said(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = get(lock, root, hub).folder
    folder.chmod(0o755)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    progress = Noting()
    assert get(lock, root, hub, progress=progress).skipped
    assert any("is not tidied up" in text for text in progress.said)


def test_what_others_put_into_a_published_folder_outlives_its_repair(
    lock: CheckpointLock, root: Path, hub: Hub
) -> None:
    folder = get(lock, root, hub).folder
    folder.chmod(0o755)
    (folder / "adapter" / "deep").mkdir(parents=True)
    (folder / "adapter" / "deep" / "mine.bin").write_text("precious")
    (folder / "notes.txt").write_text("mine too")
    progress = Noting()
    result = get(lock, root, hub, progress=progress)
    assert result.folder != folder
    assert not folder.exists()
    (aside,) = root.glob("Laguna-tiny.replaced-*")
    assert (aside / "adapter" / "deep" / "mine.bin").read_text() == "precious"
    assert (aside / "notes.txt").read_text() == "mine too"
    assert any(str(aside) in text for text in progress.said)
    assert verify(lock, result.folder).files == 8


def test_a_long_wait_is_said_before_it_begins(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    hub.faults.add(Fault("/resolve/", "status", status=429, retry_after_s=290, times=2))
    progress, waits = Noting(), []

    def wait(wait_s: float) -> None:
        waits.append((wait_s, sum("waiting 290 s as it asks" in text for text in progress.said)))

    get(lock, root, hub, progress=progress, workers=1, patience=Patience(wait=wait))
    assert waits == [(290, 1), (290, 2)]
    assert any("429" in text and "try 1 of 6" in text for text in progress.said)


@pytest.mark.parametrize("cut", [[], ["0" * 64] * 2])
def test_a_record_with_too_few_or_too_many_chunks_is_as_good_as_none(
    lock: CheckpointLock, root: Path, hub: Hub, cut: list[str]
) -> None:
    folder = get(lock, root, hub).folder
    verify(lock, folder, level="full", chunk_bytes=1000)
    place = records.place_of(folder, "chunks")
    assert place is not None
    data = json.loads(place.read_text())
    data["files"][SHARD]["chunks"] = cut
    place.write_text(json.dumps(data))
    assert SHARD not in records.read_chunks(lock, folder, 1000)
    with pytest.raises(SlipwayError, match="--level full once"):
        verify(lock, folder, level="sample", chunk_bytes=1000)


@pytest.mark.parametrize("name", ["config.json", SHARD])
def test_a_published_file_that_became_a_link_is_to_be_fetched_again(
    lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path, name: str
) -> None:
    folder = get(lock, root, hub).folder
    folder.chmod(0o755)
    shutil.copy(folder / name, tmp_path / "elsewhere")
    (folder / name).unlink()
    (folder / name).symlink_to(tmp_path / "elsewhere")
    for level in ("stat", "full"):
        with pytest.raises(IntegrityMismatch, match=f"{name}: is a link.*invoke fetch-models"):
            verify(lock, root / "Laguna-tiny", level=level)
    assert get(lock, root, hub).fetched_files == 1
    assert verify(lock, root / "Laguna-tiny").files == 8


@pytest.mark.parametrize("depth", ["poolside", "poolside/Laguna-tiny"])
def test_records_are_not_written_through_a_link(
    lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path, depth: str
) -> None:
    folder = get(lock, root, hub).folder
    outside = tmp_path / "outside"
    (outside / "Laguna-tiny").mkdir(parents=True)
    planted = root / ".store" / ".records" / depth
    planted.parent.mkdir(parents=True)
    planted.symlink_to(outside)
    progress = Noting()
    assert verify(lock, folder, progress=progress).files == 8
    assert [path for path in outside.rglob("*") if path.is_file()] == []
    assert any("is not recorded" in text for text in progress.said)


def test_a_nameless_staging_folder_is_litter_once_nobody_fetches_here(root: Path) -> None:
    nameless = root / ".store" / ".staging" / "nameless"
    nameless.mkdir(parents=True)
    assert staging.is_owned(nameless)  # it may be about to get its name
    for when_s in (1, 2**33):  # long ago, and by a clock that is ahead
        os.utime(nameless, (when_s, when_s))
        assert not staging.is_owned(nameless)
    progress = Noting()
    staging.remove_litter(root, progress)
    assert not nameless.exists()
    assert any(str(nameless) in text for text in progress.said)


def test_a_nameless_staging_folder_written_while_it_is_looked_at_is_owned(root: Path) -> None:
    nameless = root / ".store" / ".staging" / "nameless"
    nameless.mkdir(parents=True)
    soon_s = nameless.stat().st_mtime + 30  # as if the clock had been read before the folder was
    os.utime(nameless, (soon_s, soon_s))
    assert staging.is_owned(nameless)


def test_what_others_remove_meanwhile_is_no_error(root: Path) -> None:
    place = root / ".store" / ".staging"
    names = ["a", "b", "c"]
    for name in names:
        (place / name / "parts").mkdir(parents=True)
        os.utime(place / name, (1, 1))
        os.utime(place / name / "parts", (1, 1))
    (place / "d.tmp").write_text("")

    class Rival(Noting):
        def note(self, text: str) -> None:
            super().note(text)
            for path in place.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    progress = Rival()
    staging.remove_litter(root, progress)
    assert list(place.iterdir()) == []
    assert len(progress.said) == 1, "what was gone already is said to be removed"
    with pytest.raises(FileNotFoundError):
        staging.is_owned(place / "b")
    staging.remove_tree(place / "b")


HOLDER = """
import fcntl, sys
held = open(sys.argv[1], "w")
fcntl.lockf(held, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_nameless_staging_folder_may_be_that_of_whoever_holds_a_lock(root: Path) -> None:
    nameless = root / ".store" / ".staging" / "nameless"
    nameless.mkdir(parents=True)
    lock_file = root / ".store" / ".a--b.lock"
    words = [sys.executable, "-c", HOLDER, str(lock_file)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        old_s = nameless.stat().st_mtime - 3600
        os.utime(nameless, (old_s, old_s))
        assert staging.is_owned(nameless)
        holder.communicate("")
    assert not staging.is_owned(nameless)
    with lock_file.open("w") as mine:
        fcntl.lockf(mine, fcntl.LOCK_EX)
        assert not staging.is_owned(nameless)  # this process knows what it fetches
