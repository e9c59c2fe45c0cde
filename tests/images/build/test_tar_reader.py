"""Hostile archives: whoever reads one, for a check or to send it on, gets a sentence with exit code 4, and no harm is done."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.documents import canonical_json
from slipway.errors import IntegrityMismatch
from slipway.images import layers, manifests, oci_archive
from slipway.images.archive import Archive

from .conftest import File, MadeImage, write_tar

Make = Callable[..., MadeImage]


def sent(path: Path) -> None:
    """All that is read of an image to send it on."""
    archive = Archive(path)
    for blob in archive.root().blobs:
        for _ in manifests.proved(archive.read(blob), blob, path):
            pass


def checked(path: Path) -> None:
    """All that is read of an image to check it."""
    image = oci_archive.read(path)
    if not oci_archive.is_whole(image):
        raise IntegrityMismatch(path, "is damaged")
    for index in range(len(image.layers)):
        layers.listing(image, index)


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, to
    return made


def changed(made: MadeImage, name: str, entry: tarfile.TarInfo, more: str = "") -> Path:
    """The archive with `entry` in place of the member `name`, whose bytes stand under `more`."""
    with tarfile.open(made.path, "w") as tar:
        for each, data in made.blobs.items():
            if each == name:
                tar.addfile(entry)
            if each != name or more:
                info = tarfile.TarInfo(more if each == name else each)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return made.path


@pytest.fixture
def made(make_image: Make) -> MadeImage:
    def name_all(members: dict[str, bytes]) -> None:
        _complete(members)

    return make_image([File("a", b"1")], change=name_all)


def _complete(members: dict[str, bytes]) -> None:
    """Everything is named with its kind and its size, as whoever sends it on needs it."""
    index = json.loads(members["index.json"])
    entry = index["manifests"][0]
    manifest = json.loads(members["blobs/" + entry["digest"].replace(":", "/")])
    manifest["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json"
    data = canonical_json(manifest)
    entry |= {"digest": manifests.digest_of(data), "size": len(data)}
    members["blobs/" + entry["digest"].replace(":", "/")] = data
    members["index.json"] = canonical_json({"schemaVersion": 2, **index})


@pytest.mark.parametrize("read", [sent, checked])
@pytest.mark.parametrize("which", ["layer", "config", "manifest", "index.json"])
@pytest.mark.parametrize(
    ("kind", "to"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "itself"),
        (tarfile.SYMTYPE, "../../nowhere"),
        (tarfile.LNKTYPE, "nowhere"),
        (tarfile.LNKTYPE, "itself"),
        (tarfile.FIFOTYPE, ""),
        (tarfile.CHRTYPE, ""),
    ],
)
def test_what_is_no_file_where_a_file_must_be_is_said(
    made: MadeImage, read: Callable[[Path], None], which: str, kind: bytes, to: str
) -> None:
    image = oci_archive.read(made.path)
    digests = {"layer": image.layers[0].digest, "config": image.config_digest, "manifest": image.manifest_digest}
    name = "index.json" if which == "index.json" else "blobs/" + digests[which].replace(":", "/")
    target = (name if kind == tarfile.LNKTYPE else name.rpartition("/")[2]) if to == "itself" else to
    with pytest.raises(IntegrityMismatch, match=f"{name} is no file in it, nor a link to one"):
        read(changed(made, name, link(name, target, kind)))


@pytest.mark.parametrize("read", [sent, checked])
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_to_the_file_that_is_meant_is_followed(
    made: MadeImage, read: Callable[[Path], None], kind: bytes
) -> None:
    name = "blobs/" + oci_archive.read(made.path).layers[0].digest.replace(":", "/")
    read(changed(made, name, link(name, "../../data" if kind == tarfile.SYMTYPE else "data", kind), more="data"))


def header(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


def negative() -> bytes:
    block = bytearray(header(0))
    block[124:136] = b"\xff" * 12
    total = sum(block[:148]) + sum(block[156:512]) + 256
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


@pytest.mark.parametrize("read", [sent, checked])
@pytest.mark.parametrize(
    "before",
    [
        header(1 << 60),
        header(1 << 32),
        header(3 << 30, tarfile.XHDTYPE),
        header(3 << 30, tarfile.GNUTYPE_LONGNAME),
        negative(),
        tarfile.TarInfo.create_pax_global_header({"size": "-512"}),
        b"".join(header(0, tarfile.XHDTYPE) for _ in range(3000)),
    ],
    ids=["2^60", "2^32", "pax", "long name", "negative", "negative in pax", "headers without end"],
)
def test_sizes_that_no_archive_has_are_said_and_not_read(
    made: MadeImage, read: Callable[[Path], None], before: bytes
) -> None:
    made.path.write_bytes(before + made.path.read_bytes())
    if before.startswith(header(3 << 30, tarfile.XHDTYPE)[:100]):
        os.truncate(made.path, 4 << 30)  # sparse: it takes no room
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityMismatch):
            read(made.path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [sent, checked])
def test_a_name_that_two_readers_would_find_twice_is_refused(made: MadeImage, read: Callable[[Path], None]) -> None:
    write_tar(made.path, {**made.blobs, "x/../index.json": b"{}"})
    with pytest.raises(IntegrityMismatch, match=r"index\.json stands in it twice"):
        read(made.path)


@pytest.mark.parametrize("read", [sent, checked])
def test_a_pipe_a_device_and_a_folder_are_no_archives(tmp_path: Path, read: Callable[[Path], None]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zero", tmp_path):
        with pytest.raises(IntegrityMismatch, match="is not a regular file"):
            read(path)


@pytest.mark.parametrize(
    "records", [{"mtime": "inf"}, {"mtime": "nan"}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}]
)
def test_numbers_that_are_none_in_a_layer_are_an_error_of_ours(make_image: Make, records: dict[str, str]) -> None:
    entry = tarfile.TarInfo("a")
    entry.pax_headers = records
    with io.BytesIO() as stream, tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(entry)
        tar.close()
        layer = gzip.compress(stream.getvalue())

    def swap(members: dict[str, bytes]) -> None:
        members[next(name for name, data in members.items() if data.startswith(b"\x1f\x8b"))] = layer

    image = oci_archive.read(make_image([File("b")], change=swap).path)
    with pytest.raises(IntegrityMismatch, match="layer 0 cannot be read"):
        layers.listing(image, 0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", b"no json"),
        ("c.json", b'{"rootfs": []}'),
        ("c.json", b"[]"),
        ("manifest.json", b'[{"Config": "c.json", "Layers": [], "RepoTags": 5}]'),
    ],
)
def test_an_older_archive_that_says_nonsense_is_refused(tmp_path: Path, name: str, text: bytes) -> None:
    whole = {"manifest.json": b'[{"Config": "c.json", "Layers": []}]', "c.json": b'{"rootfs": {"diff_ids": []}}'}
    write_tar(tmp_path / "old.tar", {**whole, name: text})
    with pytest.raises(IntegrityMismatch):
        Archive(tmp_path / "old.tar")


def test_a_config_in_another_encoding_is_no_config(make_image: Make) -> None:
    def encode(members: dict[str, bytes]) -> None:
        members["index.json"] = members["index.json"].decode().encode("utf-16")

    with pytest.raises(IntegrityMismatch, match=r"index\.json is not JSON"):
        oci_archive.read(make_image([File("a")], change=encode).path)


def test_a_manifest_that_is_longer_than_it_is_said_to_be_is_not_read_to_its_end(made: MadeImage) -> None:
    name = "blobs/" + oci_archive.read(made.path).manifest_digest.replace(":", "/")
    write_tar(made.path, {**made.blobs, name: made.blobs[name] + bytes(60_000_000)})
    archive = Archive(made.path)
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityMismatch, match="other bytes"):
            archive.root()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
