"""The catalogue finds what a recipe's image is, says how to build it, and believes no lock that image.yaml has outgrown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slipway import documents, recipe
from slipway.documents import digest
from slipway.errors import DocumentError
from slipway.images import catalogue, lock
from slipway.images.catalogue import Catalogue
from slipway.images.lock import ImageLock, LockedBase, Result
from slipway.images.spec import ImageSpec

ROOT = Path(__file__).resolve().parents[2]
GPUS = ROOT / "stacks" / "data" / "gpus.yaml"
SHIPPED = catalogue.read(ROOT / "images", GPUS)


def test_every_image_that_a_shipped_recipe_names_is_known_with_its_version() -> None:
    seen = set()
    for item in recipe.read_book(ROOT / "recipes"):
        transfer = item.cell.transfer
        others = [variant.image for variant in transfer.fabrics.values()] if transfer else []
        for image in filter(None, (item.cell.image, *others)):
            known = SHIPPED.of(image)
            assert known is not None, image
            assert (known.engine, known.variant.engine_version) == (item.engine, item.engine_version)
            assert known.cuda is not None
            seen.add(image)
    assert "build:sglang-efa" in seen and len(seen) >= 3


def test_names_lead_to_variants_and_tags_lead_nowhere() -> None:
    def name(ref: str) -> str | None:
        known = SHIPPED.of(ref)
        return f"{known.engine}/{known.name}" if known else None

    assert name("build:sglang-efa") == "sglang/efa"
    assert name("build:sglang") == "sglang/default"
    assert name("build:sglang-eaf") is None
    assert name("lmsysorg/sglang:v0.5.18") is None
    assert (
        name("another/name@sha256:9e148f5ac788e856a06166bd6347a831831eb9fcfab4d1770874823a7c29a1a1") == "sglang/default"
    )
    assert name("lmsysorg/sglang:v0.5.18@sha256:" + "0" * 64) is None


def with_lock(folder: Path, *results: Result, **changes: object) -> Catalogue:
    """The shipped images with a lock of sglang's efa variant."""
    shutil.copytree(ROOT / "images", folder / "images", ignore=shutil.ignore_patterns("flags", "*.lock.yaml"))
    variant = documents.read(folder / "images" / "sglang" / "image.yaml", ImageSpec).variants["efa"]
    values: dict[str, object] = {
        "schema_": "slipway/image-lock/v1",
        "engine": "sglang",
        "variant": "efa",
        "engine_version": variant.engine_version,
        "spec_digest": digest(variant.as_json()),
        "platform": variant.platform,
        "base": LockedBase(ref="debian:trixie-slim@sha256:" + "1" * 64),
        "dockerfile_sha256": "2" * 64,
        "context_sha256": "3" * 64,
        "args": {},
        "entrypoint": variant.entrypoint,
        "epoch": 1,
        "cuda": variant.cuda,
        "gpu_architectures": variant.gpu_architectures,
        "flag_schema": None,
        "cache_folder": "/elsewhere",
        "results": list(results),
    }
    lock.write(lock.path(folder / "images", "sglang", "efa"), ImageLock(**{**values, **changes}))  # type: ignore[arg-type]
    return catalogue.read(folder / "images", GPUS)


def result(builder: str, number: int) -> Result:
    made = f"sha256:{number:064x}"
    return Result(
        builder=builder,  # type: ignore[arg-type]
        version="1",
        config_digest=made,
        diff_ids=[made],
        manifest_digest=f"sha256:{number + 100:064x}",
        compression="zstd",
        size_bytes=1,
    )


def test_without_a_lock_both_commands_are_named_and_with_one_only_the_build(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "images", tmp_path / "bare", ignore=shutil.ignore_patterns("flags", "*.lock.yaml"))
    before = catalogue.read(tmp_path / "bare", GPUS).of("build:sglang-efa")
    assert before is not None
    assert before.built_digest is None
    assert before.build_commands == (
        "invoke lock-image --engine sglang --variant efa",
        "invoke build-image --engine sglang --variant efa",
    )
    after = with_lock(tmp_path).of("build:sglang-efa")
    assert after is not None
    assert after.build_commands == ("invoke build-image --engine sglang --variant efa",)
    assert (after.built_digest, after.cache_folder) == (None, "/elsewhere")


def test_a_built_image_is_known_by_config_digest_and_found_by_manifest_digest(tmp_path: Path) -> None:
    known = with_lock(tmp_path, result("buildah", 7), result("buildkit", 8))
    image = known.of("build:sglang-efa")
    assert image is not None
    assert image.built_digest == f"sha256:{8:064x}", "BuildKit's counts first"
    assert known.of(f"registry.example/ours@sha256:{107:064x}") == image


def test_a_lock_that_image_yaml_has_outgrown_counts_as_none(tmp_path: Path) -> None:
    stale = with_lock(tmp_path, result("buildkit", 8), spec_digest="sha256:" + "f" * 64).of("build:sglang-efa")
    assert stale is not None
    assert stale.lock is None
    assert stale.built_digest is None
    assert stale.build_commands[0].startswith("invoke lock-image")


def test_problems_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "images", tmp_path / "images", ignore=shutil.ignore_patterns("flags", "*.lock.yaml"))
    for engine in ("sglang", "vllm"):
        path = tmp_path / "images" / engine / "image.yaml"
        path.write_text(path.read_text().replace('version: "13.0"', 'version: "thirteen"', 1))
    with pytest.raises(DocumentError) as caught:
        catalogue.read(tmp_path / "images", GPUS)
    assert {Path(found.file).parent.name for found in caught.value.problems} == {"sglang", "vllm"}
