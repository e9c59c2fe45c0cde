"""What an image is made of, as people write it: `images/<engine>/image.yaml`, one block for each variant.

Everything here may be a wish (a tag, a version); `invoke lock-image` turns it into digests, and a build reads only those.
"""

from __future__ import annotations

import calendar
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from slipway import documents
from slipway.documents import Document, Matching
from slipway.errors import UsageError
from slipway.recipe.words import AbsolutePath, EnvName, GitCommit, VersionText, Word

ImageName = Literal["sglang", "vllm", "reference"]

PublishedImage = Annotated[
    str,
    Matching(
        r"([a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
        r"(@sha256:[0-9a-f]{64})?",
        "an image of a registry, as debian:trixie-slim or name:tag@sha256:…",
    ),
]
PinnedImage = Annotated[
    str,
    Matching(
        r"([a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
        r"@sha256:[0-9a-f]{64}",
        "an image with its digest, as name:tag@sha256:…, since tags move",
    ),
]
Requirement = Annotated[
    str,
    Matching(
        r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[a-z0-9,._-]+\])?==[A-Za-z0-9][A-Za-z0-9.!+_-]*",
        "a pinned package, as vllm==0.25.1",
    ),
]
DebName = Annotated[str, Matching(r"[a-z0-9][a-z0-9+.-]+", "a Debian package, as libnuma1")]


def _real(instant: str) -> str:
    """The moment, where the calendar has it and an epoch of it can be told."""
    if calendar.timegm(time.strptime(instant, "%Y-%m-%dT%H:%M:%SZ")) <= 0:
        raise ValueError("lies before 1970")
    return instant


def _in_calendar(instant: str) -> str:
    try:
        return _real(instant)
    except ValueError as error:
        raise ValueError(f"is no moment after 1970 (got {instant})") from error


Instant = Annotated[
    str,
    Matching(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z", 'a moment in quotes, as "2026-11-30T00:00:00Z"'),
    AfterValidator(_in_calendar),
]
Architecture = Annotated[str, Matching(r"sm_\d{2,3}a?", "a GPU architecture, as sm_90")]
GitUrl = Annotated[
    str,
    Matching(
        r"(https|ssh|git|file)://[^\s@]+|[\w.-]+@[\w.-]+:[\w./-]+",
        "a git repository, as https://github.com/sgl-project/sglang.git, without a password in it",
    ),
]
RelativePath = Annotated[
    str, Matching(r"(?!/)(?!.*(^|/)\.\.(/|$))[\w][\w./+-]*", "a path inside the folder, without ..")
]

ContextPattern = Annotated[
    str,
    Matching(
        r"(?!/)(?!.*(^|/)\.\.(/|$))[\w*][\w./*?+-]*",
        "files below the checkout, as src/slipway/**/*.py, without ..",
    ),
]


RESERVED_ARGS = frozenset({"BASE", "ENGINE_VERSION", "SOURCE_DATE_EPOCH"})
"""Build arguments that a build takes from the lock."""


class Packages(Document):
    """Python packages of an image; locked with every dependency and sha256.

    `uv` is pinned since releases resolve differently: 0.9.30 gives sglang 0.5.9 for a plain `sglang`, 0.13.9 gives 0.5.23.
    """

    python: Annotated[str, Matching(r"3\.\d{2}", 'a Python in quotes, as "3.13"')]
    glibc: Literal["2.28", "2.31", "2.34", "2.35", "2.36", "2.37", "2.38", "2.39", "2.40"] = Field(
        description="the base's C library, or the newest that uv knows"
    )
    uv: VersionText
    requirements: list[Requirement] = Field(min_length=1)
    exclude_newer: Instant = Field(description="releases published later are not seen, so a lock can be made again")
    dependencies: bool = Field(default=True, description="false: the base has what these packages need already")


class PullRequest(Document):
    """A pull request that the commit must contain; `merge_commit` null: found by its number on the first-parent line."""

    number: int = Field(gt=0)
    title: str = Field(min_length=1)
    merge_commit: GitCommit | None = None


class ContentAssertion(Document):
    """What a file must say at the commit: a revert leaves a pull request an ancestor, but not its lines."""

    path: RelativePath
    contains: str | None = None
    lacks: str | None = None
    why: str = Field(min_length=1)

    @model_validator(mode="after")
    def _asserts_something(self) -> ContentAssertion:
        if not self.contains and not self.lacks:
            raise ValueError("asserts nothing; give contains or lacks")
        return self


class CherryPick(Document):
    """An open pull request put on top of the commit, at the head that was reviewed."""

    number: int = Field(gt=0)
    head: GitCommit


class UpstreamSource(Document):
    """A published image by digest; ours is a thin layer on top."""

    kind: Literal["image"]
    ref: PinnedImage
    made_before: Instant = Field(
        description="a moment after the image was made; SOURCE_DATE_EPOCH where its registry is not asked"
    )
    packages: Packages | None = Field(default=None, description="what the layer on top installs over the image's own")


class WheelsSource(Document):
    """A small base, exact Debian packages, and Python packages from a hashed lock; CUDA comes from wheels."""

    kind: Literal["wheels"]
    base: PublishedImage
    debs: list[DebName] = Field(default_factory=list)
    packages: Packages


class GitSource(Document):
    """A commit that provably contains pull requests, installed over the packages of its release."""

    kind: Literal["git"]
    base: PublishedImage
    debs: list[DebName] = Field(default_factory=list)
    packages: Packages
    repository: GitUrl
    commit: GitCommit
    subdirectory: RelativePath | None = Field(default=None, description="where the Python project is, as python")
    must_contain: list[PullRequest] = Field(default_factory=list)
    cherry_picks: list[CherryPick] = Field(default_factory=list)
    assertions: list[ContentAssertion] = Field(default_factory=list)


Source = Annotated[UpstreamSource | WheelsSource | GitSource, Field(discriminator="kind")]


class Cuda(Document):
    """The CUDA that the image brings, and how its containers find the driver's part of it."""

    version: Annotated[str, Matching(r"\d{2}\.\d", 'a CUDA version in quotes, as "13.0"')]
    forward_compatibility: bool = Field(
        default=False,
        description="whether the image carries libraries that let a data-centre GPU run on an older driver",
    )


class Variant(Document):
    """One image. `context` lists the checkout's files that the Dockerfile may copy."""

    engine_version: VersionText
    source: Source
    dockerfile: RelativePath = "Dockerfile"
    context: list[ContextPattern] = Field(default_factory=list)
    platform: Literal["linux/amd64", "linux/arm64"] = "linux/amd64"
    args: dict[EnvName, str] = Field(default_factory=dict, description="build arguments of the Dockerfile")
    entrypoint: list[str] = Field(min_length=1)
    cuda: Cuda | None = Field(description="null: runs without a GPU")
    gpu_architectures: list[Architecture] = Field(default_factory=list)
    cache_folder: AbsolutePath = Field(default="/cache", description="where the kernel caches are mounted")

    @model_validator(mode="after")
    def _leaves_our_arguments(self) -> Variant:
        taken = sorted(RESERVED_ARGS & self.args.keys())
        if taken:
            raise ValueError(f"args: {', '.join(taken)} is given by the lock; choose another name")
        return self


class ImageSpec(Document):
    """All variants of one engine's image."""

    schema_: Literal["slipway/image/v1"] = Field(alias="schema")
    engine: ImageName
    variants: dict[Word, Variant] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_a_default(self) -> ImageSpec:
        if "default" not in self.variants:
            raise ValueError("variants: has no `default`; it is what build-image makes without --variant")
        return self


def read(images: Path, engine: str) -> ImageSpec:
    """The image.yaml of `engine` below the folder `images`.

    Raises: UsageError for an engine without one, DocumentError, DiskFailure.
    """
    path = images / engine / "image.yaml"
    known = sorted(found.parent.name for found in images.glob("*/image.yaml"))
    if engine not in known:
        raise UsageError(
            "--engine", f"has no image (got {engine!a})", f"known: {', '.join(known)}", "choose one of them"
        )
    return documents.read(path, ImageSpec)


def variant(spec: ImageSpec, name: str) -> Variant:
    """The variant called `name`. Raises: UsageError with those that exist."""
    if name not in spec.variants:
        known = ", ".join(sorted(spec.variants))
        raise UsageError(
            "--variant", f"{spec.engine} has no such image (got {name!a})", f"known: {known}", "choose one"
        )
    return spec.variants[name]


def local_name(engine: str, variant: str, engine_version: str) -> str:
    """What the image of a variant is called on a machine that has built it or loaded its archive."""
    return f"slipway/{engine}{'' if variant == 'default' else f'-{variant}'}:{engine_version}"
