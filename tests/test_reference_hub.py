"""The local hub is close enough to the real one for the real client library, and fails on command."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from slipway.errors import MissingFile, UsageError
from slipway.reference import hub as hub_module
from slipway.reference.hub import Hub, Options, serve
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served") / "hub"
    write_sample(root / REPO)
    return root


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[Hub]:
    with serve(root) as running:
        yield running


@pytest.fixture
def hub(running: Hub) -> Hub:
    running.faults.clear()
    return running


def ask(
    hub: Hub, path: str, method: str = "GET", headers: dict[str, str] | None = None, timeout_s: float = 5
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(hub.url).netloc, timeout=timeout_s)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }


@pytest.mark.parametrize("redirect", [False, True])
def test_snapshot_download_of_the_real_library_brings_every_byte(root: Path, tmp_path: Path, redirect: bool) -> None:
    with serve(root, options=Options(redirect=redirect)) as hub:
        snapshot_download(REPO, endpoint=hub.url, token=False, local_dir=tmp_path / "got")
    assert files_of(tmp_path / "got") == files_of(root / REPO)
    assert len(files_of(tmp_path / "got")) == 8


def test_model_info_with_files_metadata_tells_size_and_digests(hub: Hub, root: Path) -> None:
    info = HfApi(endpoint=hub.url, token=False).model_info(REPO, files_metadata=True)
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or []}
    git = subprocess.run(
        ["git", "hash-object", root / REPO / "config.json"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert siblings["config.json"].blob_id == git
    assert siblings["config.json"].lfs is None
    assert siblings[SHARD].lfs is not None
    assert siblings[SHARD].size == (root / REPO / SHARD).stat().st_size
    assert len(info.sha or "") == 40


def test_the_tree_lists_files_and_folders_and_paths_info_picks_from_it(hub: Hub) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    assert [entry.path for entry in api.list_repo_tree(REPO, "code")] == ["code/modeling_laguna.py"]
    recursive = [entry.path for entry in api.list_repo_tree(REPO, recursive=True)]
    assert {"code", "code/modeling_laguna.py", SHARD} <= set(recursive)
    assert "code/modeling_laguna.py" not in [entry.path for entry in api.list_repo_tree(REPO)]
    assert [entry.path for entry in api.get_paths_info(REPO, ["config.json", "no"])] == ["config.json"]
    with pytest.raises(RemoteEntryNotFoundError):
        list(api.list_repo_tree(REPO, "nowhere"))


def test_the_revision_follows_the_files_and_nothing_else(root: Path, hub: Hub) -> None:
    write_sample(root / "o" / "moving")
    api = HfApi(endpoint=hub.url, token=False)
    first = api.model_info("o/moving").sha
    assert first == api.model_info(REPO).sha
    os.utime(root / "o" / "moving" / "config.json", (1, 1))
    assert api.model_info("o/moving", revision=first).sha == first == api.model_info("o/moving", revision="main").sha
    (root / "o" / "moving" / "config.json").write_text("{}")
    assert api.model_info("o/moving").sha != first
    with pytest.raises(RevisionNotFoundError):
        api.model_info("o/moving", revision=first)
    (root / "o" / "moving" / "config.json").unlink()
    assert "config.json" not in [entry.path for entry in api.list_repo_tree("o/moving")]


def test_what_is_not_there_is_refused_with_the_hubs_own_codes(hub: Hub) -> None:
    api = HfApi(endpoint=hub.url, token=False)
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("poolside/none")
    with pytest.raises(RevisionNotFoundError):
        api.model_info(REPO, revision="v9")
    status, headers, _ = ask(hub, f"/{REPO}/resolve/main/none.json", "HEAD")
    assert (status, headers["X-Error-Code"]) == (404, "EntryNotFound")


def test_a_gated_repository_needs_a_known_token(root: Path) -> None:
    with serve(root, options=Options(tokens=frozenset({"hf_good"}), gated=frozenset({REPO}))) as hub:
        with pytest.raises(GatedRepoError):
            HfApi(endpoint=hub.url, token=False).model_info(REPO)
        with pytest.raises(HfHubHTTPError, match="401"):
            HfApi(endpoint=hub.url, token="hf_bad").model_info(REPO)
        assert HfApi(endpoint=hub.url, token="hf_good").model_info(REPO).id == REPO
        assert hub.requests[-1].authorized


def test_head_and_get_of_a_shard_carry_commit_etag_and_size(hub: Hub, root: Path) -> None:
    data = (root / REPO / SHARD).read_bytes()
    status, headers, body = ask(hub, f"/{REPO}/resolve/main/{SHARD}", "HEAD")
    assert (status, body) == (200, b"")
    assert headers["X-Linked-Size"] == headers["Content-Length"] == str(len(data))
    assert headers["X-Linked-Etag"] == headers["ETag"]
    assert len(headers["X-Repo-Commit"]) == 40


@pytest.mark.parametrize(
    ("asked", "status", "span"),
    [
        ("bytes=5-9", 206, (5, 10)),
        ("bytes=5-", 206, (5, None)),
        ("bytes=-7", 206, (-7, None)),
        ("bytes=5-99999999", 206, (5, None)),
        ("bytes=0-1,4-5", 200, (0, None)),
        ("lines=1-2", 200, (0, None)),
        ("bytes=-", 200, (0, None)),
    ],
)
def test_ranges_are_answered_as_the_rfc_says(
    hub: Hub, root: Path, asked: str, status: int, span: tuple[int, int | None]
) -> None:
    data = (root / REPO / SHARD).read_bytes()
    got, headers, body = ask(hub, f"/{REPO}/resolve/main/{SHARD}", headers={"Range": asked})
    assert (got, body) == (status, data[span[0] : span[1]])
    if status == 206:
        assert headers["Content-Range"].endswith(f"/{len(data)}")


@pytest.mark.parametrize("asked", ["bytes=99999999-", "bytes=9-5", "bytes=-0"])
def test_a_range_outside_the_file_is_416(hub: Hub, asked: str) -> None:
    status, headers, _ = ask(hub, f"/{REPO}/resolve/main/{SHARD}", headers={"Range": asked})
    assert status == 416
    assert headers["Content-Range"].startswith("bytes */")


@pytest.mark.parametrize(
    "path",
    [
        f"/{REPO}/resolve/main/../../../../secret",
        f"/{REPO}/resolve/main/..%2f..%2f..%2fsecret",
        f"/{REPO}/resolve/main/%2e%2e/%2e%2e/%2e%2e/secret",
        f"/{REPO}/resolve/main//etc/hostname",
        f"/{REPO}/resolve/main/leak",
        f"/{REPO}/resolve/main/code/../config.json",
        "/../tmp/resolve/main/secret",
        "/%2e%2e/hub/resolve/main/secret",
        "/api/models/../..",
        "/api/models/..%2f../x",
    ],
)
def test_no_request_reaches_a_file_outside_its_repository(hub: Hub, root: Path, path: str) -> None:
    (root.parent / "secret").write_text("secret")
    leak = root / REPO / "leak"
    leak.symlink_to(root.parent / "secret")
    try:
        status, _, body = ask(hub, path)
    finally:
        leak.unlink()
    assert status == 404
    assert b"secret" not in body


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (Fault("resolve", "flip", at=500), lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:]),
        (Fault("resolve", "zero-tail", at=500), lambda data: data[:500] + bytes(len(data) - 500)),
        (Fault("resolve", "short-length", at=500), lambda data: data[:500]),
    ],
)
def test_a_fault_spoils_the_bytes_it_names(hub: Hub, root: Path, fault: Fault, wrong: object) -> None:
    data = (root / REPO / SHARD).read_bytes()
    hub.faults.add(fault)
    assert ask(hub, f"/{REPO}/resolve/main/{SHARD}")[2] == wrong(data)  # type: ignore[operator]
    hub.faults.clear()
    assert ask(hub, f"/{REPO}/resolve/main/{SHARD}")[2] == data


def test_a_fault_closes_the_connection_after_some_bytes(hub: Hub) -> None:
    hub.faults.add(Fault("GET .*resolve", "close", at=100, times=1))
    with pytest.raises(http.client.IncompleteRead) as cut:
        ask(hub, f"/{REPO}/resolve/main/{SHARD}")
    assert len(cut.value.partial) == 100


def test_a_fault_stalls_the_connection(hub: Hub) -> None:
    hub.faults.add(Fault("GET .*resolve", "stall", at=100))
    with pytest.raises(TimeoutError):
        ask(hub, f"/{REPO}/resolve/main/{SHARD}", timeout_s=0.2)


def test_a_slow_connection_brings_every_byte_in_the_end(hub: Hub, root: Path) -> None:
    data = (root / REPO / "tokenizer.json").read_bytes()
    hub.faults.add(Fault("tokenizer", "slow", at=len(data) - 3))
    assert ask(hub, f"/{REPO}/resolve/main/tokenizer.json")[2] == data
    hub.faults.add(Fault("tokenizer", "slow", at=0))
    with pytest.raises(TimeoutError):
        # The first byte comes after 50 ms; whoever leaves before does not hold the hub.
        ask(hub, f"/{REPO}/resolve/main/tokenizer.json", timeout_s=0.02)


def test_faults_answer_with_a_status_for_a_while(hub: Hub) -> None:
    hub.faults.add(Fault("/api/", "status", status=429, retry_after_s=2, times=1, after=1))
    assert [ask(hub, f"/api/models/{REPO}")[0] for _ in range(3)] == [200, 429, 200]
    hub.faults.add(Fault("/api/", "status", status=429, retry_after_s=2), Fault("resolve", "gated"))
    _, headers, _ = ask(hub, f"/api/models/{REPO}")
    assert headers["RateLimit"] == '"api";r=0;t=2'
    assert ask(hub, f"/{REPO}/resolve/main/{SHARD}")[1]["X-Error-Code"] == "GatedRepo"


def test_a_fault_makes_the_server_ignore_ranges(hub: Hub, root: Path) -> None:
    hub.faults.add(Fault("resolve", "ignore-range"))
    status, _, body = ask(hub, f"/{REPO}/resolve/main/{SHARD}", headers={"Range": "bytes=9-"})
    assert (status, body) == (200, (root / REPO / SHARD).read_bytes())


def test_main_moves_and_the_commit_before_stays(hub: Hub, root: Path, tmp_path: Path) -> None:
    write_sample(tmp_path / "next", shards=2, seed=9)
    api = HfApi(endpoint=hub.url, token=False)
    before = api.model_info(REPO).sha
    hub.faults.add(Fault(".", "main-moves", folder=tmp_path / "next"))
    after = api.model_info(REPO).sha
    assert after != before
    assert api.model_info(REPO, revision=before).sha == before
    assert ask(hub, f"/{REPO}/resolve/{before}/{SHARD}")[2] == (root / REPO / SHARD).read_bytes()


def test_the_storage_host_refuses_a_commit_it_does_not_know(hub: Hub) -> None:
    assert ask(hub, f"/cdn/{REPO}/{'0' * 40}/config.json")[0] == 403


def test_large_files_are_in_lfs_whatever_their_name(root: Path) -> None:
    with serve(root, options=Options(lfs_from_bytes=100)) as hub:
        info = HfApi(endpoint=hub.url, token=False).model_info(REPO, files_metadata=True)
    assert {sibling.rfilename for sibling in info.siblings or [] if sibling.lfs is None} == {
        "README.md",
        "code/modeling_laguna.py",
        "tokenizer.json",
    }


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="--root"), serve(tmp_path / "none"):
        pass


def test_the_command_serves_until_it_is_stopped(root: Path) -> None:
    command = [sys.executable, "-m", "slipway.reference.hub", "--root", str(root), "--gated", REPO]
    environment = {**os.environ, "SLIPWAY_HUB_TOKEN": "hf_good", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert HfApi(endpoint=url, token="hf_good").model_info(REPO).id == REPO
        finally:
            process.terminate()
        assert process.wait(10) in {0, -15}


def test_the_command_says_what_is_wrong_with_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: Hub
) -> None:
    with pytest.raises(SystemExit) as none:
        hub_module.main(["--root", str(tmp_path / "none")])
    assert none.value.code == MissingFile.exit_code
    port = hub.url.rpartition(":")[2]
    with pytest.raises(SystemExit) as taken:
        hub_module.main(["--root", str(tmp_path), "--port", port])
    assert taken.value.code == UsageError.exit_code
    assert "choose a free --port" in capsys.readouterr().err
