"""`lock-image`: from image.yaml to exact bytes, and what a fresh look would change."""

from __future__ import annotations

import calendar
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.documents import digest
from slipway.durable import write_durably
from slipway.errors import IntegrityMismatch, LockDrift, UsageError
from slipway.images import debs, git_locked, inputs, lock, python_lock
from slipway.images.builders import Builder, BuildRequest
from slipway.images.dockerfile import require_locked
from slipway.images.image_name import parse
from slipway.images.inputs import Place, Settings
from slipway.images.lock import ImageLock, LockedBase, LockedPackages
from slipway.images.python_lock import PythonLock
from slipway.images.registry import Registry
from slipway.images.spec import GitSource, Packages, UpstreamSource, Variant
from slipway.progress import Progress, silent

_UNKNOWN = "0" * 64


@dataclass(frozen=True)
class World:
    """What is asked while locking: registries (None: no registry is asked), a builder that apt is run in, a tools folder."""

    registry: Registry | None
    builder: Callable[[], Builder]
    settings: Settings
    tools: Path


@dataclass(frozen=True)
class Locked:
    """A lock and the requirements file that belongs to it."""

    lock: ImageLock
    requirements: PythonLock | None


def resolve(place: Place, world: World, base: str | None = None, progress: Progress = silent) -> Locked:
    """What the variant's image.yaml means today, proved; `base` stands in for the base that it names.

    Raises: UsageError, DocumentError, PlanRefused, LockDrift, MissingFile, IntegrityMismatch, AuthFailure, NetworkFailure.
    """
    variant = place.spec()
    source = variant.source
    if base and isinstance(source, UpstreamSource):
        raise UsageError(
            "--base", "is not for an image that is taken over whole", "its ref is what is wanted", "leave it out"
        )
    named = source.ref if isinstance(source, UpstreamSource) else base or source.base
    locked_base = _base(world.registry, named, variant.platform, progress) if world.registry else _unasked(named)
    git = git_locked.locked(source, place.sources, progress) if isinstance(source, GitSource) else None
    packages = source.packages
    python = python_lock.resolve(packages, variant.platform, world.tools, progress) if packages else None
    moments = [locked_base.created, packages.exclude_newer if packages else None]
    moments += [source.made_before] if isinstance(source, UpstreamSource) and not locked_base.created else []
    epoch = max([*(_epoch(moment) for moment in moments if moment), git.epoch if git else 0])
    if not epoch:
        why = "SOURCE_DATE_EPOCH is the later of the base's creation and the source's commit"
        raise IntegrityMismatch(named, "does not say when it was made", why, "choose another base")
    draft = _draft(place, variant, locked_base, epoch)
    draft = draft.model_copy(update={"git": git, "packages": _packages(place, packages, python, world, progress)})
    if not isinstance(source, UpstreamSource) and source.debs:
        draft = draft.model_copy(update={"debs": _debs(place, draft, source.debs, world, progress)})
    return Locked(_sealed(place, variant, draft, python, world), python)


def write(place: Place, made: Locked) -> None:
    """Nothing; lock and requirements then stand in `images/<engine>/`. Raises: DiskFailure, MissingFile."""
    if made.requirements:
        write_durably(place.folder / place.requirements, made.requirements.text.encode())
    lock.write(place.lock, made.lock)


def keep_results(made: Locked, before: ImageLock | None) -> Locked:
    """`made` with the results of the lock before, where its inputs are the same."""
    if before is None or before.inputs_digest != made.lock.inputs_digest:
        return made
    return Locked(made.lock.model_copy(update={"results": before.results}), made.requirements)


def changes(place: Place, old: ImageLock, new: Locked) -> tuple[str, ...]:
    """What differs between the lock on disk and a fresh one, one line each; packages by name and version."""
    lines = list(_plain_changes(old.as_json(), new.lock.as_json()))
    if old.packages and new.requirements:
        before = python_lock.read(place.folder / old.packages.file)
        now = {wheel.name: wheel.version for wheel in new.requirements.wheels}
        lines += _versions("package", before, now)
        if before == now and old.packages.sha256 != new.requirements.sha256:
            lines.append("packages: the same versions with other wheels")
    lines += _versions(
        "deb", {deb.name: deb.version for deb in old.debs}, {deb.name: deb.version for deb in new.lock.debs}
    )
    old_sums = {(deb.name, deb.version): deb.sha256 for deb in old.debs}
    for deb in new.lock.debs:
        if old_sums.get((deb.name, deb.version), deb.sha256) != deb.sha256:
            lines.append(f"deb {deb.name} {deb.version}: the same version with other bytes (sha256 {deb.sha256})")
    return tuple(lines)


def refuse_changed(place: Place, found: tuple[str, ...]) -> None:
    """Nothing when `found` is empty. Raises: LockDrift."""
    if found:
        why = "".join(f"\n  {line}" for line in found) + "\n"
        remedy = f"review this, then run invoke lock-image {place.flags}"
        raise LockDrift(place.lock, f"{len(found)} input(s) have moved upstream since it was made", why, remedy)


def _base(registry: Registry, named: str, platform: str, progress: Progress) -> LockedBase:
    """The base by digest, with what its registry says of it now."""
    name = parse(named)
    with progress.track(f"asking for {name}", unit="images"):
        found = registry.resolve(name)
        pinned = name.at(tag=name.tag, digest=found)
        config = registry.config(name.at(digest=found), platform)
    diff_ids = config.get("rootfs", {}).get("diff_ids")
    return LockedBase(
        ref=_short(named, pinned.digest or ""),
        created=_instant(config.get("created")),
        diff_ids=[str(one) for one in diff_ids] if isinstance(diff_ids, list) and diff_ids else None,
    )


def _unasked(named: str) -> LockedBase:
    """The base as image.yaml pins it, where no registry is to be asked. Raises: UsageError when it is pinned by a tag alone."""
    if not parse(named).digest:
        why = "a tag means what its registry says"
        raise UsageError("--offline", f"cannot lock {named}", why, "name the base with its digest, or lock it online")
    return LockedBase(ref=named)


def _short(named: str, found: str) -> str:
    """The name as image.yaml has it, with the digest."""
    return f"{named.partition('@')[0]}@{found}"


def _packages(
    place: Place, packages: Packages | None, python: PythonLock | None, world: World, progress: Progress
) -> LockedPackages | None:
    if not packages or not python:
        return None
    # The installer is a package too: its wheel is pinned like the others.
    tool = packages.model_copy(update={"requirements": [f"uv=={packages.uv}"]})
    uv = python_lock.resolve(tool, "linux/amd64", world.tools, progress).wheels[0]
    return LockedPackages(
        file=place.requirements,
        sha256=python.sha256,
        python=packages.python,
        uv=packages.uv,
        uv_sha256=uv.sha256,
        exclude_newer=packages.exclude_newer,
        count=len(python.wheels),
        wheels_bytes=python.wheels_bytes,
    )


def _draft(place: Place, variant: Variant, base: LockedBase, epoch: int) -> ImageLock:
    """The lock with everything that image.yaml says by itself."""
    flags = place.folder / "flags" / f"{variant.engine_version}.json"
    return ImageLock(
        schema_="slipway/image-lock/v1",
        engine=place.engine,  # type: ignore[arg-type]  # image.yaml was found under it
        variant=place.variant,
        engine_version=variant.engine_version,
        spec_digest=digest(variant.as_json()),
        platform=variant.platform,
        base=base,
        dockerfile_sha256=inputs.sha256(inputs.dockerfile_text(place, variant).encode()),
        context_sha256=_UNKNOWN,
        args=variant.args,
        entrypoint=variant.entrypoint,
        epoch=epoch,
        cuda=variant.cuda,
        gpu_architectures=variant.gpu_architectures,
        flag_schema=f"flags/{flags.name}" if flags.exists() else None,
        cache_folder=variant.cache_folder,
    )


def _debs(place: Place, draft: ImageLock, names: list[str], world: World, progress: Progress) -> list[lock.LockedDeb]:
    with tempfile.TemporaryDirectory(prefix="slipway-debs-") as work:
        request = BuildRequest(
            context=b"",
            archive=Path(work) / "debs.tar",
            name="slipway/debs",
            epoch=draft.epoch,
            platform=draft.platform,
            build_args={"BASE": inputs.fetched_from(draft, world.settings.mirrors)},
            secrets=world.settings.secrets,
            network="host" if world.settings.network == "host" else "default",
        )
        return debs.resolve(world.builder(), request, names, Path(work), progress)


def _sealed(place: Place, variant: Variant, draft: ImageLock, python: PythonLock | None, world: World) -> ImageLock:
    """`draft` with the digest of its context, after the Dockerfile was found to take in nothing else.

    The requirements file may not stand on disk yet, so the context is made from what was just resolved.
    """
    text = inputs.dockerfile_text(place, variant)
    require_locked(text, inputs.allowed(draft, world.settings.mirrors), str(place.folder / variant.dockerfile))
    files = inputs.generated(place, draft, python.text.encode() if python else None)
    context = inputs.packed(place, variant, files, draft.epoch)
    return draft.model_copy(update={"context_sha256": context.sha256})


def _instant(value: Any) -> str | None:
    """An image config's `created` without its fraction of a second; None where it says nothing or the year 1."""
    match = re.match(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})", value) if isinstance(value, str) else None
    return f"{match[1]}Z" if match and not match[1].startswith("0001") else None


def _epoch(instant: str) -> int:
    return calendar.timegm(time.strptime(instant, "%Y-%m-%dT%H:%M:%SZ"))


def _plain_changes(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Changes of what is no list of packages."""
    if old["base"]["ref"] != new["base"]["ref"]:
        yield f"base: {old['base']['ref']} -> {new['base']['ref']}"
    one, other = old["git"] or {}, new["git"] or {}
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key):
            yield f"git {key}: {one.get(key)} -> {other.get(key)}"
    for key in ("dockerfile_sha256", "spec_digest", "entrypoint", "args", "epoch"):
        if old[key] != new[key]:
            yield f"{key}: {old[key]} -> {new[key]}"


def _versions(what: str, before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{what} {name}: {before.get(name, 'absent')} -> {now.get(name, 'gone')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
