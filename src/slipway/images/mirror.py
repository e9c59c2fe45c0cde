"""Copy an image, with what is said of it, between registries, layouts and archives; every digest stays what it was.

What is at the destination already is not sent again; what was broken off is gone on with; and nothing is known under its name
there before all of it is.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from slipway.errors import DiskFailure, IntegrityMismatch, LockDrift, MissingFile, UsageError
from slipway.images import archive, manifests
from slipway.images.archive import Archive
from slipway.images.attach import Paper, WithPapers
from slipway.images.image_name import ImageName
from slipway.images.layout import Layout
from slipway.images.manifests import Descriptor, Manifest
from slipway.images.registry import Registry
from slipway.images.stores import (
    LAYOUTS,
    SIGNATURE_TAGS,
    Attached,
    Destination,
    Place,
    Source,
    parse_destination,
    parse_place,
)
from slipway.progress import Advance, Progress, human_bytes, silent

_MAX_DEPTH = 4
"""Of an index in an index, and of a signature of a signature."""


@dataclass(frozen=True)
class Options:
    """`attached`: also copy signatures, SBOM and provenance. `replace`: a tag at the destination may move."""

    platform: str | None = None
    attached: bool = True
    replace: bool = False
    workers: int = 4


@dataclass(frozen=True)
class Mirrored:
    """What was done: the image's digest, how many blobs went over and how many were there, and digests of what is attached.

    `name` is what the image is called at the destination.
    """

    digest: str
    copied: int
    skipped: int
    mounted: int
    copied_bytes: int
    skipped_bytes: int
    attached: tuple[str, ...] = ()
    name: str = ""

    def counted(self) -> str:
        """How many blobs went which way, in words."""
        ways = [f"{self.copied} blobs copied ({human_bytes(self.copied_bytes)})", f"{self.skipped} there already"]
        if self.mounted:
            ways.append(f"{self.mounted} mounted from a repository beside it")
        if self.attached:
            ways.append(f"{len(self.attached)} attached")
        return ", ".join(ways)


def run(
    source: Place | str,
    destination: Place | str,
    registry: Registry,
    options: Options | None = None,
    progress: Progress = silent,
    papers: Sequence[Paper] = (),
) -> Mirrored:
    """What was done so that `destination` has the image at `source`; places are written as `stores.parse_place` says.

    With a platform, an index is left behind and that platform's image is copied, whose digest is another. `papers` are attached
    to it on the way.

    Raises: UsageError, LockDrift for a tag that would move, IntegrityMismatch, MissingFile, DiskFailure, AuthFailure, NetworkFailure.
    """
    options = options or Options()
    start = parse_place(source) if isinstance(source, str) else source
    end = parse_destination(destination) if isinstance(destination, str) else destination
    begin = _source(start, registry)
    begin = WithPapers(begin, papers) if papers else begin
    store = _destination(start, end, registry, options)
    done = mirror(begin, store, options, progress)
    return replace(done, name=store.name_for(done.digest) if isinstance(store, Layout) else str(end))


def mirror(source: Source, destination: Destination, options: Options, progress: Progress = silent) -> Mirrored:
    """What was done so that `destination` has the image that `source` means.

    Raises: as `run`.
    """
    root = source.root()
    if options.platform is not None:
        root = _for_platform(source, root, options.platform)
    destination.admit(root)
    tree = _tree(source, root)
    attached = _attached(source, tree) if options.attached else []
    blobs = {blob.digest: blob for manifest in (*tree, *(one.manifest for one in attached)) for blob in manifest.blobs}
    done = _copy_blobs(source, destination, list(blobs.values()), options.workers, progress)
    for manifest in tree:
        destination.put_manifest(manifest)  # children first: registries refuse an index of what they do not have
    for one in attached:
        note = destination.put_manifest(one.manifest, one.suffix, one.about)
        if note:
            progress.note(note)
    destination.finish(root)
    return replace(done, digest=root.digest, attached=tuple(one.manifest.digest for one in attached))


@dataclass(frozen=True)
class _Said:
    """A manifest that says something about the digest `about`."""

    manifest: Manifest
    suffix: str
    about: str


@dataclass
class RegistryStore:
    """The repository of `name` as a source and as a destination; `mount_from` is a repository of the same registry."""

    registry: Registry
    name: ImageName
    mount_from: str | None = None
    replace: bool = False

    def root(self) -> Manifest:
        return self.registry.manifest(self.name)

    def manifest(self, descriptor: Descriptor) -> Manifest:
        return self.registry.manifest(self.name.at(digest=descriptor.digest))

    def read(self, descriptor: Descriptor, start: int = 0) -> Iterator[bytes]:
        return self.registry.read(self.name, descriptor, start)

    def reject(self, digest: str) -> bool:
        return self.registry.reject(digest)

    def attached(self, digest: str) -> tuple[Attached, ...]:
        found = [Attached(entry) for entry in self.registry.referrers(self.name, digest)]
        for suffix in SIGNATURE_TAGS:
            manifest = self.registry.signature(self.name, digest, suffix)
            if manifest is not None:
                found.append(Attached(manifest.descriptor, suffix))
        return tuple(found)

    def admit(self, root: Manifest) -> None:
        """Refuse to move a tag, and a name that says another digest. Raises: UsageError, LockDrift."""
        if self.name.digest not in {None, root.digest}:
            raise UsageError(
                self.name, f"names another digest than the image has (got {root.digest})", "the same digest"
            )
        if self.name.tag is None or self.replace:
            return
        now = self.registry.taken_by(self.name)
        if now not in {None, root.digest}:
            why = f"it would move to {root.digest}"
            raise LockDrift(self.name, f"the tag is taken by {now}", why, "choose another tag, or give --replace")

    def put_blob(self, descriptor: Descriptor, read: Callable[[int], Iterator[bytes]]) -> str:
        def proved() -> Iterator[bytes]:
            return manifests.proved(read(0), descriptor, f"what is sent to {self.name.place}")

        return self.registry.push_blob(self.name, descriptor, proved, self.mount_from)

    def put_manifest(self, manifest: Manifest, suffix: str = "", about: str = "") -> str:
        if not suffix:
            self.registry.push_manifest(self.name.at(), manifest)
            return ""
        there = self.registry.signature(self.name, about, suffix)
        if there is None:
            self.registry.push_manifest(self.name.at(tag=about.replace(":", "-") + suffix), manifest)
        elif there.digest != manifest.digest:
            return f"{self.name.place} keeps its own {suffix} of {about}: another one is there"
        return ""

    def finish(self, root: Manifest) -> None:
        if self.name.tag is not None:
            self.registry.push_manifest(self.name.at(tag=self.name.tag), root)


class ArchiveStore(Layout):
    """The archive at `path` as a destination: a layout beside it until all is there, so that it can be gone on with."""

    def __init__(self, path: Path, ref: str | None = None, *, replace: bool = False) -> None:
        super().__init__(path.with_name(f".{path.name}.layout"), ref, replace=True)
        self._path = path
        self._may_replace = replace

    def admit(self, root: Manifest) -> None:
        """Make the layout; a file that is there is never overwritten, but by the same image or where that is allowed.

        Raises: UsageError, LockDrift, MissingFile, DiskFailure.
        """
        if not self._path.parent.is_dir():
            raise MissingFile(self._path.parent, "no such folder", "the archive is to lie in it", "make it first")
        if self._path.exists():
            try:
                there = Archive(self._path).digests()
            except (IntegrityMismatch, DiskFailure):
                why = "only an archive of images is ever replaced"
                raise UsageError(self._path, "is another file", why, "name another one, or remove it") from None
            if root.digest not in there and not self._may_replace:
                problem, why = f"has another image ({', '.join(there) or 'none'})", f"it would be {root.digest}"
                raise LockDrift(self._path, problem, why, "name another file, or give --replace")
        self.create()

    def finish(self, root: Manifest) -> None:
        """Nothing; the archive is there, and the layout is not. Raises: DiskFailure."""
        # What an earlier run left may be of another image, so that only what the index now leads to is packed.
        (self.folder / "index.json").unlink(missing_ok=True)
        super().finish(root)
        archive.write(self.folder, self._path, self.reachable())
        shutil.rmtree(self.folder)


def _source(place: Place, registry: Registry) -> Source:
    if place.name is not None:
        return RegistryStore(registry, place.name)
    if place.path is None:
        raise UsageError(place, "names no source")
    return Layout(place.path, place.ref) if place.kind in LAYOUTS else Archive(place.path, place.ref)


def _destination(start: Place, place: Place, registry: Registry, options: Options) -> Destination:
    if place.name is not None:
        same = start.name is not None and start.name.registry == place.name.registry
        mount_from = start.name.repository if same and start.name is not None else None
        return RegistryStore(registry, place.name, mount_from, options.replace)
    ref = place.ref or (str(start.name) if start.name is not None else start.ref)
    if place.path is None or place.kind == "docker-archive":
        raise UsageError(
            place, "is no place to write to", "a registry's name, layout:DIR or archive:FILE", "write it so"
        )
    if ref is not None and ref.startswith("sha256:"):
        ref = None  # a digest is no name; the image gets one from its own
    store = Layout if place.kind in LAYOUTS else ArchiveStore
    return store(place.path, ref, replace=options.replace)


def _for_platform(source: Source, root: Manifest, platform: str) -> Manifest:
    """The image of an index for `platform`, or the image itself where its config says that it is for that.

    Raises: MissingFile with what there is, IntegrityMismatch.
    """
    if root.is_index:
        return source.manifest(manifests.choose(root, platform, "the image"))
    config = root.blobs[0]
    if config.size_bytes > manifests.MAX_MANIFEST_BYTES * 2:
        raise IntegrityMismatch("the image", f"has a config of {config.size_bytes} bytes", "none is that large")
    data = b"".join(manifests.proved(source.read(config), config, "the image's config"))
    found = manifests.platform_of(manifests.parse_config(data, "the image"))
    if found != platform and not found.startswith(f"{platform}/"):
        why = f"it is for {found or 'no platform that it names'}"
        raise MissingFile("the image", f"is not for {platform}", why, "leave --platform out, or copy another image")
    return root


def _tree(source: Source, manifest: Manifest, seen: set[str] | None = None, depth: int = 0) -> list[Manifest]:
    """All manifests below `manifest`, each once and after its children, and `manifest` as the last."""
    if depth > _MAX_DEPTH:
        raise IntegrityMismatch("the image", f"has an index more than {_MAX_DEPTH} deep", "none is that deep")
    seen = set() if seen is None else seen
    found = list[Manifest]()
    for child in manifest.manifests:
        if child.digest not in seen:
            seen.add(child.digest)
            found += _tree(source, source.manifest(child), seen, depth + 1)
    return [*found, manifest]


def _attached(source: Source, tree: list[Manifest]) -> list[_Said]:
    """What refers to the manifests of `tree`, and what refers to that; each after what it is about."""
    found, seen = list[_Said](), {(manifest.digest, "") for manifest in tree}
    waiting = [(manifest.digest, 0) for manifest in tree]
    while waiting:
        digest, depth = waiting.pop(0)
        for one in source.attached(digest) if depth < _MAX_DEPTH else ():
            if (one.descriptor.digest, one.suffix) not in seen:
                seen.add((one.descriptor.digest, one.suffix))
                manifest = source.manifest(one.descriptor)
                found.append(_Said(manifest, one.suffix, digest))
                waiting.append((manifest.digest, depth + 1))
    return found


def _copy_blobs(
    source: Source, destination: Destination, blobs: list[Descriptor], workers: int, progress: Progress
) -> Mirrored:
    stop = threading.Event()
    total = sum(blob.size_bytes for blob in blobs)
    with progress.track("copying the image", total) as advance, ThreadPoolExecutor(workers) as pool:

        def copy(blob: Descriptor) -> str:
            return _copy_blob(source, destination, blob, advance, stop)

        # The large ones first, so that the last worker does not begin with the largest.
        futures = {pool.submit(copy, blob): blob for blob in sorted(blobs, key=lambda blob: -blob.size_bytes)}
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future.done():
                    future.result()
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return _counted([(blob, future.result()) for future, blob in futures.items()])


def _counted(outcomes: list[tuple[Descriptor, str]]) -> Mirrored:
    def those(*kinds: str) -> list[int]:
        return [blob.size_bytes for blob, how in outcomes if how in kinds]

    sent, skipped = those("sent"), those("present", "mounted")
    return Mirrored("", len(sent), len(those("present")), len(those("mounted")), sum(sent), sum(skipped))


def _copy_blob(
    source: Source, destination: Destination, blob: Descriptor, advance: Advance, stop: threading.Event
) -> str:
    def read(start: int) -> Iterator[bytes]:
        for chunk in source.read(blob, start):
            if stop.is_set():
                raise _Stopped
            advance(len(chunk))
            yield chunk

    while True:
        if stop.is_set():
            raise _Stopped
        try:
            how = destination.put_blob(blob, read)
        except IntegrityMismatch:
            if not source.reject(blob.digest):
                raise
        else:
            if how != "sent":
                advance(blob.size_bytes)
            return how


class _Stopped(DiskFailure):
    """Another blob has failed, or the user has interrupted; this one is broken off."""

    def __init__(self) -> None:
        super().__init__("the copy", "was broken off", "another part of it failed", "run the same command again")
