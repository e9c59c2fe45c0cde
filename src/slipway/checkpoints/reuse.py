"""Files that need not be fetched: in other revisions of the store, or copied here by hand. Linked, cloned or copied by digest."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.checkpoints import publish, staging
from slipway.checkpoints.pins import MANIFEST, digest_of
from slipway.checkpoints.verify import digest_on_disk, digests_on_disk
from slipway.errors import DiskFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipway.checkpoints.pins import PinnedFile, Progress

_FICLONE = 0x40049409
"""Share the blocks of another file. Source: linux/fs.h, FICLONE."""


@dataclass(frozen=True)
class Held:
    """A file whose bytes are right: where it lies, and in which published folder, if in one."""

    path: Path
    folder: Path | None = None

    @property
    def inside(self) -> str:
        """The file's path in its published folder."""
        return str(self.path.relative_to(self.folder)) if self.folder else ""


def in_store(root: Path, files: Sequence[PinnedFile]) -> dict[str, Held]:
    """Per path of `files`, an untouched file with its digest in any folder published under `root`."""
    wanted: dict[str, list[PinnedFile]] = {}
    for file in files:
        wanted.setdefault(digest_of(file), []).append(file)
    found: dict[str, Held] = {}
    for manifest in sorted((root / ".store").glob(f"[!.]*/*/*/{MANIFEST}")):
        folder = manifest.parent
        if folder.is_symlink():
            continue
        for path, known in publish.read_any_manifest(folder).items():
            for file in wanted.get(str(known.get("digest")), ()):
                if file.path not in found and _untouched(folder, path, known, file):
                    found[file.path] = Held(folder / path, folder)
    return found


def in_folder(folder: Path, files: Sequence[PinnedFile], workers: int, progress: Progress) -> dict[str, Held]:
    """Per path of `files`, the file in `folder` at the same path, once every byte of it was hashed and is right."""
    here = [file for file in files if _is_plain(folder, file)]
    before = [os.lstat(folder / file.path) for file in here]
    digests = digests_on_disk(folder, here, workers, progress)
    return {
        file.path: Held(folder / file.path)
        for file, status, digest in zip(here, before, digests)  # noqa: B905 -- 3.8
        if digest == digest_of(file) and _same(status, os.lstat(folder / file.path))
    }


def place(file: PinnedFile, held: Held, tree: Path) -> bool:
    """Whether the held file, which `tree` then has too, is a hard link; if not, it shares its blocks where the file system can.

    A link changes the ctime of the file: the folder that it was held in is to be told (`publish.remember_links`).

    Raises: DiskFailure when a copy differs from what was hashed before.
    """
    target = tree / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    linked = _linked(held.path, target)
    if not linked and not _cloned(held.path, target):
        shutil.copyfile(held.path, target)
        if digest_on_disk(target, file) != digest_of(file):
            raise DiskFailure(held.path, "changed while it was copied", "", "fetch again")
    with target.open("rb") as stream:
        if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) != 0o444:
            os.fchmod(stream.fileno(), 0o444)
        os.fsync(stream.fileno())
    return linked


def remove(root: Path, folder: Path) -> None:
    """Nothing; the published `folder` is gone, and revisions that share files with it by hard link stay untouched by stat.

    Raises: DiskFailure.
    """
    inodes = {os.lstat(folder / path).st_ino for path in publish.files_in(folder)}
    sharing: dict[Path, list[str]] = {}
    for manifest in (root / ".store").glob(f"[!.]*/*/*/{MANIFEST}"):
        other = manifest.parent
        if other == folder or other.is_symlink():
            continue
        for path, known in publish.read_any_manifest(other).items():
            if known.get("inode") in inodes and _ctime_ns(other / path) == known.get("ctime_ns"):
                sharing.setdefault(other, []).append(path)
    staging.remove_tree(folder)
    for other, paths in sharing.items():
        publish.remember_links(other, paths)


def set_aside(folder: Path) -> Path:
    """Where `folder` is now, beside its old place, so that a link can take that place."""
    aside = folder.with_name(f"{folder.name}.replaced-{uuid.uuid4().hex[:8]}")
    folder.rename(aside)
    return aside


def drop_shared(aside: Path, published: Path, files: Sequence[PinnedFile]) -> bool:
    """Whether something is left in `aside` once the files that `published` shares with it, and empty folders, are gone."""
    for file in files:
        left = aside / file.path
        if _is_plain(aside, file) and left.lstat().st_ino == (published / file.path).lstat().st_ino:
            left.unlink()
    for parent, _, _ in os.walk(aside, topdown=False):
        try:
            Path(parent).rmdir()
        except OSError:
            continue  # not empty
    return aside.exists()


def _ctime_ns(path: Path) -> int | None:
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return None  # missing there: that revision is damaged anyway


def _untouched(folder: Path, path: str, known: dict[str, object], file: PinnedFile) -> bool:
    try:
        status = os.lstat(folder / path)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and known == publish.identity(status, file)


def _is_plain(folder: Path, file: PinnedFile) -> bool:
    """Whether there is a regular file of the right length, with no link on the way to it."""
    parents = [folder.joinpath(*Path(file.path).parts[:depth]) for depth in range(1, len(Path(file.path).parts))]
    try:
        status = os.lstat(folder / file.path)
    except OSError:
        return False
    sound = stat.S_ISREG(status.st_mode) and status.st_size == file.size_bytes
    return sound and not any(parent.is_symlink() for parent in parents)


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)


def _linked(source: Path, target: Path) -> bool:
    """Whether `target` is now a hard link to `source`; where it cannot be one, it is to be copied."""
    if os.lstat(source).st_uid != os.geteuid():
        return False  # whoever owns the inode could change it afterwards
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _cloned(source: Path, target: Path) -> bool:
    """Whether `target` is now a new file that shares all blocks of `source`."""
    with source.open("rb") as giver, target.open("xb") as taker:
        try:
            fcntl.ioctl(taker.fileno(), _FICLONE, giver.fileno())
        except OSError:
            return False
    return True
