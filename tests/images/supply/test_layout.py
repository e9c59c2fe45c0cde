"""Layouts and archives: nothing is named before it is whole, what was broken off is gone on with, and spoilt blobs are found."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.errors import DiskFailure, IntegrityMismatch, MissingFile, NetworkFailure, UsageError
from slipway.images import archive, manifests
from slipway.images.archive import Archive
from slipway.images.layout import Layout
from slipway.images.manifests import DOCKER_MANIFEST, Descriptor
from slipway.images.stores import parse_place


@pytest.fixture
def layout(tmp_path: Path, sample: Any) -> Layout:
    return sample.write(Layout(tmp_path / "layout", "registry.example/engine:v1"))


def reader(data: bytes, asked: list[int]) -> Callable[[int], Iterator[bytes]]:
    def read(start: int) -> Iterator[bytes]:
        asked.append(start)
        for at in range(start, len(data), 10):
            yield data[at : at + 10]

    return read


def test_a_layout_gives_back_what_was_put_by_name_tag_and_digest(layout: Layout, sample: Any) -> None:
    for ref in (
        "registry.example/engine:v1",
        "v1",
        sample.index.digest,
        f"registry.example/engine@{sample.index.digest}",
        None,
    ):
        assert Layout(layout.folder, ref).root().digest == sample.index.digest
    assert [manifest.digest for manifest in sample.images] == [entry.digest for entry in layout.root().manifests]
    assert layout.verify() == ()
    with pytest.raises(MissingFile, match=r"it has: registry.example/engine:v1"):
        Layout(layout.folder, "v2").root()


def test_several_images_are_told_apart_by_name_and_a_name_moves_with_its_image(layout: Layout, sample: Any) -> None:
    other = Layout(layout.folder, "registry.example/engine:v2")
    other.put_manifest(sample.images[0])
    other.finish(sample.images[0])
    with pytest.raises(UsageError, match=r"several images.*engine:v1, registry\.example/engine:v2"):
        Layout(layout.folder).root()
    moved = Layout(layout.folder, "registry.example/engine:v1")
    moved.finish(sample.images[1])
    assert Layout(layout.folder, "v1").root().digest == sample.images[1].digest
    assert Layout(layout.folder, "v2").root().digest == sample.images[0].digest
    assert layout.names() == ("registry.example/engine:v1", "registry.example/engine:v2")


def test_a_spoilt_blob_is_found_and_written_anew(layout: Layout, sample: Any) -> None:
    blob = sample.images[0].blobs[1]
    path = layout.path(blob.digest)
    path.write_bytes(bytes(blob.size_bytes))
    assert layout.verify() == (blob.digest,)
    assert layout.put_blob(blob, lambda start: iter([sample.blobs[blob.digest][start:]])) == "sent"
    assert layout.verify() == ()
    path.unlink()
    assert layout.verify() == (blob.digest,)


def test_a_blob_that_was_broken_off_is_gone_on_with(tmp_path: Path) -> None:
    layout, data, asked = Layout(tmp_path / "l"), bytes(range(200)), list[int]()
    layout.create()
    blob = manifests.describe(data, "x/y")

    def breaks(start: int) -> Iterator[bytes]:
        yield data[start:50]
        raise NetworkFailure("hub", "gone")

    with pytest.raises(NetworkFailure):
        layout.put_blob(blob, breaks)
    assert not layout.path(blob.digest).exists()
    assert layout.put_blob(blob, reader(data, asked)) == "sent"
    assert asked == [50]
    assert layout.put_blob(blob, reader(data, asked)) == "present"
    assert asked == [50]
    assert [path.name for path in layout.path(blob.digest).parent.iterdir()] == [blob.digest[7:]]


def test_a_spoilt_beginning_is_thrown_away_and_a_spoilt_end_leaves_nothing(tmp_path: Path) -> None:
    layout, data, asked = Layout(tmp_path / "l"), bytes(range(200)), list[int]()
    layout.create()
    blob = manifests.describe(data, "x/y")
    part = layout.path(blob.digest).with_name(f".{blob.digest[7:]}.part")
    for beginning in (b"wrong", bytes(300)):
        part.write_bytes(beginning)
        assert layout.put_blob(blob, reader(data, asked)) == "sent"
        layout.path(blob.digest).unlink()
    assert asked == [5, 0, 0]
    with pytest.raises(IntegrityMismatch):
        layout.put_blob(blob, reader(data[:-1] + b"!", asked))
    assert list(layout.path(blob.digest).parent.iterdir()) == []


def test_two_runs_that_write_one_blob_take_turns(tmp_path: Path) -> None:
    layout, data = Layout(tmp_path / "l"), os.urandom(4000)
    layout.create()
    blob = manifests.describe(data, "x/y")
    both, outcomes, asked = threading.Barrier(2), list[str](), list[int]()

    def run() -> None:
        both.wait(5)
        outcomes.append(Layout(layout.folder).put_blob(blob, reader(data, asked)))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(outcomes) == ["present", "sent"]
    assert asked == [0]


def test_a_full_disk_leaves_the_index_as_it_was(layout: Layout, sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (layout.folder / "index.json").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFailure, match="no space left"):
        Layout(layout.folder, "v9").finish(sample.images[0])
    blob = manifests.describe(b"more", "x/y")
    with pytest.raises(DiskFailure, match="no space left"):
        layout.put_blob(blob, lambda start: iter([b"more"]))
    assert (layout.folder / "index.json").read_bytes() == before
    assert not layout.path(blob.digest).exists()


def test_what_is_no_layout_is_left_alone(tmp_path: Path, layout: Layout) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="other things"):
        Layout(tmp_path / "full").create()
    with pytest.raises(MissingFile):
        Layout(tmp_path / "none").root()
    for marker in ('{"imageLayoutVersion":"2"}', "{"):
        (layout.folder / "oci-layout").write_text(marker)
        with pytest.raises(IntegrityMismatch, match=r"version 1\.0\.0"):
            layout.root()


@pytest.mark.parametrize("name", ["oci-layout", "index.json", "manifest", "layer"])
@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "folder", "sparse"])
def test_what_is_no_file_of_its_size_neither_hangs_nor_fills_the_memory(
    layout: Layout, sample: Any, name: str, what: str
) -> None:
    blob = sample.images[0].descriptor if name == "manifest" else sample.images[0].blobs[1]
    path = layout.path(blob.digest) if name in {"manifest", "layer"} else layout.folder / name
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to(what)
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityMismatch):
            layout.manifest(layout.root().manifests[0])
            for _ in manifests.proved(layout.read(blob), blob, path):
                pass
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    if name in {"manifest", "layer"}:
        assert layout.verify() == (blob.digest,)


def test_a_folder_a_file_and_a_broken_off_copy_are_told_from_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.tar").write_bytes(b"x")
    for name in ("folder", "file.tar"):
        with pytest.raises(IntegrityMismatch, match=r"is no OCI image layout.*archive:FILE"):
            Layout(tmp_path / name).root()
    with pytest.raises(MissingFile, match="none: no such folder"):
        Layout(tmp_path / "none").root()
    Layout(tmp_path / "begun").create()
    with pytest.raises(MissingFile, match="names no image yet"):
        Layout(tmp_path / "begun").root()


def test_an_index_of_papers_alone_says_so(layout: Layout, sample: Any) -> None:
    about = manifests.artifact("a/sbom", [manifests.EMPTY], sample.images[0].descriptor, {})
    index = manifests.index([about.descriptor])
    (layout.folder / "index.json").write_bytes(index.data)
    for ref in (None, about.digest, "v1"):
        with pytest.raises(MissingFile, match=f"says something of an image that is not there: {about.digest}"):
            Layout(layout.folder, ref).root()
    (layout.folder / "index.json").write_bytes(manifests.index([]).data)
    with pytest.raises(MissingFile, match="its index is empty"):
        layout.root()


def test_a_manifest_that_is_too_large_or_another_is_refused(layout: Layout, sample: Any) -> None:
    entry = sample.images[0].descriptor
    with pytest.raises(IntegrityMismatch, match="none is that large"):
        layout.manifest(Descriptor(entry.media_type, entry.digest, 1 << 30))
    layout.path(entry.digest).write_bytes(sample.images[1].data)
    with pytest.raises(IntegrityMismatch, match="other bytes"):
        layout.manifest(entry)


# --- archives


def test_an_archive_of_a_layout_is_the_same_bytes_each_time_and_reads_back(
    layout: Layout, tmp_path: Path, sample: Any
) -> None:
    first, second = tmp_path / "one.tar", tmp_path / "two.tar"
    archive.write(layout.folder, first, layout.reachable())
    os.utime(layout.path(sample.index.digest), (1, 1))
    archive.write(layout.folder, second, layout.reachable())
    assert first.read_bytes() == second.read_bytes()
    found = Archive(first, "v1")
    assert found.root().digest == sample.index.digest
    blob = sample.images[1].blobs[2]
    assert b"".join(found.read(blob, 7)) == sample.blobs[blob.digest][7:]
    assert not found.reject(blob.digest)
    with pytest.raises(MissingFile, match="not in the archive"):
        list(found.read(manifests.describe(b"nowhere", "x/y")))


def older(path: Path, sample: Any, layers: Callable[[list[bytes]], list[bytes]] = list, link: bool = False) -> bytes:
    """An archive as docker save wrote it before it wrote layouts; its config's bytes."""
    config = sample.blobs[sample.images[0].blobs[0].digest]
    tars = layers([gzip.decompress(sample.blobs[blob.digest]) for blob in sample.images[0].blobs[1:]])
    files = {f"{number}/layer.tar": data for number, data in enumerate(tars)}
    with tarfile.open(path, "w") as tar:
        for name, data in {"c.json": config, **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        names = list(files)
        if link:
            entry = tarfile.TarInfo("linked/layer.tar")
            entry.type, entry.linkname = tarfile.SYMTYPE, "../0/layer.tar"
            tar.addfile(entry)
            names[0] = "linked/layer.tar"
        text = json.dumps([{"Config": "c.json", "RepoTags": ["engine:v1"], "Layers": names}]).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    return config


@pytest.mark.parametrize("link", [False, True])
def test_docker_s_older_archive_gets_the_same_manifest_each_time(tmp_path: Path, sample: Any, link: bool) -> None:
    config = older(tmp_path / "old.tar", sample, link=link)
    manifest = Archive(tmp_path / "old.tar").root()
    assert manifest.media_type == DOCKER_MANIFEST
    assert manifest.blobs[0].digest == manifests.digest_of(config)
    again = Archive(tmp_path / "old.tar", "v1")
    assert again.root() == manifest
    diffs = json.loads(config)["rootfs"]["diff_ids"]
    assert [blob.digest for blob in manifest.blobs[1:]] == diffs
    for blob in manifest.blobs:
        assert manifests.digest_of(b"".join(again.read(blob))) == blob.digest


def test_an_older_archive_with_another_layer_than_its_config_names_is_refused(tmp_path: Path, sample: Any) -> None:
    older(tmp_path / "old.tar", sample, lambda tars: [tars[0], b"other", tars[2]])
    with pytest.raises(IntegrityMismatch, match="other layers"):
        Archive(tmp_path / "old.tar")


def test_what_is_no_archive_of_images_is_refused(tmp_path: Path, sample: Any) -> None:
    path = tmp_path / "a.tar"
    with pytest.raises(MissingFile):
        Archive(path)
    path.write_bytes(gzip.compress(b"x" * 2000))
    with pytest.raises(IntegrityMismatch, match="uncompressed"):
        Archive(path)
    for name, text, said in (
        ("x", b"", "no archive of images"),
        ("manifest.json", b"{}", "docker save"),
        ("manifest.json", b"7", "docker save"),
        ("manifest.json", b"[]", "docker save"),
    ):
        with tarfile.open(path, "w") as tar:
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
        with pytest.raises(IntegrityMismatch, match=said):
            Archive(path)
    older(path, sample)
    path.write_bytes(path.read_bytes()[:70_000])
    with pytest.raises((IntegrityMismatch, MissingFile)):
        Archive(path)


# --- places


@pytest.mark.parametrize(
    ("text", "kind", "path", "ref"),
    [
        ("oci:/disk/images", "oci", "/disk/images", None),
        ("oci:/disk/images:registry.example:5000/engine:v1", "oci", "/disk/images", "registry.example:5000/engine:v1"),
        (f"oci:disk@sha256:{'ab' * 32}", "oci", "disk", f"sha256:{'ab' * 32}"),
        (f"oci:disk:a/b@sha256:{'ab' * 32}", "oci", "disk", f"a/b@sha256:{'ab' * 32}"),
        ("oci-archive:a.tar:v1", "oci-archive", "a.tar", "v1"),
        ("layout:/disk/images:v1", "layout", "/disk/images", "v1"),
        ("archive:a.tar", "archive", "a.tar", None),
        ("docker-archive:a.tar", "docker-archive", "a.tar", None),
    ],
)
def test_a_place_is_read_as_it_is_written(text: str, kind: str, path: str, ref: str | None) -> None:
    place = parse_place(text)
    assert (place.kind, str(place.path), place.ref) == (kind, path, ref)
    assert str(place) == text


def test_everything_else_is_an_image_s_name() -> None:
    assert str(parse_place("docker://debian:12")) == "docker.io/library/debian:12"
    assert str(parse_place("127.0.0.1:5000/a:v1")) == "127.0.0.1:5000/a:v1"
    for text in ("oci:", "oci:a:", "docker:///x", "oci-archive::v1"):
        with pytest.raises(UsageError):
            parse_place(text)


@given(st.text(max_size=40))
def test_any_text_is_a_place_or_is_refused(text: str) -> None:
    try:
        parse_place(text)
    except UsageError as error:
        assert error.place.isascii()
