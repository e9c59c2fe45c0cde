"""How an image was made: an in-toto statement with a SLSA provenance predicate, the same bytes for the same values. Pure.

It says what was asked for (the lock), what went in (materials by digest) and who built. It holds no time of day and no host name:
those would differ between two builds of one lock, and prove nothing.

Source: in-toto Statement v1 and SLSA Provenance v1 (read in November 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipway import __version__
from slipway.documents import canonical_json
from slipway.errors import UsageError
from slipway.images.image_name import DIGEST, ImageName
from slipway.images.sbom import timestamp

MEDIA_TYPE = "application/vnd.in-toto+json"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "slipway:build-image/v1"


@dataclass(frozen=True)
class Material:
    """What went into the build: an address or package URL, and its digests by algorithm (`sha256`, `gitCommit`)."""

    uri: str
    digests: Mapping[str, str]
    name: str = ""


@dataclass(frozen=True)
class Build:
    """One build in plain values; `image` has the manifest's digest, `builder` names the kind (`buildkit`, `buildah`)."""

    image: ImageName
    config_digest: str
    lock_digest: str
    epoch_s: int
    engine: str
    variant: str
    builder: str
    versions: Mapping[str, str] = field(default_factory=dict)
    args: Mapping[str, str] = field(default_factory=dict)
    materials: tuple[Material, ...] = ()


def render(build: Build) -> bytes:
    """The statement about the image's digest.

    Raises: UsageError for an image or a material that no digest names.
    """
    if build.image.digest is None:
        raise UsageError(build.image, "has no digest", "provenance is about a digest, never about a tag")
    for digest in (build.config_digest, build.lock_digest):
        if not DIGEST.fullmatch(digest):
            raise UsageError(build.image, f"has a digest that is none (got {ascii(digest)[1:-1][:80]})", "sha256:…")
    dependencies = [_dependency(material) for material in sorted(build.materials, key=lambda one: (one.uri, one.name))]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": build.image.place, "digest": {"sha256": build.image.digest.removeprefix("sha256:")}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "engine": build.engine,
                    "variant": build.variant,
                    "lock": {"sha256": build.lock_digest.removeprefix("sha256:")},
                    "args": dict(build.args),
                },
                "internalParameters": {"sourceDateEpoch": build.epoch_s, "configDigest": build.config_digest},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {
                    "id": f"slipway:builder/{build.builder}",
                    "version": {**dict(build.versions), "slipway": __version__},
                },
                # The epoch of the lock stands where a clock would: two builds of one lock give one statement.
                "metadata": {"startedOn": timestamp(build.epoch_s), "finishedOn": timestamp(build.epoch_s)},
            },
        },
    }
    return canonical_json(statement)


def _dependency(material: Material) -> dict[str, Any]:
    if not material.digests or not all(material.digests.values()):
        raise UsageError(material.uri, "is a material without a digest", "each is pinned", "lock the image anew")
    value: dict[str, Any] = {"uri": material.uri, "digest": dict(material.digests)}
    return {**value, "name": material.name} if material.name else value
