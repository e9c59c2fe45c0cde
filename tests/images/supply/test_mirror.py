"""Images carried between a real registry, folders and archives, with what is said of them; skopeo reads what we wrote."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import IntegrityMismatch, LockDrift, MissingFile, NetworkFailure, SlipwayError, UsageError
from slipway.images import actions, manifests, mirror
from slipway.images.image_name import Mirrors, parse
from slipway.images.inputs import Place as ImagePlace
from slipway.images.layout import Layout
from slipway.images.manifests import Descriptor
from slipway.images.mirror import Options
from slipway.images.registry import Registry

ROOT = Path(__file__).resolve().parents[3]
SKOPEO = shutil.which("skopeo")
# Read here, before each test gets a clean environment.
DOCKER = {
    "DOCKER_HOST": os.environ.get("SLIPWAY_TEST_DOCKER_HOST", ""),
    "DOCKER_CONFIG": os.environ.get("SLIPWAY_TEST_DOCKER_CONFIG", ""),
}

needs_skopeo = [
    pytest.mark.needs("skopeo"),
    pytest.mark.skipif(SKOPEO is None, reason="skopeo is not on PATH"),
]


class Notes:
    """A progress that remembers what was noted."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Any:
        outer = self

        class Context:
            def __enter__(self) -> Callable[[int], None]:
                return lambda amount: setattr(outer, "done", outer.done + amount)

            def __exit__(self, *_: object) -> None:
                pass

        return Context()


@pytest.fixture
def folder(tmp_path: Path, sample: Any) -> Path:
    """A layout with the sample, two papers about it, and one about one of them."""
    layout = sample.write(Layout(tmp_path / "made", "registry.example/engine:v1"))
    layout.put_blob(manifests.EMPTY, lambda start: iter([b"{}"[start:]]))
    first = manifests.artifact("a/sbom", [manifests.EMPTY], sample.index.descriptor, {})
    about = manifests.artifact("a/signature", [manifests.EMPTY], first.descriptor, {})
    second = manifests.artifact("a/sbom", [manifests.EMPTY], sample.images[0].descriptor, {})
    for manifest in (first, about, second):
        layout.put_manifest(manifest)
    signature = manifests.artifact("a/cosign", [manifests.EMPTY], manifests.EMPTY, {})
    layout.put_manifest(signature, ".sig", sample.index.digest)
    layout.publish()
    return layout.folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.needs("docker-registry")
def test_a_round_trip_keeps_every_digest_and_what_is_said_of_the_image(
    real: Any, registry: Registry, folder: Path, tmp_path: Path, sample: Any
) -> None:
    name = f"{real.host}/trip/engine:v1"
    there = Notes()
    sent = mirror.run(f"layout:{folder}:v1", name, registry, progress=there)
    assert sent.digest == sample.index.digest
    assert len(sent.attached) == 4
    assert (sent.copied, sent.skipped) == (9, 0)
    assert there.done == sent.copied_bytes
    assert there.notes == []  # the command's result says it
    assert re.fullmatch(r"9 blobs copied \(.* k?B\), 0 there already, 4 attached", sent.counted())
    assert registry.signature(parse(name), sample.index.digest, ".sig") is not None

    back = mirror.run(name, f"layout:{tmp_path / 'back'}:registry.example/engine:v1", registry)
    assert back.digest == sample.index.digest
    assert sorted(back.attached) == sorted(sent.attached)
    assert files(tmp_path / "back") == files(folder)
    assert Layout(tmp_path / "back").verify() == ()

    again = mirror.run(name, f"layout:{tmp_path / 'back'}:registry.example/engine:v1", registry)
    assert (again.copied, again.skipped) == (0, 9)
    assert files(tmp_path / "back") == files(folder)
    once_more = mirror.run(f"layout:{folder}:v1", name, registry)
    assert (once_more.copied, once_more.skipped) == (0, 9)


@pytest.mark.needs("docker-registry")
def test_within_one_registry_blobs_are_mounted(real: Any, registry: Registry, folder: Path) -> None:
    mirror.run(f"layout:{folder}:v1", f"{real.host}/mount/from:v1", registry)
    done = mirror.run(f"{real.host}/mount/from:v1", f"{real.host}/mount/to:v1", registry)
    assert (done.copied, done.mounted) == (0, 9)
    said = "0 blobs copied (0 B), 0 there already, 9 mounted from a repository beside it, 4 attached"
    assert (done.counted(), done.name) == (said, f"{real.host}/mount/to:v1")


def test_an_image_is_told_under_the_name_that_it_got(folder: Path, tmp_path: Path, sample: Any) -> None:
    with Registry() as nobody:
        kept = mirror.run(f"layout:{folder}:v1", f"layout:{tmp_path / 'kept'}:other:v2", nobody)
        bare = mirror.run(f"layout:{folder}@{sample.index.digest}", f"layout:{tmp_path / 'bare'}", nobody)
    assert (kept.name, bare.name) == ("other:v2", sample.index.digest.removeprefix("sha256:")[:12])
    assert Layout(tmp_path / "bare", bare.name).root().digest == sample.index.digest
    place, notes = ImagePlace(ROOT, "reference", "default"), Notes()
    to, source = f"layout:{tmp_path / 'told'}", f"layout:{folder}@{sample.index.digest}"
    document, text = actions.mirror_image(place, Options(), notes, to=to, source=source)
    assert text.startswith(f"{to}:{bare.name}: digest {sample.index.digest}, 9 blobs copied (")
    assert (notes.notes, document["name"]) == ([], bare.name)


@pytest.mark.needs("docker-registry")
def test_one_platform_has_its_own_digest_and_an_archive_carries_it(
    real: Any, registry: Registry, folder: Path, tmp_path: Path, sample: Any
) -> None:
    out = tmp_path / "one.tar"
    options = Options(platform="linux/amd64")
    done = mirror.run(f"layout:{folder}:v1", f"archive:{out}", registry, options)
    assert done.digest == sample.images[0].digest
    assert len(done.attached) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "one.tar"]
    pushed = mirror.run(f"archive:{out}", f"{real.host}/one/engine:v1", registry)
    assert registry.resolve(parse(f"{real.host}/one/engine:v1")) == pushed.digest == done.digest
    assert [one.artifact_type for one in registry.referrers(parse(f"{real.host}/one/engine"), done.digest)] == [
        "a/sbom"
    ]
    with pytest.raises(MissingFile, match="windows/amd64"):
        mirror.run(f"layout:{folder}:v1", f"archive:{out}", registry, Options(platform="windows/amd64"))


@pytest.mark.needs("docker-registry")
def test_a_tag_does_not_move_unless_it_may(real: Any, registry: Registry, folder: Path, sample: Any) -> None:
    name = f"{real.host}/tag/engine:v1"
    mirror.run(f"layout:{folder}:v1", name, registry)
    one = Options(platform="linux/arm64")
    with pytest.raises(LockDrift, match=f"taken by {sample.index.digest}"):
        mirror.run(f"layout:{folder}:v1", name, registry, one)
    assert registry.resolve(parse(name)) == sample.index.digest
    mirror.run(f"layout:{folder}:v1", name, registry, Options(platform="linux/arm64", replace=True))
    assert registry.resolve(parse(name)) == sample.images[1].digest
    with pytest.raises(UsageError, match="another digest"):
        mirror.run(f"layout:{folder}:v1", f"{real.host}/tag/engine@{sample.images[0].digest}", registry)
    mirror.run(f"layout:{folder}:v1", f"{real.host}/tag/other@{sample.index.digest}", registry)
    assert registry.resolve(parse(f"{real.host}/tag/other@{sample.index.digest}")) == sample.index.digest


def test_a_name_in_a_layout_does_not_move_unless_it_may(
    registry: Registry, folder: Path, sample: Any, tmp_path: Path
) -> None:
    to, one = f"layout:{tmp_path / 'to'}:engine:v1", Options(platform="linux/arm64")
    mirror.run(f"layout:{folder}:v1", to, registry)
    assert mirror.run(f"layout:{folder}:v1", to, registry).copied == 0
    before = files(tmp_path / "to")
    with pytest.raises(LockDrift, match=f"the name engine:v1 is taken by {sample.index.digest}.*give --replace"):
        mirror.run(f"layout:{folder}:v1", to, registry, one)
    assert files(tmp_path / "to") == before
    mirror.run(f"layout:{folder}:v1", f"{to}-arm", registry, one)
    mirror.run(f"layout:{folder}:v1", to, registry, Options(platform="linux/arm64", replace=True))
    assert Layout(tmp_path / "to", "engine:v1").root().digest == sample.images[1].digest


def test_an_archive_overwrites_nothing_but_itself(registry: Registry, folder: Path, tmp_path: Path) -> None:
    out, one = tmp_path / "a.tar", Options(platform="linux/arm64")
    (tmp_path / "plan.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"plan\.txt: is another file"):
        mirror.run(f"layout:{folder}:v1", f"archive:{tmp_path / 'plan.txt'}", registry)
    assert (tmp_path / "plan.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="is another file"):
        mirror.run(f"layout:{folder}:v1", f"archive:{tmp_path}", registry)
    with pytest.raises(MissingFile, match="no such folder"):
        mirror.run(f"layout:{folder}:v1", f"archive:{tmp_path / 'absent' / 'a.tar'}", registry)
    assert not (tmp_path / "absent").exists()
    mirror.run(f"layout:{folder}:v1", f"archive:{out}", registry)
    first = out.read_bytes()
    mirror.run(f"layout:{folder}:v1", f"archive:{out}", registry)
    assert out.read_bytes() == first
    with pytest.raises(LockDrift, match=r"has another image.*give --replace"):
        mirror.run(f"layout:{folder}:v1", f"archive:{out}", registry, one)
    assert out.read_bytes() == first
    mirror.run(f"layout:{folder}:v1", f"archive:{out}", registry, Options(platform="linux/arm64", replace=True))
    assert out.read_bytes() != first


def test_an_archive_holds_nothing_of_a_copy_that_was_broken_off(
    registry: Registry, folder: Path, sample: Any, tmp_path: Path
) -> None:
    clean, out = tmp_path / "clean.tar", tmp_path / "out.tar"
    mirror.run(f"layout:{folder}:v1", f"archive:{clean}", registry, Options(platform="linux/amd64"))
    # As it is left when another image was on its way: even named already, but not yet packed.
    shutil.copytree(folder, tmp_path / ".out.tar.layout")
    mirror.run(f"layout:{folder}:v1", f"archive:{out}", registry, Options(platform="linux/amd64"))
    assert out.read_bytes() == clean.read_bytes()


@pytest.mark.needs("docker-registry")
def test_signatures_that_are_there_already_are_kept_and_it_is_said(
    real: Any, registry: Registry, folder: Path, sample: Any
) -> None:
    name = parse(f"{real.host}/keep/engine:v1")
    mirror.run(f"layout:{folder}:v1", str(name), registry)
    tag = sample.index.digest.replace(":", "-") + ".sig"
    registry.push_manifest(name.at(tag=tag), sample.images[0])
    notes = Notes()
    mirror.run(f"layout:{folder}:v1", str(name), registry, progress=notes)
    assert any("keeps its own .sig" in note for note in notes.notes)
    assert registry.resolve(name.at(tag=tag)) == sample.images[0].digest
    bare = mirror.run(f"layout:{folder}:v1", f"{real.host}/keep/bare:v1", registry, Options(attached=False))
    assert bare.attached == ()
    assert registry.referrers(parse(f"{real.host}/keep/bare"), sample.index.digest) == ()


@pytest.mark.needs("docker-registry")
def test_a_registry_without_a_network_serves_the_pinned_upstream_name(
    real: Any, registry: Registry, folder: Path, tmp_path: Path, sample: Any
) -> None:
    mirror.run(f"layout:{folder}:v1", f"{real.host}/lmsysorg/sglang@{sample.index.digest}", registry)
    with Registry(Mirrors({"docker.io": (real.host,)})) as offline:
        pinned = f"docker.io/lmsysorg/sglang:v1@{sample.index.digest}"
        done = mirror.run(pinned, f"layout:{tmp_path / 'got'}", offline)
    assert done.digest == sample.index.digest
    assert len(done.attached) == 4
    for ref in (pinned, "docker.io/lmsysorg/sglang:v1", "v1"):
        assert Layout(tmp_path / "got", ref).root().digest == sample.index.digest


@pytest.mark.needs("docker-registry")
@pytest.mark.needs("docker")
@pytest.mark.skipif(not DOCKER["DOCKER_HOST"], reason="SLIPWAY_TEST_DOCKER_HOST names no docker daemon")
def test_docker_pulls_by_digest_what_came_in_on_a_disk(
    real: Any, registry: Registry, folder: Path, sample: Any, tool: Any
) -> None:
    inside = f"{real.host}/disk/engine@{sample.index.digest}"
    mirror.run(f"layout:{folder}:v1", inside, registry)
    tool("docker", "pull", "--quiet", inside, **DOCKER)
    try:
        seen = json.loads(tool("docker", "image", "inspect", inside, **DOCKER).stdout)[0]
        assert seen["RepoDigests"] == [inside]
        config = json.loads(sample.blobs[sample.images[0].blobs[0].digest])
        assert seen["RootFS"]["Layers"] == config["rootfs"]["diff_ids"]
    finally:
        tool("docker", "image", "rm", inside, **DOCKER)


@pytest.mark.needs("docker-registry")
def test_what_was_tampered_with_in_the_registry_is_not_taken(
    real: Any, registry: Registry, folder: Path, tmp_path: Path, sample: Any, start_registry: Any
) -> None:
    # A registry of its own: equal blobs are one file to docker-registry.
    other = start_registry()
    name = f"{other.host}/tampered/engine:v1"
    mirror.run(f"layout:{folder}:v1", name, registry)
    blob = sample.images[0].blobs[1].digest[7:]
    stored = other.data / "docker" / "registry" / "v2" / "blobs" / "sha256" / blob[:2] / blob / "data"
    data = stored.read_bytes()
    for spoilt in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"!"):
        stored.write_bytes(spoilt)
        with pytest.raises(IntegrityMismatch, match=blob):
            mirror.run(name, f"layout:{tmp_path / 'got'}", registry)
        assert not (tmp_path / "got" / "index.json").exists()


def test_a_spoilt_mirror_is_passed_over(scripted: Any, answers: Any, tmp_path: Path, sample: Any) -> None:
    spoilt, good = scripted(), scripted()
    everything = {one.digest: one.data for one in (sample.index, *sample.images)} | sample.blobs

    def serve(handler: Any) -> None:
        data = everything.get(handler.path.rpartition("/")[2])
        answers(handler, 404 if data is None else 200, data or b"")

    good.answer = serve
    spoilt.answer = lambda handler: answers(
        handler, 200, bytes(len(everything.get(handler.path.rpartition("/")[2], b"")))
    )
    with Registry(Mirrors({"registry.example": (spoilt.host, good.host)})) as client:
        done = mirror.run(
            f"registry.example/a@{sample.index.digest}", f"layout:{tmp_path / 'l'}", client, Options(attached=False)
        )
    assert done.copied == 8
    assert Layout(tmp_path / "l").verify() == ()


def test_a_spoilt_layout_is_not_carried_on(folder: Path, registry: Registry, tmp_path: Path, sample: Any) -> None:
    blob = sample.images[0].blobs[1]
    (folder / "blobs" / "sha256" / blob.digest[7:]).write_bytes(bytes(blob.size_bytes))
    with pytest.raises(IntegrityMismatch, match=blob.digest):
        mirror.run(f"layout:{folder}:v1", f"layout:{tmp_path / 'next'}", registry)
    assert not (tmp_path / "next" / "index.json").exists()


@pytest.mark.needs("docker-registry")
def test_a_spoilt_layout_is_not_pushed(folder: Path, registry: Registry, real: Any, sample: Any) -> None:
    blob = sample.images[0].blobs[1]
    (folder / "blobs" / "sha256" / blob.digest[7:]).write_bytes(bytes(blob.size_bytes))
    with pytest.raises(IntegrityMismatch, match=blob.digest):
        mirror.run(f"layout:{folder}:v1", f"{real.host}/spoilt/engine:v1", registry)
    with pytest.raises(MissingFile):
        registry.resolve(parse(f"{real.host}/spoilt/engine:v1"))


def test_a_copy_that_broke_off_is_gone_on_with(folder: Path, registry: Registry, tmp_path: Path, sample: Any) -> None:
    class Breaking(Layout):
        broken = 3

        def read(self, descriptor: Descriptor, start: int = 0) -> Iterator[bytes]:
            if descriptor.media_type.endswith("gzip") and self.broken:
                self.broken -= 1
                yield sample.blobs[descriptor.digest][start : start + 9]
                raise NetworkFailure("the disk's shelf", "fell over")
            yield from super().read(descriptor, start)

    source, end = Breaking(folder, "v1"), Layout(tmp_path / "next", "v1")
    outcomes = []
    while not outcomes:
        try:
            outcomes.append(mirror.mirror(source, end, Options(workers=1)))
        except SlipwayError as error:
            assert "fell over" in str(error)
            assert not (tmp_path / "next" / "index.json").exists()
    assert source.broken == 0
    assert end.verify() == ()


def test_a_failure_stops_the_other_workers(folder: Path, tmp_path: Path, sample: Any) -> None:
    begun, gate = threading.Event(), threading.Event()
    largest = max((blob for image in sample.images for blob in image.blobs), key=lambda blob: blob.size_bytes)

    class Slow(Layout):
        def read(self, descriptor: Descriptor, start: int = 0) -> Iterator[bytes]:
            if descriptor == largest:
                begun.set()
                for _ in range(2000):
                    gate.wait(0.01)
                    yield b"x"
            elif descriptor.media_type.endswith("gzip"):
                begun.wait(5)
                raise NetworkFailure("hub", "gone")
            yield from super().read(descriptor, start)

    with pytest.raises(NetworkFailure, match="gone"):
        mirror.mirror(Slow(folder, "v1"), Layout(tmp_path / "next", "v1"), Options(workers=2))


def test_an_index_without_bottom_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "deep", "v1")
    layout.create()
    inner = manifests.index([])
    for _ in range(8):
        layout.put_manifest(inner)
        inner = manifests.index([inner.descriptor])
    layout.put_manifest(inner)
    layout.finish(inner)
    with pytest.raises(IntegrityMismatch, match="deep"):
        mirror.mirror(layout, Layout(tmp_path / "out"), Options())


def test_places_that_cannot_be_meant_are_refused(registry: Registry, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no place to write to"):
        mirror.run(f"layout:{folder}:v1", f"docker-archive:{tmp_path / 'x.tar'}", registry)


@pytest.mark.needs("docker-registry")
@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_skopeo)])
def test_skopeo_reads_what_we_wrote(
    _: None, real: Any, registry: Registry, folder: Path, tmp_path: Path, sample: Any, tool: Any
) -> None:
    name = f"{real.host}/skopeo/engine:v1"
    mirror.run(f"layout:{folder}:v1", name, registry)
    mirror.run(name, f"oci-archive:{tmp_path / 'a.tar'}", registry)
    policy = ("skopeo", "--insecure-policy")
    seen = json.loads(tool(*policy, "inspect", "--tls-verify=false", f"docker://{name}").stdout)
    assert seen["Digest"] == sample.index.digest
    assert seen["Layers"] == [blob.digest for blob in sample.images[0].blobs[1:]]
    assert (
        tool(*policy, "inspect", "--raw", f"oci:{folder}:registry.example/engine:v1").stdout.encode()
        == sample.index.data
    )
    tool(*policy, "copy", "--all", f"oci-archive:{tmp_path / 'a.tar'}:{name}", f"dir:{tmp_path / 'dir'}")
    assert (tmp_path / "dir" / "manifest.json").read_bytes() == sample.index.data
    # And the other way: what skopeo wrote is read here.
    tool(*policy, "copy", "--all", "--src-tls-verify=false", f"docker://{name}", f"oci:{tmp_path / 'theirs'}:v1")
    assert Layout(tmp_path / "theirs", "v1").root().digest == sample.index.digest
    source = f"docker://{real.host}/skopeo/engine@{sample.images[0].digest}"
    tool(*policy, "copy", "--src-tls-verify=false", source, f"docker-archive:{tmp_path / 'old.tar'}:engine:v1")
    done = mirror.run(f"docker-archive:{tmp_path / 'old.tar'}", f"{real.host}/skopeo/old:v1", registry)
    assert registry.config(parse(f"{real.host}/skopeo/old@{done.digest}"))["architecture"] == "amd64"
