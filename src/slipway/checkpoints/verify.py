"""A folder held against its lock, offline: by stat, by structure, by random chunks, or by every byte."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.checkpoints import publish, records, structure
from slipway.checkpoints.digests import UNREADABLE, Found, OnDisk, digest_on_disk, digests_on_disk
from slipway.checkpoints.findings import Finding, refuse
from slipway.checkpoints.pins import MANIFEST, Pins, Progress, digest_of, refuse_unsafe, silent
from slipway.checkpoints.records import CHUNK_BYTES, chunk_count
from slipway.errors import DiskFailure, MissingFile, SlipwayError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from slipway.checkpoints.pins import PinnedFile

LEVELS = ("stat", "structure", "sample", "full")
"""From the cheapest to the one that reads every byte; each includes those before it."""

SAMPLED_CHUNKS = 16
"""How many chunks level sample reads unless told otherwise: 1 GiB, seconds on any disk."""

_PIECE_BYTES = 1 << 20

_MOST_STRANGERS = 20
"""Named of the files that are not in the lock; the others are counted."""


@dataclass(frozen=True)
class Verification:
    """A folder that agrees with its lock: `files` and `bytes` were looked at, at this level, in so many seconds."""

    level: str
    files: int
    bytes: int
    seconds: float


def verify(  # noqa: PLR0913 -- each is one flag of the command
    lock: Pins,
    folder: Path,
    *,
    level: str = "full",
    workers: int = 4,
    progress: Progress = silent,
    sampled_chunks: int = SAMPLED_CHUNKS,
    chunk_bytes: int = CHUNK_BYTES,
) -> Verification:
    """What was verified, when `folder` holds the files of `lock` and no others.

    `stat`: presence, sizes and, where Slipway published the folder, that no file was touched since. `structure`: headers,
    index and config besides. `sample`: the digests of `sampled_chunks` chunks chosen at random besides. `full`: the digest of
    every byte, `workers` files at a time; the first time, the digests of all chunks are remembered for `sample`.

    Success is remembered beside a published folder (module `records`). When bytes are found wrong there, what was proved before
    is forgotten, and the next fetch hashes those files whatever stat says.

    Raises: MissingFile, IntegrityMismatch or DiskFailure with every bad file named; UsageError for an unknown level.
    """
    began_s = time.monotonic()
    if level not in LEVELS:
        raise UsageError("--level", f"is not known (got {level!r})", f"one of {', '.join(LEVELS)}", "choose one")
    refuse_unsafe(lock)
    if not folder.is_dir():
        raise MissingFile(folder, "no such folder", "a fetched checkpoint is verified here", "fetch it: fetch-models")
    findings = _by_stat(lock, folder, touched=level != "full")
    missing = sum(finding.kind == "missing" for finding in findings)
    if missing == len(lock.files):
        why = f"the {missing} files of {lock.repo} at {lock.revision[:12]} are looked for here"
        raise MissingFile(folder, "holds none of them", why, "name another folder with --dir, or invoke fetch-models")
    wrong = {finding.path for finding in findings}
    chunks: dict[str, Sequence[str]] = {}
    if level == "full":
        present = [file for file in lock.files if file.path not in wrong]
        unknown = _chunks_unknown(lock, folder, chunk_bytes)
        wanted = [OnDisk(folder / file.path, file, chunk_bytes if file.path in unknown else 0) for file in present]
        found = digests_on_disk(wanted, workers, progress, f"hashing {folder}")
        chunks = {one.file.path: known.chunks for one, known in zip(wanted, found) if one.chunk_bytes}  # noqa: B905 -- 3.8
        wrong_bytes = _by_digest(present, found)
        _withdraw(lock, folder, wrong_bytes, progress, chunk_bytes)
        findings += wrong_bytes
    refuse(folder, findings)
    if level != "stat" and any(file.path.endswith(structure.SHARD_SUFFIX) for file in lock.files):
        structure.check(folder, digests_known=level == "full")
    size = sum(file.size_bytes for file in lock.files)
    if level == "sample":
        size = _sample(lock, folder, progress, sampled_chunks, chunk_bytes)
    _remember(lock, folder, level, progress, chunks, chunk_bytes)
    return Verification(level, len(lock.files), size, time.monotonic() - began_s)


def _by_stat(lock: Pins, folder: Path, *, touched: bool) -> list[Finding]:
    """What stat finds wrong; with `touched`, also files that changed since the manifest was written, or are not in it."""
    remembered = publish.read_manifest(folder, lock)
    ours = publish.is_published(folder)
    findings = []
    if ours and touched and not remembered:
        findings.append(Finding(MANIFEST, _NO_MANIFEST))
    for file in lock.files:
        try:
            status = os.stat(folder / file.path)  # noqa: PTH116 -- one call, no object
        except OSError as error:
            gone = isinstance(error, (FileNotFoundError, NotADirectoryError))
            text = "is missing" if gone else f"cannot be looked at: {error.strerror}"
            findings.append(Finding(file.path, text, "missing" if gone else "disk"))
            continue
        known = remembered.get(file.path)
        if ours and (folder / file.path).is_symlink():
            text = "is a link where Slipway published a plain file, whatever it leads to"
            findings.append(Finding(file.path, text))
        elif not stat.S_ISREG(status.st_mode):
            findings.append(Finding(file.path, "is not a regular file"))
        elif status.st_size != file.size_bytes:
            findings.append(Finding(file.path, f"expected {file.size_bytes} bytes, got {status.st_size}"))
        elif touched and known and known != publish.identity(os.lstat(folder / file.path), file):
            text = "was touched after it was verified (size is right; inode, mtime or ctime differ)"
            findings.append(Finding(file.path, text))
        elif ours and touched and remembered and not known:
            findings.append(Finding(file.path, "was found wrong, or never hashed: the manifest knows nothing of it"))
    strangers = [path for path in publish.strangers(lock, folder) if not path.startswith(".cache/huggingface/")]
    text = "is not in the lock: a stale shard or a stranger; remove it"
    findings += [Finding(path, text) for path in strangers[:_MOST_STRANGERS]]
    if len(strangers) > _MOST_STRANGERS:
        findings.append(Finding(".", f"holds {len(strangers) - _MOST_STRANGERS} more files that are not in the lock"))
    return findings


_NO_MANIFEST = (
    "is missing, damaged or of another revision, so nobody can tell whether a file was touched; fetch-models hashes all, "
    "writes it anew and downloads what is wrong"
)


def _withdraw(lock: Pins, folder: Path, findings: Sequence[Finding], progress: Progress, chunk_bytes: int) -> None:
    """Nothing; what was proved of `folder` is forgotten if bytes are wrong, and the next fetch hashes those files."""
    # What could not be read was not found wrong; but a sector that is gone takes its bytes with it.
    gone = f"{UNREADABLE}{os.strerror(errno.EIO)}"
    wrong = [finding.path for finding in findings if finding.kind != "disk" or finding.text.endswith(gone)]
    if not wrong or not publish.is_published(folder):
        return
    try:
        records.withdraw_proved(folder)
        publish.forget(folder, wrong)
        # If it was the record of a chunk that is wrong, the next full check writes it anew.
        records.forget_chunks(lock, folder, wrong, chunk_bytes)
    except (OSError, SlipwayError) as error:
        progress.note(f"that files in {folder} are wrong is not recorded: {error}")


def _by_digest(files: Sequence[PinnedFile], found: Sequence[Found]) -> list[Finding]:
    findings = []
    for file, digest in zip(files, (one.digest for one in found)):  # noqa: B905 -- strict is newer than some hosts' Python
        if digest.startswith(UNREADABLE):
            findings.append(Finding(file.path, digest, "disk"))
        elif digest != digest_of(file):
            findings.append(Finding(file.path, f"expected {digest_of(file)}, got {digest}"))
    return findings


def _chunks_unknown(lock: Pins, folder: Path, chunk_bytes: int) -> frozenset[str]:
    """The files that have several chunks whose digests are not recorded yet; none outside of a store."""
    if records.place_of(folder, "chunks") is None:
        return frozenset()
    known = records.read_chunks(lock, folder, chunk_bytes)
    return frozenset(file.path for file in lock.files if chunk_count(file, chunk_bytes) > 1 and file.path not in known)


def _sample(lock: Pins, folder: Path, progress: Progress, count: int, chunk_bytes: int) -> int:
    """How many bytes were read: `count` chunks (all, if there are fewer), each equal to what was recorded.

    A file of one chunk needs no record: its digest stands in the lock.

    Raises: MissingFile when nobody has recorded chunk digests, IntegrityMismatch, DiskFailure.
    """
    known = records.read_chunks(lock, folder, chunk_bytes)
    places = [(file, number) for file in lock.files for number in range(chunk_count(file, chunk_bytes))]
    unknown = [file.path for file in lock.files if file.path not in known and chunk_count(file, chunk_bytes) > 1]
    if unknown:
        raise MissingFile(
            folder / unknown[0],
            "digests of its chunks are not recorded",
            "level sample compares chunks with what a full check of a published folder has recorded",
            "run verify-models with --level full once",
        )
    chosen = random.SystemRandom().sample(places, min(count, len(places)))
    findings, read = [], 0
    with progress.track(f"sampling {folder}", len(chosen), unit="chunks") as advance:
        for file, number in sorted(chosen, key=lambda place: (place[0].path, place[1])):
            start = number * chunk_bytes
            size = min(chunk_bytes, file.size_bytes - start)
            if file.path in known:
                wanted, got = f"sha256:{known[file.path][number]}", _chunk_on_disk(folder / file.path, start, size)
            else:
                wanted, got = digest_of(file), digest_on_disk(folder / file.path, file)
            if got != wanted:
                what = f"bytes {start} to {start + size}: expected {wanted}, got {got}"
                findings.append(Finding(file.path, what, "disk" if got.startswith(UNREADABLE) else "mismatch"))
            read += size
            advance(1)
    _withdraw(lock, folder, findings, progress, chunk_bytes)
    refuse(folder, findings)
    return read


def _chunk_on_disk(path: Path, start: int, size: int) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        state, place = hashlib.sha256(), start
        try:
            while place < start + size:
                piece = os.pread(descriptor, min(_PIECE_BYTES, start + size - place), place)
                if not piece:
                    break
                state.update(piece)
                place += len(piece)
        finally:
            os.close(descriptor)
    except OSError as error:
        return f"{UNREADABLE}{error.strerror}"
    return f"sha256:{state.hexdigest()}"


def _remember(
    lock: Pins, folder: Path, level: str, progress: Progress, chunks: Mapping[str, Sequence[str]], chunk_bytes: int
) -> None:
    """Nothing; the record of `folder` says what was proved. Where it cannot be written the proof stands all the same."""
    try:
        if chunks:
            records.write_chunks(lock, folder, chunks, chunk_bytes)
        records.write_proved(lock, folder, level)
    except (OSError, DiskFailure, MissingFile) as error:
        progress.note(f"that {folder} was verified is not recorded: {error}")
