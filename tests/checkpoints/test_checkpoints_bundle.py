"""The fetcher as one file, run by a bare interpreter: same result, same exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.checkpoints import bundle, host_command, plain_lock
from slipway.checkpoints import lock as locks
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.verify import verify
from slipway.errors import MissingFile, UsageError
from slipway.reference.hub import Hub
from slipway.reference.hub_faults import Fault

REPO = "poolside/Laguna-tiny"


@pytest.fixture
def lock_file(lock: CheckpointLock, tmp_path: Path, hub: Hub) -> Path:
    hub.faults.clear()
    locks.write(lock, tmp_path / "tiny.lock.json")
    return tmp_path / "tiny.lock.json"


@pytest.fixture(scope="module")
def fetcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "fetch.pyz"
    bundle.main(["--out", str(out)])
    return out


def run(python: str, fetcher: Path, hub: Hub, *args: object) -> subprocess.CompletedProcess[str]:
    command = [python, "-I", "-S", fetcher, *map(str, args)]
    return subprocess.run(
        command, env={"HF_ENDPOINT": hub.url}, capture_output=True, text=True, check=False, timeout=60
    )


def interpreter(version: str) -> str:
    """A `python3` of this version, from the path or beside this one; the test is skipped where there is none."""
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3"))
    for candidate in [*map(str, beside), shutil.which(f"python{version}")]:
        # What is on the path may be pyenv's stand-in for a version that is not chosen.
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip(f"no Python {version} on this machine")


@pytest.mark.parametrize("version", ["3.8", "3.9", ""])
def test_a_bare_interpreter_fetches_and_skips_with_one_json_line_each(
    fetcher: Path, hub: Hub, lock: CheckpointLock, lock_file: Path, tmp_path: Path, version: str
) -> None:
    python = interpreter(version) if version else sys.executable
    done = run(python, fetcher, hub, "--lock", lock_file, "--dest", tmp_path / "models", "--workers", 2)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["repo"], result["revision"], result["fetched_files"]) == (REPO, lock.revision, 8)
    assert verify(lock, Path(result["folder"])).files == 8
    again = run(python, fetcher, hub, "--lock", lock_file, "--dest", tmp_path / "models", "--quiet")
    assert json.loads(again.stdout)["skipped"]
    assert again.stderr == ""


def test_failures_have_the_exit_codes_of_the_main_command(
    fetcher: Path, hub: Hub, lock_file: Path, tmp_path: Path
) -> None:
    hub.faults.add(Fault("GET .*config.json", "flip", at=3))
    done = run(sys.executable, fetcher, hub, "--lock", lock_file, "--dest", tmp_path / "models")
    assert done.returncode == 4
    assert json.loads(done.stdout)["error"] == "IntegrityMismatch"
    assert "config.json: expected" in done.stderr.splitlines()[-1]
    assert run(sys.executable, fetcher, hub, "--lock", tmp_path / "none", "--dest", tmp_path).returncode == 5
    assert run(sys.executable, fetcher, hub, "--lock", lock_file).returncode == 2
    assert run(sys.executable, fetcher, hub, "--lock", lock_file, "--dest", tmp_path, "--source", "x").returncode == 2


def test_equal_sources_make_equal_bundles(fetcher: Path, tmp_path: Path) -> None:
    assert bundle.write(tmp_path / "again.pyz") == fetcher.stat().st_size
    assert (tmp_path / "again.pyz").read_bytes() == fetcher.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.pyz"]


def test_a_bundle_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="writing the bundle"):
        bundle.write(tmp_path / "none" / "fetch.pyz")


def test_the_command_works_where_slipway_is_installed_too(
    hub: Hub, lock_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.environ["HF_ENDPOINT"] = hub.url
    assert host_command.main(["--lock", str(lock_file), "--dest", str(tmp_path / "models")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["fetched_files"] == 8
    assert f"fetching {REPO}" in said.err


def test_an_interrupt_ends_with_its_own_code(
    hub: Hub, lock_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_command, "fetch", lambda *_, **__: host_command._stop())
    assert host_command.main(["--lock", str(lock_file), "--dest", str(tmp_path)]) == 130


def test_a_plain_lock_is_what_the_full_reader_reads(lock: CheckpointLock, lock_file: Path) -> None:
    plain = plain_lock.read(lock_file)
    assert (plain.repo, plain.revision) == (lock.repo, lock.revision)
    assert [vars(file) for file in plain.files] == [file.model_dump(exclude={"xet_hash"}) for file in lock.files]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: {**data, "schema": "other"}, "another schema"),
        (lambda data: [data], "another schema"),
        (lambda data: {**data, "files": []}, "names no files"),
        (lambda data: {**data, "files": ["x"]}, "without path"),
        (lambda data: {**data, "files": [{**data["files"][0], "size_bytes": True}]}, "without path"),
        (lambda data: {**data, "files": [{"path": "a", "size_bytes": 1}]}, "without path"),
        (lambda data: {**data, "files": [{"path": "a", "size_bytes": 1, "sha256": "zz"}]}, "without path"),
        (lambda data: {**data, "files": [{"path": "../a", "size_bytes": 1, "sha256": "a" * 64}]}, "leave the folder"),
        (lambda data: {**data, "repo": "../../x"}, "owner/name"),
    ],
)
def test_a_lock_that_cannot_be_meant_is_refused(lock_file: Path, change: object, said: str) -> None:
    lock_file.write_text(json.dumps(change(json.loads(lock_file.read_text()))))  # type: ignore[operator]
    with pytest.raises(UsageError, match=said):
        plain_lock.read(lock_file)
    lock_file.write_bytes(b"\xff{")
    with pytest.raises(UsageError, match="not JSON"):
        plain_lock.read(lock_file)
