"""What registries and layouts hold: descriptors and manifests, read strictly, since everything else is found through them. Pure.

Source: OCI image specification 1.1, and Docker's image manifest version 2, schema 2 (read in November 2026).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slipway.documents import canonical_json
from slipway.errors import IntegrityMismatch, MissingFile
from slipway.images.image_name import DIGEST

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
INDEXES = frozenset({OCI_INDEX, DOCKER_LIST})
IMAGES = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})

REF_NAME = "org.opencontainers.image.ref.name"

MAX_MANIFEST_BYTES = 4 << 20
"""Registries refuse larger ones; so an endless answer ends here."""

_MOST_ENTRIES = 4096
_LARGEST_BLOB_BYTES = 1 << 50

_ANEW = "take the image from another place, or push it there again"


@dataclass(frozen=True)
class Descriptor:
    """What names a piece of content: its media type, digest and size; `platform` as `linux/amd64`, if it has one."""

    media_type: str
    digest: str
    size_bytes: int
    platform: str = ""
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As it stands in a manifest or an index."""
        value: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": self.size_bytes}
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        if self.platform:
            keys = ("os", "architecture", "variant")
            value["platform"] = dict(zip(keys, self.platform.split("/"), strict=False))
        return value


@dataclass(frozen=True)
class Manifest:
    """A manifest with its exact bytes: an index has `manifests`, an image has `blobs`, its config before its layers."""

    data: bytes
    media_type: str
    manifests: tuple[Descriptor, ...] = ()
    blobs: tuple[Descriptor, ...] = ()
    subject: Descriptor | None = None
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest_of(self.data)

    @property
    def is_index(self) -> bool:
        return self.media_type in INDEXES

    @property
    def descriptor(self) -> Descriptor:
        """What names it; of what it says about itself only what a list of referrers shows."""
        kind = self.artifact_type if self.subject else ""
        notes = self.annotations if self.subject else {}
        return Descriptor(self.media_type, self.digest, len(self.data), "", kind, notes)


def digest_of(data: bytes) -> str:
    """`sha256:…` of `data`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def describe(data: bytes, media_type: str, annotations: Mapping[str, str] | None = None) -> Descriptor:
    """The descriptor of `data`."""
    return Descriptor(media_type, digest_of(data), len(data), annotations=annotations or {})


def artifact(
    artifact_type: str, blobs: Iterable[Descriptor], subject: Descriptor, notes: Mapping[str, str]
) -> Manifest:
    """The manifest of something that is no image (SBOM, provenance) and says so of `subject`; equal inputs, equal bytes."""
    bare = Descriptor(subject.media_type, subject.digest, subject.size_bytes)
    value = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": artifact_type,
        "config": EMPTY.as_json(),
        "layers": [blob.as_json() for blob in blobs],
        "subject": bare.as_json(),
        "annotations": dict(notes),
    }
    return parse(canonical_json(value), subject.digest)


def index(entries: Iterable[Descriptor]) -> Manifest:
    """An OCI index over `entries`, as stands in a layout and behind the referrers' tag."""
    value = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry.as_json() for entry in entries]}
    return parse(canonical_json(value), "an index")


def parse(data: bytes, place: object, content_type: str = "", expected: str | None = None) -> Manifest:
    """The manifest that `data` is; `content_type` is what its server calls it, `expected` the digest that it must have.

    Raises: IntegrityMismatch, also when the same bytes could be read in two ways.
    """
    if expected is not None and digest_of(data) != expected:
        raise _spoilt(
            place, f"has other bytes than its digest names (got {digest_of(data)})", f"{expected} was asked for"
        )
    try:
        value = json.loads(data, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or value.get("schemaVersion") != 2:
        raise _spoilt(place, "is no manifest of schema version 2", "older ones cannot be pulled by digest")
    said = content_type.partition(";")[0].strip().lower()
    media_type = _media_type(place, value, said)
    if media_type in INDEXES:
        children = _descriptors(place, value.get("manifests"), "manifests")
        return Manifest(data, media_type, manifests=children, annotations=_notes(place, value))
    config = _descriptors(place, [value.get("config")], "config")
    layers = _descriptors(place, value.get("layers"), "layers")
    subject = _descriptors(place, [value["subject"]], "subject")[0] if value.get("subject") is not None else None
    kind = str(value.get("artifactType") or config[0].media_type)
    return Manifest(data, media_type, (), config + layers, subject, kind, _notes(place, value))


def choose(manifest: Manifest, platform: str, place: object) -> Descriptor:
    """The image in index `manifest` for `platform` (`linux/amd64`, or `linux/arm64` for any of its variants).

    Raises: MissingFile with the platforms that there are.
    """
    for entry in manifest.manifests:
        if entry.platform == platform or entry.platform.startswith(f"{platform}/"):
            return entry
    have = ", ".join(sorted({entry.platform or "unnamed" for entry in manifest.manifests})) or "none"
    raise MissingFile(place, f"has no image for {platform}", f"it has: {have}", "choose one of these platforms")


def parse_config(data: bytes, place: object) -> dict[str, Any]:
    """The image config that `data` is; of what stands in it nothing is promised. Raises: IntegrityMismatch."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _spoilt(place, "has a config that is no JSON object", "an image config is one")
    return value


def platform_of(config: Mapping[str, Any]) -> str:
    """The platform that an image config names, as `linux/amd64`; empty where it names none."""
    return _platform(config)


def proved(
    chunks: Iterable[bytes], descriptor: Descriptor, place: object, before: Iterable[bytes] = ()
) -> Iterator[bytes]:
    """`chunks`, whose last is only handed on once `before` and all of them have the descriptor's size and digest.

    Raises: IntegrityMismatch.
    """
    state, count = hashlib.sha256(), 0
    for chunk in before:
        state.update(chunk)
        count += len(chunk)
    held = b""
    for chunk in filter(None, chunks):  # an empty piece would let the one before it go
        count += len(chunk)
        if count > descriptor.size_bytes:
            raise _spoilt(
                place, f"{descriptor.digest} goes on after {descriptor.size_bytes} bytes", "its manifest says"
            )
        if held:
            yield held
        state.update(chunk)
        held = chunk
    if count != descriptor.size_bytes or f"sha256:{state.hexdigest()}" != descriptor.digest:
        got = f"got {count} bytes, sha256:{state.hexdigest()}"
        raise _spoilt(
            place, f"{descriptor.digest} has other content ({got})", f"{descriptor.size_bytes} bytes of that digest"
        )
    if held:
        yield held


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with every key once: of two layers lists, one reader would take the first and another the last."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice")
    return value


def _media_type(place: object, value: dict[str, Any], said: str) -> str:
    """What kind of manifest it is; all that says so must agree, or two readers could pull two images by one digest."""
    own = value.get("mediaType")
    names = {name for name in (own, said) if name and name not in {"application/json", "application/octet-stream"}}
    if len(names) > 1:
        raise _spoilt(place, f"is served as {ascii(said)[1:-1]} but calls itself {ascii(own)[1:-1]}", "they must agree")
    is_index, is_image = "manifests" in value, "layers" in value or "config" in value
    if is_index == is_image:
        raise _spoilt(place, "is neither image nor index, or both", "a digest must name one of them")
    media_type = names.pop() if names else OCI_INDEX if is_index else OCI_MANIFEST
    if media_type not in (INDEXES if is_index else IMAGES):
        raise _spoilt(
            place,
            f"calls itself {ascii(media_type)[1:-1]}, which its content is not",
            f"an {'index' if is_index else 'image manifest'} was found",
        )
    return str(media_type)


def _descriptors(place: object, values: Any, key: str) -> tuple[Descriptor, ...]:
    if not isinstance(values, list) or len(values) > _MOST_ENTRIES:
        raise _spoilt(place, f"has no usable {key}", f"a list of at most {_MOST_ENTRIES} descriptors")
    return tuple(_descriptor(place, value, key) for value in values)


def _descriptor(place: object, value: Any, key: str) -> Descriptor:
    value = value if isinstance(value, dict) else {}
    media_type, digest, size = (value.get(name) for name in ("mediaType", "digest", "size"))
    sound = isinstance(media_type, str) and isinstance(digest, str) and DIGEST.fullmatch(digest)
    if not sound or type(size) is not int or not 0 <= size <= _LARGEST_BLOB_BYTES:
        raise _spoilt(
            place, f"has a broken descriptor in {key} (got {ascii(value)[:120]})", "mediaType, digest and size"
        )
    return Descriptor(
        str(media_type),
        str(digest),
        size,
        _platform(value.get("platform")),
        str(value.get("artifactType") or ""),
        _notes(place, value),
    )


def _platform(value: Any) -> str:
    if not isinstance(value, Mapping):
        return ""
    parts = (value.get("os"), value.get("architecture"), value.get("variant"))
    return "/".join(part for part in parts if isinstance(part, str) and part)


def _notes(place: object, value: dict[str, Any]) -> dict[str, str]:
    notes = value.get("annotations")
    if notes is None:
        return {}
    if not isinstance(notes, dict) or not all(isinstance(text, str) for text in notes.values()):
        raise _spoilt(place, "has annotations that are not text", "names and texts")
    return notes


def _spoilt(place: object, problem: str, why: str) -> IntegrityMismatch:
    return IntegrityMismatch(place, problem, why, _ANEW)


EMPTY = describe(b"{}", "application/vnd.oci.empty.v1+json")
"""The config of what is no image: two bytes that every store comes to hold."""
