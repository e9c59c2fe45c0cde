"""`build-image` and `verify-image`: what was locked is built, looked into, and held against what was built before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway.durable import sync_folder
from slipway.errors import IntegrityMismatch, LockDrift, MissingFile, SlipwayError, UsageError, from_os_error
from slipway.images import image_gates, inputs, layers, lock, oci_archive, verify_image
from slipway.images.builders import Builder, BuildRequest, BuildResult, Compression, process, unlocked_materials
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

    Raises: LockDrift, DocumentError and UsageError before anything is built; IntegrityMismatch when the builder took in an input that
    the lock does not name, or made another image than the lock expects; CheckFailed for stale bytecode, a secret in a
    layer, or a root user; and as the builder does.
    """
    started_s = time.monotonic()
    _refuse_folder(place.archive)
    made = lock.read(place.images, place.engine, place.variant, place.spec())
    request = inputs.request(place, made, settings, archive=place.archive, no_cache=no_cache)
    expected = made.result(KINDS[builder.name])
    here = None if no_cache or not expected else _here(place, made, expected, settings.compression)
    if here:
        done = ("the archive holds this image already, each layer hashed just now",)
        return Built(made, here, place.archive, time.monotonic() - started_s, 0, True, done, ran=False)
    # Under its own name stands only what passed every check: a refused image cannot be sent anywhere.
    with process.working(place.work) as work:
        request = replace(request, archive=work / place.archive.name)
        built = _built(place, made, builder, request, progress)
        if expected and not _same(built.result, expected):
            # Said while the image is here: to build ten gigabytes once more to see it may give a third one.
            lines = "".join(f"\n  {line}" for line in _differences(place, expected, built, progress))
            why = f"the lock expects that of {expected.builder} {expected.version}{lines}\n"
            remedy = f"invoke verify-image {place.flags} builds once more and compares again"
            raise IntegrityMismatch(place.lock, f"a build gave {built.result.config_digest}", why, remedy)
        made = lock.add_result(place.lock, made, built.result, place.turn)
        _publish(request.archive, place.archive)
    return replace(built, lock=made, archive=place.archive)


def require_here(place: Place, made: ImageLock) -> Result:
    """The lock's result that `place.archive` holds whole, so that it may be sent on.

    Raises: LockDrift when it is an image of other inputs, or the lock expects none yet; IntegrityMismatch when it is
    another image than the lock expects, says more than a build writes, or is damaged; MissingFile when it is not there.
    """
    again = f"run invoke build-image {place.flags}"
    image = oci_archive.read(place.archive)
    if not made.results:
        raise LockDrift(place.lock, "expects no image yet", "only what it expects is sent on", again)
    label = image.labels.get(lock.LABEL)
    if label != made.inputs_digest:
        why = f"the lock has {made.inputs_digest}"
        raise LockDrift(place.archive, f"was built from another lock (got {label})", why, again)
    found = next((one for one in made.results if one.config_digest == image.config_digest), None)
    if found is None or list(image.diff_ids) != found.diff_ids:
        why = f"the lock expects {', '.join(one.config_digest for one in made.results)}"
        raise IntegrityMismatch(place.archive, f"is another image (got {image.config_digest})", why, again)
    if not image.alone:
        why = "what else it names would be sent along"
        raise IntegrityMismatch(place.archive, "names more than the image that was built", why, again)
    stored = found.model_copy(update=_stored(image))
    as_locked = image.manifest_digest == found.manifest_digest
    base = made.base.ref.partition("@")[2]
    if not as_locked and not (_may_differ(found, stored) and oci_archive.is_plain(image, made.epoch, base)):
        why = f"the lock expects {found.manifest_digest}"
        raise IntegrityMismatch(place.archive, f"has another manifest (got {image.manifest_digest})", why, again)
    if not _whole(image, found):
        raise IntegrityMismatch(place.archive, "is damaged", "a layer has other bytes than its digest names", again)
    return stored


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
    request = inputs.request(place, made, settings, archive=place.archive, no_cache=True)
    with process.working(place.work) as work:
        built = _built(place, made, builder, replace(request, archive=work / place.archive.name), progress)
        differences = () if _same(built.result, expected) else tuple(_differences(place, expected, built, progress))
    return Compared(built, expected, differences)


def refuse_different(place: Place, compared: Compared) -> None:
    """Nothing when the rebuild is the same image. Raises: IntegrityMismatch that names what differs."""
    if compared.differences:
        why = "".join(f"\n  {line}" for line in compared.differences) + "\n"
        remedy = (
            "an input is outside the lock, or a step depends on time or order; mend the Dockerfile, then lock again"
        )
        raise IntegrityMismatch(place.lock, "a rebuild gives another image", why, remedy)


def _here(place: Place, made: ImageLock, expected: Result, compression: Compression) -> Result | None:
    """What `place.archive` holds if that is the expected image, whole and compressed as it is wanted now; else None."""
    try:
        found = require_here(place, made)
    except SlipwayError:
        return None  # whatever is wrong with it: it is built again, and replaced
    return found if found.builder == expected.builder and found.compression == compression else None


def _refuse_folder(archive: Path) -> None:
    """Nothing when the image can be moved to its place; what is no folder there is replaced. Raises: UsageError."""
    if archive.is_dir() and not archive.is_symlink():
        raise UsageError(archive, "is a folder", "the image that is built is to lie there", "remove it")


def _may_differ(locked: Result, stored: Result) -> bool:
    """Whether equal builds may give manifests that differ: in another compression, and in gzip, which differs by version."""
    return stored.compression != locked.compression or stored.compression == "gzip"


def _whole(image: Archive, expected: Result) -> bool:
    """Whether each layer is what its digest names; of a manifest that the lock does not know, also what its diff id does."""
    if not oci_archive.is_whole(image):
        return False
    if image.manifest_digest == expected.manifest_digest:
        return True
    try:
        for index in range(len(image.layers)):
            with layers.layer_stream(image, index) as stream:
                while stream.read(1 << 20):
                    pass
    except IntegrityMismatch:
        return False
    return True


def _stored(image: Archive) -> dict[str, Any]:
    """What of a result tells how the image is stored, as `image` is: the same image may be compressed in other ways."""
    kinds = {layer.media_type.rpartition("+")[2] for layer in image.layers}
    compression = kinds.pop() if len(kinds) == 1 else ""
    return {
        "manifest_digest": image.manifest_digest,
        "compression": compression if compression in {"zstd", "gzip"} else "uncompressed",
        "size_bytes": sum(layer.size_bytes for layer in image.layers),
    }


def _publish(checked: Path, archive: Path) -> None:
    """Nothing; the image that passed its checks stands under its own name."""
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        checked.replace(archive)
        sync_folder(archive.parent)
    except OSError as error:
        raise from_os_error(error, archive, "moving the image to its place") from error


def _built(place: Place, made: ImageLock, builder: Builder, request: BuildRequest, progress: Progress) -> Built:
    result = builder.build(request, progress)
    _refuse_unlocked(place, made, result)
    checks = tuple(_checked(place, result, made, request.secrets, progress))
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
        why = "a build takes in what the lock names, and nothing else"
        raise IntegrityMismatch(place.lock, f"the builder took in {', '.join(extra)}", why, "lock it, or leave it out")


def _checked(
    place: Place, result: BuildResult, made: ImageLock, secrets: Mapping[str, Path], progress: Progress
) -> Iterator[str]:
    """What was looked for inside the image, one sentence each. Raises: CheckFailed, IntegrityMismatch."""
    image = oci_archive.read(result.archive)
    with progress.track(f"looking into {result.archive.name}", unit="images"):
        found = {name: path.read_bytes() for name, path in secrets.items()}
        state = image_gates.inspect(image, found, _base_layers(image, made))
    image_gates.refuse(inputs.tag(made), state)
    pyc = state.pyc
    when = "" if pyc.compared == pyc.hashed else f" when imported, {pyc.compared} also here"
    yield f"{pyc.hashed + pyc.timed} .pyc ({pyc.hashed} checked by hash{when}), none stale"
    yield f"no secret in any layer ({', '.join(sorted(secrets)) or 'none was given'})"
    yield f"runs as {image.process.get('User')}"
    label = image.labels.get(lock.LABEL)
    if label != made.inputs_digest:
        problem = f"does not carry the lock's digest in its label {lock.LABEL} (got {label})"
        raise IntegrityMismatch(place.archive, problem, f"expected {made.inputs_digest}", "build it again")
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
    for number, (one, other) in enumerate(zip(expected.diff_ids, built.result.diff_ids, strict=False)):
        if one != other:
            yield f"layer {number}: expected {one}, got {other}"
    if len(expected.diff_ids) != len(built.result.diff_ids):
        yield f"layers: expected {len(expected.diff_ids)}, got {len(built.result.diff_ids)}"
    if not place.archive.exists():
        yield f"files cannot be compared: {place.archive} is not here any more"
        return
    try:
        first = oci_archive.read(place.archive)
        if first.config_digest != expected.config_digest:
            yield f"files cannot be compared: {place.archive} is another build"
            return
        progress.note("comparing files layer by layer")
        yield from verify_image.differences(first, oci_archive.read(built.archive)).lines()
    except SlipwayError as error:
        yield f"files cannot be compared: {error.place}: {error.problem}"
