"""The name of an image, and where besides its own registry it may be had: both pure.

A name says who published an image; the digest proves what it is. So a mirror may serve whatever a digest names, while only a
tag's own registry is asked what the tag means.

Source: the grammar is that of distribution/reference, the defaults are Docker's (both read in November 2026).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipway.errors import UsageError

HUB = "docker.io"

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LONGEST = 255

_FORM = "a name is [HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST], as docker.io/lmsysorg/sglang:v0.5.18@sha256:…"
_WRITE_IT = "write the name as the registry shows it"


@dataclass(frozen=True)
class ImageName:
    """A parsed name: `registry` with its port, `repository` within it, and the tag and the digest, if it has them."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.place}{tag}{f'@{self.digest}' if self.digest else ''}"

    @property
    def place(self) -> str:
        """Registry and repository, without tag and digest."""
        return f"{self.registry}/{self.repository}"

    def at(self, *, tag: str | None = None, digest: str | None = None) -> ImageName:
        """The same repository under another tag or digest."""
        return ImageName(self.registry, self.repository, tag, digest)

    def under(self, place: str) -> ImageName:
        """The name that a mirror at `place` (a host, or a host and a path) has for it: the same path below it."""
        host, _, prefix = place.partition("/")
        repository = f"{prefix}/{self.repository}" if prefix else self.repository
        return ImageName(host, repository, self.tag, self.digest)


def names_registry(text: str) -> bool:
    """Whether `text` says which registry it means, and does not leave it to Docker's default."""
    head, slash, _ = text.partition("/")
    return bool(slash) and _is_host(head)


def parse(text: str) -> ImageName:
    """The image that `text` names, with Docker's defaults for the registry; a tag is never assumed.

    Raises: UsageError.
    """
    rest, at, digest = text.partition("@")
    if at and not DIGEST.fullmatch(digest):
        raise UsageError(
            _shown(text), f"has an unusable digest (got {_shown(digest)})", "sha256: and 64 hex", _WRITE_IT
        )
    head, slash, tail = rest.partition("/")
    if slash and _is_host(head):
        registry, path = head, tail
    else:
        registry, path = HUB, rest
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise UsageError(_shown(text), f"has an unusable tag (got {_shown(tag)})", "letters, digits, _ . -", _WRITE_IT)
    if registry in {"index.docker.io", "registry-1.docker.io"}:
        registry = HUB
    if registry == HUB and "/" not in path:
        path = f"library/{path}"
    if not _HOST.fullmatch(registry) or not _PATH.fullmatch(path) or len(f"{registry}/{path}") > _LONGEST:
        raise UsageError(_shown(text), "is no image name", _FORM, _WRITE_IT)
    return ImageName(registry, path, tag or None, digest or None)


def is_loopback(host: str) -> bool:
    """Whether `host` (perhaps with a port) is this machine: the only place that plain HTTP is spoken with."""
    bare = re.sub(r"^\[(.*)\](:\d+)?$|^([^:]*):\d+$", r"\1\3", host).lower()
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Mirrors:
    """Registry → places to ask before it, in order; a place is a host, or a host and a path that repositories lie below."""

    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    for_tags: bool = False
    """Whether a mirror may also say what a tag means; it cannot be proved, so this is for a proxy that one trusts."""

    def names(self, name: ImageName) -> tuple[ImageName, ...]:
        """Under which names the content of `name` may be asked for, in order; its own registry is the last."""
        if not (name.digest or self.for_tags):
            return (name,)
        return (*(name.under(place) for place in self.places.get(name.registry, ())), name)


def parse_mirrors(text: str, *, for_tags: bool = False) -> Mirrors:
    """The table that `text` writes as `docker.io=127.0.0.1:5000,mirror.example/hub;ghcr.io=…`; empty text is an empty table.

    Raises: UsageError.
    """
    places: dict[str, tuple[str, ...]] = {}
    for line in filter(None, (part.strip() for part in text.split(";"))):
        host, equals, listed = line.partition("=")
        mirrors = tuple(filter(None, (place.strip() for place in listed.split(","))))
        host = host.strip()
        if not equals or not mirrors or not _HOST.fullmatch(host) or host in places:
            raise _unusable(line)
        for place in mirrors:
            first, slash, prefix = place.partition("/")
            if not _HOST.fullmatch(first) or (slash and not _PATH.fullmatch(prefix)):
                raise _unusable(place)
        places[host] = mirrors
    return Mirrors(places, for_tags)


def _unusable(part: str) -> UsageError:
    why = "HOST=MIRROR[/PATH],MIRROR…;HOST=…, each host once"
    return UsageError("SLIPWAY_REGISTRY_MIRRORS", f"cannot be meant (got {_shown(part)})", why, "correct the table")


def _is_host(head: str) -> bool:
    """Docker's rule: what has a dot, a port or a capital letter, and `localhost`, is a host and no part of the path."""
    return "." in head or ":" in head or head == "localhost" or head != head.lower()


def _shown(text: str) -> str:
    return ascii(text)[1:-1][:200] or "nothing"
