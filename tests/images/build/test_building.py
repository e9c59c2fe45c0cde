"""Builds by a builder that hands over an archive made by hand: what is refused leaves nothing, and what is sent was checked."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import (
    CheckFailed,
    DocumentError,
    IntegrityMismatch,
    LockDrift,
    MissingFile,
    SlipwayError,
    UsageError,
)
from slipway.images import actions, building, lock, locking, mirror, oci_archive
from slipway.images.builders import BuildRequest, BuildResult, process
from slipway.images.image_name import parse_mirrors
from slipway.images.inputs import Place, Settings
from slipway.images.lock import ImageLock, LockedBase
from slipway.images.registry import registry_from
from slipway.progress import Progress, silent

from .conftest import File, MadeImage, compressed, digest_of, layer_tar

Make = Callable[..., MadeImage]
BASE = "example.test/base:1@sha256:" + "ab" * 32
SETTINGS = Settings({}, parse_mirrors(""))
IMAGE_YAML = f"""
schema: slipway/image/v1
engine: reference
variants:
  default:
    engine_version: "0.1.0"
    source: {{kind: image, ref: "{BASE}", made_before: "2026-11-30T00:00:00Z"}}
    entrypoint: [/bin/true]
    cuda: null
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A checkout with one locked image, which nothing was built of yet."""
    place = Place(tmp_path / "checkout", "reference", "default")
    place.folder.mkdir(parents=True)
    (place.folder / "image.yaml").write_text(IMAGE_YAML)
    (place.folder / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nUSER 65532\n")
    world = locking.World(None, lambda: pytest.fail("no builder"), SETTINGS, tmp_path / "tools")
    locking.write(place, locking.resolve(place, world))
    return place


def locked(place: Place) -> ImageLock:
    return lock.read_any(place.lock)


@dataclass
class HandBuilder:
    """A builder whose image was made beforehand; `meanwhile` is what happens while it builds."""

    image: Path
    name: str = "buildx"
    meanwhile: Callable[[], object] = lambda: None

    def build(self, request: BuildRequest, progress: Progress) -> BuildResult:
        del progress
        self.meanwhile()
        shutil.copy(self.image, request.archive)
        found = oci_archive.read(request.archive)
        return BuildResult(
            self.name,
            {"by": "hand"},
            found.config_digest,
            found.diff_ids,
            found.manifest_digest,
            found.layers,
            request.archive,
            {},
            0.1,
            0,
        )


@pytest.fixture
def image(make_image: Make, place: Place) -> Callable[..., Path]:
    """Call it for an archive of an image that carries the lock's label."""

    def make(
        *,
        user: str = "65532",
        name: str = "one.tar",
        text: bytes = b"1",
        compression: str = "gzip",
        change: Callable[[dict[str, bytes]], None] = lambda _: None,
    ) -> Path:
        def say_kind(members: dict[str, bytes]) -> None:
            name_layers(members, compression)
            change(members)

        labels = {lock.LABEL: locked(place).inputs_digest}
        process = {"User": user, "Labels": labels, "Entrypoint": ["/bin/true"]}
        return make_image([File("a", text)], name=name, process=process, compression=compression, change=say_kind).path

    return make


def name_layers(members: dict[str, bytes], compression: str) -> None:
    """The manifest says how its layers are compressed, as builders have it."""
    index = json.loads(members["index.json"])
    manifest = json.loads(members["blobs/" + index["manifests"][0]["digest"].replace(":", "/")])
    for layer in manifest["layers"]:
        layer["mediaType"] = f"application/vnd.oci.image.layer.v1.tar+{compression}"
    manifest["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json"
    data = json.dumps(manifest).encode()
    members["blobs/" + digest_of(data).replace(":", "/")] = data
    index["schemaVersion"] = 2
    index["manifests"][0] |= {"digest": digest_of(data), "size": len(data)}
    members["index.json"] = json.dumps(index).encode()


def build(place: Place, builder: HandBuilder, **settings: Any) -> building.Built:
    return building.build(place, builder, replace(SETTINGS, compression="gzip", **settings))


def leftovers(place: Place) -> list[Path]:
    return [path for path in place.archive.parent.rglob("*") if path.is_file() and path != place.archive]


def evil_beside(members: dict[str, bytes]) -> None:
    """What a breaker did: the checked image is noted as a paper, and another one as an attestation."""
    index = json.loads(members["index.json"])
    good = index["manifests"][0]
    manifest = json.loads(members["blobs/" + good["digest"].replace(":", "/")])
    config = json.loads(members["blobs/" + manifest["config"]["digest"].replace(":", "/")])
    config["config"]["Entrypoint"] = ["/bin/sh"]
    for value, note in ((config, manifest["config"]), (manifest, {})):
        data = json.dumps(value).encode()
        members["blobs/" + digest_of(data).replace(":", "/")] = data
        note |= {"digest": digest_of(data), "size": len(data)}
    evil = {**good, **note, "annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    index["manifests"] = [{**good, "artifactType": "application/x"}, evil]
    members["index.json"] = json.dumps({"schemaVersion": 2, **index}).encode()


def test_an_archive_in_which_two_readers_could_choose_two_images_is_none(image: Callable[..., Path]) -> None:
    with pytest.raises(SlipwayError, match="0 images"):
        oci_archive.read(image(change=evil_beside))


def test_what_arrived_is_held_against_what_was_checked() -> None:
    actions.refuse_other("r/x:1", "sha256:1", "sha256:1")
    with pytest.raises(IntegrityMismatch, match="got another image"):
        actions.refuse_other("r/x:1", "sha256:2", "sha256:1")


def test_a_good_build_stands_under_its_name_and_in_the_lock(place: Place, image: Callable[..., Path]) -> None:
    built = build(place, HandBuilder(image()))
    assert built.archive == place.archive
    assert place.archive.exists()
    assert leftovers(place) == []
    assert [found.config_digest for found in locked(place).results] == [built.result.config_digest]
    assert build(place, HandBuilder(image(name="never.tar"))).ran is False


def test_a_refused_image_is_nowhere_afterwards(place: Place, image: Callable[..., Path]) -> None:
    with pytest.raises(CheckFailed, match="root"):
        build(place, HandBuilder(image(user="0")))
    assert not place.archive.exists()
    assert leftovers(place) == []
    assert locked(place).results == []


def test_another_image_than_the_lock_expects_leaves_the_good_one(place: Place, image: Callable[..., Path]) -> None:
    built = build(place, HandBuilder(image()))
    with pytest.raises(IntegrityMismatch, match="a build gave") as refused:
        building.build(
            place, HandBuilder(image(name="two.tar", text=b"2")), replace(SETTINGS, compression="gzip"), no_cache=True
        )
    said = str(refused.value)
    assert f"config digest: expected {built.result.config_digest}, got sha256:" in said
    assert "\n  layer " in said
    assert re.search(r"\n  layer \d+: \S+: ", said), "no file is named"
    assert oci_archive.read(place.archive).config_digest == built.result.config_digest
    assert leftovers(place) == []


def test_a_build_does_not_write_over_a_lock_that_is_newer(place: Place, image: Callable[..., Path]) -> None:
    newer = locked(place).model_copy(update={"epoch": 7})
    builder = HandBuilder(image(), meanwhile=lambda: lock.write(place.lock, newer))
    with pytest.raises(LockDrift, match="made anew while"):
        build(place, builder)
    assert locked(place).epoch == 7
    assert not place.archive.exists()


def test_results_of_two_builders_at_once_both_stay(place: Place, image: Callable[..., Path]) -> None:
    archive = image()
    builder = HandBuilder(archive, meanwhile=lambda: build(place, HandBuilder(archive, name="buildah")))
    build(place, builder)
    assert [found.builder for found in locked(place).results] == ["buildah", "buildkit"]


def test_two_builds_at_once_that_differ_are_told(place: Place, image: Callable[..., Path]) -> None:
    other = HandBuilder(image(name="other.tar", text=b"2"))
    with pytest.raises(IntegrityMismatch, match="two builds differ"):
        build(place, HandBuilder(image(), meanwhile=lambda: build(place, other)))


def test_a_fresh_lock_keeps_a_result_that_came_meanwhile(place: Place, image: Callable[..., Path]) -> None:
    made = locking.Locked(locked(place), None)
    build(place, HandBuilder(image()))
    assert len(locking.write(place, made).results) == 1


def test_another_compression_is_built_again_and_then_kept(place: Place, image: Callable[..., Path]) -> None:
    zstd = HandBuilder(image(compression="zstd"))
    gzip = HandBuilder(image(name="g.tar"))
    assert building.build(place, zstd, SETTINGS).ran
    assert building.build(place, zstd, SETTINGS).ran is False
    assert build(place, gzip).ran
    again = build(place, gzip)
    assert (again.ran, again.result.compression) == (False, "gzip")
    assert building.build(place, zstd, SETTINGS).ran
    assert locked(place).results[0].compression == "zstd"


def test_only_what_the_lock_expects_is_sent_on(place: Place, image: Callable[..., Path], tmp_path: Path) -> None:
    def send() -> None:
        actions.mirror_image(place, mirror.Options(), silent, to=f"layout:{tmp_path / 'to'}")

    with pytest.raises(MissingFile):
        send()
    place.archive.parent.mkdir(parents=True)
    shutil.copy(image(), place.archive)
    with pytest.raises(LockDrift, match="expects no image yet"):
        send()
    build(place, HandBuilder(image()))
    send()
    shutil.copy(image(name="two.tar", text=b"2"), place.archive)
    with pytest.raises(IntegrityMismatch, match="another image"):
        send()
    shutil.copy(image(), place.archive)
    lock.write(place.lock, locked(place).model_copy(update={"epoch": 7}))
    with pytest.raises(LockDrift, match="another lock"):
        send()


def test_an_image_whose_layers_are_not_its_diff_ids_is_not_sent_on(place: Place, image: Callable[..., Path]) -> None:
    build(place, HandBuilder(image()))

    def other_layer(members: dict[str, bytes]) -> None:
        index = json.loads(members["index.json"])
        manifest = json.loads(members["blobs/" + index["manifests"][0]["digest"].replace(":", "/")])
        evil = compressed(layer_tar([File("a", b"evil")]), "gzip")
        manifest["layers"][0] |= {"digest": digest_of(evil), "size": len(evil)}
        data = json.dumps(manifest).encode()
        index["manifests"][0] |= {"digest": digest_of(data), "size": len(data)}
        for blob in (evil, data):
            members["blobs/" + digest_of(blob).replace(":", "/")] = blob
        members["index.json"] = json.dumps(index).encode()

    shutil.copy(image(name="evil.tar", change=other_layer), place.archive)
    with pytest.raises(IntegrityMismatch, match="damaged"):
        building.require_here(place, locked(place))


def broken(path: Path, how: str) -> None:
    """What lies at `path` is no image any more."""
    data = path.read_bytes()
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to(path.name)
    elif how == "text":
        path.write_text("no tar")
    elif how == "size":
        entry = tarfile.TarInfo("big")
        entry.size = 1 << 60
        path.write_bytes(entry.tobuf(tarfile.GNU_FORMAT) + data)
    elif how == "linked layer":
        with tarfile.open(fileobj=io.BytesIO(data)) as tar, tarfile.open(path, "w") as to:
            for member in tar:
                content = tar.extractfile(member)
                if content is not None and content.read(2) == b"\x1f\x8b":
                    member.type, member.linkname, content = tarfile.LNKTYPE, member.name, None
                if content is not None:
                    content.seek(0)
                to.addfile(member, content)
    else:
        path.write_bytes(data[:1500])


@pytest.mark.parametrize("how", ["pipe", "link", "text", "size", "linked layer", "cut"])
def test_whatever_is_wrong_with_what_lies_there_it_is_built_anew(
    place: Place, image: Callable[..., Path], how: str
) -> None:
    build(place, HandBuilder(image()))
    broken(place.archive, how)
    assert build(place, HandBuilder(image())).ran
    assert not place.archive.is_symlink()
    assert build(place, HandBuilder(image())).ran is False


@pytest.mark.parametrize("how", ["text", "size", "linked layer"])
def test_a_broken_archive_does_not_hide_that_a_build_gave_another_image(
    place: Place, image: Callable[..., Path], how: str
) -> None:
    build(place, HandBuilder(image()))
    broken(place.archive, how)
    with pytest.raises(IntegrityMismatch, match=r"a build gave sha256(.|\n)*files cannot be compared"):
        build(place, HandBuilder(image(name="two.tar", text=b"2")))


def test_a_folder_in_the_archives_place_is_named_before_anything_is_built(place: Place) -> None:
    place.archive.mkdir(parents=True)
    with pytest.raises(UsageError, match=f"{place.archive.name}: is a folder.*remove it"):
        build(place, HandBuilder(Path("never")))


def told_anew(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, bytes]], None]:
    """The manifest is another one, of the same config and layers."""

    def tell(members: dict[str, bytes]) -> None:
        index = json.loads(members["index.json"])
        manifest = json.loads(members["blobs/" + index["manifests"][0]["digest"].replace(":", "/")])
        data = change(manifest)
        text = data if isinstance(data, bytes) else json.dumps(manifest).encode()
        index["manifests"][0] |= {"digest": digest_of(text), "size": len(text)}
        members["blobs/" + digest_of(text).replace(":", "/")] = text
        members["index.json"] = json.dumps(index).encode()

    return tell


SUBJECT = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": BASE[-71:], "size": 1}
TOLD: dict[str, Callable[[dict[str, Any]], object]] = {
    "annotations": lambda told: told.update(annotations={"org.opencontainers.image.source": "https://evil.example"}),
    "no annotations": lambda told: told.update(annotations={}),
    "another base": lambda told: told.update(
        annotations={
            "org.opencontainers.image.base.digest": BASE[-71:],
            "org.opencontainers.image.base.name": "evil.example/base@sha256:" + "cd" * 32,
        }
    ),
    "subject": lambda told: told.update(subject=SUBJECT),
    "artifact type": lambda told: told.update(artifactType="evil/type"),
    "unknown": lambda told: told.update(x=1),
    "urls": lambda told: told["layers"][0].update(urls=["http://evil.example/x"]),
    "layer's note": lambda told: told["layers"][0].update(annotations={"a": "b"}),
    "layer's time": lambda told: told["layers"][0].update(annotations={"buildkit/rewritten-timestamp": "7"}),
    "layer's data": lambda told: told["layers"][0].update(data="YQ=="),
    "layer's kind": lambda told: told["layers"][0].update(mediaType="evil+gzip"),
    "layer's size": lambda told: told["layers"][0].update(size=1),
    "config's kind": lambda told: told["config"].update(mediaType="evil/config"),
    "config's size": lambda told: told["config"].update(size=1),
    "config's note": lambda told: told["config"].update(annotations={"a": "b"}),
    "number": lambda told: told.update(schemaVersion=2.0),
    "kind": lambda told: told.update(mediaType="application/vnd.docker.distribution.manifest.v2+json"),
    "twice": lambda told: b'{"layers":[],' + json.dumps(told).encode()[1:],
}


@pytest.mark.parametrize("locked_as", ["gzip", "zstd"])
@pytest.mark.parametrize("change", TOLD.values(), ids=TOLD)
def test_a_manifest_that_says_more_than_a_build_writes_is_another_image(
    place: Place, image: Callable[..., Path], change: Callable[[dict[str, Any]], object], locked_as: str
) -> None:
    building.build(place, HandBuilder(image(compression=locked_as)), replace(SETTINGS, compression=locked_as))
    shutil.copy(image(name="evil.tar", change=told_anew(change)), place.archive)
    with pytest.raises(IntegrityMismatch):
        building.require_here(place, locked(place))
    assert build(place, HandBuilder(image())).ran
    assert build(place, HandBuilder(image())).ran is False


def test_a_plain_manifest_counts_in_another_compression_and_not_in_the_same(
    place: Place, image: Callable[..., Path]
) -> None:
    building.build(place, HandBuilder(image(compression="zstd")), SETTINGS)
    expected = locked(place)
    with_notes = told_anew(
        lambda told: told["layers"][0].update(annotations={"buildkit/rewritten-timestamp": str(expected.epoch)})
    )
    without_kind = told_anew(lambda told: told.pop("mediaType", None))
    about_base = {"org.opencontainers.image.base.digest": BASE[-71:], "org.opencontainers.image.base.name": BASE}
    buildahs = told_anew(lambda told: told.update(annotations=about_base))
    for change in (with_notes, without_kind, buildahs):
        shutil.copy(image(name="other.tar", change=change), place.archive)
        assert building.require_here(place, expected).compression == "gzip"
    shutil.copy(image(name="same.tar", compression="zstd", change=with_notes), place.archive)
    with pytest.raises(IntegrityMismatch, match="has another manifest"):
        building.require_here(place, expected)


def test_what_else_an_archive_names_is_not_sent_along(place: Place, image: Callable[..., Path], tmp_path: Path) -> None:
    build(place, HandBuilder(image()))

    def add_paper(members: dict[str, bytes]) -> None:
        index = json.loads(members["index.json"])
        subject = {name: index["manifests"][0][name] for name in ("mediaType", "digest", "size")}
        empty = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest_of(b"{}"), "size": 2}
        paper = {"schemaVersion": 2, "config": empty, "layers": [], "subject": subject}
        text = json.dumps(paper).encode()
        kind = "application/vnd.oci.image.manifest.v1+json"
        entry = {"mediaType": kind, "artifactType": "evil/sbom", "digest": digest_of(text), "size": len(text)}
        index["manifests"].append(entry)
        for blob in (text, b"{}"):
            members["blobs/" + digest_of(blob).replace(":", "/")] = blob
        members["index.json"] = json.dumps(index).encode()

    shutil.copy(image(name="evil.tar", change=add_paper), place.archive)
    with pytest.raises(IntegrityMismatch, match="names more than the image"):
        actions.mirror_image(place, mirror.Options(), silent, to=f"layout:{tmp_path / 'to'}")
    assert build(place, HandBuilder(image())).ran


def test_an_image_with_a_subject_is_found_again_in_the_layout_that_it_was_copied_to(
    image: Callable[..., Path], tmp_path: Path
) -> None:
    source = image(change=told_anew(TOLD["subject"]))
    with registry_from({}) as registry:
        first = mirror.run(f"archive:{source}", f"layout:{tmp_path / 'one'}", registry)
        assert (
            mirror.run(f"layout:{tmp_path / 'one'}", f"archive:{tmp_path / 'b.tar'}", registry).digest == first.digest
        )
        assert mirror.run(f"archive:{tmp_path / 'b.tar'}", f"layout:{tmp_path / 'c'}", registry).digest == first.digest


def test_what_a_killed_run_left_is_swept_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    dead = tmp_path / "work-dead"
    dead.mkdir()
    (dead / ".image.tar.1.part").write_bytes(b"half")
    with process.working(tmp_path) as first:
        assert not dead.exists()
        with process.working(tmp_path) as second:
            assert first.exists()
            assert second != first
    assert list(tmp_path.iterdir()) == []


def test_two_rebuilds_at_once_do_not_share_a_file(place: Place, image: Callable[..., Path]) -> None:
    archive = image()
    build(place, HandBuilder(archive))
    inner = lambda: building.verify(place, HandBuilder(archive), SETTINGS)  # noqa: E731
    compared = building.verify(place, HandBuilder(archive, meanwhile=inner), SETTINGS)
    assert compared.differences == ()
    assert leftovers(place) == []


def test_a_rebuild_counts_layers_in_one_way(place: Place, image: Callable[..., Path]) -> None:
    build(place, HandBuilder(image()))
    differing = building.verify(place, HandBuilder(image(name="two.tar", text=b"2")), SETTINGS).differences
    assert [line.partition(":")[0] for line in differing] == ["config digest", "layer 0", "layer 0"]


def test_every_input_that_moves_is_named(place: Place) -> None:
    old = locked(place)
    for changed, said in (
        ({"context_sha256": "1" * 64}, "context_sha256: "),
        ({"flag_schema": "flags/x.json"}, "flag_schema: None -> flags/x.json"),
        ({"cache_folder": "/elsewhere"}, "cache_folder: /cache -> /elsewhere"),
        ({"gpu_architectures": ["sm_90"]}, "gpu_architectures: "),
        ({"base": LockedBase(ref=BASE, diff_ids=["sha256:" + "1" * 64])}, "base.diff_ids: None -> "),
    ):
        new = old.model_copy(update=changed)
        (line,) = locking.changes(place, old, locking.Locked(new, None))
        assert line.startswith(said)
    assert locking.changes(place, old, locking.Locked(old, None)) == ()


@pytest.mark.parametrize("text", ["", "<<<<<<< HEAD\n=======\n", "a: [", "\x00", "sealed: 1\n", "- 1\n"])
def test_a_lock_that_cannot_be_read_is_replaced_not_compared(place: Place, text: str) -> None:
    good = place.lock.read_bytes()
    place.lock.write_text(text)
    with pytest.raises(SlipwayError):
        actions.lock_image(place, actions.Options(), silent, check=True, offline=True)
    actions.lock_image(place, actions.Options(builder="buildah"), silent, offline=True)
    assert place.lock.read_bytes() == good


def test_a_lock_on_another_base_than_image_yaml_names_is_refused(place: Place) -> None:
    other = LockedBase(ref=BASE.replace("ab", "cd"))
    lock.write(place.lock, locked(place).model_copy(update={"base": other}))
    with pytest.raises(LockDrift, match="another base"):
        lock.read(place.images, place.engine, place.variant, place.spec())


@pytest.mark.parametrize("moment", ["2026-13-45T00:00:00Z", "2026-02-30T00:00:00Z", "1970-01-01T00:00:00Z"])
def test_a_moment_that_no_calendar_has_is_said(place: Place, moment: str) -> None:
    text = IMAGE_YAML.replace("2026-11-30T00:00:00Z", moment)
    (place.folder / "image.yaml").write_text(text)
    with pytest.raises(DocumentError, match="made_before"):
        place.spec()


def test_build_arguments_that_the_lock_gives_are_not_given_twice(place: Place) -> None:
    (place.folder / "image.yaml").write_text(IMAGE_YAML + "    args: {BASE: other}\n")
    with pytest.raises(DocumentError, match="BASE is given by the lock"):
        place.spec()


def test_flags_that_cannot_be_meant_are_usage_errors() -> None:
    actions.refuse_unmeant({"--key needs --pushed": False}, pushed=None, key="k")
    with pytest.raises(UsageError, match="--key: needs --pushed"):
        actions.refuse_unmeant({"--key needs --pushed": True})
    with pytest.raises(UsageError, match="--to: is empty"):
        actions.refuse_unmeant({}, to=" ")
    with pytest.raises(UsageError, match="is no version"):
        actions.settings_from({}, actions.Options(oldest_docker="banana", compression="zstd"))


def test_an_image_for_one_platform_is_not_copied_as_another(image: Callable[..., Path], tmp_path: Path) -> None:
    source, to = f"archive:{image()}", f"layout:{tmp_path / 'to'}"
    with registry_from({}) as registry:
        for platform in ("foo/bar", "linux/amd64"):  # this one says nothing of its platform
            with pytest.raises(MissingFile, match=f"is not for {platform}"):
                mirror.run(source, to, registry, mirror.Options(platform=platform))
    assert not (tmp_path / "to").exists()
