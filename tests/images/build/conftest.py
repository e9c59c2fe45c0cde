"""Images made by hand, and builds against the real daemon."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slipway.images.builders import BuildRequest
from slipway.images.context import pack


@dataclass
class File:
    """One member of a layer made by hand."""

    name: str
    data: bytes = b""
    mode: int = 0o644
    mtime: int = 1000
    type: bytes = tarfile.REGTYPE
    link: str = ""
    uid: int = 0


@dataclass
class MadeImage:
    """What `make_image` wrote: the archive, and what must be read out of it."""

    path: Path
    config: dict[str, typing.Any]
    blobs: dict[str, bytes] = field(default_factory=dict)


def layer_tar(files: Sequence[File]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in files:
            info = tarfile.TarInfo(file.name)
            info.size = len(file.data) if file.type == tarfile.REGTYPE else 0
            info.mode, info.mtime, info.type, info.linkname, info.uid = (
                file.mode,
                file.mtime,
                file.type,
                file.link,
                file.uid,
            )
            tar.addfile(info, io.BytesIO(file.data) if info.size else None)
    return stream.getvalue()


def compressed(tar: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.compress(tar, mtime=0)
    if compression == "zstd":
        return subprocess.run(("zstd", "-qc"), input=tar, capture_output=True, check=True).stdout
    return tar


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_tar(path: Path, members: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def make_image(tmp_path: Path) -> Callable[..., MadeImage]:
    """Call it with the layers' files for an OCI archive of an image."""

    def make(
        *layers: Sequence[File],
        name: str = "image.tar",
        compression: str = "gzip",
        process: Mapping[str, typing.Any] | None = None,
        extra: Mapping[str, typing.Any] | None = None,
        change: Callable[[dict[str, bytes]], None] = lambda _: None,
    ) -> MadeImage:
        tars = [layer_tar(files) for files in layers]
        stored = [compressed(tar, compression) for tar in tars]
        config = {
            "config": {"User": "65532"} if process is None else dict(process),
            "rootfs": {"type": "layers", "diff_ids": [digest_of(tar) for tar in tars]},
            **(extra or {}),
        }
        text = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "config": {"digest": digest_of(text), "size": len(text)},
            "layers": [{"digest": digest_of(data), "size": len(data), "mediaType": "layer"} for data in stored],
        }
        told = json.dumps(manifest).encode()
        blobs = {f"blobs/{digest_of(data).replace(':', '/')}": data for data in (text, told, *stored)}
        index = {"manifests": [{"digest": digest_of(told), "mediaType": "application/vnd.oci.image.manifest.v1+json"}]}
        members = {"index.json": json.dumps(index).encode(), **blobs}
        change(members)
        write_tar(tmp_path / name, members)
        return MadeImage(tmp_path / name, config, members)

    return make


@pytest.fixture
def request_for(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., BuildRequest]:
    """Call it with a Dockerfile's lines after FROM for a request on a small base; keywords replace fields."""

    def make(*lines: str, files: Mapping[str, bytes] | None = None, **fields: typing.Any) -> BuildRequest:
        base = request.getfixturevalue("small_base")
        text = "\n".join(("ARG BASE", "FROM ${BASE}", *lines, ""))
        empty = tmp_path / "empty"
        empty.mkdir(exist_ok=True)
        context = pack(empty, (), {"Dockerfile": text.encode(), **(files or {})}, base.epoch).tar
        given: dict[str, typing.Any] = {
            "context": context,
            "archive": tmp_path / "built.tar",
            "name": "slipway-test/small:1",
            "epoch": base.epoch,
            "build_args": {"BASE": base.ref},
            "network": "host",
            "compression": "uncompressed",
            **fields,
        }
        return BuildRequest(**given)

    return make


@pytest.fixture(scope="session")
def buildah_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for buildah's images, shared by the session's tests and emptied after them."""
    folder = tmp_path_factory.mktemp("buildah")
    yield folder
    program = ("buildah", f"--root={folder / 'root'}", f"--runroot={folder / 'run'}")
    for words in (("rm", "--all"), ("rmi", "--all", "--force")):
        subprocess.run((*program, *words), capture_output=True, check=False)
    subprocess.run(("umount", "-l", str(folder / "root" / "overlay")), capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def host_secrets() -> dict[str, Path]:
    """This machine's own CA and index, as a user passes theirs; empty where none is needed."""
    found = {"ca": os.environ.get("SLIPWAY_TEST_CA"), "pip-conf": os.environ.get("SLIPWAY_TEST_PIP_CONF")}
    return {name: Path(path) for name, path in found.items() if path}
