"""What is said about a built image, out of its lock: bill of materials, provenance, signature; and whether it was said."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.errors import IntegrityMismatch, LockDrift, from_os_error
from slipway.images import attach, lock, oci_archive, provenance, sbom, signing
from slipway.images.image_name import ImageName, parse
from slipway.images.inputs import Place
from slipway.images.inputs import tag as inputs_tag
from slipway.images.layers import diff_id
from slipway.images.lock import ImageLock, Result
from slipway.images.manifests import Manifest
from slipway.images.provenance import Build, Material
from slipway.images.registry import Registry
from slipway.images.requirements_file import python_packages
from slipway.images.sbom import Components, Deb, GitSource
from slipway.images.stores import Place as StorePlace


@dataclass(frozen=True)
class Said:
    """Digests of the manifests that carry SBOM and provenance, and whether the image was signed."""

    sbom: str
    provenance: str
    signed: bool


def components(place: Place, made: ImageLock) -> Components:
    """Everything that the lock names, for the bill of materials. Raises: MissingFile, DiskFailure, UsageError."""
    base = parse(made.base.ref)
    return Components(
        engine=made.engine,
        engine_version=made.engine_version,
        variant=made.variant,
        lock_digest=made.inputs_digest,
        epoch_s=made.epoch,
        base=base.at(tag=base.tag, digest=base.digest),
        python=python_packages(_requirements(place, made), made.packages.file, made.packages.python)
        if made.packages
        else (),
        debs=tuple(Deb(deb.name, deb.version, deb.architecture, deb.sha256) for deb in made.debs),
        git=(_git(made),) if made.git else (),
    )


def statement(made: ImageLock, result: Result, image: ImageName) -> Build:
    """How the image was made, for the provenance; `image` has the manifest's digest."""
    base = parse(made.base.ref)
    materials = [Material(base.at().place, {"sha256": (base.digest or "").removeprefix("sha256:")}, "base")]
    if made.packages:
        materials.append(Material(made.packages.file, {"sha256": made.packages.sha256}, "packages"))
    if made.git:
        materials.append(Material(made.git.repository, {"gitCommit": made.git.commit}, "source"))
    materials += [Material(_deb_purl(deb), {"sha256": deb.sha256}, deb.name) for deb in made.debs]
    return Build(
        image=image,
        config_digest=result.config_digest,
        lock_digest=made.inputs_digest,
        epoch_s=made.epoch,
        engine=made.engine,
        variant=made.variant,
        builder=result.builder,
        versions={"builder": result.version},
        args=made.args,
        materials=tuple(materials),
    )


def write_sbom(place: Place, made: ImageLock) -> Path:
    """Where the bill of materials was written: beside the archive. Raises: DiskFailure, and as `components`."""
    path = place.archive.with_suffix(".cdx.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, path, "writing the SBOM") from error
    sbom.write(components(place, made), path)
    return path


def say(place: Place, made: ImageLock, result: Result, pushed: ImageName, registry: Registry, key: Path | None) -> Said:
    """SBOM and provenance attached to the `pushed` image (named by digest), and it signed with `key` where one is given.

    The key's password is read from COSIGN_PASSWORD. Raises: as `attach.attach`, `signing.find` and `Cosign.sign`.
    """
    bill = attach.attach(registry, pushed, attach.sbom_paper(components(place, made)))
    origin = attach.attach(registry, pushed, attach.provenance_paper(statement(made, result, pushed)))
    if key:
        signing.find().sign(pushed, key)
    return Said(bill.digest or "", origin.digest or "", key is not None)


def about(place: Place, made: ImageLock, end: StorePlace, digest: str) -> tuple[attach.Paper, ...]:
    """SBOM and provenance of the built image `digest`, which is to be at `end`; none where the lock has no result yet.

    Raises: as `components`.
    """
    result = next((found for found in made.results if found.manifest_digest == digest), None)
    result = result or (made.results[0] if made.results else None)
    if result is None:
        return ()
    image = (end.name or parse(inputs_tag(made))).at(digest=digest)
    return attach.sbom_paper(components(place, made)), attach.provenance_paper(statement(made, result, image))


def check_pushed(place: Place, made: ImageLock, ref: str, registry: Registry, key: Path | None) -> tuple[str, ...]:
    """What was proved about the image at `ref`, one sentence each: it is this lock's, its papers are ours, its signature holds.

    An index is refused: one image was built, and whoever pulls by an index may be given another of its images. Layers are
    known by the manifest that the lock has; compressed otherwise they are fetched and unpacked.

    Raises: LockDrift when it is another lock's image, IntegrityMismatch when it is not the image, its papers are not what the lock
    gives, or the signature is not of this key; MissingFile when a paper or the signature is missing; AuthFailure, NetworkFailure.
    """
    name = parse(ref)
    pinned = name.at(digest=registry.resolve(name))
    manifest = registry.manifest(pinned)
    if manifest.is_index:
        why = f"it has {len(manifest.manifests)} images, and the lock stands for one"
        raise IntegrityMismatch(
            pinned, "is an index", why, "name the image by its own digest, or push what build-image makes"
        )
    config = registry.config(pinned, made.platform)
    _refuse_odd(pinned, config)
    label = oci_archive.labels(config).get(lock.LABEL)
    if label != made.inputs_digest:
        why = f"{place.lock} has {made.inputs_digest}"
        raise LockDrift(
            pinned, f"was built from another lock (got {label or 'no label'})", why, "push what build-image makes now"
        )
    # The config's digest and not what it says: entrypoint, user and environment must be the built image's too.
    digest = manifest.blobs[0].digest
    result = next((found for found in made.results if found.config_digest == digest), None)
    if result is None:
        why = f"the lock expects {', '.join(found.config_digest for found in made.results) or 'no image yet'}"
        problem = f"has another config than the lock's image (got {digest})"
        raise IntegrityMismatch(pinned, problem, why, "push what build-image makes now")
    if manifest.digest != result.manifest_digest:
        _refuse_other_layers(pinned, manifest, result, registry)
    said = [f"{pinned}: config and layers are those that {result.builder} made of this lock"]
    wanted = (
        (sbom.MEDIA_TYPE, sbom.render(components(place, made)), "SBOM"),
        (provenance.MEDIA_TYPE, provenance.render(statement(made, result, pinned)), "provenance"),
    )
    for media_type, expected, what in wanted:
        if expected not in attach.attached(registry, pinned, media_type):
            raise IntegrityMismatch(
                pinned, f"carries another {what} than its lock gives", "", "attach it anew: push again"
            )
        said.append(f"{what} is attached and is what the lock gives")
    if key:
        signing.find().verify(pinned, key)
        said.append(f"signed with the key of {key}")
    return tuple(said)


def _refuse_other_layers(pinned: ImageName, manifest: Manifest, result: Result, registry: Registry) -> None:
    """Nothing when the layers of `manifest` unpack to those of `result`. Raises: IntegrityMismatch, and as `Registry.blob`."""
    layers = manifest.blobs[1:]
    remedy = "do not run it; push what build-image makes now"
    if len(layers) != len(result.diff_ids):
        raise IntegrityMismatch(
            pinned, f"has {len(layers)} layers (its config names {len(result.diff_ids)})", "", remedy
        )
    for number, (layer, expected) in enumerate(zip(layers, result.diff_ids, strict=True)):
        with tempfile.TemporaryFile() as file:
            try:
                for chunk in registry.blob(pinned, layer):
                    file.write(chunk)
                file.seek(0)
            except OSError as error:
                raise from_os_error(error, tempfile.gettempdir(), "fetching a layer") from error
            found = diff_id(file, pinned)
        if found != expected:
            raise IntegrityMismatch(
                pinned, f"layer {number} is another one (got {found})", f"its config names {expected}", remedy
            )


def _refuse_odd(pinned: ImageName, config: Mapping[str, Any]) -> None:
    """Nothing when `config` has the form of an image config where it is read. Raises: IntegrityMismatch."""
    process = config.get("config") or {}
    rootfs = config.get("rootfs")
    sound = isinstance(process, dict) and isinstance(process.get("Labels") or {}, dict)
    if not (sound and isinstance(rootfs, dict) and isinstance(rootfs.get("diff_ids"), list)):
        raise IntegrityMismatch(pinned, "has a config that is no image's", "", "push what build-image makes now")


def _requirements(place: Place, made: ImageLock) -> str:
    assert made.packages
    path = place.folder / made.packages.file
    try:
        return path.read_text()
    except OSError as error:
        raise from_os_error(error, path, "reading the locked packages") from error


def _git(made: ImageLock) -> GitSource:
    assert made.git
    name = re.sub(r"\.git$", "", made.git.repository).rpartition("/")[2]
    return GitSource(name, made.git.repository, made.git.commit, tuple(one.number for one in made.git.pull_requests))


def _deb_purl(deb: lock.LockedDeb) -> str:
    return f"pkg:deb/debian/{deb.name}@{deb.version}?arch={deb.architecture}"
