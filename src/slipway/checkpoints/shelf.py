"""What lies in a models folder: every published checkpoint, at which revision, how big, and when it was last proved."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from slipway.checkpoints import records
from slipway.checkpoints.pins import MANIFEST
from slipway.errors import from_os_error

_DEPTH = 3
"""A published folder is `.store/<owner>/<name>/<folder>`."""

_PUBLISHED = re.compile(r"[0-9a-f]{40}(?:\.[0-9A-Za-z_-]+)?")
"""Its name: the commit, and something unique where a repair has made it."""


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
        found = [item for item in found if item.folder.is_dir()]  # without what a repair has replaced meanwhile
    except OSError as error:
        raise from_os_error(error, root, "looking at the models folder") from error
    return tuple(sorted(found, key=lambda item: (item.repo or "~", -item.fetched_s)))


def published(root: Path) -> Iterator[Path]:
    """The folders that Slipway has published below `root`, linked or not; what else lies beside them is somebody's own."""
    for owner in _folders(root / ".store"):
        for repo in _folders(owner):
            yield from (folder for folder in _folders(repo) if _PUBLISHED.fullmatch(folder.name))


def linked(root: Path) -> dict[Path, tuple[str, ...]]:
    """Published folder, resolved → the names of the links below `root` that lead to it or into it, over other links too."""
    names: dict[Path, tuple[str, ...]] = {}
    store = (root / ".store").resolve()
    for link in _links(root):
        try:
            inside = link.resolve().relative_to(store).parts
        except (ValueError, OSError, RuntimeError):
            continue  # it leads elsewhere, or round in a circle
        if len(inside) >= _DEPTH:
            target = store.joinpath(*inside[:_DEPTH])
            names[target] = (*names.get(target, ()), link.relative_to(root).as_posix())
    return names


def _shelved(folder: Path, links: dict[Path, tuple[str, ...]]) -> Shelved:
    files, apparent, shared, newest_s = _sizes(folder)
    return Shelved(
        folder=folder,
        names=links.get(folder.resolve(), ()),
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
            if name == MANIFEST:
                continue
            with suppress(FileNotFoundError):  # gone since it was listed
                status = (Path(parent) / name).lstat()
                sizes.append((status.st_size, status.st_nlink))
                newest_s = max(newest_s, status.st_mtime)
    return len(sizes), sum(size for size, _ in sizes), sum(size for size, links in sizes if links > 1), newest_s


def _links(root: Path) -> list[Path]:
    """The links below `root`, sorted, those of the store's own folders too; published folders have none."""
    found = []
    store = root / ".store"
    for parent, folders, names in os.walk(root):
        here = Path(parent)
        found += [path for path in (here / name for name in [*folders, *names]) if path.is_symlink()]
        if store in here.parents:
            depth = len(here.relative_to(store).parts)
            folders[:] = [] if depth >= _DEPTH - 1 else folders
        elif here == store:
            folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


def _folders(folder: Path) -> Iterator[Path]:
    """The plain folders in `folder`, sorted, without hidden ones; none when it is gone."""
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield entry
