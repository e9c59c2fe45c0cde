"""What `mirror` copies between: a source and a destination of images, and the place that names one. Pure but for what implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slipway.errors import UsageError
from slipway.images.image_name import ImageName, names_registry, parse
from slipway.images.manifests import Descriptor, Manifest

SIGNATURE_TAGS = (".sig", ".att", ".sbom")
"""What cosign appends to `sha256-<hex>` to name what it says of an image where it does not use referrers."""

LAYOUTS = ("layout", "oci")
ARCHIVES = ("archive", "oci-archive", "docker-archive")
"""Our words and skopeo's; an archive is read whatever kind it is."""


@dataclass(frozen=True)
class Attached:
    """A manifest that says something of another: by its subject, or (`suffix`) by cosign's name for it."""

    descriptor: Descriptor
    suffix: str = ""


class Source(Protocol):
    """Where an image is read from; nothing that it gives is believed before its digest is proved."""

    def root(self) -> Manifest:
        """The manifest or index that is meant."""

    def manifest(self, descriptor: Descriptor) -> Manifest:
        """The manifest of `descriptor`, proved."""

    def read(self, descriptor: Descriptor, start: int = 0) -> Iterator[bytes]:
        """The blob's bytes from `start` on, not yet proved."""

    def reject(self, digest: str) -> bool:
        """Whether `digest` may be asked for again, from another place, after it was spoilt."""

    def attached(self, digest: str) -> tuple[Attached, ...]:
        """What refers to `digest`."""


class Destination(Protocol):
    """Where an image is written to; `finish` makes it known, after everything else is there."""

    def admit(self, root: Manifest) -> None:
        """Refuse, before anything is copied, what `finish` would refuse."""

    def put_blob(self, descriptor: Descriptor, read: Callable[[int], Iterator[bytes]]) -> str:
        """`present`, `mounted` or `sent`; `read` gives the bytes from an offset on, and may be called anew."""

    def put_manifest(self, manifest: Manifest, suffix: str = "", about: str = "") -> str:
        """Keep `manifest`; with `suffix`, it is cosign's word about the digest `about`. What is to be said of it, or nothing."""

    def finish(self, root: Manifest) -> None:
        """Make `root` known under the place's name."""


@dataclass(frozen=True)
class Place:
    """A place of images: a registry's `name`, or a layout or an archive at `path` with the `ref` that is meant in it."""

    kind: str
    name: ImageName | None = None
    path: Path | None = None
    ref: str | None = None

    def __str__(self) -> str:
        if self.name is not None:
            return str(self.name)
        joint = "" if self.ref is None else "@" if self.ref.startswith("sha256:") else ":"
        return f"{self.kind}:{self.path}{joint}{self.ref or ''}"


def parse_place(text: str) -> Place:
    """The place that `text` writes: an image's name, `layout:DIR[:NAME][@DIGEST]` or `archive:FILE[:NAME][@DIGEST]`.

    Skopeo's `oci:`, `oci-archive:`, `docker-archive:` and `docker://` mean the same.

    Raises: UsageError.
    """
    kind, colon, rest = text.partition(":")
    if kind == "docker" and rest.startswith("//"):
        return Place("registry", parse(rest[2:]))
    if not colon or kind not in LAYOUTS + ARCHIVES:
        return Place("registry", parse(text))
    path, at, digest = rest.partition("@sha256:")
    ref: str | None = f"sha256:{digest}" if at else None
    # Only what stands after the last slash can hold the name, unless the name has slashes itself: the first colon parts them.
    head, mark, name = path.partition(":")
    if mark:
        path, ref = head, f"{name}@{ref}" if ref else name
    if not path or ref == "":
        raise UsageError(
            ascii(text)[1:-1], "names no place of images", f"{kind}:PATH, or {kind}:PATH:NAME", "write it so"
        )
    return Place(kind, None, Path(path), ref)


def parse_destination(text: str) -> Place:
    """The place that `text` writes, where something is to be sent to: a registry must be named, none is assumed.

    Raises: UsageError.
    """
    place = parse_place(text)
    if place.name is not None and not names_registry(text.removeprefix("docker://")):
        why = "what is sent away needs its whole name: registry/name:tag; Docker Hub's is docker.io/USER/NAME:TAG"
        raise UsageError(ascii(text)[1:-1], "names no registry", why, "write the whole name")
    return place
