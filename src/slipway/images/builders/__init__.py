"""What a builder of images is given and what it gives back; `buildx` is the first builder, `buildah` the second."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from slipway.progress import Progress

Compression = Literal["zstd", "gzip", "uncompressed"]

ZSTD_SINCE = (23, 0)
"""The first Docker that reads layers in zstd; 20.10 says "invalid tar header". Source: measured 2026-11-30."""


@dataclass(frozen=True)
class BuildRequest:
    """All that decides an image: the same request on the same builder gives the same bytes.

    `context` is a tar, as bytes or as a path; `epoch` is in seconds; `secrets` maps ids to files, which reach RUN only by
    `--mount=type=secret`; `source_policy` is a BuildKit source policy as plain JSON values. `archive` is what is written.
    """

    context: bytes | Path
    archive: Path
    name: str
    epoch: int
    dockerfile: str = "Dockerfile"
    target: str | None = None
    platform: str = "linux/amd64"
    build_args: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    network: Literal["default", "host", "none"] = "default"
    add_hosts: Mapping[str, str] = field(default_factory=dict)
    source_policy: Mapping[str, Any] | None = None
    no_cache: bool = False
    compression: Compression = "zstd"

    @property
    def all_build_args(self) -> dict[str, str]:
        """The build arguments, with the epoch under the name that Python, pip and dpkg read inside RUN."""
        return {**self.build_args, "SOURCE_DATE_EPOCH": str(self.epoch)}


@dataclass(frozen=True)
class Layer:
    """One layer as it is stored: digest and size are those of the compressed bytes."""

    digest: str
    size_bytes: int
    media_type: str


@dataclass(frozen=True)
class BuildResult:
    """What was built. Config digest and diff ids are the identity; the manifest digest is the name for transport.

    `materials` maps each input that the builder resolved to its digest, `""` where it told none; `versions` maps parts of
    the builder to versions; `cached_steps` counts the Dockerfile's steps that did not run.
    """

    builder: str
    versions: Mapping[str, str]
    config_digest: str
    diff_ids: tuple[str, ...]
    manifest_digest: str
    layers: tuple[Layer, ...]
    archive: Path
    materials: Mapping[str, str]
    seconds: float
    cached_steps: int

    @property
    def size_bytes(self) -> int:
        """What a node downloads: the layers as stored."""
        return sum(layer.size_bytes for layer in self.layers)


class Builder(Protocol):
    """Something that turns a request into an archive that `docker load` and `skopeo` read."""

    @property
    def name(self) -> str:
        """buildx or buildah."""

    def build(self, request: BuildRequest, progress: Progress) -> BuildResult:
        """The image, written to `request.archive`; nothing is left there when the build fails.

        Raises: SlipwayError for a builder that is missing or cannot reproduce, and for each way in which a build fails.
        """


def compression_for(oldest_docker: str | None) -> Compression:
    """The compression that every node can read: zstd, whose digests do not depend on BuildKit's version, where all can.

    `oldest_docker` is the oldest node's version, as `26.1.5+dfsg1`; None where no node is known yet.
    """
    return "zstd" if oldest_docker is None or version_of(oldest_docker) >= ZSTD_SINCE else "gzip"


def unlocked_materials(result: BuildResult, allowed: Collection[str]) -> tuple[str, ...]:
    """The inputs that the build took in and that no digest in `allowed` names, as `uri (digest)`, sorted.

    Digests are `sha256:…`, or 40 hex digits of a git commit. An input whose digest is not known is never allowed.
    """
    return tuple(
        f"{uri} ({digest or 'no digest'})" for uri, digest in sorted(result.materials.items()) if digest not in allowed
    )


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version, as (26, 1, 5) of `v26.1.5+dfsg1`; empty where there are none."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text.strip())
    return tuple(int(part) for part in found[1].split(".")) if found else ()
