"""Whether an image in a registry is the lock's: by the digest of its config, whatever that config says of itself."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slipway.documents import canonical_json
from slipway.errors import IntegrityMismatch, LockDrift
from slipway.images import lock, locking, manifests, papers
from slipway.images.image_name import ImageName, parse, parse_mirrors
from slipway.images.inputs import Place, Settings
from slipway.images.lock import ImageLock, Result
from slipway.images.manifests import OCI_INDEX, OCI_MANIFEST
from slipway.images.registry import Registry

pytestmark = pytest.mark.needs("docker-registry")

BASE = "example.test/base:1@sha256:" + "ab" * 32
LAYER = b"a layer's bytes" * 100
DIFF_ID = manifests.digest_of(LAYER)
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
    place = Place(tmp_path / "checkout", "reference", "default")
    place.folder.mkdir(parents=True)
    (place.folder / "image.yaml").write_text(IMAGE_YAML)
    (place.folder / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nUSER 65532\n")
    world = locking.World(None, lambda: pytest.fail("no builder"), Settings({}, parse_mirrors("")), tmp_path)
    locking.write(place, locking.resolve(place, world))
    return place


def good_config(made: ImageLock) -> dict[str, Any]:
    process = {"Labels": {lock.LABEL: made.inputs_digest}, "Entrypoint": ["/bin/true"], "User": "65532"}
    return {"config": process, "rootfs": {"type": "layers", "diff_ids": [DIFF_ID]}}


def push(
    registry: Registry, name: ImageName, config: Mapping[str, Any], layers: tuple[bytes, ...] = ()
) -> tuple[str, str]:
    """The digests of manifest and config of an image of `layers`, which `name` then is."""
    data = canonical_json(config)
    described = manifests.describe(data, "application/vnd.oci.image.config.v1+json")
    registry.push_blob(name.at(), described, lambda: iter([data]))
    found = [manifests.describe(layer, "application/vnd.oci.image.layer.v1.tar+gzip") for layer in layers]
    for layer, one in zip(layers, found, strict=True):
        registry.push_blob(name.at(), one, lambda layer=layer: iter([layer]))  # type: ignore[misc]
    listed = [one.as_json() for one in found]
    value = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described.as_json(), "layers": listed}
    manifest = manifests.parse(canonical_json(value), "made")
    return registry.push_manifest(name, manifest), described.digest


@pytest.fixture
def pushed(place: Place, real: Any, registry: Registry) -> ImageName:
    """The lock's image in a registry; the lock expects exactly it."""
    name = parse(f"{real.host}/papers/{place.root.parent.name.replace('_', '-').lower()}:a")
    made = lock.read_any(place.lock)
    manifest, config = push(registry, name, good_config(made))
    result = Result(
        builder="buildkit", version="1", config_digest=config, diff_ids=[DIFF_ID], manifest_digest=manifest,
        compression="gzip", size_bytes=1,
    )  # fmt: skip
    lock.add_result(place.lock, made, result, place.turn)
    papers.say(place, made, result, name.at(digest=manifest), registry, None)
    return name


def check(place: Place, name: ImageName, registry: Registry) -> tuple[str, ...]:
    return papers.check_pushed(place, lock.read_any(place.lock), str(name), registry, None)


def test_the_locks_image_with_its_papers_is_proved(place: Place, pushed: ImageName, registry: Registry) -> None:
    assert len(check(place, pushed, registry)) == 3


@pytest.mark.parametrize("changed", [{"Entrypoint": ["/bin/sh"]}, {"User": "0:0"}, {"Env": ["LD_PRELOAD=/evil.so"]}])
def test_the_same_layers_under_another_config_are_another_image(
    place: Place, pushed: ImageName, registry: Registry, changed: dict[str, Any]
) -> None:
    made = lock.read_any(place.lock)
    config = good_config(made)
    config["config"] |= changed
    evil = pushed.at(tag="evil")
    manifest, _ = push(registry, evil, config)
    papers.say(place, made, made.results[0], evil.at(digest=manifest), registry, None)
    with pytest.raises(IntegrityMismatch, match="another config"):
        check(place, evil, registry)


@pytest.mark.parametrize(
    "config",
    [
        {"rootfs": [], "config": "x"},
        {"config": {"Labels": ["a"]}, "rootfs": {"diff_ids": 3}},
        {"config": None, "rootfs": None},
        {"config": {"Labels": 1}, "rootfs": {"diff_ids": []}},
    ],
)
def test_a_config_of_odd_types_is_no_crash(
    place: Place, pushed: ImageName, registry: Registry, config: dict[str, Any]
) -> None:
    odd = pushed.at(tag="odd")
    push(registry, odd, config)
    with pytest.raises(IntegrityMismatch, match="no image's"):
        check(place, odd, registry)


def test_an_image_of_another_lock_is_told(place: Place, pushed: ImageName, registry: Registry) -> None:
    other = pushed.at(tag="other")
    push(registry, other, {"config": {"Labels": {lock.LABEL: "sha256:1"}}, "rootfs": {"diff_ids": []}})
    with pytest.raises(LockDrift, match="another lock"):
        check(place, other, registry)


@pytest.mark.parametrize("compressed", [gzip.compress(LAYER, mtime=1), LAYER], ids=["gzip", "plain"])
def test_layers_compressed_otherwise_are_unpacked_and_held_against_the_lock(
    place: Place, pushed: ImageName, registry: Registry, compressed: bytes
) -> None:
    made, other = lock.read_any(place.lock), pushed.at(tag="other")
    manifest, _ = push(registry, other, good_config(made), (compressed,))
    papers.say(place, made, made.results[0], other.at(digest=manifest), registry, None)
    assert len(check(place, other, registry)) == 3


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ((gzip.compress(b"evil"),), r"layer 0 is another one \(got sha256:"),
        ((gzip.compress(LAYER)[:-9],), "cannot be unpacked"),
        ((b"\x28\xb5\x2f\xfd no zstd",), "cannot be unpacked"),
        ((), r"has 0 layers \(its config names 1\)"),
        ((LAYER, LAYER), "has 2 layers"),
    ],
)
def test_other_layers_under_our_config_are_refused(
    place: Place, pushed: ImageName, registry: Registry, layers: tuple[bytes, ...], said: str
) -> None:
    made, evil = lock.read_any(place.lock), pushed.at(tag="evil")
    # The lock's own manifest has no layers here, so that this one is told by its bytes.
    made = made.with_result(made.results[0].model_copy(update={"manifest_digest": "sha256:" + "0" * 64}))
    manifest, _ = push(registry, evil, good_config(made), layers)
    papers.say(place, made, made.results[0], evil.at(digest=manifest), registry, None)
    with pytest.raises(IntegrityMismatch, match=said):
        papers.check_pushed(place, made, str(evil), registry, None)


def test_an_index_that_has_our_image_among_others_is_refused(
    place: Place, pushed: ImageName, registry: Registry
) -> None:
    made = lock.read_any(place.lock)
    ours = registry.manifest(pushed).descriptor
    evil, _ = push(registry, pushed.at(tag="one"), {"config": {"Entrypoint": ["/EVIL"]}, "rootfs": {"diff_ids": []}})
    theirs = registry.manifest(pushed.at(digest=evil)).descriptor
    platforms = ({"os": "linux", "architecture": "amd64", "variant": "v3"}, {"os": "linux", "architecture": "amd64"})
    listed = [{**one.as_json(), "platform": platform} for one, platform in zip((ours, theirs), platforms, strict=True)]
    index = manifests.parse(canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": listed}), "made")
    name = pushed.at(tag="index")
    registry.push_manifest(name, index)
    papers.say(place, made, made.results[0], name.at(digest=index.digest), registry, None)
    with pytest.raises(IntegrityMismatch, match="is an index"):
        check(place, name, registry)
