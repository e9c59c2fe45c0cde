"""A folder held against its lock, offline: by stat, by structure, or by every byte."""

from __future__ import annotations

import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.checkpoints import publish, structure
from slipway.checkpoints.findings import Finding, refuse
from slipway.checkpoints.pins import MANIFEST, Hasher, Pins, Progress, digest_of, refuse_unsafe, silent
from slipway.errors import MissingFile, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slipway.checkpoints.pins import PinnedFile

LEVELS = ("stat", "structure", "full")
"""From the cheapest to the one that reads every byte; each includes those before it."""

_PIECE_BYTES = 1 << 21


@dataclass(frozen=True)
class Verification:
    """A folder that agrees with its lock: `files` and `bytes` were looked at, at this level, in so many seconds."""

    level: str
    files: int
    bytes: int
    seconds: float


def verify(
    lock: Pins, folder: Path, *, level: str = "full", workers: int = 4, progress: Progress = silent
) -> Verification:
    """What was verified, when `folder` holds the files of `lock` and no others.

    `stat`: presence, sizes and, where Slipway published the folder, that no file was touched since. `structure`: headers,
    index and config besides. `full`: the digest of every byte, `workers` files at a time.

    Raises: MissingFile, IntegrityMismatch or DiskFailure with every bad file named; UsageError for an unknown level.
    """
    began_s = time.monotonic()
    if level not in LEVELS:
        raise UsageError("--level", f"is not known (got {level!r})", f"one of {', '.join(LEVELS)}", "choose one")
    refuse_unsafe(lock)
    if not folder.is_dir():
        raise MissingFile(folder, "no such folder", "a fetched checkpoint is verified here", "fetch it: fetch-models")
    findings = _by_stat(lock, folder, touched=level != "full")
    wrong = {finding.path for finding in findings}
    if level == "full":
        present = [file for file in lock.files if file.path not in wrong]
        findings += _by_digest(folder, present, workers, progress)
    refuse(folder, findings)
    if level != "stat" and any(file.path.endswith(structure.SHARD_SUFFIX) for file in lock.files):
        structure.check(folder, digests_known=level == "full")
    size = sum(file.size_bytes for file in lock.files)
    return Verification(level, len(lock.files), size, time.monotonic() - began_s)


def digest_on_disk(path: Path, file: PinnedFile, advance: Callable[[int], None] | None = None) -> str:
    """The digest of the bytes at `path`, comparable with that of `file`; a text that equals none when it cannot be read."""
    hasher = Hasher(file)
    buffer = memoryview(bytearray(_PIECE_BYTES))
    try:
        # A pipe put in the file's place must not block the check.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return "not a regular file"
            while True:
                count = stream.readinto(buffer)
                if not count:
                    return hasher.digest
                hasher.update(buffer[:count])
                if advance:
                    advance(count)
    except OSError as error:
        return f"{_UNREADABLE}{error.strerror}"


_UNREADABLE = "cannot be read: "


def digests_on_disk(folder: Path, files: Sequence[PinnedFile], workers: int, progress: Progress) -> list[str]:
    """The digest of each of `files` as it lies in `folder`, in their order, `workers` files at a time."""
    counted = threading.Lock()
    with progress.track(f"hashing {folder}", sum(file.size_bytes for file in files)) as advance:

        def count(amount: int) -> None:
            with counted:
                advance(amount)

        with ThreadPoolExecutor(max(workers, 1)) as pool:
            return list(pool.map(lambda file: digest_on_disk(folder / file.path, file, count), files))


def _by_stat(lock: Pins, folder: Path, *, touched: bool) -> list[Finding]:
    """What stat finds wrong; with `touched`, also files that changed since the manifest was written."""
    remembered = publish.read_manifest(folder, lock)
    findings = []
    for file in lock.files:
        try:
            status = os.stat(folder / file.path)  # noqa: PTH116 -- one call, no object
        except OSError as error:
            gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
            text = "is missing" if gone else f"cannot be looked at: {error.strerror}"
            findings.append(Finding(file.path, text, "missing" if gone else "disk"))
            continue
        known = remembered.get(file.path)
        if not stat.S_ISREG(status.st_mode):
            findings.append(Finding(file.path, "is not a regular file"))
        elif status.st_size != file.size_bytes:
            findings.append(Finding(file.path, f"expected {file.size_bytes} bytes, got {status.st_size}"))
        elif touched and known and known != publish.identity(os.lstat(folder / file.path), file):
            text = "was touched after it was verified (size is right; inode, mtime or ctime differ)"
            findings.append(Finding(file.path, text))
    expected = {file.path for file in lock.files} | {MANIFEST}
    findings += [
        Finding(path, "is not in the lock: a stale shard or a stranger; remove it")
        for path in publish.files_in(folder)
        if path not in expected and not path.startswith(".cache/huggingface/")
    ]
    return findings


def _by_digest(folder: Path, files: Sequence[PinnedFile], workers: int, progress: Progress) -> list[Finding]:
    findings = []
    digests = digests_on_disk(folder, files, workers, progress)
    for file, digest in zip(files, digests):  # noqa: B905 -- strict is newer than some hosts' Python
        if digest.startswith(_UNREADABLE):
            findings.append(Finding(file.path, digest, "disk"))
        elif digest != digest_of(file):
            findings.append(Finding(file.path, f"expected {digest_of(file)}, got {digest}"))
    return findings
