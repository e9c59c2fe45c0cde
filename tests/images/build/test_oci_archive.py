"""Image archives: what is read out of good ones, and what hostile or damaged ones come to."""

from __future__ import annotations

import gzip
import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipway.errors import IntegrityMismatch, MissingFile, SlipwayError
from slipway.images import layers, oci_archive

from .conftest import File, MadeImage, compressed, digest_of, layer_tar, write_tar

Make = Callable[..., MadeImage]

FILES = (
    File("a/", mode=0o755, type=tarfile.DIRTYPE),
    File("./a/text", b"hello", mode=0o600, mtime=7, uid=65532),
    File("a/link", type=tarfile.SYMTYPE, link="text"),
    File("a/hard", type=tarfile.LNKTYPE, link="a/text"),
    File("a/" + "long" * 60, b"x" * 3_000_000),
)


@pytest.mark.parametrize("compression", ["gzip", "zstd", "plain"])
def test_the_files_of_a_layer_are_listed_whatever_its_compression(make_image: Make, compression: str) -> None:
    image = oci_archive.read(make_image(FILES, compression=compression).path)
    listing = layers.listing(image, 0)
    text = listing["a/text"]
    assert (text.kind, text.mode, text.uid, text.size_bytes, text.mtime_s) == ("file", 0o600, 65532, 5, 7)
    assert text.sha256 == hashlib.sha256(b"hello").hexdigest()
    assert (listing["a"].kind, listing["a/link"].kind, listing["a/link"].link) == ("folder", "symlink", "text")
    assert listing["a/hard"].kind == "hardlink"
    assert listing["a/" + "long" * 60].size_bytes == 3_000_000
    assert len(listing) == 5


def test_an_archive_tells_its_digests_and_its_config(make_image: Make) -> None:
    made = make_image(FILES, [File("b", b"2")], process={"User": "7", "Env": ["A=1"]})
    image = oci_archive.read(made.path)
    assert image.config == made.config
    assert image.config_digest == digest_of(json.dumps(made.config).encode())
    assert image.diff_ids == tuple(made.config["rootfs"]["diff_ids"])
    assert image.process["User"] == "7"
    assert [layer.size_bytes for layer in image.layers] == [
        len(made.blobs[f"blobs/{layer.digest.replace(':', '/')}"]) for layer in image.layers
    ]


def test_an_attestation_beside_the_image_is_not_taken_for_one(make_image: Make) -> None:
    def attest(members: dict[str, bytes]) -> None:
        index = json.loads(members["index.json"])
        other = {"digest": "sha256:" + "0" * 64, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
        nested = json.dumps({"manifests": [*index["manifests"], other]}).encode()
        members[f"blobs/{digest_of(nested).replace(':', '/')}"] = nested
        entry = {"digest": digest_of(nested), "mediaType": "application/vnd.oci.image.index.v1+json"}
        members["index.json"] = json.dumps({"manifests": [entry]}).encode()

    assert len(oci_archive.read(make_image(FILES, change=attest).path).layers) == 1


def test_a_docker_archive_is_read_like_an_oci_one(tmp_path: Path) -> None:
    tar = layer_tar(FILES)
    config = json.dumps({"rootfs": {"diff_ids": [digest_of(tar)]}}).encode()
    told = json.dumps([{"Config": "c.json", "Layers": ["l/layer.tar"], "RepoTags": None}]).encode()
    write_tar(tmp_path / "d.tar", {"manifest.json": told, "c.json": config, "l/layer.tar": tar})
    image = oci_archive.read(tmp_path / "d.tar")
    assert (image.config_digest, image.manifest_digest) == (digest_of(config), "")
    assert "a/text" in layers.listing(image, 0)


def test_a_layer_that_is_not_what_its_diff_id_says_is_found(make_image: Make) -> None:
    def swap(members: dict[str, bytes]) -> None:
        name = next(name for name, data in members.items() if data.startswith(b"\x1f\x8b"))
        members[name] = compressed(layer_tar([File("evil", b"x")]), "gzip")

    image = oci_archive.read(make_image(FILES, change=swap).path)
    with pytest.raises(IntegrityMismatch, match="layer 0 has the diff id"):
        layers.listing(image, 0)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_truncated_layer_is_an_error_not_a_shorter_list(make_image: Make, compression: str) -> None:
    def cut(members: dict[str, bytes]) -> None:
        name = next(name for name, data in members.items() if data[:2] in {b"\x1f\x8b", b"\x28\xb5"})
        members[name] = members[name][:200]

    image = oci_archive.read(make_image(FILES, compression=compression, change=cut).path)
    with pytest.raises(IntegrityMismatch):
        layers.listing(image, 0)


def test_a_config_or_manifest_with_other_bytes_than_its_name_is_found(make_image: Make) -> None:
    def change(members: dict[str, bytes]) -> None:
        name = next(name for name, data in members.items() if b'"rootfs"' in data)
        members[name] = members[name].replace(b"65532", b"00000")

    with pytest.raises(IntegrityMismatch, match="has the digest"):
        oci_archive.read(make_image(FILES, change=change).path)


@pytest.mark.parametrize(
    ("members", "kind", "words"),
    [
        ({"x": b"y"}, IntegrityMismatch, "neither index.json nor manifest.json"),
        ({"index.json": b"{"}, IntegrityMismatch, "is not JSON"),
        ({"index.json": b"[]"}, IntegrityMismatch, "lists no manifests"),
        ({"index.json": b'{"manifests": []}'}, IntegrityMismatch, "it holds 0 images"),
        ({"index.json": b'{"manifests": [{"digest": "../../etc/passwd"}]}'}, IntegrityMismatch, "no sha256 digest"),
        (
            {"index.json": b'{"manifests": [{"digest": "sha256:' + b"0" * 64 + b'"}]}'},
            MissingFile,
            "lacks blobs/sha256",
        ),
        ({"index.json": b"[" * 100_000}, IntegrityMismatch, "is not JSON"),
        ({"manifest.json": b"[{},{}]"}, IntegrityMismatch, "exactly one image"),
        ({"manifest.json": b'[{"Config": "c", "Layers": ["l"]}]', "c": b"{}"}, IntegrityMismatch, "no diff ids"),
        ({"manifest.json": b'[{"Config": "c"}]', "c": b"{}"}, IntegrityMismatch, "lists no layers"),
        ({"manifest.json": b'[{"Config": "c", "Layers": []}]', "c": b"[]"}, IntegrityMismatch, "not a JSON object"),
    ],
)
def test_what_is_no_image_is_said(
    tmp_path: Path, members: dict[str, bytes], kind: type[SlipwayError], words: str
) -> None:
    write_tar(tmp_path / "x.tar", members)
    with pytest.raises(kind, match=words):
        oci_archive.read(tmp_path / "x.tar")


def test_a_config_that_counts_its_layers_wrong_is_said(make_image: Make) -> None:
    extra = {"rootfs": {"diff_ids": ["sha256:" + "0" * 64] * 2}}
    with pytest.raises(IntegrityMismatch, match="1 layers and 2 diff ids"):
        oci_archive.read(make_image(FILES, extra=extra).path)


def test_a_missing_layer_is_named(make_image: Make) -> None:
    def drop(members: dict[str, bytes]) -> None:
        del members[next(name for name, data in members.items() if data.startswith(b"\x1f\x8b"))]

    with pytest.raises(MissingFile, match="lacks the layer blobs/sha256/"):
        oci_archive.read(make_image(FILES, change=drop).path)


def test_no_file_no_tar_and_a_name_twice_are_said(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        oci_archive.read(tmp_path / "none.tar")
    (tmp_path / "text.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(IntegrityMismatch, match="it is no uncompressed tar"):
        oci_archive.read(tmp_path / "text.tar")
    with tarfile.open(tmp_path / "twice.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("index.json"))
    with pytest.raises(IntegrityMismatch, match="twice"):
        oci_archive.read(tmp_path / "twice.tar")


def test_a_manifest_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    write_tar(tmp_path / "big.tar", {"index.json": b" " * (9 << 20)})
    with pytest.raises(IntegrityMismatch, match="at most 8388608 bytes"):
        oci_archive.read(tmp_path / "big.tar")


def test_a_header_extension_of_gigabytes_is_refused_before_it_is_read(make_image: Make) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 4 << 30
    bomb = gzip.compress(header.tobuf(tarfile.PAX_FORMAT) + b"\0" * 20_000_000)

    def swap(members: dict[str, bytes]) -> None:
        name = next(name for name, data in members.items() if data.startswith(b"\x1f\x8b"))
        members[name] = bomb

    image = oci_archive.read(make_image(FILES, change=swap).path)
    with pytest.raises(IntegrityMismatch, match="a header extension of 4294967296 bytes"):
        layers.listing(image, 0)


def test_a_reader_that_stops_early_ends_the_decompressor(make_image: Make) -> None:
    image = oci_archive.read(make_image(FILES, compression="zstd").path)
    with layers.layer_stream(image, 0) as stream:
        assert len(stream.read(512)) == 512


def test_without_the_zstd_program_that_is_said(
    make_image: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image = oci_archive.read(make_image(FILES, compression="zstd").path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingFile, match="install zstd"):
        layers.listing(image, 0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.integers(0, 40_000), value=st.integers(0, 255))
def test_a_changed_byte_is_an_error_or_changes_nothing_that_is_told(make_image: Make, where: int, value: int) -> None:
    made = make_image(FILES[:4])
    before = layers.listing(oci_archive.read(made.path), 0)
    data = bytearray(made.path.read_bytes())
    data[where % len(data)] = value
    made.path.write_bytes(data)
    try:
        image = oci_archive.read(made.path)
        after = layers.listing(image, 0)
    except SlipwayError:
        return
    assert after == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=4000))
def test_any_bytes_as_a_layer_are_an_error_of_ours_or_a_list(make_image: Make, data: bytes) -> None:
    def swap(members: dict[str, bytes]) -> None:
        name = next(name for name, blob in members.items() if blob.startswith(b"\x1f\x8b"))
        members[name] = data

    image = oci_archive.read(make_image(FILES[:1], change=swap).path)
    with pytest.raises(SlipwayError):
        layers.listing(image, 0)


def test_entries_are_read_one_after_the_other_with_their_content(make_image: Make) -> None:
    image = oci_archive.read(make_image([File("one", b"1"), File("two", b"2")]).path)
    read = [(entry.name, content.read() if content else None) for entry, content in layers.entries(image, 0)]
    assert read == [("one", b"1"), ("two", b"2")]
    # Content that nobody reads is skipped.
    assert [entry.name for entry, _ in layers.entries(image, 0)] == ["one", "two"]
