"""`lock-image`: from image.yaml to exact bytes, and what a fresh look would change."""

from __future__ import annotations

import calendar
import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.documents import digest
from slipway.durable import write_durably
from slipway.errors import DocumentError, IntegrityMismatch, LockDrift, MissingFile, SlipwayError, UsageError
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
_SHOWN = 200


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


def resolve(
    place: Place,
    world: World,
    base: str | None = None,
    progress: Progress = silent,
    known: LockedBase | None = None,
) -> Locked:
    """What the variant's image.yaml means today, proved; `base` stands in for the base that it names.

    Where no registry is asked, what is `known` of a base stays known as long as the digest is the same.

    Raises: UsageError, DocumentError, PlanRefused, LockDrift, MissingFile, IntegrityMismatch, AuthFailure, NetworkFailure.
    """
    variant = place.spec()
    source = variant.source
    if base and isinstance(source, UpstreamSource):
        raise UsageError(
            "--base", "is not for an image that is taken over whole", "its ref is what is wanted", "leave it out"
        )
    named = source.ref if isinstance(source, UpstreamSource) else base or source.base
    locked_base = _base(world.registry, named, variant.platform, progress) if world.registry else _unasked(named, known)
    lock.refuse_other_base("--base" if base else place.lock, locked_base.ref, variant)
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


def write(place: Place, made: Locked) -> ImageLock:
    """The lock as it was written, with its requirements, into `images/<engine>/`.

    Where the lock that stands there now has the same inputs, its results are kept; also those of a build that ended just now.

    Raises: DiskFailure, MissingFile.
    """
    with lock.turn(place.turn):
        written = made.lock
        with contextlib.suppress(LockDrift, DocumentError, MissingFile):  # what stands there is replaced
            before = lock.read_any(place.lock)
            if before.inputs_digest == written.inputs_digest:
                written = written.model_copy(update={"results": before.results})
        if made.requirements:
            write_durably(place.folder / place.requirements, made.requirements.text.encode())
        lock.write(place.lock, written)
        return written


def changes(place: Place, old: ImageLock, new: Locked) -> tuple[str, ...]:
    """What differs between the lock on disk and a fresh one, one line each; packages by name and version.

    Empty only where the inputs digest is the same and the locked packages stand beside the lock: where a build goes on.
    """
    lines = list(_plain_changes("", _plain(old), _plain(new.lock)))
    if old.packages and new.requirements:
        lines += _package_changes(place.folder / old.packages.file, old.packages.sha256, new.requirements)
    before, now = ({(deb.name, deb.architecture): deb for deb in debs} for debs in (old.debs, new.lock.debs))
    lines += _versions("deb", _deb_versions(old), _deb_versions(new.lock))
    for key in sorted(before.keys() & now.keys()):
        one, other = before[key], now[key]
        if one.version == other.version and one != other:
            lines.append(f"deb {one.name} {one.version}: the same version with other bytes (sha256 {other.sha256})")
    return tuple(lines)


def refuse_changed(place: Place, found: tuple[str, ...]) -> None:
    """Nothing when `found` is empty. Raises: LockDrift."""
    if found:
        why = "".join(f"\n  {line}" for line in found) + "\n"
        remedy = f"review this, then run invoke lock-image {place.flags}"
        raise LockDrift(place.lock, f"made anew it would differ in {len(found)} place(s)", why, remedy)


def _base(registry: Registry, named: str, platform: str, progress: Progress) -> LockedBase:
    """The base by digest, with what its registry says of it now."""
    name = parse(named)
    with progress.track(f"asking for {name}", unit="images"):
        found = registry.resolve(name)
        pinned = name.at(tag=name.tag, digest=found)
        config = registry.config(name.at(digest=found), platform)
    rootfs = config.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    return LockedBase(
        ref=_short(named, pinned.digest or ""),
        created=_instant(config.get("created")),
        diff_ids=[str(one) for one in diff_ids] if isinstance(diff_ids, list) and diff_ids else None,
    )


def _unasked(named: str, known: LockedBase | None) -> LockedBase:
    """The base as image.yaml pins it, where no registry is to be asked. Raises: UsageError when it is pinned by a tag alone."""
    if not parse(named).digest:
        why = "a tag means what its registry says"
        raise UsageError("--offline", f"cannot lock {named}", why, "name the base with its digest, or lock it online")
    if known and known.ref.partition("@")[2] == named.partition("@")[2]:
        return known.model_copy(update={"ref": named})
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


def _plain(made: ImageLock) -> dict[str, Any]:
    """All inputs that the inputs digest is over, but the Debian packages."""
    value = {key: item for key, item in made.as_json().items() if key not in {"results", "sealed"}}
    del value["debs"]  # told one by one
    return value


def _plain_changes(place: str, old: Any, new: Any) -> Iterator[str]:
    """Each value that differs, by where it stands."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield from _plain_changes(f"{place}.{key}" if place else key, old.get(key), new.get(key))
    elif old != new:
        yield f"{place}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _package_changes(file: Path, locked_sha256: str, new: PythonLock) -> Iterator[str]:
    """Packages whose version moved; else that wheels did, or that the file is not the locked one, which no build takes."""
    try:
        before, found = python_lock.read(file), inputs.sha256(file.read_bytes())
    except (SlipwayError, OSError) as error:
        yield f"packages: {file} cannot be read ({error})"
        return
    now = {wheel.name: wheel.version for wheel in new.wheels}
    yield from _versions("package", before, now)
    if before == now and locked_sha256 != new.sha256:
        yield "packages: the same versions with other wheels"
    if found != locked_sha256:
        yield f"packages: {file} is not what was locked (sha256 {locked_sha256} -> {found})"


def _deb_versions(made: ImageLock) -> dict[str, str]:
    return {f"{deb.name}:{deb.architecture}": deb.version for deb in made.debs}


def _versions(what: str, before: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"{what} {name}: {before.get(name, 'absent')} -> {now.get(name, 'gone')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
