"""A folder of images as the OCI image layout has it: blobs by digest, and an index that names what is whole.

::

    ROOT/oci-layout                  {"imageLayoutVersion":"1.0.0"}
    ROOT/index.json                  what there is, by its full name; replaced at once, after everything it names
    ROOT/blobs/sha256/<hex>          proved before it gets this name
    ROOT/blobs/sha256/.<hex>.part    on its way; taken up again by the next run, held by one run at a time

Source: OCI image specification 1.1, image-layout.md (read in November 2026).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from slipway.durable import sync_folder, write_durably
from slipway.errors import IntegrityMismatch, LockDrift, MissingFile, UsageError, from_os_error
from slipway.images import blob_files, manifests
from slipway.images.manifests import MAX_MANIFEST_BYTES, REF_NAME, Descriptor, Manifest
from slipway.images.stores import SIGNATURE_TAGS, Attached
from slipway.images.turns import held, locked, sync

_ANOTHER = "name the folder that holds oci-layout and index.json; a file is named as archive:FILE"
_MARKER = b'{"imageLayoutVersion":"1.0.0"}'


class Layout:
    """The layout in `folder`: a source, and a destination; `ref` is the name that is meant in it, or a digest.

    As a destination, `replace` says that the name may move from another image.
    """

    def __init__(self, folder: Path, ref: str | None = None, *, replace: bool = False) -> None:
        self.folder = folder
        self._replace = replace
        self._ref = ref
        self._new: list[Descriptor] = []

    def create(self) -> None:
        """Make the folder a layout, if it is none yet; one with other things in it stays as it is.

        Raises: UsageError, DiskFailure.
        """
        try:
            marker = self.folder / "oci-layout"
            if not marker.exists():
                if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / "blobs").is_dir():
                    raise UsageError(self.folder, "is a folder with other things in it", "a layout has one of its own")
                (self.folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
                write_durably(marker, _MARKER)
            (self.folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, self.folder, "making the layout") from error

    def entries(self) -> tuple[Descriptor, ...]:
        """What the index names, in its order.

        Raises: MissingFile, DiskFailure, IntegrityMismatch.
        """
        path, marker = self.folder / "index.json", self.folder / "oci-layout"
        if not self.folder.exists():
            raise MissingFile(self.folder, "no such folder", "a layout is read there", "check the path")
        if not marker.is_file():
            raise IntegrityMismatch(self.folder, "is no OCI image layout", "it has no file oci-layout", _ANOTHER)
        try:
            said = json.loads(blob_files.document(marker))
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or said.get("imageLayoutVersion") != "1.0.0":
            raise IntegrityMismatch(
                self.folder, "is no OCI image layout of version 1.0.0", "oci-layout says which it is", _ANOTHER
            )
        if not path.exists():
            why = "it has no index.json, which is written when all of an image is there"
            raise MissingFile(self.folder, "names no image yet", why, "copy the image again")
        return manifests.parse(blob_files.document(path), path).manifests

    def names(self) -> tuple[str, ...]:
        """The names of the images in it, sorted; signatures and other papers are left out.

        Raises: as `entries`.
        """
        images = images_among(self.entries())
        return tuple(sorted({entry.annotations.get(REF_NAME, entry.digest) for entry in images}))

    def root(self) -> Manifest:
        """The manifest that is meant: of this name or digest, or of the only image where no name is given.

        Raises: MissingFile with the names that there are, and as `entries` and `manifest`.
        """
        return self.manifest(chosen(self.entries(), self._ref, self.folder))

    def manifest(self, descriptor: Descriptor) -> Manifest:
        """The manifest of `descriptor`, proved.

        Raises: MissingFile, DiskFailure, IntegrityMismatch.
        """
        if descriptor.size_bytes > MAX_MANIFEST_BYTES:
            raise IntegrityMismatch(
                self.folder, f"names a manifest of {descriptor.size_bytes} bytes", "none is that large"
            )
        data = b"".join(self.read(descriptor))
        return manifests.parse(data, self.path(descriptor.digest), descriptor.media_type, descriptor.digest)

    def read(self, descriptor: Descriptor, start: int = 0) -> Iterator[bytes]:
        """The blob's bytes from `start` on, not proved.

        Raises: MissingFile, DiskFailure; IntegrityMismatch for what is no file.
        """
        # One byte more than there should be is enough to see that it goes on.
        return blob_files.chunks(self.path(descriptor.digest), start, descriptor.size_bytes + 1, "reading the blob")

    def reject(self, digest: str) -> bool:
        """False: a layout has each blob once."""
        del digest
        return False

    def path(self, digest: str) -> Path:
        """Where the blob of `digest` lies."""
        return self.folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def has(self, descriptor: Descriptor) -> bool:
        """Whether the blob is there and right, found by reading it: a mirror must not hold what only looks right.

        Raises: DiskFailure.
        """
        path = self.path(descriptor.digest)
        try:
            if path.stat().st_size != descriptor.size_bytes:
                return False
            for _ in manifests.proved(self.read(descriptor), descriptor, path):
                pass
        except (FileNotFoundError, IntegrityMismatch):
            return False
        except OSError as error:
            raise from_os_error(error, path, "looking for the blob") from error
        return True

    def put_blob(self, descriptor: Descriptor, read: Callable[[int], Iterator[bytes]]) -> str:
        """`present` or `sent`; what an earlier run left of it is gone on with.

        Raises: IntegrityMismatch, after which nothing is left of it, DiskFailure, and what reading raises.
        """
        if self.has(descriptor):
            return "present"
        path = self.path(descriptor.digest)
        try:
            place = path.with_name(f".{path.name}.part")
            with held(place) as part:
                if self.has(descriptor):
                    return "present"  # another run has just finished it
                blob_files.receive(part, place, descriptor, read)
                sync(part)
                place.replace(path)
                sync_folder(path.parent)
        except OSError as error:
            raise from_os_error(error, path, "writing the blob") from error
        return "sent"

    def admit(self, root: Manifest) -> None:
        """Make the layout, if there is none; refuse to move a name from another image, unless that is allowed.

        Raises: UsageError, LockDrift, DiskFailure, IntegrityMismatch.
        """
        self.create()
        if self._ref is None or self._replace or not (self.folder / "index.json").exists():
            return
        taken = {entry.digest for entry in images_among(self.entries()) if _name(entry) == self._ref} - {root.digest}
        if taken:
            problem, why = (
                f"the name {self._ref} is taken by {', '.join(sorted(taken))}",
                f"it would move to {root.digest}",
            )
            raise LockDrift(self.folder, problem, why, "choose another name, or give --replace")

    def put_manifest(self, manifest: Manifest, suffix: str = "", about: str = "") -> str:
        """Keep `manifest`; what says something of another comes into the index with the next `finish`.

        Raises: DiskFailure.
        """
        self.put_blob(manifest.descriptor, lambda start: iter((manifest.data[start:],)))
        if suffix:
            self._name(manifest, _sibling(self._ref or "", about.replace(":", "-") + suffix))
        elif manifest.subject is not None:
            self._new.append(manifest.descriptor)
        return ""

    def finish(self, root: Manifest) -> None:
        """Nothing; the index now names `root` and what was put with it, besides what it named before.

        Raises: DiskFailure, IntegrityMismatch.
        """
        self._name(root, self.name_for(root.digest))
        self.publish()

    def name_for(self, digest: str) -> str:
        """What the image with `digest` is called here; without a name of its own, the begin of its digest."""
        return self._ref or digest.removeprefix("sha256:")[:12]

    def publish(self) -> None:
        """Nothing; the index now names what was put since the last time, besides what it named before.

        Raises: DiskFailure, IntegrityMismatch.
        """
        path = self.folder / "index.json"
        try:
            with locked(self.folder):
                known = self.entries() if path.exists() else ()
                write_durably(path, manifests.index(_joined(known, self._new)).data)
        except OSError as error:
            raise from_os_error(error, path, "writing the index") from error
        self._new.clear()

    def _name(self, manifest: Manifest, name: str) -> None:
        notes = {**manifest.descriptor.annotations, REF_NAME: name}
        # What has a name is looked for by it; with a kind, an image that has a subject too would count as a paper.
        self._new.append(replace(manifest.descriptor, artifact_type="", annotations=notes))

    def attached(self, digest: str) -> tuple[Attached, ...]:
        """What in the index refers to `digest`.

        Raises: as `entries` and `manifest`.
        """
        return attached_among(self.entries(), digest, self.manifest)

    def reachable(self) -> frozenset[str]:
        """Digests of all that the index leads to. Raises: as `entries` and `manifest`."""
        seen, waiting = set[str](), list(self.entries())
        while waiting:
            entry = waiting.pop()
            if entry.digest not in seen:
                seen.add(entry.digest)
                if entry.media_type in manifests.INDEXES | manifests.IMAGES:
                    manifest = self.manifest(entry)
                    waiting += (*manifest.manifests, *manifest.blobs)
        return frozenset(seen)

    def verify(self) -> tuple[str, ...]:
        """Digests of all that the index leads to and that is missing or spoilt; empty when all is right.

        Raises: as `entries`.
        """
        wrong, seen, waiting = list[str](), set[str](), list(self.entries())
        while waiting:
            entry = waiting.pop()
            if entry.digest in seen:
                continue
            seen.add(entry.digest)
            if not self.has(entry):
                wrong.append(entry.digest)
            elif entry.media_type in manifests.INDEXES | manifests.IMAGES:
                manifest = self.manifest(entry)
                waiting += (*manifest.manifests, *manifest.blobs)
        return tuple(sorted(wrong))


def images_among(entries: Iterable[Descriptor]) -> list[Descriptor]:
    """The entries that are images, and no papers about one: whoever reads an index, checks or sends, takes these alone."""
    return [entry for entry in entries if _is_image(entry)]


def chosen(entries: Collection[Descriptor], ref: str | None, place: object) -> Descriptor:
    """The entry named `ref` (a name, its tag alone, or a digest), or the only image where `ref` is None.

    Raises: MissingFile, UsageError where the choice is not clear.
    """
    images = images_among(entries)
    if ref is None:
        found = images
    else:
        digest = ref.rpartition("@")[2] if "sha256:" in ref else ""
        found = [entry for entry in images if entry.digest == digest] if digest else _named(images, ref)
    if len({entry.digest for entry in found}) == 1:
        return found[0]
    have = ", ".join(sorted({entry.annotations.get(REF_NAME, entry.digest) for entry in images}))
    if not found and not have:
        papers = ", ".join(sorted({entry.digest for entry in entries}))
        why = f"what it has says something of an image that is not there: {papers}" if papers else "its index is empty"
        raise MissingFile(place, f"has no image {ref or 'at all'}", why, "take the image itself from another place")
    if not found:
        raise MissingFile(place, f"has no image {ref or 'at all'}", f"it has: {have}", "name one of these")
    raise UsageError(place, "has several images", f"it has: {have}", "name one of them, as layout:DIR:NAME")


def attached_among(
    entries: Iterable[Descriptor], digest: str, read: Callable[[Descriptor], Manifest]
) -> tuple[Attached, ...]:
    """What among `entries` refers to `digest`, by its subject or by cosign's name for it."""
    found = []
    for entry in entries:
        suffix = next((end for end in SIGNATURE_TAGS if _tag(entry) == digest.replace(":", "-") + end), "")
        if suffix:
            found.append(Attached(entry, suffix))
        elif entry.media_type in manifests.IMAGES:
            subject = read(entry).subject
            if subject is not None and subject.digest == digest:
                found.append(Attached(entry))
    return tuple(found)


def _named(images: list[Descriptor], ref: str) -> list[Descriptor]:
    """The entries that `ref` names exactly, or else without their digest, or else by the tag alone."""
    for form in (_name, lambda entry: _name(entry).partition("@")[0], _tag):
        found = [entry for entry in images if form(entry) == ref]
        if found:
            return found
    return []


def _name(entry: Descriptor) -> str:
    return entry.annotations.get(REF_NAME, "")


def _tag(entry: Descriptor) -> str:
    """The tag in the name of `entry`: other tools name by the tag alone."""
    return _name(entry).rpartition("/")[2].partition("@")[0].rpartition(":")[2]


def _sibling(ref: str, tag: str) -> str:
    """`tag` in the repository that `ref` names, if it names one."""
    place = ref.partition("@")[0]
    head, slash, tail = place.rpartition("/")
    return f"{head}/{tail.partition(':')[0]}:{tag}" if slash else tag


def _is_image(entry: Descriptor) -> bool:
    """Whether `entry` is an image: papers say their kind, have cosign's name for them, or BuildKit's note on them."""
    is_signature = _tag(entry).startswith("sha256-") and _tag(entry).endswith(SIGNATURE_TAGS)
    is_attestation = entry.annotations.get("vnd.docker.reference.type") == "attestation-manifest"
    return not entry.artifact_type and not is_signature and not is_attestation


def _joined(known: Iterable[Descriptor], new: Iterable[Descriptor]) -> tuple[Descriptor, ...]:
    """`known` and `new`, sorted, each once; a name belongs to the newest that has it, the others stay without one."""
    kept = dict[tuple[str, str], Descriptor]()
    for entry in (*known, *new):
        name = entry.annotations.get(REF_NAME, "")
        if name:
            kept = {key: value for key, value in kept.items() if key[0] != name}
        kept[name, entry.digest] = entry
    named = {digest for name, digest in kept if name}
    return tuple(kept[key] for key in sorted(kept) if key[0] or key[1] not in named)
