"""Whether an image in a registry is the lock's: by the digest of its config, whatever that config says of itself."""

from __future__ import annotations

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
from slipway.images.manifests import OCI_MANIFEST
from slipway.images.registry import Registry

pytestmark = pytest.mark.needs("docker-registry")

BASE = "example.test/base:1@sha256:" + "ab" * 32
DIFF_ID = "sha256:" + "cd" * 32
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


def push(registry: Registry, name: ImageName, config: Mapping[str, Any]) -> tuple[str, str]:
    """The digests of manifest and config of an image without layers, which `name` then is."""
    data = canonical_json(config)
    described = manifests.describe(data, "application/vnd.oci.image.config.v1+json")
    registry.push_blob(name.at(), described, lambda: iter([data]))
    value = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": described.as_json(), "layers": []}
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
