"""Files that need not be fetched: in other revisions of the store, or copied here by hand. Linked, cloned or copied by digest."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.checkpoints import publish, staging
from slipway.checkpoints.digests import OnDisk, digest_on_disk, digests_on_disk
from slipway.checkpoints.pins import MANIFEST, digest_of
from slipway.errors import DiskFailure, SlipwayError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from slipway.checkpoints.pins import PinnedFile, Pins, Progress

_FICLONE = 0x40049409
"""Share the blocks of another file. Source: linux/fs.h, FICLONE."""


@dataclass(frozen=True)
class Held:
    """A file whose bytes are right: where it lies, and in which published folder, if in one.

    `status` is what stat said of it before its bytes were hashed: whatever differs from that was not hashed.
    """

    path: Path
    folder: Path | None = None
    status: os.stat_result | None = None

    @property
    def inside(self) -> str:
        """The file's path in its published folder."""
        return str(self.path.relative_to(self.folder)) if self.folder else ""


def proved(held: Mapping[str, Held], files: Sequence[PinnedFile], workers: int, progress: Progress) -> dict[str, Held]:
    """Those of `held` (by the path of one of `files`) whose every byte was hashed now and is right."""
    here = [file for file in files if file.path in held]
    paths = [held[file.path].path for file in here]
    before = [_status(path) for path in paths]
    wanted = [OnDisk(path, file) for path, file in zip(paths, here)]  # noqa: B905 -- 3.8
    digests = digests_on_disk(wanted, workers, progress, "hashing what is on this disk")
    statuses = [
        status if digest.digest == digest_of(one.file) and _same(status, _status(one.path)) else None
        for status, one, digest in zip(before, wanted, digests)  # noqa: B905 -- 3.8
    ]
    found = {file.path: status for file, status in zip(here, statuses) if status}  # noqa: B905 -- 3.8
    return {path: replace(held[path], status=status) for path, status in found.items()}


def in_store(root: Path, files: Sequence[PinnedFile], workers: int, progress: Progress) -> dict[str, Held]:
    """Per path of `files`, a file with its digest in any folder published under `root`, once every byte of it was hashed.

    A file that is wrong although stat sees nothing is doubtful from then on in its own folder, with a note.
    """
    found: dict[str, Held] = {}
    wrong: set[Path] = set()
    while True:
        maybe = _untouched_in_store(root, [file for file in files if file.path not in found], wrong)
        if not maybe:
            return found
        right = proved(maybe, files, workers, progress)
        found.update(right)
        for one in (one for path, one in maybe.items() if path not in right):
            wrong.add(one.path)
            if one.folder:
                doubt(one.folder, [one.inside], progress)


def remember_touched(lock: Pins, survey: publish.Survey, right: Mapping[str, Held]) -> None:
    """Nothing; files that were touched, and hashed since, are good again as they were when they were hashed.

    Raises: DiskFailure when one has changed since.
    """
    seen = {**survey.seen, **{path: one.status for path, one in right.items() if one.status}}
    publish.write_manifest(lock, survey.folder, seen=seen)
    if not publish.survey(lock, survey.folder).intact:
        raise DiskFailure(survey.folder, "changed while it was hashed", "", "find what writes there, and fetch again")


def doubt(folder: Path, paths: Collection[str], progress: Progress) -> None:
    """Nothing; `paths` in the published `folder` are wrong: said, and remembered so that they are hashed at the next look."""
    progress.note(f"damaged in {folder}, unseen by stat: {', '.join(sorted(paths))}")
    try:
        publish.forget(folder, paths)
    except (OSError, SlipwayError) as error:
        progress.note(f"that files in {folder} are damaged is not recorded: {error}")


def _untouched_in_store(root: Path, files: Sequence[PinnedFile], but: Collection[Path]) -> dict[str, Held]:
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
                if file.path not in found and folder / path not in but and _untouched(folder, path, known, file):
                    found[file.path] = Held(folder / path, folder)
    return found


def in_folder(folder: Path, files: Sequence[PinnedFile], workers: int, progress: Progress) -> dict[str, Held]:
    """Per path of `files`, the file in `folder` at the same path, once every byte of it was hashed and is right."""
    return proved(
        {file.path: Held(folder / file.path) for file in files if _is_plain(folder, file)}, files, workers, progress
    )


def place(file: PinnedFile, held: Held, tree: Path) -> bool:
    """Whether the held file, which `tree` then has too, is a hard link; if not, it shares its blocks where the file system can.

    A link changes the ctime of the file: the folder that it was held in is to be told (`publish.remember_links`).

    Raises: DiskFailure when it differs from what was hashed before.
    """
    target = tree / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    before = held.status or os.lstat(held.path)
    known = _same(before, _status(held.path))
    linked = _linked(held.path, target)
    if linked:
        # The link itself changes ctime; a write would have changed mtime too.
        known = known and _same_bytes(before, os.lstat(target))
    else:
        known = known and _cloned(held.path, target) and _same(before, _status(held.path))
        if not known:
            shutil.copyfile(held.path, target)
    if not known:
        hashed(target, file)
    with target.open("rb") as stream:
        if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) != 0o444:
            os.fchmod(stream.fileno(), 0o444)
        os.fsync(stream.fileno())
    return linked


def hashed(path: Path, file: PinnedFile) -> os.stat_result:
    """What stat says of `path`, whose every byte was hashed while that was so, and is right.

    Raises: DiskFailure.
    """
    for _ in range(3):
        before = _status(path)
        if digest_on_disk(path, file) != digest_of(file):
            break
        if before and _same(before, _status(path)):
            return before
    raise DiskFailure(
        path,
        "changed while the checkpoint was put together",
        "it was right when it was hashed; nothing was published",
        "find what writes there, and fetch again",
    )


def settled(file: PinnedFile, tree: Path, seen: os.stat_result, *, links: bool) -> os.stat_result:
    """What stat says of `file` in `tree` now; hashed again unless that is what was `seen`, but for the ctime if `links` came.

    Raises: DiskFailure when its bytes have changed.
    """
    now = os.lstat(tree / file.path)
    return now if _same(seen, now) or (links and _same_bytes(seen, now)) else hashed(tree / file.path, file)


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


def keep_strangers(folder: Path, strangers: Sequence[str], link: Path) -> Path | None:
    """Where `strangers` in the published `folder` are now: beside `link`, before the folder is removed. None if there are none."""
    if not strangers:
        return None
    aside = link.with_name(f"{link.name}.replaced-{uuid.uuid4().hex[:8]}")
    for path in strangers:
        (folder / path).parent.chmod(0o755)
        (aside / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).rename(aside / path)
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


def _status(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _same(before: os.stat_result | None, after: os.stat_result | None) -> bool:
    return (
        before is not None
        and after is not None
        and _same_bytes(before, after)
        and before.st_ctime_ns == after.st_ctime_ns
    )


def _same_bytes(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether nobody has written, as far as stat tells; links and modes may differ."""
    return all(getattr(before, key) == getattr(after, key) for key in ("st_size", "st_ino", "st_mtime_ns"))


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
