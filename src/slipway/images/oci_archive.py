"""An image in a tar, as `docker save`, BuildKit and buildah write it: its digests and its config.

Nothing is extracted, so a hostile archive can neither write a file nor fill the memory: names, sizes and counts that come
from it are bounded, and manifest and config are checked against the digests that name them.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.errors import IntegrityMismatch
from slipway.images import layout, manifests
from slipway.images.builders import Layer
from slipway.images.manifests import Descriptor
from slipway.images.tar_reader import Members, malformed, members, opened

_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYERS = {f"application/vnd.oci.image.layer.v1.tar{kind}" for kind in ("", "+gzip", "+zstd")}
_BASE = "org.opencontainers.image.base"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_DOCUMENT_BYTES = 8 << 20


@dataclass(frozen=True)
class Archive:
    """An image archive that was read: `config` is the image config as parsed JSON, `layers` are in order, base first.

    `manifest_digest` is `""` for a docker archive without an OCI index, which has none. `alone`: its index names nothing else.
    """

    path: Path
    config_digest: str
    config: Mapping[str, Any]
    manifest_digest: str
    manifest_text: str
    layers: tuple[Layer, ...]
    diff_ids: tuple[str, ...]
    members: tuple[str, ...]
    alone: bool

    @property
    def process(self) -> Mapping[str, Any]:
        """What a container of the image runs: User, Env, Entrypoint, Labels and so on."""
        value = self.config.get("config")
        return value if isinstance(value, dict) else {}

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels; none where the config says something else there than names and texts."""
        return labels(self.config)


def read(path: Path) -> Archive:
    """The image in `path`: an OCI archive of one image (attestations aside) or a docker archive of one image.

    Raises: MissingFile when there is no such file or a blob lacks; IntegrityMismatch when manifest or config do not have
    the digest that names them, or it is no image archive; DiskFailure.
    """
    with opened(path) as tar:
        found = members(tar, path)
        if "index.json" in found:
            return _oci(tar, path, found)
        if "manifest.json" in found:
            return _docker(tar, path, found)
    raise malformed(path, "holds neither index.json nor manifest.json")


def labels(config: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels in an image config of anybody's: texts by name, and none where there is something else."""
    process = config.get("config")
    found = process.get("Labels") if isinstance(process, dict) else None
    return {name: text for name, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def is_whole(archive: Archive) -> bool:
    """Whether every layer is there with the digest that names it; all of them are read.

    Raises: as `read`.
    """
    with opened(archive.path) as tar:
        found = members(tar, archive.path)
        for layer, name in zip(archive.layers, archive.members, strict=True):
            stream = tar.extractfile(found.get(name, "the layer "))
            if stream is None or f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}" != layer.digest:  # type: ignore[arg-type]
                return False
    return True


def is_plain(archive: Archive, epoch_s: int, base: str) -> bool:
    """Whether the manifest says what our builders write, in true sizes, and nothing else that a reader could act on.

    Layers may have BuildKit's note that it set their times to `epoch_s`, and the whole buildah's two notes on the image
    with the digest `base` that it was built on. Source: measured with dockerd 26.1.5 and buildah 1.28.2, 2026-12-01.

    Raises: as `read`.
    """
    note = {"buildkit/rewritten-timestamp": str(epoch_s)}
    with opened(archive.path) as tar:
        found = members(tar, archive.path)
        config = found.get(_blob_name(archive.config_digest))
        layers = [(layer, found.get(name).size) for layer, name in zip(archive.layers, archive.members, strict=True)]
    if not archive.manifest_digest or not {layer.media_type for layer, _ in layers} <= _LAYERS:
        return False
    # Parsed strictly: a key that stands twice would be read in two ways.
    value = json.loads(manifests.parse(archive.manifest_text.encode(), archive.path).data)
    plain: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": manifests.OCI_MANIFEST,
        "config": {"mediaType": _CONFIG, "digest": archive.config_digest, "size": config.size},
        "layers": [
            {"mediaType": layer.media_type, "digest": layer.digest, "size": size}
            | ({"annotations": note} if told.get("annotations") == note else {})
            for (layer, size), told in zip(layers, value["layers"], strict=True)
        ],
    }
    if _are_buildahs(value.get("annotations"), base):
        plain["annotations"] = value["annotations"]
    # As text, in which 2 and 2.0 differ. Older builders leave the media type out.
    return json.dumps({"mediaType": manifests.OCI_MANIFEST, **value}, sort_keys=True) == json.dumps(
        plain, sort_keys=True
    )


def _are_buildahs(notes: Any, base: str) -> bool:
    """Whether `notes` are those that buildah writes of a base with the digest `base`; its own digest of it is another."""
    if not isinstance(notes, dict) or set(notes) != {f"{_BASE}.digest", f"{_BASE}.name"}:
        return False
    return bool(_DIGEST.fullmatch(notes[f"{_BASE}.digest"])) and notes[f"{_BASE}.name"].endswith(f"@{base}")


def _oci(tar: tarfile.TarFile, path: Path, members: Members) -> Archive:
    index = _document(tar, path, members, "index.json")
    digest = _only_image(tar, path, members, index, depth=0)
    alone = [entry.get("digest") for entry in index["manifests"]] == [digest]
    text = _blob(tar, path, members, digest)
    manifest = _parsed(path, f"manifest {digest}", text)
    config_digest = _digest_in(path, manifest.get("config"))
    config = _parsed(path, f"config {config_digest}", _blob(tar, path, members, config_digest))
    stored = manifest.get("layers")
    layers = tuple(_layer(path, layer) for layer in (stored if isinstance(stored, list) else ()))
    names = tuple(_blob_name(layer.digest) for layer in layers)
    diff_ids = _diff_ids(path, config, names, members)
    return Archive(path, config_digest, config, digest, text.decode(), layers, diff_ids, names, alone)


def _docker(tar: tarfile.TarFile, path: Path, members: Members) -> Archive:
    value = _document(tar, path, members, "manifest.json")
    if not isinstance(value, list) or len(value) != 1 or not isinstance(value[0], dict):
        raise malformed(path, "manifest.json does not name exactly one image")
    told = value[0]
    text = _read(tar, path, members, str(told.get("Config")))
    config_digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    names = told.get("Layers")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise malformed(path, "manifest.json lists no layers")
    config = _parsed(path, "config", text)
    diff_ids = _diff_ids(path, config, tuple(names), members)
    kind = "application/vnd.docker.image.rootfs.diff.tar"
    layers = tuple(Layer("", members.get(name).size, kind) for name in names)
    return Archive(path, config_digest, config, "", json.dumps(told), layers, diff_ids, tuple(names), alone=True)


def _diff_ids(path: Path, config: Mapping[str, Any], names: tuple[str, ...], members: Members) -> tuple[str, ...]:
    """The diff ids in the config, once it is sure that there is one for each layer and that no layer lacks."""
    rootfs = config.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diff_ids, list) or not all(
        isinstance(item, str) and _DIGEST.fullmatch(item) for item in diff_ids
    ):
        raise malformed(path, "its config names no diff ids")
    if len(diff_ids) != len(names):
        raise malformed(path, f"it has {len(names)} layers and {len(diff_ids)} diff ids")
    for name in names:
        members.get(name, "the layer ")
    return tuple(diff_ids)


def _only_image(tar: tarfile.TarFile, path: Path, members: Members, index: Any, depth: int) -> str:
    """The digest of the one image manifest in an index, which may be nested; attestations are not images."""
    listed = index.get("manifests") if isinstance(index, dict) else None
    if not isinstance(listed, list) or depth > 2:
        raise malformed(path, "its index lists no manifests")
    # The same choice as of whoever sends the archive on: otherwise one image is checked, and another one sent.
    images = layout.images_among(_described(path, item) for item in listed)
    if len(images) != 1:
        raise malformed(path, f"it holds {len(images)} images; exactly one is expected")
    digest = images[0].digest
    if "index" in images[0].media_type or "manifest.list" in images[0].media_type:
        nested = _parsed(path, f"index {digest}", _blob(tar, path, members, digest))
        return _only_image(tar, path, members, nested, depth + 1)
    return digest


def _described(path: Path, value: Any) -> Descriptor:
    """The entry of an index as `layout` reads it."""
    digest = _digest_in(path, value)
    notes = value.get("annotations")
    texts = {name: text for name, text in notes.items() if isinstance(text, str)} if isinstance(notes, dict) else {}
    kind = str(value.get("artifactType") or "")
    return Descriptor(str(value.get("mediaType")), digest, 0, artifact_type=kind, annotations=texts)


def _layer(path: Path, value: Any) -> Layer:
    size = value.get("size") if isinstance(value, dict) else None
    return Layer(_digest_in(path, value), size if isinstance(size, int) else 0, str(value.get("mediaType")))


def _digest_in(path: Path, descriptor: Any) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise malformed(path, f"a descriptor has no sha256 digest (got {digest!r})")
    return digest


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _blob(tar: tarfile.TarFile, path: Path, members: Members, digest: str) -> bytes:
    text = _read(tar, path, members, _blob_name(digest))
    got = f"sha256:{hashlib.sha256(text).hexdigest()}"
    if got != digest:
        raise IntegrityMismatch(path, f"blob {digest} has the digest {got}", "", "build or fetch the image again")
    return text


def _document(tar: tarfile.TarFile, path: Path, members: Members, name: str) -> Any:
    try:
        return json.loads(_read(tar, path, members, name).decode())
    except (ValueError, RecursionError) as error:
        raise malformed(path, f"{name} is not JSON ({error})") from error


def _parsed(path: Path, what: str, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text.decode())  # as text: of bytes, other encodings than UTF-8 would be guessed
    except (ValueError, RecursionError) as error:
        raise malformed(path, f"{what} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise malformed(path, f"{what} is not a JSON object")
    return value


def _read(tar: tarfile.TarFile, path: Path, members: Members, name: str) -> bytes:
    member = members.get(name)
    content = tar.extractfile(member)
    if content is None or member.size > _MOST_DOCUMENT_BYTES:
        raise malformed(path, f"{name} is no file of at most {_MOST_DOCUMENT_BYTES} bytes (got {member.size})")
    return content.read(_MOST_DOCUMENT_BYTES)
