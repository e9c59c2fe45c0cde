"""What lies in the models folder, and what may be removed from it: nothing that a link names, nothing that is being written."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from slipway import holdings
from slipway import models as library
from slipway.checkpoints import gc, publish, records, staging
from slipway.checkpoints import lock as locks
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.shelf import Shelved, shelf
from slipway.checkpoints.verify import verify
from slipway.errors import DiskFailure, UsageError
from slipway.progress import silent
from slipway.reference.hub import serve
from slipway.reference.hub_sample import write_sample
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent
REPO = "poolside/Laguna-tiny"
DAY_S = 24 * 3600


class Models:
    """A models folder that has seen four revisions of one repository, of which only the README differs."""

    def __init__(self, base: Path) -> None:
        self.root = base / "models"
        served = base / "served" / REPO
        write_sample(served)
        self.locks: list[CheckpointLock] = []
        with serve(base / "served") as hub:
            for number in range(4):
                (served / "README.md").write_text(f"revision {number}\n")
                lock = locks.resolve(REPO, "main", endpoint=hub.url, token=None)
                fetch(lock, self.root, hub=HubAddress(hub.url))
                self.locks.append(lock)

    def folder(self, number: int) -> Path:
        return self.root / ".store" / REPO / self.locks[number].revision


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("gc"))


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)


def planned(models: Models, **more: float) -> set[Path]:
    return {removal.path for removal in gc.plan(models.root, **more)}  # type: ignore[arg-type]


def test_the_shelf_tells_what_is_here_and_how_big(made: Models) -> None:
    items = shelf(made.root)
    assert [item.revision for item in items] == [lock.revision for lock in reversed(made.locks)]
    assert [item.names for item in items] == [("Laguna-tiny",), (), (), ()]
    for item, lock in zip(items, reversed(made.locks), strict=True):
        assert (item.repo, item.files, item.apparent_bytes) == (REPO, 8, lock.summary.total_bytes)
        # All but the README came from the revision before, by hard link.
        assert item.shared_bytes == lock.summary.total_bytes - len("revision 0\n")


def test_links_and_the_last_revisions_stay(made: Models) -> None:
    assert planned(made) == {made.folder(0), made.folder(1)}
    assert planned(made, keep_revisions=0) == {made.folder(0), made.folder(1), made.folder(2)}
    assert planned(made, keep_revisions=3) == set()


def test_a_plan_removes_nothing_and_counts_what_the_last_link_frees(made: Models) -> None:
    removals = gc.plan(made.root)
    assert all(removal.path.is_dir() for removal in removals)
    # Shards live on in the revision that is in use; only the READMEs and manifests are freed.
    assert all(0 < removal.bytes < 64_000 for removal in removals)
    assert all("older revision" in removal.why for removal in removals)


def test_what_is_removed_is_gone_and_the_rest_needs_no_new_hashing(models: Models) -> None:
    verify(models.locks[0], models.folder(0))
    record = records.place_of(models.folder(0), "proved")
    assert record is not None
    assert record.is_file()
    gone = gc.remove(models.root, gc.plan(models.root))
    assert {removal.path for removal in gone} == {models.folder(0), models.folder(1)}
    assert not models.folder(0).exists()
    assert not record.exists()
    assert list((models.root / ".store" / ".staging").iterdir()) == []
    for number in (2, 3):
        assert publish.survey(models.locks[number], models.folder(number)).intact
        assert verify(models.locks[number], models.folder(number)).files == 8
    assert planned(models) == set()


def test_what_a_link_has_come_to_name_since_is_kept(models: Models) -> None:
    removals = gc.plan(models.root)
    os.symlink(models.folder(0).relative_to(models.root), models.root / "older")
    gone = gc.remove(models.root, removals)
    assert {removal.path for removal in gone} == {models.folder(1)}
    assert verify(models.locks[0], models.root / "older").files == 8


def test_links_of_every_kind_protect_what_they_lead_to(models: Models, tmp_path: Path) -> None:
    (models.root / "prod").symlink_to(models.folder(0) / "config.json")
    (models.root / "aliases" / "deep").mkdir(parents=True)
    (models.root / "aliases" / "deep" / "prod").symlink_to(models.folder(1).absolute())
    (tmp_path / "hop").symlink_to(models.folder(2))
    (models.root / "over").symlink_to(tmp_path / "hop")
    (models.root / "circle").symlink_to("circle")
    assert planned(models, keep_revisions=0) == set()
    assert [item.names for item in shelf(models.root)[1:4]] == [("over",), ("aliases/deep/prod",), ("prod",)]
    (models.root / "prod").unlink()
    assert planned(models, keep_revisions=0) == {models.folder(0)}


def test_a_link_protects_however_the_models_folder_is_named(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models.root / "prod").symlink_to(models.folder(0).absolute())
    (tmp_path / "via").symlink_to(models.root)
    monkeypatch.chdir(tmp_path)
    for root in (Path("models"), Path("via"), tmp_path / "via", Path("models/../via")):
        removals = gc.plan(root, keep_revisions=0)
        assert {removal.path.name for removal in removals} == {models.locks[1].revision, models.locks[2].revision}
    stale = [gc.Removal(Path("via") / models.folder(0).relative_to(models.root), 0, "nothing named it then")]
    assert gc.remove(Path("via"), stale) == ()
    assert models.folder(0).is_dir()


def test_what_is_somebodys_own_is_never_planned(models: Models) -> None:
    backup = models.folder(0).with_name("my-backup")
    shutil.copytree(models.folder(0), backup)
    mine = models.root / "Own" / "chapter.incomplete"
    mine.parent.mkdir()
    blob = models.root / "models--a--b" / "blobs" / f"{'a' * 64}.01234567.incomplete"
    near = models.root / "Own" / "blobs" / f"{'a' * 64}.01234567.incomplete"
    for path in (mine, blob, near):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        age(path, 8 * DAY_S)
    assert planned(models, keep_revisions=0) == {models.folder(0), models.folder(1), models.folder(2), blob}
    assert backup not in [item.folder for item in shelf(models.root)]


def test_what_vanishes_while_it_is_listed_is_left_out(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    real, gone = os.walk, models.folder(1)

    def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for parent, folders, names in real(folder):
            if Path(parent) == gone and gone.exists():
                gone.chmod(0o755)
                shutil.rmtree(gone)
            yield parent, folders, names

    monkeypatch.setattr(os, "walk", walk)
    assert [item.revision for item in shelf(models.root)] == [models.locks[number].revision for number in (3, 2, 0)]
    monkeypatch.undo()
    assert gc.remove(models.root, [gc.Removal(gone, 0, "planned before")]) == ()


def test_a_folder_that_a_repair_has_replaced_goes_whatever_is_kept(models: Models) -> None:
    twin = models.folder(3).with_name(f"{models.locks[3].revision}.0123456789ab")
    models.folder(3).parent.chmod(0o755)
    shutil.copytree(models.folder(3), twin)
    assert planned(models, keep_revisions=9) == {twin}
    gc.remove(models.root, gc.plan(models.root, keep_revisions=9))
    assert not twin.exists()
    assert publish.published(models.locks[3], models.root) == models.folder(3)


def test_parts_of_the_living_and_the_young_stay(models: Models) -> None:
    with staging.staging(models.root) as place:
        # The same place without its owner: what a fetch leaves that was killed.
        left = place.folder.with_name("left")
        shutil.copytree(place.folder, left)
        owner = json.loads((left / "owner.json").read_text())
        (left / "owner.json").write_text(json.dumps({**owner, "pid": 0}))
        (left / "tree" / "part").write_bytes(b"x" * 100_000)
        assert left not in planned(models)
        for path in (left, left / "tree", left / "parts", left / "owner.json", left / "tree" / "part"):
            age(path, 8 * DAY_S)
        for path in (place.folder, place.tree, place.parts, place.folder / "owner.json"):
            age(path, 8 * DAY_S)
        assert left in planned(models)
        assert place.folder not in planned(models, older_s=0)
        removals = [removal for removal in gc.plan(models.root) if removal.path == left]
        assert removals[0].bytes >= 100_000
        gc.remove(models.root, removals)
        assert not left.exists()
        assert place.folder.is_dir()
        assert gc.remove(models.root, [gc.Removal(place.folder, 0, "it had no owner then")]) == ()


def test_what_the_hub_library_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    orphan = tmp_path / "Some-Model" / ".cache" / "huggingface" / "download" / "x.00112233.incomplete"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x" * 5000)
    shard = tmp_path / "Some-Model" / "model.safetensors"
    shard.touch()
    assert gc.plan(tmp_path) == ()
    age(orphan, 8 * DAY_S)
    age(shard, 8 * DAY_S)
    (removal,) = gc.plan(tmp_path)
    assert (removal.path, removal.bytes >= 5000) == (orphan, True)
    gc.remove(tmp_path, [removal])
    assert not orphan.exists()
    assert shard.exists()


@given(revisions=st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=12), keep=st.integers(0, 4))
def test_nothing_linked_is_ever_planned_and_enough_revisions_stay(revisions: list[tuple[str, bool]], keep: int) -> None:
    items = [
        Shelved(Path(f"/{number}"), ("x",) if linked else (), "o/n", name, 1, 1, 0, -number)
        for number, (name, linked) in enumerate(revisions)
    ]
    doomed = {item.folder for item, _ in gc._superseded(items, keep)}
    assert not doomed & {item.folder for item in items if item.names}
    left = {item.revision for item in items if item.folder not in doomed}
    linked = {item.revision for item in items if item.names}
    assert linked <= left
    assert len(left - linked) == min(keep, len({name for name, _ in revisions} - linked))


def test_numbers_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        gc.plan(tmp_path, keep_revisions=-1)
    assert gc.plan(tmp_path / "none") == ()
    assert shelf(tmp_path / "none") == ()


def test_a_folder_that_cannot_be_read_or_removed_is_a_disk_failure(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    removals = gc.plan(models.root)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(DiskFailure, match="removing it"):
        gc.remove(models.root, removals)
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DiskFailure):
        shelf(models.root)
    with pytest.raises(DiskFailure):
        gc.plan(models.root)


@pytest.mark.parametrize(
    ("proved", "said"),
    [
        ({}, "never"),
        ({"full": "2026-01-02T03:04:05Z"}, "2026-01-02 03:04 full"),
        ({"full": "2026-01-02", "stat": "2026-01-01"}, "2026-01-02 full"),
        ({"full": "2026-01-02", "stat": "2026-01-03"}, "2026-01-02 full\n2026-01-03 stat"),
        ({"odd": "2026-01-03"}, "never"),
    ],
)
def test_the_strongest_proof_is_shown_first(proved: dict[str, str], said: str) -> None:
    assert holdings._last_proved(proved) == said


# --- the commands ---


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout in which the stack `laptop` was fetched."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("tasks", "recipes", "stacks", "checkpoints"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    checkout = Checkout(root)
    library.fetch(checkout, library.wanted(checkout, "laptop", None, None), None, workers=2, progress=silent)
    yield root


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "invoke", "--search-root", str(root), *words)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=env)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def test_models_says_what_is_here_when_it_was_proved_and_what_uses_it(checkout: Path) -> None:
    ran = run(checkout, "models", "--json")
    (entry,) = json.loads(ran.stdout)
    assert (entry["names"], entry["repo"], entry["files"]) == (["Laguna-Tiny"], "slipway/Laguna-Tiny", 11)
    assert entry["used_by"] == {
        "stacks": ["laptop", "laptop-pd"],
        "recipes": ["laguna-tiny.reference/laptop", "laguna-tiny.reference/laptop-pd"],
    }
    assert entry["locked"] is True
    assert set(entry["proved"]) == {"full"}  # a fetch hashes every byte
    verify(locks.read(checkout / "checkpoints" / "laguna-tiny.lock.json"), Path(entry["folder"]), level="sample")
    entries = holdings.listing(Checkout(checkout), None)
    assert set(entries[0]["proved"]) == {"full", "sample"}
    text = io.StringIO()
    holdings.show(entries, Console(file=text, width=110))
    assert "slipway/Laguna-Tiny" in text.getvalue()
    assert "laptop" in text.getvalue()


def test_an_empty_models_folder_says_what_to_do(tmp_path: Path) -> None:
    text = io.StringIO()
    holdings.show([], Console(file=text))
    assert "invoke fetch-models" in text.getvalue()


def test_a_folder_that_a_person_has_put_there_is_listed(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "Mine").mkdir()
    (tmp_path / "Mine" / "model.safetensors").write_bytes(b"x" * 10)
    (entry,) = holdings.listing(Checkout(checkout), tmp_path)
    assert (entry["repo"], entry["names"], entry["apparent_bytes"]) == (None, ["Mine"], 10)
    text = io.StringIO()
    holdings.show([entry], Console(file=text, width=120))
    assert "(not Slipway's)" in text.getvalue()


def test_prune_models_says_first_and_removes_when_told(checkout: Path, models: Models) -> None:
    words = ("prune-models", "--dest", str(models.root), "--keep", "0")
    _, said = holdings.prune(Checkout(checkout), models.root, keep=0, older_h=168, yes=False, progress=silent)
    assert "would remove 3 things" in said
    assert "add --yes" in said
    assert all(models.folder(number).is_dir() for number in range(4))
    done = json.loads(run(checkout, *words, "--yes", "--json").stdout)
    assert (done["removed"], len(done["items"])) == (True, 3)
    assert [models.folder(number).is_dir() for number in range(4)] == [False, False, False, True]
    assert planned(models, keep_revisions=0) == set()
    assert verify(models.locks[3], models.root / "Laguna-tiny").files == 8
