"""Checkpoints in a mirror: blobs by their digest, and one manifest per revision that is written when all of them are there.

::

    PLACE/blobs/sha256/<oid>                     one object per content, whatever repository and path it has
    PLACE/blobs/git-sha1/<oid>                   the small files that the hub knows by git's own digest
    PLACE/models/<repo>/<commit>/manifest.json   the lock

A mirror is not trusted. Whatever comes out of it goes through the same fetcher as what comes from a hub, and is hashed on the
way; the mirror is only another place that bytes may come from.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from slipway import documents
from slipway.checkpoints import fetch, gateway
from slipway.checkpoints import lock as locks
from slipway.checkpoints.digests import digest_on_disk
from slipway.checkpoints.hub import Hub
from slipway.checkpoints.lock import CheckpointLock, LockedFile
from slipway.checkpoints.pins import Hasher, digest_of, plain_bytes
from slipway.durable import remove_file, sync_folder, write_durably
from slipway.errors import IntegrityMismatch, LockDrift, MissingFile, SlipwayError, from_os_error
from slipway.progress import Progress, silent

_PIECE_BYTES = 1 << 20

_LEFT_S = 24 * 3600
"""From this age on, what an upload has left half written is removed, wherever it ran; one of this machine at once."""

_HALF = re.compile(r"\.(?:[0-9a-f]{8}-)?[0-9a-f]{32}\.(?:part|tmp)")
"""Names of files that are being written: parts of blobs, and manifests by `write_durably`."""


class Store(Protocol):
    """Where objects are kept by name. Every call may be repeated, and none leaves half an object."""

    @property
    def place(self) -> str:
        """The address for messages, without a final slash."""

    def size(self, name: str) -> int | None:
        """Bytes of the object `name`; None when there is none. Raises: SlipwayError."""

    def put(self, name: str, source: Path, file: LockedFile) -> bool:
        """Keep the bytes of `source` under `name`; False when another was first. Raises: SlipwayError, on a mismatch too."""

    def put_text(self, name: str, data: bytes) -> None:
        """Keep a small object, in place of what was there. Raises: SlipwayError."""

    def get_text(self, name: str) -> bytes | None:
        """A small object; None when there is none. Raises: SlipwayError."""

    def open(self, name: str, start: int) -> AbstractContextManager[IO[bytes]]:
        """The object from byte `start` on. Raises: OSError, gateway.Gone."""


@dataclass(frozen=True)
class Mirrored:
    """What one lock took to mirror: files and bytes sent, and files that were there already."""

    place: str
    sent_files: int
    sent_bytes: int
    kept_files: int


def blob_name(file: LockedFile) -> str:
    """Where a mirror keeps the bytes of `file`."""
    return "blobs/" + digest_of(file).replace(":", "/")


def manifest_name(lock: CheckpointLock) -> str:
    """Where a mirror keeps the lock of a revision."""
    return f"models/{lock.repo}/{lock.revision}/manifest.json"


def upload(
    lock: CheckpointLock, folder: Path, store: Store, *, workers: int = 4, progress: Progress = silent
) -> Mirrored:
    """What was sent: afterwards `store` holds every file of `lock`, and its manifest. What it holds already is not sent again.

    Each file of `folder` is hashed before it is sent, so a damaged one never reaches the mirror.

    Raises: IntegrityMismatch, MissingFile, AuthFailure, NetworkFailure, DiskFailure.
    """
    if isinstance(store, FolderStore):
        store.remove_left(progress)
    sent = threading.Lock()
    with progress.track(f"mirroring {lock.repo} to {store.place}", lock.summary.total_bytes) as advance:

        def one(file: LockedFile) -> int:
            name, size = blob_name(file), None
            present = store.size(name)
            if present is None:
                size = file.size_bytes if _put(store, name, folder, file) else None
            elif present != file.size_bytes:
                raise _spoilt(store, file, f"{present} bytes")
            with sent:
                advance(file.size_bytes)
            return -1 if size is None else size

        # Two repositories may share a file, and a repository two paths with the same bytes.
        distinct = list({blob_name(file): file for file in lock.files}.values())
        with ThreadPoolExecutor(max(workers, 1)) as pool:
            sizes = list(pool.map(one, sorted(distinct, key=lambda file: -file.size_bytes)))
    _write_manifest(lock, store, progress)
    new = [size for size in sizes if size >= 0]
    return Mirrored(store.place, len(new), sum(new), len(lock.files) - len(new))


def check(lock: CheckpointLock, store: Store, *, workers: int = 4, progress: Progress = silent) -> int:
    """How many bytes were read back: every blob of `lock` in `store`, each equal to its digest.

    Raises: IntegrityMismatch naming the object, MissingFile, NetworkFailure.
    """
    refuse_incomplete(lock, store)
    with progress.track(f"reading back {lock.repo} from {store.place}", lock.summary.total_bytes) as advance:

        def one(file: LockedFile) -> int:
            hasher, size = Hasher(file), 0
            try:
                with store.open(blob_name(file), 0) as stream:
                    while piece := stream.read(_PIECE_BYTES):
                        hasher.update(piece)
                        size += len(piece)
            except OSError as error:
                raise from_os_error(error, f"{store.place}/{blob_name(file)}", "reading it back") from error
            if hasher.digest != digest_of(file):
                raise _spoilt(store, file, hasher.digest)
            advance(size)
            return size

        with ThreadPoolExecutor(max(workers, 1)) as pool:
            return sum(pool.map(one, lock.files))


def download(
    lock: CheckpointLock, root: Path, store: Store, *, workers: int = 4, progress: Progress = silent
) -> fetch.FetchResult:
    """The published checkpoint under `root`, every byte of it from `store` and hashed on this side.

    Raises: IntegrityMismatch, MissingFile, LockDrift, AuthFailure, NetworkFailure, DiskFailure, UsageError.
    """
    refuse_incomplete(lock, store)
    with gateway.serve(files_of(lock, store)) as url:
        try:
            return fetch.fetch(lock, root, hub=Hub(url), workers=workers, progress=progress)
        except SlipwayError as error:
            raise _in_mirror_words(error, url, store.place) from error


def refuse_incomplete(lock: CheckpointLock, store: Store) -> None:
    """Nothing when `store` has the manifest of `lock` and every blob, with the right sizes.

    Raises: MissingFile naming the object, LockDrift, IntegrityMismatch.
    """
    text = store.get_text(manifest_name(lock))
    place = f"{store.place}/{manifest_name(lock)}"
    if text is None:
        why = "a manifest is written when every file of its revision is there"
        raise MissingFile(place, "no such object", why, "mirror it first: mirror-models --to")
    known = documents.parse(text.decode("utf-8", "replace"), CheckpointLock, place)
    kept = {file.path: digest_of(file) for file in known.files}
    wrong = [file.path for file in lock.files if kept.get(file.path) != digest_of(file)]
    if wrong:
        why = "it was mirrored by another lock of the same commit"
        raise LockDrift(
            place, f"does not agree with the lock about {', '.join(wrong)}", why, "mirror it again with --to"
        )
    for file in lock.files:
        size = store.size(blob_name(file))
        if size is None:
            raise MissingFile(
                f"{store.place}/{blob_name(file)}",
                f"no such object ({file.path})",
                "somebody has removed it",
                "mirror it again with --to",
            )
        if size != file.size_bytes:
            raise _spoilt(store, file, f"{size} bytes")


def files_of(lock: CheckpointLock, store: Store) -> gateway.Files:
    """What a gateway serves of `lock` out of `store`."""
    return {
        (lock.repo, lock.revision, file.path): (file.size_bytes, partial(store.open, blob_name(file)))
        for file in lock.files
    }


class FolderStore:
    """A mirror in a plain folder: a shared file system, a disk that is carried."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.place = str(root)

    def size(self, name: str) -> int | None:
        path = self._root / name
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise from_os_error(error, path, "looking at the mirror") from error
        if not stat.S_ISREG(status.st_mode):
            raise from_os_error(OSError(errno.EINVAL, _NOT_REGULAR), path, "looking at the mirror")
        return status.st_size

    def put(self, name: str, source: Path, file: LockedFile) -> bool:
        target = self._root / name
        temporary = target.with_name(f".{_machine()}-{uuid.uuid4().hex}.part")
        hasher = Hasher(file)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with source.open("rb") as stream, _owned(temporary) as kept:
                    while piece := stream.read(_PIECE_BYTES):
                        hasher.update(piece)
                        kept.write(piece)
                    kept.flush()
                    os.fsync(kept.fileno())
                    if hasher.digest != digest_of(file):
                        raise changed(source, file, hasher.digest)
                    temporary.chmod(0o444)
                    try:
                        os.link(temporary, target)  # unlike a rename, it never replaces
                    except FileExistsError:
                        return False
            finally:
                remove_file(temporary)
            sync_folder(target.parent)
        except OSError as error:
            raise from_os_error(error, target, "writing to the mirror") from error
        return True

    def put_text(self, name: str, data: bytes) -> None:
        target = self._root / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise from_os_error(error, target, "writing to the mirror") from error
        write_durably(target, data)

    def get_text(self, name: str) -> bytes | None:
        try:
            return plain_bytes(Path(os.path.realpath(self._root / name)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise from_os_error(error, self._root / name, "reading the mirror") from error

    @contextmanager
    def open(self, name: str, start: int) -> Iterator[IO[bytes]]:
        path = self._root / name
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))
            stream.seek(start)
            yield stream

    def remove_left(self, progress: Progress = silent) -> None:
        """Nothing; what uploads have left half written is gone, with a note, unless it may still be written to.

        Raises: DiskFailure.
        """
        for place in ("blobs", "models"):
            for folder, _, names in os.walk(self._root / place):
                for name in filter(_HALF.fullmatch, names):
                    path = Path(folder, name)
                    try:
                        if _remove_left(path):
                            progress.note(f"{path} was left by an upload that was interrupted; removed")
                    except FileNotFoundError:
                        continue  # its upload has ended meanwhile
                    except OSError as error:
                        raise from_os_error(error, path, "removing what an upload has left") from error


_NOT_REGULAR = "not a regular file"


def _machine() -> str:
    """Eight digits for this machine since it was started: locks are seen by those that share them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        boot = str(uuid.getnode())
    return hashlib.sha256(boot.encode()).hexdigest()[:8]


@contextmanager
def _owned(path: Path) -> Iterator[IO[bytes]]:
    """A new file at `path` that is locked while the block writes it, so that nobody takes it for left."""
    while True:
        with path.open("xb") as stream:
            with suppress(OSError):  # a file system without locks: there, age alone tells
                fcntl.flock(stream, fcntl.LOCK_EX)
            if not path.exists():
                continue  # removed before it was locked
            yield stream
            return


def _remove_left(path: Path) -> bool:
    """Whether nobody writes to `path` any more; then it is gone.

    Raises: OSError.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        return False
    if time.time() - status.st_mtime > _LEFT_S:
        path.unlink()
        return True
    if not path.name.startswith(f".{_machine()}-"):
        return False
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        path.unlink()  # before the lock goes: its owner, should one just be beginning, sees that
    return True


def changed(source: Path, file: LockedFile, got: str) -> IntegrityMismatch:
    """The error of a file that is not, or no longer, what its lock says when it is about to be sent."""
    why = "only what is equal to its lock is mirrored"
    return IntegrityMismatch(source, f"expected {digest_of(file)}, got {got}", why, "fetch it again: fetch-models")


def _put(store: Store, name: str, folder: Path, file: LockedFile) -> bool:
    source = folder / file.path
    if not source.is_file():
        raise MissingFile(source, "no such file", "the whole checkpoint is mirrored", "fetch it first: fetch-models")
    if not isinstance(store, FolderStore):  # which hashes what it copies
        got = digest_on_disk(source, file)
        if got != digest_of(file):
            raise changed(source, file, got)
    return store.put(name, source, file)


def _write_manifest(lock: CheckpointLock, store: Store, progress: Progress) -> None:
    text = locks.text(lock).encode()
    before = store.get_text(manifest_name(lock))
    if before == text:
        return
    if before is not None:
        progress.note(f"{store.place}/{manifest_name(lock)} was of another lock of the same commit; replaced")
    store.put_text(manifest_name(lock), text)


def _spoilt(store: Store, file: LockedFile, got: str) -> IntegrityMismatch:
    return IntegrityMismatch(
        f"{store.place}/{blob_name(file)}",
        f"expected {digest_of(file)} and {file.size_bytes} bytes, got {got}",
        f"the object for {file.path} was damaged or overwritten",
        "remove the object, then mirror it again with --to",
    )


def _in_mirror_words(error: SlipwayError, url: str, place: str) -> SlipwayError:
    """`error` with the mirror's address for that of the gateway, which nobody knows."""
    texts = [text.replace(url, place) for text in (error.place, error.problem, error.why, error.remedy)]
    if isinstance(error, IntegrityMismatch):
        texts[3] = "nothing was published; remove the object from the mirror, then mirror it again with --to"
    return type(error)(*texts)
