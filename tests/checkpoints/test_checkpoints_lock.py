"""Locks: made from a hub's metadata, written durably, read strictly, and compared with upstream."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from slipway.checkpoints import lock as locks
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.hub import hub_from_environment
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.pins import path_problem
from slipway.errors import (
    AuthFailure,
    DiskFailure,
    DocumentError,
    LockDrift,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)
from slipway.reference.hub import Hub, Options, serve
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
GATED = "poolside/Laguna-gated"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    write_sample(root / REPO)
    write_sample(root / GATED)
    write_sample(root / "other" / "next", shards=2)
    return root


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[Hub]:
    with serve(root, options=Options(tokens=frozenset({"hf_good"}), gated=frozenset({GATED}))) as running:
        yield running


@pytest.fixture
def hub(running: Hub) -> Hub:
    running.faults.clear()
    return running


def resolve(hub: Hub, repo: str = REPO, revision: str = "main", **more: object) -> CheckpointLock:
    return locks.resolve(repo, revision, **{"endpoint": hub.url, "token": None, **more})  # type: ignore[arg-type]


def test_a_lock_holds_the_commit_and_a_digest_of_every_file(hub: Hub, root: Path) -> None:
    lock = resolve(hub)
    assert len(lock.revision) == 40
    assert {file.path for file in lock.files} == {
        path.relative_to(root / REPO).as_posix() for path in (root / REPO).rglob("*") if path.is_file()
    }
    assert all(file.sha256 for file in lock.files if file.path.endswith(".safetensors"))
    assert all(file.git_sha1 for file in lock.files if file.path.endswith(".json"))
    assert lock.summary.shards == 3
    assert lock.summary.total_bytes == sum(path.stat().st_size for path in (root / REPO).rglob("*") if path.is_file())


def test_the_same_commit_by_name_and_by_digits_gives_the_same_lock(hub: Hub) -> None:
    assert resolve(hub) == resolve(hub, revision=resolve(hub).revision)


def test_patterns_choose_files_and_are_remembered(hub: Hub) -> None:
    lock = resolve(hub, allow_patterns=["*.json", "code/"])
    assert [file.path for file in lock.files] == [
        "code/modeling_laguna.py",
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]
    assert lock.allow_patterns == ("*.json", "code/")
    with pytest.raises(MissingFile, match=r"no file that matches.*\*\.gguf"):
        resolve(hub, allow_patterns=["*.gguf"])


def test_a_lock_is_written_sorted_and_read_back_equal(hub: Hub, tmp_path: Path) -> None:
    lock = resolve(hub)
    path = tmp_path / locks.default_path(REPO)
    locks.write(lock, path)
    text = path.read_text()
    assert path.name == "laguna-tiny.lock.json"
    assert text.endswith("}\n")
    assert json.loads(text)["schema"] == "slipway/checkpoint-lock/v1"
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    assert locks.read(path) == lock
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_the_digest_changes_with_the_lock_and_not_with_its_layout(hub: Hub, tmp_path: Path) -> None:
    lock = resolve(hub)
    (tmp_path / "flat.json").write_text(json.dumps(json.loads(lock.model_dump_json(by_alias=True, exclude_none=True))))
    assert locks.digest(locks.read(tmp_path / "flat.json")) == locks.digest(lock)
    assert locks.digest(lock).startswith("sha256:")
    assert locks.digest(lock.model_copy(update={"revision": "0" * 40})) != locks.digest(lock)


def test_a_lock_that_cannot_be_written_leaves_the_one_before(hub: Hub, tmp_path: Path) -> None:
    locks.write(resolve(hub), tmp_path / "a.lock.json")
    before = (tmp_path / "a.lock.json").read_bytes()
    (tmp_path / "b.lock.json").mkdir()
    (tmp_path / "b.lock.json" / "x").touch()
    with pytest.raises(DiskFailure):
        locks.write(resolve(hub), tmp_path / "b.lock.json")
    with pytest.raises(DiskFailure):
        locks.write(resolve(hub), tmp_path / "a.lock.json" / "c.lock.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.lock.json", "b.lock.json"]
    assert (tmp_path / "a.lock.json").read_bytes() == before


def test_upstream_that_has_not_moved_is_no_drift(hub: Hub) -> None:
    locks.check(resolve(hub), resolve(hub))


def test_upstream_that_has_moved_is_drift_with_every_file_named(hub: Hub, root: Path) -> None:
    lock = resolve(hub)
    hub.faults.add(Fault("/api/models", "main-moves", folder=root / "other" / "next"))
    moved = resolve(hub)
    with pytest.raises(LockDrift) as drift:
        locks.check(lock, moved)
    text = str(drift.value)
    assert drift.value.exit_code == 3
    assert f"upstream is at {moved.revision}, the lock at {lock.revision}" in text
    assert "changed model.safetensors.index.json" in text
    assert "added model-00001-of-00002.safetensors, model-00002-of-00002.safetensors" in text
    assert "removed model-00001-of-00003.safetensors" in text


def test_another_commit_with_the_same_files_is_drift_too(hub: Hub) -> None:
    lock = resolve(hub)
    with pytest.raises(LockDrift, match="the same files"):
        locks.check(lock.model_copy(update={"revision": "0" * 40}), lock)
    with pytest.raises(UsageError, match="cannot be compared"):
        locks.check(lock, lock.model_copy(update={"repo": "a/b"}))


def test_a_gated_repository_says_how_to_get_access(hub: Hub) -> None:
    with pytest.raises(AuthFailure, match="HF_TOKEN"):
        resolve(hub, GATED)
    with pytest.raises(AuthFailure) as refused:
        resolve(hub, GATED, token="hf_secretbad")
    assert "hf_secretbad" not in str(refused.value)
    assert resolve(hub, GATED, token="hf_good").repo == GATED


def test_a_token_that_was_not_given_is_not_looked_for(hub: Hub) -> None:
    os.environ["HF_TOKEN"] = "hf_good"
    resolve(hub)
    assert not hub.requests[-1].authorized


def test_a_repository_or_revision_that_is_not_there_is_missing(hub: Hub) -> None:
    with pytest.raises(MissingFile, match="no such repository"):
        resolve(hub, "poolside/none")
    with pytest.raises(MissingFile, match="no such revision"):
        resolve(hub, revision="v9")


def test_a_rate_limit_says_when_to_come_back(hub: Hub) -> None:
    hub.faults.add(Fault("/api/", "status", status=429, retry_after_s=42))
    with pytest.raises(NetworkFailure, match="Retry-After is 42 s"):
        resolve(hub)


def test_a_hub_in_trouble_and_one_that_is_not_there_are_network_failures(hub: Hub, unused_port: int) -> None:
    hub.faults.add(Fault("/api/", "status", status=500))
    with pytest.raises(NetworkFailure, match="HTTP 500"):
        resolve(hub)
    with pytest.raises(NetworkFailure, match="does not answer"):
        locks.resolve(REPO, "main", endpoint=f"http://127.0.0.1:{unused_port}", token=None)


@contextmanager
def answering(body: str) -> Iterator[str]:
    """A server that gives the same body to everybody."""

    async def answer(_: object) -> Response:
        return Response(body, media_type="application/json")

    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=[Route("/{any:path}", answer)]), log_config=None, lifespan="off", ws="none")
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<html>sign in</html>", "what no hub answers"),
        ("[]", "what no hub answers"),
        ("{}", "what no hub answers"),
        ({"sha": "main"}, "cannot be locked"),
        ({"siblings": [{"rfilename": "../evil", "size": 1, "blobId": "a" * 40}]}, "could leave the folder"),
        ({"siblings": [{"rfilename": "a", "size": 1}]}, "exactly one"),
        ({"siblings": [{"rfilename": "a", "blobId": "a" * 40}]}, "greater than or equal to 0"),
        ({"siblings": []}, "has no files"),
    ],
)
def test_an_answer_that_no_hub_gives_is_refused_in_our_words(body: str | dict[str, object], said: str) -> None:
    whole = {"id": REPO, "sha": "a" * 40, "siblings": [{"rfilename": "a", "size": 1, "blobId": "a" * 40}]}
    text = body if isinstance(body, str) else json.dumps({**whole, **body})
    with answering(text) as url, pytest.raises((NetworkFailure, MissingFile)) as refused:
        locks.resolve(REPO, "main", endpoint=url, token=None)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("license: apache-2.0", "apache-2.0"),
        ("license: other\nlicense_name: openmdw-1.1", "openmdw-1.1"),
        ("license: [a, b]", None),
        ("language: en", None),
    ],
)
def test_the_licence_of_the_card_is_kept(hub: Hub, root: Path, card: str, licence: str | None) -> None:
    write_sample(root / "o" / "card")
    (root / "o" / "card" / "README.md").write_text(f"---\n{card}\n---\n# A model\n")
    assert resolve(hub, "o/card").licence == licence


@pytest.mark.parametrize("text", ["no card", "---\n[\n---\n", "---\n- a\n---\n"])
def test_a_card_that_says_nothing_is_no_error(hub: Hub, root: Path, text: str) -> None:
    write_sample(root / "o" / "card")
    (root / "o" / "card" / "README.md").write_text(text)
    assert resolve(hub, "o/card").licence is None


@pytest.mark.parametrize("repo", ["", "one", "a/b/c", "../x/y", "a/..", "a/b\n", "-a/b", "a//b", "a/b c"])
def test_what_is_no_repository_never_reaches_the_hub(hub: Hub, repo: str) -> None:
    asked = len(hub.requests)
    with pytest.raises(UsageError, match="owner/name"):
        resolve(hub, repo)
    with pytest.raises(UsageError, match="--revision"):
        resolve(hub, revision="")
    assert len(hub.requests) == asked


@pytest.mark.parametrize(
    "endpoint", ["", "huggingface.co", "ftp://host", "http://", "http://h:99999", "http://u:p@h", "http://h/?a"]
)
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(UsageError, match="HF_ENDPOINT"):
        HubAddress(endpoint)


def test_the_environment_says_which_hub_and_what_token(tmp_path: Path) -> None:
    assert hub_from_environment() == HubAddress("https://huggingface.co", None)
    home = Path(os.environ["HOME"])
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text("hf_file\n")
    assert hub_from_environment().token == "hf_file"
    (tmp_path / "token").write_text("hf_path")
    os.environ |= {"HF_TOKEN_PATH": str(tmp_path / "token"), "HF_ENDPOINT": "http://mirror:8080/hub/"}
    assert hub_from_environment() == HubAddress("http://mirror:8080/hub", "hf_path")
    os.environ["HF_TOKEN"] = "hf_variable"
    assert hub_from_environment().token == "hf_variable"
    assert "hf_variable" not in repr(hub_from_environment())
    os.environ["HF_TOKEN"] = "hf with\nnewline"
    with pytest.raises(UsageError, match="HF_TOKEN") as refused:
        hub_from_environment()
    assert "newline" not in str(refused.value)


def test_a_token_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    os.environ["HF_TOKEN_PATH"] = str(tmp_path)
    with pytest.raises(DiskFailure, match="token file"):
        hub_from_environment()
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    os.environ["HF_TOKEN_PATH"] = str(tmp_path / "token")
    with pytest.raises(UsageError, match="token file is not text"):
        hub_from_environment()
    os.environ["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1"
    assert hub_from_environment().token is None


def test_offline_mode_asks_nobody_and_says_so(hub: Hub) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    with pytest.raises(NetworkFailure, match="unset HF_HUB_OFFLINE"):
        hub_from_environment().require_online()
    # The library reads its variables when it is imported, so the whole way needs a fresh process.
    program = (
        "import sys; from slipway.checkpoints import lock; from slipway.errors import SlipwayError\n"
        f"try: lock.resolve('{REPO}', 'main', endpoint='{hub.url}', token=None)\n"
        "except SlipwayError as error: print(error); sys.exit(error.exit_code)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == NetworkFailure.exit_code, done.stderr
    assert "unset HF_HUB_OFFLINE" in done.stdout


def document(**changes: object) -> dict[str, object]:
    files = [{"path": "config.json", "size_bytes": 2, "git_sha1": "a" * 40}]
    summary = {"shards": 0, "total_bytes": 2}
    whole: dict[str, object] = {
        "schema": "slipway/checkpoint-lock/v1",
        "repo": REPO,
        "revision": "b" * 40,
        "licence": None,
        "summary": summary,
        "files": files,
    }
    return {**whole, **changes}


def file(**changes: object) -> list[dict[str, object]]:
    return [{"path": "config.json", "size_bytes": 2, "git_sha1": "a" * 40, **changes}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"schema": "slipway/checkpoint-lock/v2"}, "schema"),
        ({"revision": "main"}, "revision"),
        ({"repo": "laguna"}, "owner/name"),
        ({"files": []}, "at least 1"),
        ({"files": file(path="../evil")}, "could leave the folder"),
        ({"files": file(path="/etc/passwd")}, "relative path"),
        ({"files": file(path=".slipway-manifest.json")}, "own manifest"),
        ({"files": file(sha256="c" * 64)}, "exactly one"),
        ({"files": file(git_sha1=None)}, "exactly one"),
        ({"files": file(git_sha1="A" * 40)}, "git_sha1"),
        ({"files": file(size_bytes=-1)}, "size_bytes"),
        ({"files": file() * 2}, "stands twice"),
        ({"files": [*file(), *file(path="config.json/x")]}, "both a file and the folder"),
        ({"summary": {"shards": 1, "total_bytes": 2}}, "summary does not agree"),
        ({"unknown": 1}, "unknown key"),
    ],
)
def test_a_lock_that_cannot_be_right_is_refused_with_the_place(
    tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    path = tmp_path / "x.lock.json"
    path.write_text(json.dumps(document(**changes), indent=1))
    with pytest.raises(DocumentError) as refused:
        locks.read(path)
    assert said in str(refused.value)
    assert "x.lock.json:" in str(refused.value)


def test_a_lock_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        locks.read(tmp_path / "none.lock.json")


@settings(max_examples=60, deadline=None)
@given(
    path=st.text(max_size=12) | st.lists(st.sampled_from(["a", "..", ".", "", "b.json", "\\", "é 漢"])).map("/".join)
)
def test_a_path_is_refused_or_stays_inside_and_survives_the_file(
    tmp_path_factory: pytest.TempPathFactory, path: str
) -> None:
    place = tmp_path_factory.getbasetemp() / "path.lock.json"
    try:
        lock = CheckpointLock.model_validate(document(files=file(path=path)))
    except ValueError:
        assert path_problem(path)
        return
    folder = Path("/base/folder")
    assert Path(os.path.normpath(folder / path)).is_relative_to(folder)
    assert os.path.normpath(folder / path) == str(folder / path)
    locks.write(lock, place)
    assert locks.read(place) == lock


@settings(max_examples=30, deadline=None)
@given(text=st.text(max_size=40) | st.binary(max_size=20).map(lambda data: json.dumps(document(repo=str(data)))))
def test_any_text_is_a_lock_or_refused_in_our_words(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    place = tmp_path_factory.getbasetemp() / "any.lock.json"
    place.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(SlipwayError):
        locks.read(place)
