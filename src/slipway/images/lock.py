"""What an image is made of, as exact bytes: `images/<engine>/image[.<variant>].lock.yaml`, written by `lock-image` alone.

A build reads this and nothing else. `inputs_digest` names everything that goes in and stands on the image as a label;
`results` are what came out, one for each kind of builder: config digest and diff ids, since a manifest's digest depends on how
its layers are compressed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from slipway import documents
from slipway.documents import Document, Matching, digest
from slipway.documents.writer import write_text
from slipway.durable import write_durably
from slipway.errors import IntegrityMismatch, LockDrift, MissingFile, from_os_error
from slipway.images import turns
from slipway.images.spec import (
    Architecture,
    Cuda,
    DebName,
    GitUrl,
    ImageName,
    Instant,
    PinnedImage,
    RelativePath,
    UpstreamSource,
    Variant,
)
from slipway.recipe.words import AbsolutePath, EnvName, Revision, VersionText, Word

BuilderKind = Literal["buildkit", "buildah"]
Digest = Annotated[str, Matching(r"sha256:[0-9a-f]{64}", "a digest, as sha256: and 64 hex digits")]
Sha256 = Annotated[str, Matching(r"[0-9a-f]{64}", "64 hex digits")]

_HEADER = "# Written by `invoke lock-image`; results are added by `invoke build-image`. Edit image.yaml instead.\n"
LABEL = "org.slipway.image.lock"
"""The label of an image that holds the inputs digest of its lock."""


class LockedBase(Document):
    """The image that ours stands on. `created` and `diff_ids` null: it does not say."""

    ref: PinnedImage
    created: Instant | None = None
    diff_ids: list[Digest] | None = None


class LockedDeb(Document):
    """One Debian package that is installed on the base, dependencies included."""

    name: DebName
    version: str
    architecture: str
    sha256: Sha256
    size_bytes: int = Field(gt=0)


class LockedPackages(Document):
    """The hashed requirements file beside the lock, and how it was made."""

    file: RelativePath
    sha256: Sha256
    python: str
    uv: VersionText
    uv_sha256: Sha256
    exclude_newer: Instant
    count: int = Field(gt=0)
    wheels_bytes: int | None = Field(default=None, description="null: the index does not say sizes")


class LockedPullRequest(Document):
    """A pull request that was proved to be in the commit, by its merge commit; or picked onto it, by its head."""

    number: int
    merge_commit: Revision | None = None
    head: Revision | None = None
    subject: str


class LockedGit(Document):
    """The source: a commit, its tree, and what was proved about it. `archive_sha256` is of the normalised tar."""

    repository: GitUrl
    base_commit: Revision
    commit: Revision
    tree: Revision
    epoch: int = Field(gt=0)
    pull_requests: list[LockedPullRequest]
    assertions: int = Field(ge=0)
    archive_sha256: Sha256


class Result(Document):
    """What one kind of builder made of these inputs."""

    builder: BuilderKind
    version: str
    config_digest: Digest
    diff_ids: list[Digest] = Field(min_length=1)
    manifest_digest: Digest
    compression: Literal["zstd", "gzip", "uncompressed"]
    size_bytes: int = Field(gt=0)


class ImageLock(Document):
    """A whole lock. `spec_digest` is of the variant in image.yaml: when that changes, the lock is stale."""

    schema_: Literal["slipway/image-lock/v1"] = Field(alias="schema")
    engine: ImageName
    variant: Word
    engine_version: VersionText
    spec_digest: Digest
    platform: Literal["linux/amd64", "linux/arm64"]
    base: LockedBase
    packages: LockedPackages | None = None
    debs: list[LockedDeb] = Field(default_factory=list)
    apt_snapshot: Instant | None = Field(default=None, description="null: the packages come from the suite as it is")
    git: LockedGit | None = None
    dockerfile_sha256: Sha256
    context_sha256: Sha256
    args: dict[EnvName, str]
    entrypoint: list[str]
    epoch: int = Field(gt=0, description="SOURCE_DATE_EPOCH: the later of the base's creation and the source's commit")
    cuda: Cuda | None
    gpu_architectures: list[Architecture]
    flag_schema: RelativePath | None = Field(description="the engine's flags, below images/<engine>/")
    cache_folder: AbsolutePath
    results: list[Result] = Field(default_factory=list)
    sealed: Digest | None = Field(
        default=None, description="the inputs digest as it was written, so that edits are seen"
    )
    results_sealed: Digest | None = Field(
        default=None, description="the same of the results; null while there are none"
    )

    @property
    def inputs_digest(self) -> str:
        """`sha256:…` of everything but the results."""
        outputs = {"results", "sealed", "results_sealed"}
        return digest({key: value for key, value in self.as_json().items() if key not in outputs})

    @property
    def results_digest(self) -> str | None:
        """`sha256:…` of the results, None while there are none."""
        return digest(self.as_json()["results"]) if self.results else None

    def result(self, builder: BuilderKind) -> Result | None:
        """What `builder` made of these inputs before, or None."""
        return next((found for found in self.results if found.builder == builder), None)

    def with_result(self, result: Result) -> ImageLock:
        """The lock with `result` in place of what its builder made before."""
        others = [found for found in self.results if found.builder != result.builder]
        ordered = sorted([*others, result], key=lambda found: found.builder)
        return self.model_copy(update={"results": ordered})


def path(images: Path, engine: str, variant: str) -> Path:
    """Where the lock of a variant stands."""
    middle = "" if variant == "default" else f".{variant}"
    return images / engine / f"image{middle}.lock.yaml"


def read(images: Path, engine: str, variant: str, spec: Variant) -> ImageLock:
    """The lock of a variant, which must have been made of the variant as it stands in image.yaml now.

    Raises: MissingFile without a lock, LockDrift when image.yaml was edited since, DocumentError, DiskFailure.
    """
    place = path(images, engine, variant)
    command = f"invoke lock-image --engine {engine}" + ("" if variant == "default" else f" --variant {variant}")
    if not place.exists():
        raise MissingFile(place, "no such lock", "a build reads exact digests, never image.yaml", f"run {command}")
    lock = read_any(place)
    if lock.spec_digest != digest(spec.as_json()):
        why = "image.yaml was edited after the lock was made"
        raise LockDrift(place, "does not belong to image.yaml any more", why, f"run {command} and look at what changes")
    refuse_other_base(place, lock.base.ref, spec)
    return lock


def refuse_other_base(place: object, ref: str, spec: Variant) -> None:
    """Nothing; where image.yaml names its base by a digest, `ref` has that digest. Raises: LockDrift."""
    source = spec.source
    named = (source.ref if isinstance(source, UpstreamSource) else source.base).partition("@")[2]
    if named and ref.partition("@")[2] != named:
        why = f"image.yaml names {named}"
        raise LockDrift(place, f"stands on another base ({ref})", why, "lock again, or change the digest in image.yaml")


def read_any(place: Path) -> ImageLock:
    """The lock at `place`, stale or not. Raises: LockDrift when it was edited, MissingFile, DocumentError, DiskFailure."""
    lock = documents.read(place, ImageLock)
    if lock.sealed != lock.inputs_digest:
        why = "its inputs do not have the digest that was written with them"
        remedy = "undo the edit (git checkout), or lock again"
        raise LockDrift(place, "was edited by hand", why, remedy)
    if lock.results_sealed != lock.results_digest:
        why = "its results do not have the digest that was written with them"
        raise LockDrift(place, "was edited by hand", why, "undo the edit (git checkout), or lock and build again")
    return lock


def write(place: Path, lock: ImageLock) -> None:
    """Nothing; `place` then holds `lock`. Raises: DiskFailure, MissingFile."""
    write_durably(place, text(lock).encode())


@contextmanager
def turn(file: Path) -> Iterator[None]:
    """Nothing, while `file` is held: between reading a lock and writing it nobody else writes. Raises: DiskFailure."""
    with contextlib.ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(turns.held(file))
        except OSError as error:
            raise from_os_error(error, file, "waiting to write the lock") from error
        yield


def add_result(place: Path, made_of: ImageLock, result: Result, held: Path) -> ImageLock:
    """The lock as it stands now, with `result` of the inputs of `made_of` written into it, beside what others added meanwhile.

    Raises: LockDrift when it has other inputs by now, IntegrityMismatch when the same builder made another image meanwhile;
    MissingFile, DocumentError, DiskFailure.
    """
    with turn(held):
        now = read_any(place)
        if now.inputs_digest != made_of.inputs_digest:
            why = f"the image was built of {made_of.inputs_digest}, the lock has {now.inputs_digest} by now"
            raise LockDrift(place, "was made anew while the image was built", why, "build again")
        there = now.result(result.builder)
        if there is None:
            now = now.with_result(result)
            write(place, now)
        elif (there.config_digest, there.diff_ids) != (result.config_digest, result.diff_ids):
            why = f"another build of the same inputs gave {there.config_digest} meanwhile"
            raise IntegrityMismatch(
                place, f"two builds differ (got {result.config_digest})", why, "mend the Dockerfile"
            )
        return now


def text(lock: ImageLock) -> str:
    """The lock as its file has it: equal locks give equal bytes."""
    document = {**lock.as_json(), "sealed": lock.inputs_digest, "results_sealed": lock.results_digest}
    return _HEADER + write_text(document, sort_keys=True)
