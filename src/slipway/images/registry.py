"""A client for registries of the OCI distribution API: pull, push and referrers, with every byte proved by its digest.

Whatever a digest names may come from a mirror (`Mirrors`); a push goes to the registry in the name and nowhere else.

Source: OCI distribution specification 1.1 (read in November 2026); docker-registry 2.8 has no referrers API, so the tag schema.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from slipway.errors import (
    AuthFailure,
    IntegrityMismatch,
    LockDrift,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)
from slipway.images import manifests
from slipway.images.image_name import ImageName, Mirrors, parse, parse_mirrors
from slipway.images.manifests import IMAGES, INDEXES, MAX_MANIFEST_BYTES, Descriptor, Manifest
from slipway.images.registry_failures import Again
from slipway.images.registry_login import Logins, logins_from
from slipway.images.registry_upload import Upload
from slipway.images.registry_wire import SMALL_BYTES, Answer, Ask, Limits, Wire

__all__ = ["Limits", "Mirrors", "Registry", "parse", "referrers_tag", "registry_from"]

_ACCEPT = ", ".join(sorted(IMAGES | INDEXES))
_MAX_CONFIG_BYTES = 8 << 20
_MAX_PAGES = 100
_REFERRERS_TRIES = 5

Found = TypeVar("Found")


class Registry:
    """Registries, each asked as `logins` and `mirrors` say. Thread-safe; close it, or use it in a `with`."""

    def __init__(
        self,
        mirrors: Mirrors | None = None,
        logins: Logins | None = None,
        limits: Limits | None = None,
        ca: Path | None = None,
    ) -> None:
        self._mirrors = mirrors or Mirrors()
        self._wire = Wire(logins or Logins(), limits or Limits(), ca)
        self._served: dict[str, str] = {}
        self._rejected: set[tuple[str, str]] = set()

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections."""
        self._wire.close()

    def resolve(self, name: ImageName) -> str:
        """The digest that `name` has now, of bytes that were read and are a manifest; a digest in the name is proved.

        Raises: UsageError for a name with neither tag nor digest, MissingFile, IntegrityMismatch, AuthFailure, NetworkFailure.
        """
        return self.manifest(name).digest

    def refuse_moved(self, name: ImageName) -> None:
        """Nothing; the tag of `name` still has the digest of `name`.

        Raises: LockDrift when it has another, and as `resolve` does.
        """
        if not (name.tag and name.digest):
            raise UsageError(name, "needs both a tag and a digest", "the one is held against the other")
        now = self.resolve(name.at(tag=name.tag))
        if now != name.digest:
            why = f"the lock says {name.digest}"
            raise LockDrift(
                name.at(tag=name.tag), f"the tag has moved to {now}", why, "review it, then lock the image anew"
            )

    def manifest(self, name: ImageName) -> Manifest:
        """The manifest or index that `name` names; by its digest, if it has one.

        Raises: as `resolve`.
        """
        wanted = name.digest or name.tag
        if not wanted:
            raise UsageError(name, "has neither tag nor digest", "`latest` is never assumed", "name the digest")
        return self._first(name, lambda place: self._get_manifest(place, wanted))

    def image(self, name: ImageName, platform: str = "linux/amd64") -> Manifest:
        """The manifest of the image, whose first blob is its config: that of `platform` where `name` is an index.

        Raises: as `config`.
        """
        manifest = self.manifest(name)
        if not manifest.is_index:
            return manifest
        return self.manifest(name.at(digest=manifests.choose(manifest, platform, name).digest))

    def config(self, name: ImageName, platform: str = "linux/amd64") -> dict[str, Any]:
        """The configuration of the image: that of `platform` where `name` is an index.

        Raises: MissingFile where the index has no such platform, and as `resolve`.
        """
        descriptor = self.image(name, platform).blobs[0]
        if descriptor.size_bytes > _MAX_CONFIG_BYTES:
            raise IntegrityMismatch(name, f"has a config of {descriptor.size_bytes} bytes", "none is that large")
        return manifests.parse_config(b"".join(self.blob(name, descriptor)), name)

    def blob(self, name: ImageName, descriptor: Descriptor) -> Iterator[bytes]:
        """The content of `descriptor`, whose last piece only comes when size and digest are right.

        Raises: IntegrityMismatch, and as `read`.
        """
        return manifests.proved(self.read(name, descriptor), descriptor, name.place)

    def read(self, name: ImageName, descriptor: Descriptor, start: int = 0) -> Iterator[bytes]:
        """The bytes of `descriptor` from `start` on, not yet proved; goes on where an answer broke off, from a mirror if need be.

        Raises: MissingFile, IntegrityMismatch for another length, AuthFailure, NetworkFailure.
        """
        at, errors = start, list[SlipwayError]()
        for place in self._places(name, descriptor.digest):
            self._served[descriptor.digest] = place.place
            try:
                for chunk in self._read_from(place, descriptor, at):
                    at += len(chunk)
                    yield chunk
            except SlipwayError as error:
                errors.append(error)
            else:
                return
        raise _worst(errors)

    def reject(self, digest: str) -> bool:
        """Whether another place is left to ask for `digest`, after whoever served it last gave something else."""
        served = self._served.get(digest)
        if served is None or (served, digest) in self._rejected:
            return False
        self._rejected.add((served, digest))
        return True

    def has_blob(self, name: ImageName, descriptor: Descriptor, *, push: bool = False) -> bool:
        """Whether the registry of `name` itself has the blob, by its own word; with `push`, asked by who may push.

        Raises: AuthFailure, NetworkFailure.
        """
        path = f"/v2/{name.repository}/blobs/{descriptor.digest}"
        answer = self._wire.ask(Ask("HEAD", name.registry, path, name.repository, push))
        length = answer.headers.get("content-length", "")
        return answer.status == 200 and length in {"", str(descriptor.size_bytes)}

    def taken_by(self, name: ImageName) -> str | None:
        """The digest that the tag of `name` has at its own registry; None where nothing has it, so that it may be pushed.

        Raises: IntegrityMismatch, AuthFailure, NetworkFailure.
        """
        try:
            return self._get_manifest(name.at(tag=name.tag), name.tag or "", push=True).digest
        except MissingFile:
            return None

    def push_blob(
        self,
        name: ImageName,
        descriptor: Descriptor,
        read: Callable[[], Iterator[bytes]],
        mount_from: str | None = None,
    ) -> str:
        """How the blob came to be there: `present`, `mounted` (from repository `mount_from`) or `sent`; `read` may be called anew.

        Raises: IntegrityMismatch when the registry counts another digest, AuthFailure, NetworkFailure, and what `read` raises.
        """
        if self.has_blob(name, descriptor, push=True):
            return "present"
        return Upload(self._wire, name, descriptor, read).run(mount_from)

    def push_manifest(self, name: ImageName, manifest: Manifest) -> str:
        """The digest of `manifest`, which the registry now has under the tag of `name` (without one: by digest alone).

        Where it refers to another and the registry lists no referrers by itself, the referrers' tag is brought up to date.

        Raises: IntegrityMismatch, AuthFailure, NetworkFailure.
        """
        if name.digest not in {None, manifest.digest}:
            raise UsageError(name, f"names another manifest than is pushed (got {manifest.digest})", "its own digest")
        path = f"/v2/{name.repository}/manifests/{name.tag or manifest.digest}"
        headers = {"Content-Type": manifest.media_type}
        ask = Ask("PUT", name.registry, path, name.repository, True, "", headers, manifest.data, frozenset())
        answer = self._wire.ask(ask)
        _check_digest(name, answer, manifest.digest)
        if manifest.subject is not None and not answer.headers.get("oci-subject"):
            self._list_by_tag(name, manifest.subject.digest, manifest.descriptor)
        return manifest.digest

    def referrers(self, name: ImageName, digest: str, artifact_type: str | None = None) -> tuple[Descriptor, ...]:
        """What refers to `digest` in the repository of `name` (SBOM, provenance, signatures), of one type if it is given.

        Raises: IntegrityMismatch, AuthFailure, NetworkFailure.
        """
        found = self._first(name.at(digest=digest), lambda place: self._referrers_at(place, digest))
        return tuple(entry for entry in found if artifact_type in {None, entry.artifact_type})

    def signature(self, name: ImageName, digest: str, suffix: str) -> Manifest | None:
        """What cosign keeps under the tag `sha256-<hex>` + `suffix` in the repository of `name`; it proves itself by its key.

        Raises: IntegrityMismatch, AuthFailure, NetworkFailure.
        """

        def look(place: ImageName) -> Manifest | None:
            tag = referrers_tag(digest) + suffix
            try:
                return self._get_manifest(place.at(tag=tag), tag)
            except MissingFile:
                return None

        return self._first(name.at(digest=digest), look)

    def _get_manifest(self, place: ImageName, wanted: str, *, push: bool = False) -> Manifest:
        path = f"/v2/{place.repository}/manifests/{wanted}"
        answer = self._wire.ask(
            Ask("GET", place.registry, path, place.repository, push, headers={"Accept": _ACCEPT}), MAX_MANIFEST_BYTES
        )
        if answer.status == 404:
            raise MissingFile(
                place, "is not there", f"{place.registry} knows no such image", "check name, tag and digest"
            )
        found = manifests.parse(answer.body, place, answer.headers.get("content-type", ""), place.digest)
        _check_digest(place, answer, found.digest)
        return found

    def _read_from(self, place: ImageName, descriptor: Descriptor, start: int) -> Iterator[bytes]:
        """The bytes from `start` on, all from `place`; an answer that breaks off is gone on with."""
        at, tried = start, 0
        ends_s = time.monotonic() + self._wire.limits.sent_s(descriptor.size_bytes)
        while at < descriptor.size_bytes:
            try:
                for chunk in self._read_once(place, descriptor, at):
                    at, tried = at + len(chunk), 0
                    if time.monotonic() > ends_s:
                        raise NetworkFailure(place, f"{descriptor.digest} comes too slowly ({at} bytes so far)")
                    yield chunk
            except Again as failed:
                tried += 1
                self._wire.pause(str(place), failed, tried, ends_s)

    def _read_once(self, place: ImageName, descriptor: Descriptor, start: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        path = f"/v2/{place.repository}/blobs/{descriptor.digest}"
        left, started_s = descriptor.size_bytes - start, time.monotonic()
        with self._wire.once(Ask("GET", place.registry, path, place.repository, headers=headers)) as response:
            if response.status_code == 404:
                raise MissingFile(
                    place, f"has no blob {descriptor.digest}", "its manifest names it", "push the image again"
                )
            skip = 0 if _continues(response.headers, response.status_code, start) else start
            length = response.headers.get("content-length", "")
            if length.isdigit() and int(length) != left + skip:
                problem = f"{descriptor.digest} is sent with {int(length) + start - skip} bytes"
                raise IntegrityMismatch(place, problem, f"its manifest says {descriptor.size_bytes}", "push it again")
            for piece in response.iter_raw():  # as they come: pieces of one size would be waited for, however slow
                chunk = piece[skip:]
                skip -= len(piece) - len(chunk)
                left -= len(chunk)
                if descriptor.size_bytes <= SMALL_BYTES:
                    self._wire.limits.require_pace(place, descriptor.size_bytes - start - left, started_s)
                if left < 0:
                    problem = f"{descriptor.digest} goes on after its end"
                    raise IntegrityMismatch(
                        place, problem, f"its manifest says {descriptor.size_bytes} bytes", "push it again"
                    )
                if chunk:
                    yield chunk
        if left:
            raise Again(f"{descriptor.digest} broke off {left} bytes before its end")

    def _places(self, name: ImageName, digest: str) -> tuple[ImageName, ...]:
        places = self._mirrors.names(name if name.digest else name.at(digest=digest or None, tag=name.tag))
        kept = tuple(place for place in places if (place.place, digest) not in self._rejected)
        if not kept:
            problem = f"{digest} is served with other content everywhere"
            raise IntegrityMismatch(
                name, problem, f"asked: {', '.join(place.registry for place in places)}", "push it again"
            )
        return kept

    def _first(self, name: ImageName, act: Callable[[ImageName], Found]) -> Found:
        """What `act` returns for the first place that has a good answer."""
        errors = list[SlipwayError]()
        for place in self._mirrors.names(name):
            try:
                return act(place)
            except SlipwayError as error:
                errors.append(error)
        raise _worst(errors)

    def _referrers_at(self, place: ImageName, digest: str) -> tuple[Descriptor, ...]:
        path: str | None = f"/v2/{place.repository}/referrers/{digest}"
        found = list[Descriptor]()
        for _ in range(_MAX_PAGES):
            allowed = frozenset({400, 404, 405})
            ask = Ask("GET", place.registry, str(path), place.repository, headers={"Accept": _ACCEPT}, allowed=allowed)
            answer = self._wire.ask(ask, MAX_MANIFEST_BYTES)
            if answer.status in allowed:
                return self._referrers_by_tag(place, digest)
            found += manifests.parse(answer.body, place, answer.headers.get("content-type", "")).manifests
            path = _next_page(answer.headers)
            if path is None:
                return tuple(found)
            path = self._wire.onward(ask, path, answer.url)
        raise NetworkFailure(place, f"lists referrers on more than {_MAX_PAGES} pages", "", "ask who runs the registry")

    def _referrers_by_tag(self, place: ImageName, digest: str) -> tuple[Descriptor, ...]:
        tag = referrers_tag(digest)
        try:
            return self._get_manifest(place.at(tag=tag), tag).manifests
        except MissingFile:
            return ()

    def _list_by_tag(self, name: ImageName, subject: str, entry: Descriptor) -> None:
        """`entry` is listed under the referrers' tag of `subject`; read again, since another writer may have been faster."""
        place = name.at(tag=referrers_tag(subject))
        for _ in range(_REFERRERS_TRIES):
            known = self._referrers_by_tag(place, subject)
            if any(one.digest == entry.digest for one in known):
                return
            self.push_manifest(place, manifests.index((*known, entry)))
        why = "others write it at the same time"
        raise NetworkFailure(place, f"does not come to list {entry.digest}", why, "run the same command again")


def registry_from(environ: Mapping[str, str] | None = None, limits: Limits | None = None) -> Registry:
    """A client with docker's logins and the mirrors of SLIPWAY_REGISTRY_MIRRORS (`docker.io=HOST,…;ghcr.io=…`).

    SLIPWAY_REGISTRY_MIRRORS_FOR_TAGS=1 lets a mirror also say what a tag means; SLIPWAY_REGISTRY_CA names a file of certificates.

    Raises: UsageError, DiskFailure, MissingFile.
    """
    environ = os.environ if environ is None else environ
    for_tags = environ.get("SLIPWAY_REGISTRY_MIRRORS_FOR_TAGS", "") in {"1", "true", "yes"}
    mirrors = parse_mirrors(environ.get("SLIPWAY_REGISTRY_MIRRORS", ""), for_tags=for_tags)
    ca = environ.get("SLIPWAY_REGISTRY_CA", "")
    return Registry(mirrors, logins_from(environ), limits, Path(ca) if ca else None)


def referrers_tag(digest: str) -> str:
    """The tag under which registries without the referrers API keep the list of what refers to `digest`."""
    return digest.replace(":", "-")


def _check_digest(place: ImageName, answer: Answer, digest: str) -> None:
    said = answer.headers.get("docker-content-digest", digest)
    if said != digest:
        problem = f"calls its answer {ascii(said)[1:-1][:80]}"
        raise IntegrityMismatch(place, problem, f"its bytes are {digest}", "ask who runs the registry")


def _continues(headers: Mapping[str, str], status: int, start: int) -> bool:
    """Whether the answer begins at `start`; a server that ignores ranges begins at 0."""
    if status != 206:
        return not start
    match = re.match(r"bytes (\d+)-", headers.get("content-range", ""))
    if match is None or int(match[1]) != start:
        raise Again("answers another range than it was asked for")
    return True


def _next_page(headers: Mapping[str, str]) -> str | None:
    match = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', headers.get("link", ""))
    return match[1] if match else None


def _worst(errors: list[SlipwayError]) -> SlipwayError:
    """What to tell when every place failed: spoilt content before a refused login, that before silence, that before absence."""
    order = (IntegrityMismatch, AuthFailure, NetworkFailure, SlipwayError)
    worst = min(errors, key=lambda error: next(rank for rank, kind in enumerate(order) if isinstance(error, kind)))
    others = "; ".join(f"{error.place}: {error.problem}" for error in errors if error is not worst)
    if not others:
        return worst
    why = f"{worst.why}; also {others}" if worst.why else f"also {others}"
    return type(worst)(worst.place, worst.problem, why, worst.remedy)
