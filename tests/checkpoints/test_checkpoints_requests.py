"""Lock requests and pairs: completed from a hub, target and drafter in one go, and held to each other afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipway import models, recipe
from slipway.checkpoints import lock as locks
from slipway.checkpoints import lock_request as requests
from slipway.checkpoints.lock import Pair
from slipway.errors import DocumentError, LockDrift, MissingFile, UsageError
from slipway.progress import silent
from slipway.reference.hub import Hub, serve
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample, write_shard
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parents[2]
TARGET, DRAFTER = "poolside/Laguna-S-2.1-INT4", "poolside/Laguna-S-2.1-DFlash-INT4"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    write_sample(root / TARGET)
    (root / TARGET / "image").mkdir()
    (root / TARGET / "image" / "overlay.tar.gz").write_bytes(b"an engine image")
    (root / DRAFTER).mkdir(parents=True)
    write_shard(root / DRAFTER / "model.safetensors", {"a": (8, 8), "b": (8,), "c": (4,)})
    (root / DRAFTER / "config.json").write_text('{"model_type": "dflash_laguna"}')
    return root


@pytest.fixture(scope="module")
def running(served: Path) -> Iterator[Hub]:
    with serve(served) as hub:
        yield hub


@pytest.fixture
def hub(running: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    running.faults.clear()
    monkeypatch.setenv("HF_ENDPOINT", running.url)
    return running


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name in ("tasks", "recipes", "stacks"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    (tmp_path / "checkpoints").mkdir()
    write_request(tmp_path, TARGET, "drafter", DRAFTER)
    write_request(tmp_path, DRAFTER, "target", TARGET)
    return Checkout(tmp_path)


def write_request(root: Path, repo: str, role: str, mate: str, more: dict[str, object] | None = None) -> Path:
    path = root / "checkpoints" / f"{repo.rpartition('/')[2].lower()}.lock-request.json"
    request = {
        "schema": "slipway/checkpoint-lock-request/v1",
        "repo": repo,
        "revision": None,
        "pairs": [{"role": role, "repo": mate, "revision": None}],
        "source": "this test",
    }
    path.write_text(json.dumps({**request, **(more or {})}))
    return path


def run(checkout: Checkout, *words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "invoke", "--search-root", str(checkout.root), *words)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=checkout.root, env=env)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def test_every_laguna_repository_that_a_recipe_names_has_a_request_that_agrees_with_the_recipe() -> None:
    for item in recipe.read_book(ROOT / "recipes"):
        for checkpoint in item.checkpoints:
            if checkpoint.repo.startswith("slipway/"):
                continue
            request = requests.read(ROOT / "checkpoints" / f"{checkpoint.name.lower()}.lock-request.json")
            assert (request.repo, request.revision) == (checkpoint.repo, checkpoint.revision)
            assert list(request.allow_patterns) == checkpoint.allow_patterns
        spec = item.cell.speculation
        if spec:
            target = requests.read(ROOT / "checkpoints" / f"{item.cell.checkpoint.name.lower()}.lock-request.json")
            assert [(pair.role, pair.repo, pair.revision) for pair in target.pairs] == [
                ("drafter", spec.drafter.repo, spec.drafter.revision)
            ]


def test_requests_are_paired_both_ways() -> None:
    found = [requests.read(path) for path in sorted((ROOT / "checkpoints").glob("*.lock-request.json"))]
    assert len(found) == 12
    known = {request.repo: request for request in found}
    for request in found:
        for pair in request.pairs:
            mate = known[pair.repo]
            assert mate.revision == pair.revision
            assert [back.repo for back in mate.pairs] == [request.repo]
            assert {pair.role, mate.pairs[0].role} == {"target", "drafter"}


def test_all_requests_are_completed_in_one_go_and_paired(hub: Hub, checkout: Checkout) -> None:
    ran = run(checkout, "lock-models", "--all", "--json")
    assert ran.returncode == 0, ran.stderr
    drafter, target = json.loads(ran.stdout)
    assert target["pairs"] == [{"role": "drafter", "repo": DRAFTER, "revision": drafter["revision"]}]
    assert drafter["pairs"] == [{"role": "target", "repo": TARGET, "revision": target["revision"]}]
    assert (target["summary"]["tensors"], drafter["summary"]["tensors"]) == (6, 3)
    paths = {file["path"] for file in target["files"]}
    assert "image/overlay.tar.gz" not in paths
    assert {"code/modeling_laguna.py", "config.json", "model.safetensors.index.json"} <= paths
    assert locks.read(checkout.locks / "laguna-s-2.1-int4.lock.json").pairs[0].repo == DRAFTER
    models.lock_requested(checkout, models.requested(checkout, locked=True), check=True, progress=silent)


def test_a_moved_upstream_is_drift_that_names_the_file(hub: Hub, served: Path, checkout: Checkout) -> None:
    models.lock_requested(checkout, models.requested(checkout, locked=False), check=False, progress=silent)
    config = served / DRAFTER / "config.json"
    before = config.read_text()
    config.write_text(before + " ")
    one = [checkout.locks / "laguna-s-2.1-dflash-int4.lock-request.json"]
    try:
        for paths in (models.requested(checkout, locked=True), one):
            with pytest.raises(LockDrift, match=r"changed config\.json"):
                models.lock_requested(checkout, paths, check=True, progress=silent)
        with pytest.raises(LockDrift, match=r"changed config\.json"):
            models.lock(checkout, DRAFTER, "main", None, check=True, progress=silent)
    finally:
        config.write_text(before)


def test_one_request_takes_the_pairs_revision_from_the_lock_beside_it(
    hub: Hub, served: Path, checkout: Checkout
) -> None:
    paths = models.requested(checkout, locked=False)
    (drafter,), _ = models.lock_requested(checkout, paths[:1], check=False, progress=silent)
    config = served / DRAFTER / "config.json"
    before = config.read_text()
    config.write_text(before + " ")
    try:
        (target,), _ = models.lock_requested(checkout, paths[1:], check=False, progress=silent)
    finally:
        config.write_text(before)
    assert target["pairs"][0]["revision"] == drafter["revision"]


def test_a_recipe_that_pairs_other_revisions_than_the_locks_is_drift(hub: Hub, checkout: Checkout) -> None:
    entries, _ = models.lock_requested(checkout, models.requested(checkout, locked=False), check=False, progress=silent)
    revisions = {entry["repo"]: entry["revision"] for entry in entries}
    path = checkout.recipes / "laguna-s-2.1.vllm.yaml"
    text = path.read_text()
    for repo, pinned in (
        (TARGET, "4bbfc285f2f8b3b6b526274c133b7b17aae6c8cb"),
        (DRAFTER, "5e07c246915c86dc6920fead03d019989224f2ba"),
    ):
        text = text.replace(pinned, revisions[repo])
    path.write_text(text)
    cell = next(
        item.id
        for item in recipe.read_book(checkout.recipes)
        if item.engine == "vllm" and [checkpoint.repo for checkpoint in item.checkpoints] == [TARGET, DRAFTER]
    )
    assert [found.repo for found in models.wanted(checkout, None, cell, None)] == [TARGET, DRAFTER]
    place = checkout.locks / "laguna-s-2.1-int4.lock.json"
    other = locks.with_pairs(locks.read(place), [Pair(role="drafter", repo=DRAFTER, revision="0" * 40)])
    locks.write(other, place)
    with pytest.raises(LockDrift, match=f"is paired with drafter {DRAFTER}@0000") as refused:
        models.wanted(checkout, None, cell, None)
    assert revisions[DRAFTER] in str(refused.value)


def test_a_checkpoint_without_a_lock_is_led_to_its_request(checkout: Checkout) -> None:
    with pytest.raises(MissingFile, match=r"--request checkpoints/laguna-s-2.1-int4.lock-request.json"):
        models.wanted(checkout, None, "laguna-s-2.1.vllm/4x3090-int4-champion", None)


def test_a_lock_for_an_unpinned_recipe_is_led_into_the_recipe(hub: Hub, checkout: Checkout) -> None:
    path = checkout.recipes / "laguna-s-2.1.vllm.yaml"
    path.write_text(path.read_text().replace("4bbfc285f2f8b3b6b526274c133b7b17aae6c8cb", "null"))
    (entry,), _ = models.lock_requested(
        checkout, [checkout.locks / "laguna-s-2.1-int4.lock-request.json"], check=False, progress=silent
    )
    with pytest.raises(MissingFile, match=f"write the commit that is locked, {entry['revision']}, into the recipe"):
        models.wanted(checkout, None, "laguna-s-2.1.vllm/4x3090-int4-champion", None)


def test_what_is_to_be_locked_is_said_once(checkout: Checkout) -> None:
    ran = run(checkout, "lock-models", "--all", "--repo", "a/b")
    assert (ran.returncode, "give one of --repo, --request and --all" in ran.stderr) == (2, True)


def test_nothing_to_complete_is_said(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(MissingFile, match="has no completed lock request"):
        models.requested(Checkout(tmp_path), locked=True)


@pytest.mark.parametrize(
    "wrong", [{"revision": "main"}, {"repo": "../x"}, {"pairs": [{"role": "friend", "repo": "a/b", "revision": None}]}]
)
def test_a_request_that_cannot_be_meant_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(DocumentError):
        requests.read(write_request(tmp_path, TARGET, "drafter", DRAFTER, wrong))


def test_the_patterns_of_a_recipe_decide_what_is_locked(hub: Hub, checkout: Checkout) -> None:
    entry, _ = models.lock(checkout, TARGET, "main", None, check=False, progress=silent)
    assert "image/overlay.tar.gz" not in {file["path"] for file in entry["files"]}
    path = checkout.recipes / "laguna-s-2.1.vllm.yaml"
    pinned = "revision: 4bbfc285f2f8b3b6b526274c133b7b17aae6c8cb\n"
    path.write_text(path.read_text().replace(pinned, pinned + "      allow_patterns: ['*.json', 'image/*']\n"))
    entry, _ = models.lock(checkout, TARGET, "main", None, check=False, progress=silent)
    assert "image/overlay.tar.gz" in {file["path"] for file in entry["files"]}


def test_an_index_that_is_not_what_the_hub_names_leaves_the_tensors_uncounted(hub: Hub) -> None:
    hub.faults.add(Fault("model.safetensors.index.json", "flip", at=10))
    lock = locks.resolve(TARGET, "main", endpoint=hub.url, token=None)
    assert lock.summary.tensors is None


def test_a_lock_of_another_repository_is_not_replaced(hub: Hub, checkout: Checkout) -> None:
    def lock(repo: str, path: Path | None = None) -> None:
        models.lock(checkout, repo, "main", path, check=False, progress=silent)

    lock(TARGET)
    path = checkout.root / locks.default_path(TARGET)
    before = path.read_bytes()
    with pytest.raises(UsageError, match=f"is the lock of another repository .got {TARGET}.*--out"):
        lock(DRAFTER, path)
    request = write_request(checkout.root, TARGET, "drafter", DRAFTER, {"repo": DRAFTER, "pairs": []})
    with pytest.raises(UsageError, match="is the lock of another repository"):
        models.lock_requested(checkout, [request], check=False, progress=silent)
    assert path.read_bytes() == before
    lock(TARGET)
    path.write_text("<<<<<<< merge")
    with pytest.raises(DocumentError):
        lock(TARGET)


def test_pairs_stay_with_their_revision_and_are_said_to_be_lost_with_another(
    hub: Hub, checkout: Checkout, served: Path
) -> None:
    notes: list[str] = []

    class Noting:
        track = staticmethod(silent.track)
        note = staticmethod(notes.append)

    def lock() -> locks.CheckpointLock:
        models.lock(checkout, TARGET, "main", None, check=False, progress=Noting())
        return locks.read(path)

    models.lock_requested(checkout, models.requested(checkout, locked=False), check=False, progress=silent)
    path = checkout.root / locks.default_path(TARGET)
    pairs = locks.read(path).pairs
    assert pairs
    assert lock().pairs == pairs
    assert not any("paired" in note for note in notes)
    readme = served / TARGET / "later.md"
    readme.write_text("a later revision\n")
    try:
        assert lock().pairs == ()
    finally:
        readme.unlink()
    assert [note for note in notes if f"was paired with drafter {DRAFTER}@" in note and "--request" in note]
