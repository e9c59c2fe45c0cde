"""An archive of images as a build or `docker save` writes it: a layout in a tar file, or Docker's older form.

Nothing is unpacked: each blob is read where it lies in the file. The older form has no manifest; one is made here in one way, so
that its digest is the same each time, around the config and the layers as they are.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from slipway.documents import canonical_json
from slipway.durable import open_regular, sync_folder
from slipway.errors import IntegrityMismatch, MissingFile, from_os_error
from slipway.images import layout, manifests
from slipway.images.manifests import DOCKER_MANIFEST, MAX_MANIFEST_BYTES, REF_NAME, Descriptor, Manifest
from slipway.images.stores import Attached
from slipway.images.tar_reader import members, opened
from slipway.images.turns import sync

_READ_BYTES = 1 << 20
_MAX_CONFIG_BYTES = 8 << 20
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar"
_SAVE_AGAIN = "write the archive again"


class Archive:
    """The archive at `path`, as a source; `ref` is the name that is meant in it, or a digest."""

    def __init__(self, path: Path, ref: str | None = None) -> None:
        """Find what is in it. Raises: MissingFile, DiskFailure, IntegrityMismatch."""
        self.path = path
        self._ref = ref
        with opened(path) as tar:
            self._members = members(tar, path)
        self._made: dict[str, bytes] = {}
        self._places: dict[str, str] = {}
        if "index.json" in self._members:
            data = self._small("index.json")
            self._entries = manifests.parse(data, f"{path}: index.json").manifests
        elif "manifest.json" in self._members:
            self._entries = tuple(self._older())
        else:
            why = "a layout has index.json, docker save writes manifest.json"
            raise IntegrityMismatch(path, "is no archive of images", why, _SAVE_AGAIN)

    def root(self) -> Manifest:
        """The manifest that is meant: of this name or digest, or of the only image.

        Raises: MissingFile, UsageError, IntegrityMismatch.
        """
        return self.manifest(layout.chosen(self._entries, self._ref, self.path))

    def digests(self) -> tuple[str, ...]:
        """Digests of the images in it, papers left out."""
        return tuple(dict.fromkeys(entry.digest for entry in layout.images_among(self._entries)))

    def manifest(self, descriptor: Descriptor) -> Manifest:
        """The manifest of `descriptor`, proved.

        Raises: MissingFile, IntegrityMismatch.
        """
        if descriptor.size_bytes > MAX_MANIFEST_BYTES:
            raise IntegrityMismatch(
                self.path, f"names a manifest of {descriptor.size_bytes} bytes", "none is that large"
            )
        data = b"".join(self.read(descriptor))
        return manifests.parse(data, self.path, descriptor.media_type, descriptor.digest)

    def read(self, descriptor: Descriptor, start: int = 0) -> Iterator[bytes]:
        """The blob's bytes from `start` on, not proved.

        Raises: MissingFile, DiskFailure.
        """
        if descriptor.digest in self._made:
            yield self._made[descriptor.digest][start:]
            return
        name = self._places.get(descriptor.digest, f"blobs/sha256/{descriptor.digest.removeprefix('sha256:')}")
        # One more than there should be is enough to see that it goes on.
        yield from self._read_member(name, start, descriptor.size_bytes + 1)

    def reject(self, digest: str) -> bool:
        """False: an archive has each blob once."""
        del digest
        return False

    def attached(self, digest: str) -> tuple[Attached, ...]:
        """What in the archive's index refers to `digest`."""
        return layout.attached_among(self._entries, digest, self.manifest)

    def _read_member(self, name: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        if name not in self._members:
            raise MissingFile(f"{self.path}: {name}", "is not in the archive", "its manifest names it", _SAVE_AGAIN)
        member = self._members.get(name)
        left = min(member.size, member.size if end is None else end) - start
        try:
            with open_regular(self.path) as file:
                file.seek(member.offset_data + start)
                while left > 0 and (chunk := file.read(min(left, _READ_BYTES))):
                    left -= len(chunk)
                    yield chunk
        except OSError as error:
            raise from_os_error(error, self.path, "reading the archive") from error

    def _small(self, name: str) -> bytes:
        if name in self._members and self._members.get(name).size > _MAX_CONFIG_BYTES:
            problem = f"has {self._members.get(name).size} bytes"
            raise IntegrityMismatch(f"{self.path}: {name}", problem, "none is that large", _SAVE_AGAIN)
        return b"".join(self._read_member(name))

    def _older(self) -> Iterator[Descriptor]:
        """The images of Docker's older form, each with a manifest made for it."""
        try:
            images = list(json.loads(self._small("manifest.json")) or [{}])
            wanted = [
                (str(one["Config"]), [str(name) for name in one["Layers"]], list(one.get("RepoTags") or [""]))
                for one in images
            ]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise IntegrityMismatch(
                f"{self.path}: manifest.json", "is not what docker save writes", "", _SAVE_AGAIN
            ) from None
        for config_name, layer_names, tags in wanted:
            config = manifests.describe(self._small(config_name), _CONFIG)
            self._places[config.digest] = config_name
            layers = [self._layer(name) for name in layer_names]
            self._check_layers(config_name, layers)
            manifest = self._manifest(config, layers)
            for tag in tags:
                yield replace(manifest.descriptor, annotations={REF_NAME: str(tag)} if tag else {})

    def _layer(self, name: str) -> Descriptor:
        state, size = hashlib.sha256(), 0
        for chunk in self._read_member(name):
            state.update(chunk)
            size += len(chunk)
        digest = f"sha256:{state.hexdigest()}"
        self._places[digest] = name
        return Descriptor(_LAYER, digest, size)

    def _check_layers(self, config_name: str, layers: list[Descriptor]) -> None:
        """The config names its layers by digest, so that the archive cannot bring others."""
        rootfs = manifests.parse_config(self._small(config_name), f"{self.path}: {config_name}").get("rootfs")
        found = [layer.digest for layer in layers]
        named = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
        if named != found:
            why = f"its config names {len(named) if isinstance(named, list) else 'no'} layers by digest"
            raise IntegrityMismatch(f"{self.path}: {config_name}", "has other layers than it names", why, _SAVE_AGAIN)

    def _manifest(self, config: Descriptor, layers: list[Descriptor]) -> Manifest:
        value = {
            "schemaVersion": 2,
            "mediaType": DOCKER_MANIFEST,
            "config": config.as_json(),
            "layers": [layer.as_json() for layer in layers],
        }
        manifest = manifests.parse(canonical_json(value), self.path)
        self._made[manifest.digest] = manifest.data
        return manifest


def write(folder: Path, path: Path, digests: Iterable[str]) -> None:
    """Nothing; the `digests` of the layout in `folder` are now also the archive at `path`, the same bytes for the same ones.

    Raises: DiskFailure, MissingFile.
    """
    part = path.with_name(f".{path.name}.part")
    blobs = [folder / "blobs" / "sha256" / digest.removeprefix("sha256:") for digest in sorted(digests)]
    names = [*blobs, folder / "index.json", folder / "oci-layout"]
    try:
        with part.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for directory in ("blobs", "blobs/sha256"):
                    tar.addfile(_entry(directory, None))
                for name in names:
                    with name.open("rb") as content:
                        tar.addfile(_entry(name.relative_to(folder).as_posix(), name.stat().st_size), content)
            sync(file)
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise from_os_error(error, path, "writing the archive") from error


def _entry(name: str, size_bytes: int | None) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size = (
        (tarfile.DIRTYPE, 0o755, 0) if size_bytes is None else (tarfile.REGTYPE, 0o644, size_bytes)
    )
    return entry
