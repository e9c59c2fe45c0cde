"""`build-image` and `verify-image`: what was locked is built, looked into, and held against what was built before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.errors import IntegrityMismatch, MissingFile, UsageError, from_os_error
from slipway.images import image_gates, inputs, lock, oci_archive, verify_image
from slipway.images.builders import Builder, BuildRequest, BuildResult, unlocked_materials
from slipway.images.inputs import Place, Settings
from slipway.images.lock import BuilderKind, ImageLock, Result
from slipway.images.oci_archive import Archive
from slipway.progress import Progress, silent

KINDS: dict[str, BuilderKind] = {"buildx": "buildkit", "buildah": "buildah"}


@dataclass(frozen=True)
class Built:
    """An image that was built and passed its checks. `known`: the lock named this result before, so it was repeated.

    `ran` is False where the archive held it already and nothing was built.
    """

    lock: ImageLock
    result: Result
    archive: Path
    seconds: float
    cached_steps: int
    known: bool
    checks: tuple[str, ...]
    ran: bool = True


@dataclass(frozen=True)
class Compared:
    """A rebuild held against the lock; `differences` is empty when config digest and diff ids are the same."""

    built: Built
    expected: Result
    differences: tuple[str, ...]


def build(
    place: Place, builder: Builder, settings: Settings, *, no_cache: bool = False, progress: Progress = silent
) -> Built:
    """The image of the lock, in `place.archive`; a first result is written into the lock.

    Raises: LockDrift and DocumentError before anything is built; IntegrityMismatch when the builder took in an input that
    the lock does not name, or made another image than the lock expects; CheckFailed for stale bytecode, a secret in a
    layer, or a root user; and as the builder does.
    """
    started_s = time.monotonic()
    made = lock.read(place.images, place.engine, place.variant, place.spec())
    request = inputs.request(place, made, settings, archive=place.archive, no_cache=no_cache)
    expected = made.result(KINDS[builder.name])
    if expected and not no_cache and _is_here(place.archive, made, expected):
        done = ("the archive holds this image already, each layer hashed just now",)
        return Built(made, expected, place.archive, time.monotonic() - started_s, 0, True, done, ran=False)
    built = _built(place, made, builder, request, progress)
    if expected is None:
        lock.write(place.lock, made.with_result(built.result))
    elif not _same(built.result, expected):
        why = f"the lock expects config digest {expected.config_digest} from {expected.builder} {expected.version}"
        remedy = f"invoke verify-image {place.flags} shows which files differ"
        raise IntegrityMismatch(place.archive, f"is another image (got {built.result.config_digest})", why, remedy)
    return built


def verify(place: Place, builder: Builder, settings: Settings, progress: Progress = silent) -> Compared:
    """What a rebuild without any cache gives, held against the lock; files are compared where the first build is still here.

    Raises: MissingFile when the lock has no result of this builder yet; and as `build`.
    """
    made = lock.read(place.images, place.engine, place.variant, place.spec())
    kind = KINDS[builder.name]
    expected = made.result(kind)
    if expected is None:
        why = f"the lock has no result of {kind} to compare with"
        raise MissingFile(place.lock, "names no built image", why, f"run invoke build-image {place.flags} first")
    second = place.archive.with_suffix(".verify.tar")
    request = inputs.request(place, made, settings, archive=second, no_cache=True)
    try:
        built = _built(place, made, builder, request, progress)
        differences = () if _same(built.result, expected) else tuple(_differences(place, expected, built, progress))
    finally:
        second.unlink(missing_ok=True)
    return Compared(built, expected, differences)


def refuse_different(place: Place, compared: Compared) -> None:
    """Nothing when the rebuild is the same image. Raises: IntegrityMismatch that names what differs."""
    if compared.differences:
        why = "".join(f"\n  {line}" for line in compared.differences) + "\n"
        remedy = (
            "an input is outside the lock, or a step depends on time or order; mend the Dockerfile, then lock again"
        )
        raise IntegrityMismatch(place.lock, "a rebuild gives another image", why, remedy)


def _is_here(archive: Path, made: ImageLock, expected: Result) -> bool:
    """Whether `archive` holds the expected image of these inputs, whole: config and every layer have their digests."""
    if not archive.exists():
        return False
    try:
        image = oci_archive.read(archive)
        label = (image.process.get("Labels") or {}).get(lock.LABEL)
        if image.config_digest != expected.config_digest or label != made.inputs_digest:
            return False
        return image.manifest_digest == expected.manifest_digest and oci_archive.is_whole(image)
    except (IntegrityMismatch, MissingFile, UsageError):
        return False  # torn or foreign: it is built again


def _built(place: Place, made: ImageLock, builder: Builder, request: BuildRequest, progress: Progress) -> Built:
    try:
        request.archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, request.archive.parent, "making the images folder") from error
    result = builder.build(request, progress)
    _refuse_unlocked(place, made, result)
    checks = tuple(_checked(result, made, request.secrets, progress))
    kind = KINDS[builder.name]
    before = made.result(kind)
    return Built(
        lock=made,
        result=_result(result, kind, request),
        archive=request.archive,
        seconds=result.seconds,
        cached_steps=result.cached_steps,
        known=before is not None,
        checks=checks,
    )


def _refuse_unlocked(place: Place, made: ImageLock, result: BuildResult) -> None:
    digests = {made.base.ref.partition("@")[2]}
    extra = unlocked_materials(result, digests)
    if extra:
        result.archive.unlink(missing_ok=True)
        why = "a build takes in what the lock names, and nothing else"
        raise IntegrityMismatch(place.lock, f"the builder took in {', '.join(extra)}", why, "lock it, or leave it out")


def _checked(result: BuildResult, made: ImageLock, secrets: Mapping[str, Path], progress: Progress) -> Iterator[str]:
    """What was looked for inside the image, one sentence each. Raises: CheckFailed, IntegrityMismatch."""
    image = oci_archive.read(result.archive)
    with progress.track(f"looking into {result.archive.name}", unit="images"):
        found = {name: path.read_bytes() for name, path in secrets.items()}
        state = image_gates.inspect(image, found, _base_layers(image, made))
    image_gates.refuse(str(result.archive), state)
    pyc = state.pyc
    yield f"{pyc.hashed + pyc.timed} .pyc ({pyc.hashed} checked by hash), none stale"
    yield f"no secret in any layer ({', '.join(sorted(secrets)) or 'none was given'})"
    yield f"runs as {image.process.get('User')}"
    label = (image.process.get("Labels") or {}).get(lock.LABEL)
    if label != made.inputs_digest:
        problem = f"does not carry the lock's digest in its label {lock.LABEL} (got {label})"
        raise IntegrityMismatch(result.archive, problem, f"expected {made.inputs_digest}", "build it again")
    yield f"label {lock.LABEL} is the lock's digest"


def _base_layers(image: Archive, made: ImageLock) -> int:
    """How many of the first layers are the base's, as the lock has them."""
    theirs = made.base.diff_ids or []
    return len(theirs) if list(image.diff_ids[: len(theirs)]) == theirs else 0


def _result(result: BuildResult, kind: BuilderKind, request: BuildRequest) -> Result:
    return Result(
        builder=kind,
        version=" ".join(f"{name} {version}" for name, version in sorted(result.versions.items())) or "unknown",
        config_digest=result.config_digest,
        diff_ids=list(result.diff_ids),
        manifest_digest=result.manifest_digest,
        compression=request.compression,
        size_bytes=result.size_bytes,
    )


def _same(one: Result, other: Result) -> bool:
    return one.config_digest == other.config_digest and one.diff_ids == other.diff_ids


def _differences(place: Place, expected: Result, built: Built, progress: Progress) -> Iterator[str]:
    yield f"config digest: expected {expected.config_digest}, got {built.result.config_digest}"
    for number, (one, other) in enumerate(zip(expected.diff_ids, built.result.diff_ids, strict=False), 1):
        if one != other:
            yield f"layer {number}: expected {one}, got {other}"
    if len(expected.diff_ids) != len(built.result.diff_ids):
        yield f"layers: expected {len(expected.diff_ids)}, got {len(built.result.diff_ids)}"
    if not place.archive.exists():
        yield f"files cannot be compared: {place.archive} is not here any more"
        return
    first = oci_archive.read(place.archive)
    if first.config_digest != expected.config_digest:
        yield f"files cannot be compared: {place.archive} is another build"
        return
    progress.note("comparing files layer by layer")
    yield from verify_image.differences(first, oci_archive.read(built.archive)).lines()
