"""What lies in a models folder: every published checkpoint, at which revision, how big, and when it was last proved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slipway.checkpoints import records
from slipway.checkpoints.pins import MANIFEST
from slipway.errors import from_os_error


@dataclass(frozen=True)
class Shelved:
    """One published folder. `names` are the links in the models folder that lead to it: none, for a revision that was replaced.

    `apparent_bytes` is the sum of its files' sizes; `shared_bytes` the part of it that other folders hold too, by hard links.
    `fetched_s` is when the newest of its files came, in seconds since the epoch (the manifest is written anew when another
    revision comes to share files). A folder that a person has put there has no `repo`.
    """

    folder: Path
    names: tuple[str, ...]
    repo: str | None
    revision: str | None
    files: int
    apparent_bytes: int
    shared_bytes: int
    fetched_s: float
    proved: dict[str, str] = field(default_factory=dict)


def shelf(root: Path) -> tuple[Shelved, ...]:
    """Everything in the models folder `root`, by repository and then the newest first; empty when there is no such folder.

    Raises: DiskFailure.
    """
    try:
        links = linked(root)
        found = [_shelved(folder, links) for folder in published(root)]
        found += [_foreign(folder) for folder in _folders(root)]
    except OSError as error:
        raise from_os_error(error, root, "looking at the models folder") from error
    return tuple(sorted(found, key=lambda item: (item.repo or "~", -item.fetched_s)))


def published(root: Path) -> Iterator[Path]:
    """The folders that Slipway has published below `root`, linked or not."""
    for owner in _folders(root / ".store"):
        for repo in _folders(owner):
            yield from _folders(repo)


def linked(root: Path) -> dict[Path, tuple[str, ...]]:
    """Published folder → the names of the links in `root` that lead to it."""
    names: dict[Path, tuple[str, ...]] = {}
    for entry in sorted(root.iterdir()) if root.is_dir() else ():
        if entry.is_symlink():
            target = Path(os.path.normpath(root / entry.readlink()))
            names[target] = (*names.get(target, ()), entry.name)
    return names


def _shelved(folder: Path, links: dict[Path, tuple[str, ...]]) -> Shelved:
    files, apparent, shared, newest_s = _sizes(folder)
    return Shelved(
        folder=folder,
        names=links.get(Path(os.path.normpath(folder)), ()),
        repo=f"{folder.parents[1].name}/{folder.parent.name}",
        revision=folder.name.split(".")[0],
        files=files,
        apparent_bytes=apparent,
        shared_bytes=shared,
        fetched_s=newest_s,
        proved=records.read_proved(folder),
    )


def _foreign(folder: Path) -> Shelved:
    return Shelved(folder, (folder.name,), None, None, *_sizes(folder))


def _sizes(folder: Path) -> tuple[int, int, int, float]:
    """Files, their bytes, those bytes that other links lead to as well, and the newest mtime; the manifest is not counted."""
    sizes = []
    newest_s = 0.0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name != MANIFEST:
                status = (Path(parent) / name).lstat()
                sizes.append((status.st_size, status.st_nlink))
                newest_s = max(newest_s, status.st_mtime)
    return len(sizes), sum(size for size, _ in sizes), sum(size for size, links in sizes if links > 1), newest_s


def _folders(folder: Path) -> Iterator[Path]:
    """The plain folders in `folder`, sorted, without hidden ones."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield entry
