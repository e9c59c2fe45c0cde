"""Documents about an image, kept beside it where the image is: in its registry as referrers, or in its layout.

What is attached goes wherever `mirror` takes the image. Attaching the same document again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slipway.errors import MissingFile, UsageError
from slipway.images import manifests, provenance, sbom
from slipway.images.image_name import ImageName, parse
from slipway.images.manifests import EMPTY, Descriptor, Manifest
from slipway.images.registry import Registry
from slipway.images.sbom import timestamp
from slipway.images.stores import Attached, Source


@dataclass(frozen=True)
class Paper:
    """A document about an image: its bytes, what kind it is, and annotations for who lists referrers."""

    data: bytes
    media_type: str
    title: str
    epoch_s: int
    annotations: Mapping[str, str] = field(default_factory=dict)


def sbom_paper(components: sbom.Components) -> Paper:
    """The bill of materials, to be attached."""
    return Paper(sbom.render(components), sbom.MEDIA_TYPE, "sbom.cdx.json", components.epoch_s)


def provenance_paper(build: provenance.Build) -> Paper:
    """The provenance statement, to be attached."""
    notes = {"in-toto.io/predicate-type": provenance.PREDICATE}
    return Paper(provenance.render(build), provenance.MEDIA_TYPE, "provenance.json", build.epoch_s, notes)


def attach(registry: Registry, image: ImageName | str, paper: Paper) -> ImageName:
    """The name, by digest, of the manifest that attaches `paper` to `image` (which has a digest) in its registry.

    Raises: UsageError for an image without a digest, MissingFile, IntegrityMismatch, AuthFailure, NetworkFailure.
    """
    name = _pinned(image)
    subject = registry.manifest(name).descriptor
    manifest, blob = _artifact(paper, subject)
    for descriptor, data in ((EMPTY, b"{}"), (blob, paper.data)):
        registry.push_blob(name.at(), descriptor, lambda data=data: iter((data,)))  # type: ignore[misc]
    registry.push_manifest(name.at(), manifest)
    return name.at(digest=manifest.digest)


class WithPapers:
    """The image of `source`, with `papers` attached to it besides what `source` has: whoever copies it takes them along."""

    def __init__(self, source: Source, papers: Sequence[Paper]) -> None:
        self._source = source
        self._papers = papers
        self._subject = ""
        self._manifests: dict[str, Manifest] = {}
        self._blobs: dict[str, bytes] = {}

    def root(self) -> Manifest:
        """The manifest that is meant. Raises: as the source."""
        root = self._source.root()
        self._subject = root.digest
        for paper in self._papers:
            manifest, blob = _artifact(paper, root.descriptor)
            self._manifests[manifest.digest] = manifest
            self._blobs |= {EMPTY.digest: b"{}", blob.digest: paper.data}
        return root

    def manifest(self, descriptor: Descriptor) -> Manifest:
        """The manifest of `descriptor`, proved. Raises: as the source."""
        return self._manifests.get(descriptor.digest) or self._source.manifest(descriptor)

    def read(self, descriptor: Descriptor, start: int = 0) -> Iterator[bytes]:
        """The blob's bytes from `start` on, not yet proved. Raises: as the source."""
        data = self._blobs.get(descriptor.digest)
        return iter((data[start:],)) if data is not None else self._source.read(descriptor, start)

    def reject(self, digest: str) -> bool:
        """Whether `digest` may be asked for again."""
        return digest not in self._blobs and self._source.reject(digest)

    def attached(self, digest: str) -> tuple[Attached, ...]:
        """What refers to `digest`. Raises: as the source."""
        ours = self._manifests.values() if digest == self._subject else ()
        return (*self._source.attached(digest), *(Attached(manifest.descriptor) for manifest in ours))


def attached(registry: Registry, image: ImageName | str, media_type: str) -> tuple[bytes, ...]:
    """The documents of `media_type` that are attached to `image`, each proved by its digest.

    Raises: MissingFile where there is none, UsageError, IntegrityMismatch, AuthFailure, NetworkFailure.
    """
    name = _pinned(image)
    found = []
    for entry in registry.referrers(name, name.digest or "", media_type):
        manifest = registry.manifest(name.at(digest=entry.digest))
        if manifest.subject is not None and manifest.subject.digest == name.digest:
            found += [
                b"".join(registry.blob(name, blob)) for blob in manifest.blobs[1:] if blob.media_type == media_type
            ]
    if not found:
        raise MissingFile(
            name, f"has no {media_type} attached", "", "invoke build-image --push and mirror-image attach it"
        )
    return tuple(found)


def _artifact(paper: Paper, subject: Descriptor) -> tuple[Manifest, Descriptor]:
    blob = manifests.describe(paper.data, paper.media_type, {"org.opencontainers.image.title": paper.title})
    notes = {"org.opencontainers.image.created": timestamp(paper.epoch_s), **paper.annotations}
    return manifests.artifact(paper.media_type, [blob], subject, notes), blob


def _pinned(image: ImageName | str) -> ImageName:
    name = parse(image) if isinstance(image, str) else image
    if name.digest is None:
        raise UsageError(name, "has no digest", "a document is about a digest, never about a tag", "name the digest")
    return name
