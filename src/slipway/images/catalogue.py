"""What is known about every image that recipes name: its variant in image.yaml and, where there is one, its lock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipway import documents
from slipway.documents import digest
from slipway.errors import DocumentError, Problem
from slipway.images import driver_gate, lock, spec
from slipway.images.driver_gate import DriverFacts
from slipway.images.lock import ImageLock
from slipway.images.spec import Cuda, ImageSpec, Variant

BUILD = "build:"
"""How a recipe names an image that must be built here: build:ENGINE-VARIANT, or build:ENGINE for the default."""


@dataclass(frozen=True)
class KnownImage:
    """One variant of images/<engine>/image.yaml; `lock` is None when there is none, or when image.yaml was edited since."""

    engine: str
    name: str
    variant: Variant
    lock: ImageLock | None

    @property
    def cuda(self) -> Cuda | None:
        """The CUDA it brings, as locked where it is; None: it needs no GPU."""
        return self.lock.cuda if self.lock else self.variant.cuda

    @property
    def cache_folder(self) -> str:
        """Where its containers expect the kernel caches."""
        return self.lock.cache_folder if self.lock else self.variant.cache_folder

    @property
    def built_digest(self) -> str | None:
        """The config digest of what was built from the lock; None: nothing was. BuildKit's counts before buildah's."""
        if self.lock is None:
            return None
        result = self.lock.result("buildkit") or self.lock.result("buildah")
        return result.config_digest if result else None

    @property
    def local_name(self) -> str:
        """What it is called on a machine that has built it or loaded its archive."""
        return spec.local_name(self.engine, self.name, self.variant.engine_version)

    @property
    def build_commands(self) -> tuple[str, ...]:
        """What makes it, in order: the lock where it is missing or stale, then the image."""
        which = f"--engine {self.engine}" + ("" if self.name == "default" else f" --variant {self.name}")
        build = f"invoke build-image {which}"
        return (build,) if self.lock else (f"invoke lock-image {which}", build)


@dataclass(frozen=True)
class Catalogue:
    """Every image of the checkout, and what is needed to say whether a host's driver can run it."""

    images: tuple[KnownImage, ...]
    drivers: DriverFacts

    def of(self, ref: str) -> KnownImage | None:
        """The image that a recipe calls `ref`: by `build:ENGINE-VARIANT`, else by the digest in `name:tag@sha256:…`."""
        if ref.startswith(BUILD):
            engine, _, name = ref.removeprefix(BUILD).partition("-")
            return next((i for i in self.images if (i.engine, i.name) == (engine, name or "default")), None)
        _, _, pinned = ref.partition("@")
        return next((image for image in self.images if pinned and pinned in _digests(image)), None)


def read(images: Path, gpus: Path) -> Catalogue:
    """The images below the folder `images`; `gpus` is the table of product lines (stacks/data/gpus.yaml).

    Raises: DocumentError with the problems of all files, MissingFile, DiskFailure.
    """
    found: list[KnownImage] = []
    problems: list[Problem] = []
    for path in sorted(images.glob("*/image.yaml")):
        try:
            spec = documents.read(path, ImageSpec)
            found += [_known(images, spec, name) for name in _default_first(spec)]
        except DocumentError as error:
            problems += error.problems
    if problems:
        raise DocumentError(problems)
    return Catalogue(tuple(found), driver_gate.read(images / "cuda-drivers.yaml", gpus))


def _default_first(spec: ImageSpec) -> list[str]:
    """Variants may stand on the same published image; the default is what its digest means."""
    return sorted(spec.variants, key=lambda name: (name != "default", name))


def _known(images: Path, spec: ImageSpec, name: str) -> KnownImage:
    variant, place = spec.variants[name], lock.path(images, spec.engine, name)
    locked = documents.read(place, ImageLock) if place.exists() else None
    fresh = locked if locked and locked.spec_digest == digest(variant.as_json()) else None
    return KnownImage(spec.engine, name, variant, fresh)


def _digests(image: KnownImage) -> set[str]:
    """The digests that name this image in a registry: the published one it is, and what was built from its lock."""
    source = image.variant.source
    published = {source.ref.rpartition("@")[2]} if source.kind == "image" else set()
    return published | {result.manifest_digest for result in (image.lock.results if image.lock else ())}
