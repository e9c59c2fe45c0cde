"""Publication: whole or not at all, repaired without a second download, and never into someone else's place."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest

from slipway import durable
from slipway.checkpoints import lock as locks
from slipway.checkpoints import publish, staging
from slipway.checkpoints.fetch import FetchResult, fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.part import part_name
from slipway.checkpoints.pins import MANIFEST
from slipway.checkpoints.publish import published
from slipway.checkpoints.verify import verify
from slipway.errors import DiskFailure, NetworkFailure, UsageError
from slipway.reference.hub import Hub
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    served = tmp_path_factory.mktemp("served")
    write_sample(served / REPO)
    write_sample(served / "later", shards=2, seed=7)
    return served


def get(lock: CheckpointLock, root: Path, hub: Hub) -> FetchResult:
    return fetch(lock, root, hub=HubAddress(hub.url))


def asked_for(hub: Hub) -> list[str]:
    return sorted(seen.path.rpartition("/")[2] for seen in hub.requests if "/resolve/" in seen.path)


def writable(path: Path) -> Path:
    path.parent.chmod(0o755)
    if path.exists():
        path.chmod(0o644)
    return path


def moved_lock(hub: Hub, served: Path) -> CheckpointLock:
    hub.faults.add(Fault("/api/", "main-moves", folder=served / "later"))
    later = locks.resolve(REPO, "main", endpoint=hub.url, token=None)
    hub.faults.clear()
    return later


def test_only_a_fetched_and_untouched_checkpoint_is_published(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    assert published(lock, root) is None
    folder = get(lock, root, hub).folder
    assert published(lock, root) == folder
    assert published(lock.model_copy(update={"revision": "0" * 40}), root) is None
    os.utime(folder / "config.json")
    assert published(lock, root) is None


def test_a_touched_file_that_is_equal_by_digest_costs_no_request(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    folder = get(lock, root, hub).folder
    os.utime(folder / SHARD)
    (folder / MANIFEST).unlink()
    hub.requests.clear()
    again = get(lock, root, hub)
    assert (again.skipped, again.folder, hub.requests) == (True, folder, [])
    assert published(lock, root) == folder


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "replace by link", "same size and mtime"])
def test_only_the_damaged_file_is_fetched_again(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path, damage: str, tmp_path: Path
) -> None:
    first = get(lock, root, hub).folder
    path = writable(first / SHARD)
    data, before = bytearray(path.read_bytes()), path.stat()
    if damage in {"flip", "same size and mtime"}:
        data[-1] ^= 1
        path.write_bytes(data)
    elif damage == "truncate":
        path.write_bytes(data[:1000])
    else:
        path.unlink()
    if damage == "replace by link":
        (tmp_path / "elsewhere").write_bytes(data)
        path.symlink_to(tmp_path / "elsewhere")
    if damage == "same size and mtime":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    hub.requests.clear()
    inode = (first / "config.json").stat().st_ino
    again = get(lock, root, hub)
    assert asked_for(hub) == [SHARD]
    assert (again.fetched_files, again.reused_files) == (1, 7)
    assert (again.folder / "config.json").stat().st_ino == inode
    assert (again.folder / SHARD).read_bytes() == (served / REPO / SHARD).read_bytes()
    assert not (again.folder / SHARD).is_symlink()
    assert published(lock, root) == again.folder
    assert [entry.name for entry in (root / ".store" / REPO).iterdir()] == [again.folder.name]
    if damage == "replace by link":
        assert (tmp_path / "elsewhere").read_bytes() == data


def test_a_stranger_in_the_folder_is_left_behind(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    first = get(lock, root, hub).folder
    writable(first / "model-00009-of-00009.safetensors").write_text("old")
    hub.requests.clear()
    again = get(lock, root, hub)
    assert (again.fetched_files, again.reused_files, asked_for(hub)) == (0, 8, [])
    assert verify(lock, again.folder).files == 8


def test_a_folder_replaced_by_a_link_is_not_trusted(lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path) -> None:
    first = get(lock, root, hub).folder
    writable(first / "code" / "modeling_laguna.py")
    first.chmod(0o755)
    (first / "code").rename(tmp_path / "elsewhere")
    (first / "code").symlink_to(tmp_path / "elsewhere")
    again = get(lock, root, hub)
    assert again.fetched_files == 1
    assert not (again.folder / "code").is_symlink()
    assert (tmp_path / "elsewhere" / "modeling_laguna.py").exists()


def test_a_link_as_long_as_the_file_it_replaces_is_not_taken_for_it(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    """lstat of a link gives the length of its text as the size."""
    first = get(lock, root, hub).folder
    path = writable(first / "tokenizer.json")
    size = path.stat().st_size
    path.rename(first.parent / ("x" * (size - 3)))
    path.symlink_to("../" + "x" * (size - 3))
    again = get(lock, root, hub)
    assert again.fetched_files == 1
    assert not (again.folder / "tokenizer.json").is_symlink()


def test_a_repair_that_fails_leaves_the_link_as_it_was(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    first = get(lock, root, hub).folder
    writable(first / SHARD).unlink()
    with pytest.raises(NetworkFailure):
        fetch(lock, root, hub=HubAddress(hub.url, offline=True))
    assert os.readlink(root / "Laguna-tiny") == f".store/{REPO}/{lock.revision}"
    assert (root / "Laguna-tiny" / "config.json").exists()


def test_where_hard_links_do_not_work_good_files_are_copied(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = get(lock, root, hub).folder
    writable(first / SHARD).unlink()

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    again = get(lock, root, hub)
    assert (again.fetched_files, again.reused_files) == (1, 7)
    assert verify(lock, again.folder).files == 8


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to someone else")
def test_a_good_file_that_someone_else_owns_is_copied_so_that_he_cannot_change_it(
    lock: CheckpointLock, root: Path, hub: Hub
) -> None:
    first = get(lock, root, hub).folder
    writable(first / SHARD).unlink()
    os.chown(first / "config.json", 65534, 65534)
    inode = (first / "config.json").stat().st_ino
    again = get(lock, root, hub)
    assert (again.fetched_files, again.reused_files) == (1, 7)
    copy = (again.folder / "config.json").stat()
    assert (copy.st_uid, copy.st_ino == inode) == (0, False)


def test_the_link_is_swapped_between_revisions_and_back_without_a_download(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    first = get(lock, root, hub).folder
    later = moved_lock(hub, served)
    second = get(later, root, hub).folder
    assert (root / "Laguna-tiny").resolve() == second.resolve()
    assert published(lock, root) is None
    hub.requests.clear()
    back = get(lock, root, hub)
    assert (back.skipped, back.folder, hub.requests) == (True, first, [])
    assert (root / "Laguna-tiny").resolve() == first.resolve()
    assert published(later, root) is None


def test_the_link_leads_to_something_whole_at_every_moment(
    lock: CheckpointLock, root: Path, hub: Hub, served: Path
) -> None:
    get(lock, root, hub)
    later = moved_lock(hub, served)
    stop, dangling = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            try:
                (root / "Laguna-tiny" / "config.json").read_bytes()
            except OSError as error:
                dangling.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for wanted in (later, lock, later, lock):
            get(wanted, root, hub)
    finally:
        stop.set()
        watcher.join()
    assert dangling == []


@pytest.mark.parametrize("kind", ["folder", "file", "link elsewhere", "link of another owner"])
def test_what_is_not_ours_at_the_links_place_is_never_replaced(
    lock: CheckpointLock, root: Path, hub: Hub, kind: str
) -> None:
    root.mkdir()
    place = root / "Laguna-tiny"
    if kind == "folder":
        place.mkdir()
    elif kind == "file":
        place.write_text("mine")
    else:
        place.symlink_to("/" if kind == "link elsewhere" else f".store/other/Laguna-tiny/{'0' * 40}")
    with pytest.raises(UsageError, match="already exists"):
        get(lock, root, hub)
    assert place.is_symlink() == kind.startswith("link")
    assert hub.requests == []


@pytest.mark.parametrize("part", [".store", ".store/poolside", f".store/{REPO}"])
def test_a_link_planted_in_the_store_is_refused(
    lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path, part: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / part).parent.mkdir(parents=True)
    (root / part).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskFailure, match="is a link or a file where the store needs a plain folder"):
        get(lock, root, hub)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert hub.requests == []


def test_a_link_planted_as_the_revisions_folder_is_not_used(
    lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (root / ".store" / REPO).mkdir(parents=True)
    (root / ".store" / REPO / lock.revision).symlink_to(tmp_path / "elsewhere")
    result = get(lock, root, hub)
    assert verify(lock, result.folder).files == 8
    assert result.folder.name != lock.revision
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_planted_lock_file_that_is_a_link_is_refused(
    lock: CheckpointLock, root: Path, hub: Hub, tmp_path: Path
) -> None:
    (root / ".store").mkdir(parents=True)
    (root / ".store" / f".{REPO.replace('/', '--')}.lock").symlink_to(tmp_path / "planted")
    with pytest.raises(DiskFailure, match="lock file"):
        get(lock, root, hub)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "other"}', '{"schema": "slipway/checkpoint-manifest/v1"}'])
def test_a_manifest_that_says_nothing_makes_every_file_doubtful(
    lock: CheckpointLock, root: Path, hub: Hub, text: str
) -> None:
    folder = get(lock, root, hub).folder
    writable(folder / MANIFEST).write_text(text)
    found = publish.survey(lock, folder)
    assert (len(found.good), len(found.doubtful), found.intact) == (0, 8, False)
    assert get(lock, root, hub).skipped


def test_the_manifest_names_every_file_with_digest_and_identity(lock: CheckpointLock, root: Path, hub: Hub) -> None:
    folder = get(lock, root, hub).folder
    manifest = json.loads((folder / MANIFEST).read_text())
    assert (manifest["repo"], manifest["revision"]) == (REPO, lock.revision)
    assert manifest["files"][SHARD]["digest"] == f"sha256:{next(f.sha256 for f in lock.files if f.path == SHARD)}"
    assert manifest["files"][SHARD]["inode"] == (folder / SHARD).stat().st_ino


def test_a_file_system_without_locks_is_worked_with(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert verify(lock, get(lock, root, hub).folder).files == 8


class Notes(list[str]):
    def note(self, text: str) -> None:
        self.append(text)


def litter(root: Path, **owner: object) -> Path:
    place = root / ".store" / ".staging" / f"left{len(owner)}"
    (place / "tree").mkdir(parents=True)
    (place / "tree" / "x.safetensors").write_text("half")
    (place / "owner.json").write_text(json.dumps({**staging._self(), **owner}))
    return place


@pytest.mark.parametrize(
    ("owner", "removed"),
    [
        ({}, False),  # this process
        ({"started": "1"}, True),  # a later process with the same number
        ({"pid": 2**22 + 1}, True),
        ({"pid": "x"}, True),
        ({"boot": "another"}, True),
        ({"host": "another"}, False),
        ({"pid_namespace": "another"}, False),
    ],
)
def test_litter_is_removed_only_when_its_owner_is_surely_gone(
    root: Path, owner: dict[str, object], removed: bool
) -> None:
    place, notes = litter(root, **owner), Notes()
    staging.remove_litter(root, notes)  # type: ignore[arg-type]
    assert place.exists() != removed
    assert len(notes) == removed


def test_litter_of_another_host_is_removed_after_a_day(root: Path) -> None:
    place = litter(root, host=socket.gethostname() + "-other")
    (place / "owner.json").write_text("not json")
    link = place.parent / "x.link"
    link.symlink_to("nowhere")
    staging.remove_litter(root, Notes())  # type: ignore[arg-type]
    assert place.exists()
    assert link.is_symlink()
    for path in (link, *place.rglob("*"), place):
        os.utime(path, (1, 1), follow_symlinks=False)
    staging.remove_litter(root, Notes())  # type: ignore[arg-type]
    assert not place.exists()
    assert not link.is_symlink()


def test_a_durable_write_leaves_the_old_file_when_the_new_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("old")

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskFailure, match="no space left"):
        durable.write_durably(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_every_file_and_folder_is_on_disk_before_the_link_is_swapped(
    lock: CheckpointLock, root: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def note_replace(self: Path, target: Path) -> Path:
        done.append(f"replace {Path(target).name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    get(lock, root, hub)
    swap = done.index("replace Laguna-tiny")
    manifest = done.index(f"replace {MANIFEST}")
    for file in lock.files:
        assert any(path.endswith(f"/parts/{part_name(file)}") for path in done[:manifest])
    assert any(path.endswith("/tree/code") for path in done[:manifest])
    assert any(path.endswith("/tree") for path in done[manifest:swap])
    assert str(root / ".store" / REPO) in done[manifest:swap]
    assert str(root) in done[swap:]


def test_a_tree_that_is_gone_already_is_removed_without_complaint(tmp_path: Path) -> None:
    staging.remove_tree(tmp_path / "none")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "a" / "b").chmod(0o555)
    staging.remove_tree(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    assert shutil.disk_usage(tmp_path).free
