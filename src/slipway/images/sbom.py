"""The bill of materials of an image, written from its locks: exact, and the same bytes for the same lock. Pure but for `write`.

What a scanner would guess from files in layers is known here by digest. What the base image holds is not: it is said to be unknown.

Source: CycloneDX 1.6 JSON; package URLs as the purl specification has them (both read in November 2026).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from slipway import __version__
from slipway.durable import write_durably
from slipway.errors import UsageError
from slipway.images.image_name import ImageName
from slipway.images.requirements_file import PythonPackage

MEDIA_TYPE = "application/vnd.cyclonedx+json"


@dataclass(frozen=True)
class Deb:
    """One Debian package file."""

    name: str
    version: str
    architecture: str
    sha256: str
    distribution: str = "debian"


@dataclass(frozen=True)
class GitSource:
    """A commit that was built, and the pull requests that it was proved to contain."""

    name: str
    url: str
    commit: str
    pull_requests: tuple[int, ...] = ()


@dataclass(frozen=True)
class Download:
    """A file fetched by its address and checked by its sha256."""

    name: str
    url: str
    sha256: str


@dataclass(frozen=True)
class Components:
    """What an image is made of, in plain values out of its lock; `epoch_s` is the lock's SOURCE_DATE_EPOCH."""

    engine: str
    engine_version: str
    variant: str
    lock_digest: str
    epoch_s: int
    base: ImageName | None = None
    python: tuple[PythonPackage, ...] = ()
    debs: tuple[Deb, ...] = ()
    git: tuple[GitSource, ...] = ()
    downloads: tuple[Download, ...] = ()
    properties: tuple[tuple[str, str], ...] = field(default=())


def render(components: Components) -> bytes:
    """The CycloneDX 1.6 document, with a newline at its end.

    Raises: UsageError when two components have one package URL, or a base has no digest.
    """
    image = f"{components.engine}-{components.variant}"
    root = {
        "type": "container",
        "bom-ref": f"image:{image}",
        "name": image,
        "version": components.engine_version,
        "properties": _properties((("slipway:lock", components.lock_digest), *components.properties)),
    }
    parts = sorted(_parts(components), key=lambda part: part["bom-ref"])
    names = [part["bom-ref"] for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(image, f"names {twice} twice", "each component once", "correct the lock")
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # From the lock and nothing else, so that two builds of one lock have one document.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'slipway:sbom:{components.lock_digest}')}",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(components.epoch_s),
            "tools": {"components": [{"type": "application", "name": "slipway", "version": __version__}]},
            "component": root,
        },
        "components": parts,
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": names}, *({"ref": name} for name in names)],
    }
    if components.base is not None:
        document["compositions"] = [{"aggregate": "unknown", "assemblies": [_base_purl(components.base)]}]
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode("ascii")


def write(components: Components, path: Path) -> None:
    """Nothing; the document is at `path`, whole or as before.

    Raises: UsageError, DiskFailure, MissingFile.
    """
    write_durably(path, render(components))


def timestamp(epoch_s: int) -> str:
    """`epoch_s` as `2026-11-30T23:14:10Z`."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parts(components: Components) -> Iterable[dict[str, Any]]:
    if components.base is not None:
        yield _base(components.base)
    for package in components.python:
        yield _python(package)
    for deb in components.debs:
        purl = f"pkg:deb/{deb.distribution}/{_quoted(deb.name)}@{_quoted(deb.version)}?arch={deb.architecture}"
        yield _part("library", deb.name, deb.version, purl, deb.sha256)
    for source in components.git:
        yield _git(source)
    for download in components.downloads:
        qualifiers = f"checksum=sha256:{download.sha256}&download_url={quote(download.url, safe=':/')}"
        part = _part("file", download.name, "", f"pkg:generic/{_quoted(download.name)}?{qualifiers}", download.sha256)
        yield {**part, "externalReferences": [{"type": "distribution", "url": download.url}]}


def _part(kind: str, name: str, version: str, purl: str, sha256: str = "") -> dict[str, Any]:
    part: dict[str, Any] = {"type": kind, "bom-ref": purl, "name": name, "purl": purl}
    if version:
        part["version"] = version
    if sha256:
        part["hashes"] = [_hash(sha256)]
    return part


def _base(base: ImageName) -> dict[str, Any]:
    if base.digest is None:
        raise UsageError(base, "is a base without a digest", "a base image is pinned", "lock the image anew")
    part = _part("container", base.place, base.tag or base.digest, _base_purl(base))
    return {**part, "hashes": [_hash(base.digest.removeprefix("sha256:"))]}


def _base_purl(base: ImageName) -> str:
    tag = f"&tag={_quoted(base.tag)}" if base.tag else ""
    name = base.repository.rpartition("/")[2]
    return f"pkg:oci/{name}@{base.digest}?repository_url={quote(base.place, safe='/:')}{tag}"


def _python(package: PythonPackage) -> dict[str, Any]:
    purl = f"pkg:pypi/{_quoted(package.name)}@{_quoted(package.version)}"
    if package.url:
        purl += f"?download_url={quote(package.url, safe=':/')}"
    if len(package.sha256) == 1:
        return _part("library", package.name, package.version, purl, package.sha256[0])
    # One of several files was installed; a component's own hash would claim to know which.
    files = {
        "type": "distribution",
        "url": package.url or purl,
        "comment": "the lock admits a file with any of these digests",
        "hashes": [_hash(digest) for digest in package.sha256],
    }
    return {**_part("library", package.name, package.version, purl), "externalReferences": [files]}


def _git(source: GitSource) -> dict[str, Any]:
    url = urlsplit(source.url)
    path = url.path.strip("/").removesuffix(".git")
    if url.hostname == "github.com" and path.count("/") == 1:
        purl = f"pkg:github/{path.lower()}@{source.commit}"
    else:
        where = quote(f"git+{source.url}@{source.commit}", safe=":/")
        purl = f"pkg:generic/{_quoted(source.name)}@{source.commit}?vcs_url={where}"
    part = _part("application", source.name, source.commit, purl)
    contained = (("slipway:pull-request", str(number)) for number in sorted(source.pull_requests))
    properties = _properties(contained)
    part["externalReferences"] = [{"type": "vcs", "url": source.url}]
    return {**part, "properties": properties} if properties else part


def _hash(sha256: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": sha256}


def _properties(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in pairs]


def _quoted(text: str) -> str:
    return quote(text, safe=":")
