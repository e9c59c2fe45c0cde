"""From a lock to what a builder is given: the packed context, the allowed inputs and the request. Nothing here asks a network."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.durable import NotRegular, open_regular
from slipway.errors import LockDrift, UsageError, from_os_error
from slipway.images import debs, git_locked, git_source, lock, source_policy, spec
from slipway.images.allowed import AllowedInputs
from slipway.images.builders import BuildRequest, Compression
from slipway.images.context import Context, pack
from slipway.images.dockerfile import declared_arguments, require_locked
from slipway.images.image_name import Mirrors, parse
from slipway.images.lock import ImageLock
from slipway.images.spec import Variant

_MOST_DOCKERFILE_BYTES = 1 << 20
LOCKED = "locked"
"""The folder of the context that is made from the lock."""


@dataclass(frozen=True)
class Place:
    """Where one variant stands: the checkout, its `images/` and `.slipway/`, the engine and the variant's name."""

    root: Path
    engine: str
    variant: str

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def folder(self) -> Path:
        """`images/<engine>`."""
        return self.images / self.engine

    @property
    def lock(self) -> Path:
        return lock.path(self.images, self.engine, self.variant)

    @property
    def requirements(self) -> str:
        """The name of the hashed requirements file beside the lock."""
        return "requirements.lock" if self.variant == "default" else f"requirements.{self.variant}.lock"

    @property
    def archive(self) -> Path:
        """Where a build leaves the image."""
        return self.root / ".slipway" / "images" / f"{self.engine}.{self.variant}.tar"

    @property
    def work(self) -> Path:
        """Where builds make what is not checked yet, each in a folder of its own."""
        return self.archive.parent / ".building"  # on the disk that the archive will be on

    @property
    def turn(self) -> Path:
        """The file that whoever writes the lock holds the while, so that no writer undoes another's."""
        return self.root / ".slipway" / "locks" / f"image.{self.engine}.{self.variant}"

    @property
    def sources(self) -> Path:
        """Where git repositories and source archives are kept."""
        return self.root / ".slipway" / "sources"

    @property
    def flags(self) -> str:
        """How the variant is named on the command line."""
        return f"--engine {self.engine}" + ("" if self.variant == "default" else f" --variant {self.variant}")

    def spec(self) -> Variant:
        """The variant as image.yaml has it. Raises: UsageError, DocumentError, DiskFailure."""
        return spec.variant(spec.read(self.images, self.engine), self.variant)


@dataclass(frozen=True)
class Settings:
    """What the machine adds to a build and what leaves no trace in it: secrets, the network of RUN, mirrors, node's Docker."""

    secrets: Mapping[str, Path]
    mirrors: Mirrors
    network: str = "default"
    compression: Compression = "zstd"


def dockerfile_text(place: Place, variant: Variant) -> str:
    """The Dockerfile's text, its line ends kept. Raises: UsageError when it is no UTF-8 text; MissingFile, DiskFailure."""
    path = place.folder / variant.dockerfile
    try:
        with open_regular(path) as file:
            # As bytes: reading text would turn a bare carriage return, which ends no line for Docker, into a line's end.
            data = file.read(_MOST_DOCKERFILE_BYTES + 1)
        if len(data) > _MOST_DOCKERFILE_BYTES:
            why = f"a Dockerfile has at most {_MOST_DOCKERFILE_BYTES} bytes"
            raise UsageError(path, "is too long", why, "name another file in image.yaml")
        text = data.decode()
    except NotRegular as error:
        raise UsageError(path, "is not a regular file", "a Dockerfile is one", "name the file in image.yaml") from error
    except UnicodeDecodeError as error:
        why = f"byte {error.start} cannot be read"
        raise UsageError(path, "is not UTF-8", why, "save it as UTF-8") from error
    except OSError as error:
        raise from_os_error(error, path, "reading the Dockerfile") from error
    if "\0" in text:
        raise UsageError(path, "holds a NUL byte", "a Dockerfile is text", "remove it")
    return text


def sha256(data: bytes) -> str:
    """64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def generated(place: Place, made: ImageLock, requirements: bytes | None = None) -> dict[str, bytes]:
    """The files of the context that stand for the lock: packages, Debian packages, the source.

    `requirements` are the packages where their file is not written yet.

    Raises: LockDrift when a file beside the lock is not the one that was locked; MissingFile, DiskFailure.
    """
    files: dict[str, bytes] = {}
    if made.packages or made.debs:
        files = {f"{LOCKED}/{name}": data for name, data in debs.files(made.debs).items()}
    if made.packages:
        path = place.folder / made.packages.file
        try:
            data = path.read_bytes() if requirements is None else requirements
        except OSError as error:
            raise from_os_error(error, path, "reading the locked packages") from error
        if sha256(data) != made.packages.sha256:
            why = f"the lock says sha256 {made.packages.sha256}"
            raise LockDrift(path, f"is not what was locked (got {sha256(data)})", why, _again(place))
        files[f"{LOCKED}/requirements.txt"] = data
        uv = f"uv=={made.packages.uv} --hash=sha256:{made.packages.uv_sha256}\n"
        files[f"{LOCKED}/uv.txt"] = uv.encode()
    if made.git:
        files[f"{LOCKED}/source.tar"] = _source(place, made)
    return files


def packed(place: Place, variant: Variant, files: Mapping[str, bytes], epoch: int) -> Context:
    """The context: the Dockerfile, what the variant lists, and `files`."""
    name = f"images/{place.engine}/{variant.dockerfile}"
    return pack(place.root, (*variant.context, name), files, epoch)


def allowed(made: ImageLock, mirrors: Mirrors) -> AllowedInputs:
    """What the Dockerfile may take in: exactly what the lock names, under each name that it may be fetched by."""
    base = parse(made.base.ref)
    return AllowedInputs(
        images=tuple(str(name.at(digest=name.digest)) for name in mirrors.names(base)),
        build_args={
            **made.args,
            "BASE": fetched_from(made, mirrors),
            "ENGINE_VERSION": made.engine_version,
            "SOURCE_DATE_EPOCH": str(made.epoch),
        },
        debs=tuple(f"{deb.name}={deb.version}" for deb in made.debs),
        python_locks=(f"{LOCKED}/requirements.txt", f"{LOCKED}/uv.txt") if made.packages else (),
        deb_lists=(f"{LOCKED}/debs.txt",),
    )


def fetched_from(made: ImageLock, mirrors: Mirrors) -> str:
    """The base by digest, at the first mirror where there is one: the digest proves it, whoever serves it."""
    name = mirrors.names(parse(made.base.ref))[0]
    return str(name.at(digest=name.digest))


def request(place: Place, made: ImageLock, settings: Settings, *, archive: Path, no_cache: bool) -> BuildRequest:
    """What the builder is given for `made`, after everything that can be checked without building was.

    Raises: LockDrift where Dockerfile, context, packages or source are not those of the lock; DocumentError with every line
    of the Dockerfile that takes in something unlocked; MissingFile, DiskFailure.
    """
    variant = place.spec()
    text = dockerfile_text(place, variant)
    inputs = allowed(made, settings.mirrors)
    require_locked(text, inputs, str(place.folder / variant.dockerfile))
    _same(place, place.folder / variant.dockerfile, sha256(text.encode()), made.dockerfile_sha256)
    declared = declared_arguments(text)
    context = packed(place, variant, generated(place, made), made.epoch)
    _same(place, "the build context", context.sha256, made.context_sha256)
    return BuildRequest(
        context=context.tar,
        archive=archive,
        name=tag(made),
        epoch=made.epoch,
        dockerfile=f"images/{place.engine}/{variant.dockerfile}",
        platform=made.platform,
        build_args={
            name: value for name, value in inputs.build_args.items() if name != "SOURCE_DATE_EPOCH" and name in declared
        },
        labels=labels(made),
        secrets=settings.secrets,
        network="host" if settings.network == "host" else "default",
        source_policy=source_policy.policy(inputs),
        no_cache=no_cache,
        compression=settings.compression,
    )


def tag(made: ImageLock) -> str:
    """The name that a built image gets on this machine."""
    return spec.local_name(made.engine, made.variant, made.engine_version)


def labels(made: ImageLock) -> dict[str, str]:
    """What stands on the image: which lock it was made of, and the field's own labels for version and source."""
    source = made.git.commit if made.git else made.base.ref.partition("@")[2]
    return {
        lock.LABEL: made.inputs_digest,
        "org.opencontainers.image.title": f"{made.engine} {made.variant}",
        "org.opencontainers.image.version": made.engine_version,
        "org.opencontainers.image.revision": source,
        "org.opencontainers.image.base.name": re.sub(r"@.*", "", made.base.ref),
        "org.opencontainers.image.base.digest": made.base.ref.partition("@")[2],
    }


def _same(place: Place, what: object, found: str, locked: str) -> None:
    if found != locked:
        why = f"the lock was made of sha256 {locked}"
        raise LockDrift(what, f"differs from what was locked (got {found})", why, _again(place))


def _again(place: Place) -> str:
    return f"review the change, then run invoke lock-image {place.flags}"


def _source(place: Place, made: ImageLock) -> bytes:
    """The locked commit as a tar, made again from the repository's cache when it is not there."""
    assert made.git
    path = place.sources / f"{made.git.commit}.tar"
    if not path.exists():
        git_locked.restore(made.git, place.sources)
        git_source.archive(made.git.repository, made.git.commit, path, place.sources)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise from_os_error(error, path, "reading the source archive") from error
    _same(place, path, sha256(data), made.git.archive_sha256)
    return data
