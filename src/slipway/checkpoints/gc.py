"""What may be removed from a models folder, and its removal.

Kept: whatever a link names, the last few other revisions of each repository, and everything that a living process may still be
writing. Removed: older revisions, folders that a repair has replaced, parts of interrupted fetches once they are old enough, and
what huggingface_hub left behind when it was killed, which it neither resumes nor removes.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slipway.checkpoints import publish, records, staging
from slipway.checkpoints.shelf import Shelved, linked, published, shelf
from slipway.errors import UsageError, from_os_error
from slipway.progress import Progress, silent

KEEP_REVISIONS = 1
"""Revisions of each repository that stay besides what links name: enough to go back by one."""

OLD_S = 7 * 24 * 3600
"""From this age on, what an interrupted fetch has left is not waited for any more."""


_INCOMPLETE = re.compile(r"[0-9A-Za-z_=-]+(?:\.[0-9A-Za-z_-]+)*\.incomplete")


@dataclass(frozen=True)
class Removal:
    """One thing to be removed; `bytes` is what its removal frees on disk, in this order of removals."""

    path: Path
    bytes: int
    why: str


def plan(root: Path, *, keep_revisions: int = KEEP_REVISIONS, older_s: float = OLD_S) -> tuple[Removal, ...]:
    """What may be removed from the models folder `root`; nothing is.

    Raises: UsageError, DiskFailure.
    """
    if keep_revisions < 0 or older_s < 0:
        raise UsageError("--keep or --older-h", "must not be negative", "", "give 0 or more")
    publish.refuse_links(root)
    found: list[tuple[Path, str]] = []
    try:
        found += [(item.folder, why) for item, why in _superseded(shelf(root), keep_revisions)]
        found += list(_parts(root, older_s))
        found += list(_incomplete(root, older_s))
        freed = _freed([path for path, _ in found])
    except OSError as error:
        raise from_os_error(error, root, "looking at the models folder") from error
    return tuple(Removal(path, size, why) for (path, why), size in zip(found, freed, strict=True))


def remove(root: Path, removals: Sequence[Removal], *, progress: Progress = silent) -> tuple[Removal, ...]:
    """Those of `removals` that are gone now. What a link has come to name since they were planned stays, with a note.

    Raises: DiskFailure; what was removed before stays removed.
    """
    publish.refuse_links(root)
    gone = []
    for removal in removals:
        try:
            if _remove(root, removal.path, progress):
                gone.append(removal)
        except OSError as error:
            raise from_os_error(error, removal.path, "removing it") from error
    return tuple(gone)


def _superseded(items: Sequence[Shelved], keep_revisions: int) -> Iterator[tuple[Shelved, str]]:
    """The published folders that neither a link nor the number of revisions to keep protects."""
    for repo in sorted({item.repo for item in items if item.repo}):
        mine = [item for item in items if item.repo == repo]  # the newest first
        current = {item.revision for item in mine if item.names}
        others = list(dict.fromkeys(item.revision for item in mine if item.revision not in current))
        seen = set(current)
        for item in mine:
            if item.names:
                continue
            if item.revision in seen:
                yield item, "another folder of the same revision has replaced it"
            elif item.revision not in others[:keep_revisions]:
                yield item, f"an older revision; the last {keep_revisions} besides the one in use are kept"
            seen.add(item.revision)


def _parts(root: Path, older_s: float) -> Iterator[tuple[Path, str]]:
    """Staging folders without a living owner in which nothing was written for so long."""
    place = root / ".store" / ".staging"
    for left in sorted(place.iterdir()) if place.is_dir() else ():
        if left.is_symlink() or not left.is_dir():
            continue
        try:
            age_s = time.time() - staging.last_written_s(left)
            owned = staging.is_owned(left)
        except FileNotFoundError:
            continue  # its owner has just finished
        if age_s >= older_s and not owned:
            yield left, f"left by a fetch that was interrupted {age_s / 3600:.0f} h ago"


def _incomplete(root: Path, older_s: float) -> Iterator[tuple[Path, str]]:
    """Files that huggingface_hub was downloading when it was killed: each try has a name of its own, so none is resumed.

    Source: huggingface_hub 2.4.0 file_download.py, read 2026-11-30.
    """
    for parent, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != ".store"]
        for name in sorted(names):
            path = Path(parent, name)
            if _is_of_hub_library(path) and not path.is_symlink():
                try:
                    age_s = time.time() - path.lstat().st_mtime
                except FileNotFoundError:
                    continue  # it has come to its end
                if age_s >= older_s:
                    yield path, f"a download of huggingface_hub that ended {age_s / 3600:.0f} h ago"


def _is_of_hub_library(path: Path) -> bool:
    """Whether huggingface_hub names its parts so: in a cache's `blobs`, or in the hidden folder beside files of its own."""
    in_cache = path.parent.name == "blobs" and re.match("(models|datasets|spaces)--", path.parents[1].name)
    beside = "/.cache/huggingface/download/" in f"{path.as_posix()}"
    return bool((in_cache or beside) and _INCOMPLETE.fullmatch(path.name))


def _freed(paths: Sequence[Path]) -> list[int]:
    """Bytes on disk that the removal of each path frees; a file counts where its last link goes."""
    links: Counter[tuple[int, int]] = Counter()
    freed = []
    for path in paths:
        size = 0
        for file in _files(path):
            try:
                status = file.lstat()
            except FileNotFoundError:
                continue  # gone since it was listed
            links[status.st_dev, status.st_ino] += 1
            if links[status.st_dev, status.st_ino] == status.st_nlink:
                size += status.st_blocks * 512
        freed.append(size)
    return freed


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir() or path.is_symlink():
        yield path
        return
    for parent, _, names in os.walk(path):
        yield from (Path(parent, name) for name in names)


def _remove(root: Path, path: Path, progress: Progress) -> bool:
    store = root / ".store"
    if path.parent == store / ".staging":
        if not path.is_dir():
            return False  # a fetch was faster
        if staging.is_owned(path):
            progress.note(f"{path} is in use again; kept")
            return False
        staging.remove_tree(path)
        return True
    if store not in path.parents:
        path.unlink(missing_ok=True)
        return True
    repo = f"{path.parents[1].name}/{path.parent.name}"
    with staging.one_at_a_time(root, repo, progress):
        if not path.is_dir():
            return False  # a repair was faster
        if path.resolve() in linked(root):
            progress.note(f"{path} is linked now; kept")
            return False
        _remove_published(root, path)
    return True


def _remove_published(root: Path, folder: Path) -> None:
    """Nothing; `folder` is gone: from its place at once, and then from the disk."""
    sharing = _sharing(root, folder)
    for kind in ("proved", "chunks"):
        place = records.place_of(folder, kind)
        if place is not None:
            place.unlink(missing_ok=True)
    aside = root / ".store" / ".staging" / uuid.uuid4().hex
    aside.parent.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)  # a folder that moves is written to: its parent changes
    folder.rename(aside)
    staging.remove_tree(aside)
    for other, paths in sharing.items():
        # A hard link less is a new ctime; without this the next look would hash the files again.
        publish.remember_links(other, paths)


def _sharing(root: Path, folder: Path) -> dict[Path, list[str]]:
    """Other published folder → its untouched files that are hard links to files of `folder`."""
    mine = {file.lstat().st_ino for file in _files(folder)}
    found: dict[Path, list[str]] = {}
    for other in published(root):
        if other == folder:
            continue
        for path, known in publish.read_any_manifest(other).items():
            status = (other / path).lstat() if os.path.lexists(other / path) else None
            if status is None or status.st_ino not in mine:
                continue
            now = {"size_bytes": status.st_size, "inode": status.st_ino, "mtime_ns": status.st_mtime_ns}
            if all(known.get(key) == value for key, value in {**now, "ctime_ns": status.st_ctime_ns}.items()):
                found.setdefault(other, []).append(path)
    return found
