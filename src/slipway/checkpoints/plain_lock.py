"""A lock read with the standard library alone, for hosts that have nothing but a `python3`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipway.checkpoints.pins import refuse_unsafe
from slipway.errors import UsageError, from_os_error

SCHEMA = "slipway/checkpoint-lock/v1"

_HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "git_sha1": re.compile(r"[0-9a-f]{40}")}


@dataclass(frozen=True)
class PlainFile:
    """One locked file, as `pins.PinnedFile` describes it."""

    path: str
    size_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None


@dataclass(frozen=True)
class PlainLock:
    """A whole lock, as `pins.Pins` describes it."""

    repo: str
    revision: str
    files: tuple[PlainFile, ...]


def read(path: Path) -> PlainLock:
    """The lock at `path`. What `slipway.checkpoints.lock` checks when it is written is not checked again, but for its safety.

    Raises: MissingFile, DiskFailure, UsageError.
    """
    try:
        data = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise from_os_error(error, path, "reading the lock") from error
    except (ValueError, RecursionError):
        raise _unusable(path, "is not JSON in UTF-8") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise _unusable(path, "has another schema")
    files = data.get("files")
    if not isinstance(files, list) or not files:
        raise _unusable(path, "names no files")
    lock = PlainLock(str(data.get("repo")), str(data.get("revision")), tuple(_file(path, entry) for entry in files))
    refuse_unsafe(lock)
    return lock


def _file(path: Path, entry: Any) -> PlainFile:
    entry = entry if isinstance(entry, dict) else {}
    name, size = entry.get("path"), entry.get("size_bytes")
    digests = {kind: entry[kind] for kind in _HEX if entry.get(kind) is not None}
    sound = isinstance(name, str) and type(size) is int and 0 <= size < 1 << 62 and len(digests) == 1
    if not sound or not all(isinstance(text, str) and _HEX[kind].fullmatch(text) for kind, text in digests.items()):
        raise _unusable(path, f"has a file entry without path, size_bytes and one digest (got {ascii(entry)[:120]})")
    return PlainFile(name, size, **digests)


def _unusable(path: Path, problem: str) -> UsageError:
    return UsageError(path, problem, f"a lock of schema {SCHEMA}", "make the lock anew: lock-models")
