"""What is remembered about a published folder beside the folder itself: when it was last proved, and digests of its chunks.

::

    ROOT/.store/.records/<owner>/<name>/<folder>.proved.json    level → when
    ROOT/.store/.records/<owner>/<name>/<folder>.chunks.json    file → digest of every 64 MiB

A published folder is read-only and holds nothing but its checkpoint and manifest, so records live outside of it. Chunk digests
are bound to the locked digest of their file: a record of other bytes is not used.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.checkpoints.pins import MANIFEST, digest_of, plain_bytes
from slipway.checkpoints.publish import refuse_link, refuse_links
from slipway.durable import remove_file, write_durably
from slipway.errors import SlipwayError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from slipway.checkpoints.pins import PinnedFile, Pins, Progress

CHUNK_BYTES = 64 << 20

_PROVED, _CHUNKS = "slipway/checkpoint-proved/v1", "slipway/checkpoint-chunks/v1"


def place_of(folder: Path, kind: str) -> Path | None:
    """Where records of `folder` (or of what it links to) lie; None for a folder that Slipway did not publish."""
    real = folder.resolve()
    parents = real.parents
    if len(parents) < 4 or parents[2].name != ".store" or not (real / MANIFEST).is_file():
        return None
    return parents[2] / ".records" / parents[1].name / parents[0].name / f"{real.name}.{kind}.json"


def read_proved(folder: Path) -> dict[str, str]:
    """Level → when `folder` last passed it, as `2026-11-30T23:14:10Z`; empty when it was never verified since it was fetched."""
    levels = _read(place_of(folder, "proved"), _PROVED).get("levels")
    return {str(level): str(when) for level, when in levels.items()} if isinstance(levels, dict) else {}


def write_proved(lock: Pins, folder: Path, level: str) -> None:
    """Nothing; `folder` has passed `level` now. A folder that Slipway did not publish keeps no record.

    Raises: DiskFailure, OSError.
    """
    place = place_of(folder, "proved")
    if place is None:
        return
    levels = {**read_proved(folder), level: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    _write(place, {"schema": _PROVED, "repo": lock.repo, "revision": lock.revision, "levels": levels})


def withdraw_proved(folder: Path) -> None:
    """Nothing; nothing is claimed of `folder` any more.

    Raises: DiskFailure, OSError.
    """
    place = place_of(folder, "proved")
    if place is not None and place.exists():
        _refuse_links_to(place)
        remove_file(place)


def remember_fetch(lock: Pins, folder: Path, *, skipped: bool, progress: Progress) -> None:
    """Nothing; a fetch hashes every byte, so what it has published counts as verified in full, unless nothing was fetched."""
    if skipped:
        return
    try:
        write_proved(lock, folder, "full")
    except (OSError, SlipwayError) as error:
        progress.note(f"that {folder} was proved is not recorded: {error}")


def read_chunks(lock: Pins, folder: Path, chunk_bytes: int = CHUNK_BYTES) -> dict[str, list[str]]:
    """Path → chunk digests, of those files of `lock` whose locked bytes were chunked by `chunk_bytes` before."""
    data = _read(place_of(folder, "chunks"), _CHUNKS)
    files = data.get("files")
    if data.get("chunk_bytes") != chunk_bytes or not isinstance(files, dict):
        return {}
    found = {}
    for file in lock.files:
        known = files.get(file.path)
        if not isinstance(known, dict) or known.get("digest") != digest_of(file):
            continue
        chunks = known.get("chunks")
        if isinstance(chunks, list) and len(chunks) == chunk_count(file, chunk_bytes):
            found[file.path] = [str(digest) for digest in chunks]
    return found


def write_chunks(lock: Pins, folder: Path, chunks: Mapping[str, Sequence[str]], chunk_bytes: int = CHUNK_BYTES) -> None:
    """Nothing; `chunks` of files that agree with `lock` are remembered, besides what was.

    Raises: DiskFailure, OSError.
    """
    place = place_of(folder, "chunks")
    if place is None:
        return
    known = {**read_chunks(lock, folder, chunk_bytes), **{path: list(found) for path, found in chunks.items()}}
    files = {
        file.path: {"digest": digest_of(file), "chunks": known[file.path]} for file in lock.files if file.path in known
    }
    _write(place, {"schema": _CHUNKS, "chunk_bytes": chunk_bytes, "algorithm": "sha256", "files": files})


def forget_chunks(lock: Pins, folder: Path, paths: Collection[str], chunk_bytes: int = CHUNK_BYTES) -> None:
    """Nothing; the chunk digests of `paths` are not known any more, so the next full check records them anew.

    Raises: DiskFailure, OSError.
    """
    place = place_of(folder, "chunks")
    known = read_chunks(lock, folder, chunk_bytes)
    if place is not None and known.keys() & set(paths):
        remove_file(place)
        write_chunks(lock, folder, {path: found for path, found in known.items() if path not in paths}, chunk_bytes)


def chunk_count(file: PinnedFile, chunk_bytes: int = CHUNK_BYTES) -> int:
    """How many chunks `file` has; an empty file has one."""
    return max(-(-file.size_bytes // chunk_bytes), 1)


def _read(place: Path | None, schema: str) -> dict[str, Any]:
    if place is None:
        return {}
    try:
        data = json.loads(plain_bytes(place))
    except (OSError, ValueError, RecursionError):
        return {}  # without a record nothing is claimed
    return data if isinstance(data, dict) and data.get("schema") == schema else {}


def _write(place: Path, data: dict[str, Any]) -> None:
    _refuse_links_to(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_durably(place, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode())


def _refuse_links_to(place: Path) -> None:
    """Nothing, when no folder of Slipway's on the way to `place` is a link."""
    refuse_links(place.parents[4])
    for folder in (place.parents[1], place.parents[0]):
        if os.path.lexists(folder):
            refuse_link(folder)
