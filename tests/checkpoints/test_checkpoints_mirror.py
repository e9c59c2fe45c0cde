"""Mirrors: a round trip through a folder and through a real S3 server, and nothing spoilt comes out of either."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.server import ThreadedMotoServer

from slipway import mirrors
from slipway.checkpoints import gateway, mirror, mirror_s3, records
from slipway.checkpoints import lock as locks
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.mirror import FolderStore, Store, blob_name, manifest_name
from slipway.checkpoints.mirror_s3 import S3Store, Sizes, store_at
from slipway.checkpoints.verify import verify
from slipway.errors import (
    AuthFailure,
    DiskFailure,
    IntegrityMismatch,
    LockDrift,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)
from slipway.progress import silent
from slipway.reference.hub import serve
from slipway.reference.hub_sample import write_sample
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parents[2]
REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"
BUCKET = "weights"
FRESH_SESSION = boto3.session.Session


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointLock, Path]:
    root = tmp_path_factory.mktemp("served")
    write_sample(root / REPO, rows=50_000)  # 6.4 MB in the first shard, so that it has two parts
    with serve(root) as hub:
        lock = locks.resolve(REPO, "main", endpoint=hub.url, token=None)
    return lock, root / REPO


@pytest.fixture
def lock(made: tuple[CheckpointLock, Path]) -> CheckpointLock:
    return made[0]


@pytest.fixture
def source(made: tuple[CheckpointLock, Path]) -> Path:
    return made[1]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture(scope="module")
def session(server: str) -> boto3.session.Session:
    """A session that is shared: each new one reads the description of S3 again, which takes a second."""
    keys = aws(server)
    return boto3.session.Session(
        keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"], region_name=keys["AWS_DEFAULT_REGION"]
    )


@pytest.fixture(scope="module")
def client(server: str, session: boto3.session.Session) -> Any:
    return session.client("s3", endpoint_url=server)


@pytest.fixture
def s3(server: str, session: boto3.session.Session, client: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of an S3 server that holds one empty bucket; its address and keys stand in the environment."""
    for name, value in aws(server).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3.session, "Session", lambda: session)
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST")).close()
    client.create_bucket(Bucket=BUCKET)
    return client


def aws(server: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    return {**keys, "AWS_ENDPOINT_URL": server}


class Mirror:
    """A mirror of either kind, and a hand that can reach into it."""

    def __init__(self, store: Store, s3: Any, folder: Path) -> None:
        self.store = store
        self._s3 = s3
        self._folder = folder

    @property
    def in_s3(self) -> bool:
        return isinstance(self.store, S3Store)

    def read(self, name: str) -> bytes:
        if self.in_s3:
            return bytes(self._s3.get_object(Bucket=BUCKET, Key=f"models/x/{name}")["Body"].read())
        return (self._folder / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        if self.in_s3:
            self._s3.put_object(Bucket=BUCKET, Key=f"models/x/{name}", Body=data)
            return
        (self._folder / name).unlink()
        (self._folder / name).write_bytes(data)

    def remove(self, name: str) -> None:
        if self.in_s3:
            self._s3.delete_object(Bucket=BUCKET, Key=f"models/x/{name}")
            return
        (self._folder / name).unlink()


@pytest.fixture(params=["folder", "s3"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, s3: Any) -> Mirror:
    folder = tmp_path / "mirror"
    store = FolderStore(folder) if request.param == "folder" else S3Store(f"s3://{BUCKET}/models/x/")
    return Mirror(store, s3, folder)


def file_of(lock: CheckpointLock, path: str = SHARD) -> locks.LockedFile:
    return next(file for file in lock.files if file.path == path)


def test_a_round_trip_gives_the_same_bytes_and_a_second_upload_sends_nothing(
    lock: CheckpointLock, source: Path, kept: Mirror, tmp_path: Path
) -> None:
    first = mirror.upload(lock, source, kept.store)
    assert (first.sent_files, first.sent_bytes, first.kept_files) == (8, lock.summary.total_bytes, 0)
    again = mirror.upload(lock, source, kept.store)
    assert (again.sent_files, again.sent_bytes, again.kept_files) == (0, 0, 8)
    assert mirror.check(lock, kept.store) == lock.summary.total_bytes
    got = mirror.download(lock, tmp_path / "models", kept.store)
    assert (got.fetched_files, got.skipped) == (8, False)
    assert verify(lock, got.folder).bytes == lock.summary.total_bytes
    assert (got.folder / SHARD).read_bytes() == (source / SHARD).read_bytes()
    assert mirror.download(lock, tmp_path / "models", kept.store).skipped
    assert locks.CheckpointLock.model_validate_json(kept.read(manifest_name(lock)), strict=False) == lock


@pytest.mark.parametrize("spoil", ["flip", "zero tail", "short", "other"])
def test_nothing_spoilt_comes_out(lock: CheckpointLock, source: Path, kept: Mirror, tmp_path: Path, spoil: str) -> None:
    mirror.upload(lock, source, kept.store)
    name = blob_name(file_of(lock))
    data = bytearray(kept.read(name))
    if spoil == "flip":
        data[len(data) // 2] ^= 1
    elif spoil == "zero tail":
        data[-5000:] = bytes(5000)
    elif spoil == "short":
        del data[-1:]
    else:
        data = bytearray(b"<html>moved</html>")
    kept.write(name, bytes(data))
    with pytest.raises(IntegrityMismatch) as refused:
        mirror.download(lock, tmp_path / "models", kept.store)
    assert SHARD in str(refused.value)
    assert kept.store.place in str(refused.value)
    assert "127.0.0.1" not in str(refused.value).replace(kept.store.place, "")
    assert not (tmp_path / "models" / "Laguna-tiny").exists()
    with pytest.raises(IntegrityMismatch, match=str(file_of(lock).sha256)):
        mirror.check(lock, kept.store)


def test_a_damaged_file_never_reaches_the_mirror(
    lock: CheckpointLock, source: Path, kept: Mirror, tmp_path: Path
) -> None:
    shutil.copytree(source, tmp_path / "copy")
    data = bytearray((source / SHARD).read_bytes())
    data[-1] ^= 1
    (tmp_path / "copy" / SHARD).write_bytes(data)
    with pytest.raises(IntegrityMismatch, match=f"{SHARD}: expected sha256:"):
        mirror.upload(lock, tmp_path / "copy", kept.store)
    assert kept.store.size(blob_name(file_of(lock))) is None
    assert kept.store.get_text(manifest_name(lock)) is None
    (tmp_path / "copy" / SHARD).unlink()
    with pytest.raises(MissingFile, match=SHARD):
        mirror.upload(lock, tmp_path / "copy", kept.store)


def test_an_upload_that_was_interrupted_is_not_taken_for_whole(
    lock: CheckpointLock, source: Path, kept: Mirror, tmp_path: Path
) -> None:
    with pytest.raises(MissingFile, match=r"manifest.json: no such object"):
        mirror.download(lock, tmp_path / "models", kept.store)
    mirror.upload(lock, source, kept.store)
    kept.remove(blob_name(file_of(lock)))
    with pytest.raises(MissingFile, match=SHARD):
        mirror.download(lock, tmp_path / "models", kept.store)
    assert mirror.upload(lock, source, kept.store).sent_files == 1
    assert mirror.download(lock, tmp_path / "models", kept.store).fetched_files == 8


def test_a_blob_of_another_size_is_not_taken_for_sent(lock: CheckpointLock, source: Path, kept: Mirror) -> None:
    mirror.upload(lock, source, kept.store)
    kept.write(blob_name(file_of(lock)), b"short")
    with pytest.raises(IntegrityMismatch, match="got 5 bytes"):
        mirror.upload(lock, source, kept.store)


def test_a_manifest_of_fewer_files_is_drift_until_it_is_mirrored_again(
    lock: CheckpointLock, source: Path, kept: Mirror, tmp_path: Path
) -> None:
    files = tuple(file for file in lock.files if file.path != "README.md")
    size = lock.summary.total_bytes - file_of(lock, "README.md").size_bytes
    fewer = lock.model_copy(update={"files": files, "summary": lock.summary.model_copy(update={"total_bytes": size})})
    mirror.upload(fewer, source, kept.store)
    with pytest.raises(LockDrift, match=r"README.md"):
        mirror.download(lock, tmp_path / "models", kept.store)
    mirror.upload(lock, source, kept.store)
    assert mirror.download(lock, tmp_path / "models", kept.store).fetched_files == 8


def test_an_object_that_exists_is_never_replaced(lock: CheckpointLock, source: Path, kept: Mirror) -> None:
    mirror.upload(lock, source, kept.store)
    name = blob_name(file_of(lock))
    assert kept.store.put(name, source / SHARD, file_of(lock)) is False
    assert kept.read(name) == (source / SHARD).read_bytes()


def test_a_large_object_goes_in_parts_and_is_never_replaced(
    lock: CheckpointLock, source: Path, s3: Any, tmp_path: Path
) -> None:
    store = S3Store(f"s3://{BUCKET}/models/x", Sizes(single_put_bytes=5 << 20, part_bytes=5 << 20))
    assert file_of(lock).size_bytes > 5 << 20
    assert mirror.upload(lock, source, store).sent_files == 8
    found = s3.head_object(Bucket=BUCKET, Key=f"models/x/{blob_name(file_of(lock))}")
    assert found["Metadata"]["digest"] == f"sha256:{file_of(lock).sha256}"
    assert found["ETag"].strip('"').endswith("-2")  # two parts
    assert store.put(blob_name(file_of(lock)), source / SHARD, file_of(lock)) is False
    assert mirror.download(lock, tmp_path / "models", store).fetched_files == 8
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)


def test_parts_of_a_failed_upload_are_removed(lock: CheckpointLock, tmp_path: Path, s3: Any) -> None:
    store = S3Store(f"s3://{BUCKET}/models/x", Sizes(single_put_bytes=1, part_bytes=5 << 20))
    with pytest.raises(MissingFile):
        store.put("blobs/sha256/x", tmp_path / "none", file_of(lock))
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)


def test_a_server_that_compares_digests_names_the_file(
    lock: CheckpointLock, source: Path, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(f"s3://{BUCKET}/models/x")
    sent: dict[str, Any] = {}

    def bad_digest(**given: Any) -> None:
        sent.update(given)
        raise store._client.exceptions.ClientError({"Error": {"Code": "BadDigest"}}, "PutObject")

    monkeypatch.setattr(store._client, "put_object", bad_digest)
    with pytest.raises(IntegrityMismatch, match=f"{SHARD}.*BadDigest"):
        store.put("x", source / SHARD, file_of(lock))
    assert sent["IfNoneMatch"] == "*"
    assert len(sent["ChecksumSHA256"]) == 44


def test_what_s3_says_becomes_our_errors(
    lock: CheckpointLock, server: str, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingFile, match="no such bucket"):
        S3Store("s3://no-such-bucket/x").get_text("a")
    store = S3Store(f"s3://{BUCKET}/x")

    def refuse(**_: Any) -> None:
        raise store._client.exceptions.ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject")

    monkeypatch.setattr(store._client, "get_object", refuse)
    with pytest.raises(AuthFailure, match="AWS_PROFILE"):
        store.get_text("a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    unreachable = S3Store(f"s3://{BUCKET}/x")
    monkeypatch.setattr(unreachable._client.meta.config, "retries", {"total_max_attempts": 1})
    with pytest.raises(NetworkFailure, match="AWS_ENDPOINT_URL"):
        unreachable.size("a")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(boto3.session, "Session", FRESH_SESSION)
    with pytest.raises(AuthFailure):
        S3Store(f"s3://{BUCKET}/x").put_text("a", b"")


@pytest.mark.parametrize(
    "place",
    ["s3://", "s3://X/y", "s3://a", "http://x/y", "gs://bucket/x", "GS://bucket/x", "Foo+1://x", "s3:/bucket/x"],
)
def test_a_place_that_is_no_mirror_is_refused(place: str, s3: Any) -> None:
    with pytest.raises(UsageError):
        store_at(place)


def test_s3_in_capitals_is_s3(s3: Any) -> None:
    assert store_at(f"S3://{BUCKET}/x").place == f"s3://{BUCKET}/x"


def test_a_pipe_in_a_mirror_folder_is_refused_and_does_not_block(
    lock: CheckpointLock, source: Path, tmp_path: Path
) -> None:
    store = FolderStore(tmp_path / "mirror")
    mirror.upload(lock, source, store)
    for name, ways in {
        mirror.manifest_name(lock): [lambda: mirror.upload(lock, source, store)],
        blob_name(file_of(lock)): [lambda: mirror.upload(lock, source, store), lambda: mirror.check(lock, store)],
    }.items():
        path = tmp_path / "mirror" / name
        path.rename(tmp_path / "aside")
        os.mkfifo(path)
        for way in [*ways, lambda: mirror.download(lock, tmp_path / "models", store)]:
            with pytest.raises(DiskFailure, match="not a regular file"):
                way()
        with pytest.raises(OSError, match="not a regular file"), store.open(name, 0):
            pass
        path.unlink()
        (tmp_path / "aside").rename(path)


def killed_while_writing(folder: Path) -> Path:
    """What an upload leaves whose process ends at once in the middle of a blob."""
    code = """if True:
        import os, sys
        from pathlib import Path
        from slipway.checkpoints import mirror, records
        with mirror._owned(Path(sys.argv[1])) as stream:
            os._exit(9)
    """
    path = folder / f".{mirror._machine()}-{'a' * 32}.part"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False, env=env).returncode == 9
    return path


def test_what_a_killed_upload_left_is_removed_by_the_next_and_nothing_else_is(
    lock: CheckpointLock, source: Path, tmp_path: Path
) -> None:
    blobs = tmp_path / "mirror" / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    dead = killed_while_writing(blobs)
    elsewhere, old = blobs / f".00000000-{'b' * 32}.part", blobs / f".{'c' * 32}.part"
    own = blobs / ".mine.part"
    for path in (elsewhere, old, own):
        path.touch()
    for path in (old, own):
        os.utime(path, (1, 1))
    alive = dead.with_name(dead.name.replace("a" * 32, "d" * 32))
    with mirror._owned(alive):
        mirror.upload(lock, source, FolderStore(tmp_path / "mirror"))
        assert [path.exists() for path in (dead, elsewhere, old, own, alive)] == [False, True, False, True, True]
    os.utime(elsewhere, (1, 1))
    mirror.upload(lock, source, FolderStore(tmp_path / "mirror"))
    assert sorted(path.name for path in blobs.glob(".*")) == [".mine.part"]


def test_what_was_there_is_said_to_be_unread_and_a_fetch_from_a_mirror_is_a_proof(
    checkout: Path, source: Path, lock: CheckpointLock, tmp_path: Path
) -> None:
    way = mirrors.Way(to=str(tmp_path / "mirror"), folder=source)
    assert "not read again" not in mirrors.run(Checkout(checkout), [lock], way, silent)[1]
    assert (
        "8 were there and not read again (--check reads them)"
        in mirrors.run(Checkout(checkout), [lock], way, silent)[1]
    )
    checked = mirrors.run(Checkout(checkout), [lock], replace(way, check=True), silent)[1]
    assert "8 were there, in" in checked
    mirrors.run(Checkout(checkout), [lock], mirrors.Way(source=str(tmp_path / "mirror")), silent)
    assert set(records.read_proved(checkout / ".slipway" / "models" / "Laguna-tiny")) == {"full"}


def test_a_folder_that_cannot_be_written_is_a_disk_failure(lock: CheckpointLock, source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = FolderStore(tmp_path / "file")
    assert store.size("a") is None
    assert store.get_text("a") is None
    with pytest.raises(DiskFailure):
        store.put("a", source / SHARD, file_of(lock))
    with pytest.raises(DiskFailure):
        store.put_text("a/b", b"")


def test_a_proxy_is_not_asked_for_this_machine(
    lock: CheckpointLock, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "example.com")
    store = FolderStore(tmp_path / "mirror")
    mirror.upload(lock, source, store)
    assert mirror.download(lock, tmp_path / "models", store).fetched_files == 8
    assert (os.environ["no_proxy"], os.environ.get("NO_PROXY")) == ("example.com", None)


# --- the gateway ---


@contextmanager
def opened(data: bytes) -> Iterator[str]:
    @contextmanager
    def at(start: int) -> Iterator[Any]:
        path = Path(os.environ["HOME"]) / "file"
        path.write_bytes(data)
        with path.open("rb") as stream:
            stream.seek(start)
            yield stream

    with gateway.serve({("a/b", "c" * 40, "d/e f.json"): (len(data), at)}) as url:
        yield url


def ask(url: str, **headers: str) -> tuple[int, bytes, str]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read(), answer.headers.get("Content-Range", "")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b"", error.headers.get("Content-Range", "")


def test_the_gateway_answers_both_layouts_and_ranges() -> None:
    with opened(b"0123456789") as url:
        for layout in ("a/b/resolve", "a/b"):
            place = f"{url}/{layout}/{'c' * 40}/d/e%20f.json"
            assert ask(place) == (200, b"0123456789", "")
            assert ask(place, Range="bytes=3-5") == (206, b"345", "bytes 3-5/10")
            assert ask(place, Range="bytes=8-") == (206, b"89", "bytes 8-9/10")
            assert ask(place, Range="bytes=10-") == (416, b"", "bytes */10")
            assert ask(place, Range="lines=1") == (200, b"0123456789", "")


@pytest.mark.parametrize(
    "path", ["", "/", "/a/b", "/a/b/{c}/d", "/a/b/{c}/../{c}/d/e%20f.json", "/a/b/{c}//etc/passwd", "/a/b/resolve/{c}/"]
)
def test_the_gateway_has_nothing_else(path: str) -> None:
    with opened(b"x") as url:
        assert ask(url + path.replace("{c}", "c" * 40))[0] == 404


def test_the_gateway_wants_its_secret() -> None:
    with opened(b"x") as url:
        host = url.rpartition("/")[0]
        assert ask(f"{host}/wrong/a/b/{'c' * 40}/d/e%20f.json")[0] == 404


@given(header=st.text(max_size=30) | st.from_regex(r"bytes=\d*-\d*", fullmatch=True), size=st.integers(0, 30))
def test_a_span_lies_within_the_file(header: str, size: int) -> None:
    span = gateway._span(header, size)
    if span is None:
        assert header.strip().startswith("bytes=")
        return
    assert 0 <= span[0] <= span[1] <= size


# --- the command ---


@pytest.fixture
def checkout(tmp_path: Path, lock: CheckpointLock) -> Path:
    for name in ("tasks", "recipes", "stacks"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    locks.write(lock, tmp_path / "checkpoints" / "laguna-tiny.lock.json")
    return tmp_path


def run(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "invoke", "--search-root", str(checkout), *words)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=checkout, env=env)
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran


def test_mirror_models_goes_to_s3_and_back(checkout: Path, source: Path, s3: Any, lock: CheckpointLock) -> None:
    words = ("mirror-models", "--lock", "checkpoints/laguna-tiny.lock.json")
    sent = run(checkout, *words, "--to", f"s3://{BUCKET}/m", "--dir", str(source), "--check", "--json")
    assert sent.returncode == 0, sent.stderr
    (entry,) = json.loads(sent.stdout)
    assert (entry["sent_files"], entry["checked_bytes"]) == (8, lock.summary.total_bytes)
    way = mirrors.Way(source=f"s3://{BUCKET}/m")
    _, said = mirrors.run(Checkout(checkout), [lock], way, silent)
    assert "8 files" in said
    assert verify(lock, checkout / ".slipway" / "models" / "Laguna-tiny").files == 8
    s3.put_object(Bucket=BUCKET, Key=f"m/{blob_name(file_of(lock))}", Body=b"x" * file_of(lock).size_bytes)
    with pytest.raises(IntegrityMismatch, match=f"{SHARD}: expected sha256:{file_of(lock).sha256}"):
        mirrors.run(Checkout(checkout), [lock], replace(way, folder=checkout / "other"), silent)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give --to or --from"),
        ({"to": "a", "source": "b"}, "give --to or --from"),
        ({"to": "a", "workers": 0}, "--workers"),
        ({"source": "a", "check": True}, "--check"),
    ],
)
def test_a_way_that_cannot_be_meant_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SlipwayError, match=said):
        mirrors.Way(**given)


def test_no_other_command_loads_the_mirror() -> None:
    """Its boto3 takes a third of a second, so tasks import the module when they run, and no module of the library does."""
    texts = {path.stem: path.read_text() for path in (ROOT / "src" / "slipway").rglob("*.py")}
    importing = {
        name: {stem for stem, text in texts.items() if re.search(rf"^(from|import) .*\b{name}\b", text, re.MULTILINE)}
        for name in ("mirror_s3", "mirrors")
    }
    assert importing == {"mirror_s3": {"mirrors"}, "mirrors": set()}


def test_where_an_object_goes_is_told_by_its_size() -> None:
    assert Sizes() == Sizes(mirror_s3.SINGLE_PUT_BYTES, mirror_s3.PART_BYTES)
    assert mirror_s3.PART_BYTES * 10_000 > 450 * 1000**3
