"""Checkpoints to and from a mirror, as the command `mirror-models` does it. It loads boto3, so nothing else imports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slipway import models
from slipway.checkpoints import mirror, mirror_s3, records
from slipway.checkpoints.lock import CheckpointLock
from slipway.errors import UsageError
from slipway.progress import Progress, human_bytes
from slipway.stacks import Checkout

Json = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """Where to or where from (exactly one), and the folder on this side: of one checkpoint with `to`, of all of them with `source`."""

    to: str | None = None
    source: str | None = None
    folder: Path | None = None
    check: bool = False
    workers: int = 4

    def __post_init__(self) -> None:
        if bool(self.to) == bool(self.source):
            raise UsageError("mirror-models", "must be told one direction", "", "give --to or --from, not both")
        if self.workers < 1:
            raise UsageError("--workers", f"must be at least 1 (got {self.workers})", "", "give a positive number")
        if self.check and self.source:
            raise UsageError(
                "--check", "stands beside --from", "what comes from a mirror is always hashed", "leave it out"
            )


def run(checkout: Checkout, meant: Sequence[CheckpointLock], way: Way, progress: Progress) -> tuple[list[Json], str]:
    """What was sent or fetched, as JSON and as text, one entry per lock.

    Raises: IntegrityMismatch, MissingFile, LockDrift, AuthFailure, NetworkFailure, DiskFailure, UsageError.
    """
    store = mirror_s3.store_at(way.to or way.source or "")
    if way.source:
        return _fetch(checkout, meant, store, way, progress)
    if way.folder and len(meant) > 1:
        names = ", ".join(item.repo for item in meant)
        raise UsageError(
            "--dir", f"names one folder for {len(meant)} checkpoints", names, "give --lock, or leave it out"
        )
    entries: list[Json] = []
    lines: list[str] = []
    for item in meant:
        folder = way.folder or checkout.models / item.repo.rpartition("/")[2]
        sent = mirror.upload(item, folder, store, workers=way.workers, progress=progress)
        read = mirror.check(item, store, workers=way.workers, progress=progress) if way.check else None
        entries.append({"repo": item.repo, "revision": item.revision, **asdict(sent), "checked_bytes": read})
        unread = " and not read again (--check reads them)" if sent.kept_files and read is None else ""
        checked = f"; read back {human_bytes(read)}, every digest equal to the lock" if read is not None else ""
        lines.append(
            f"{item.repo}@{item.revision[:12]}: {sent.sent_files} files, {human_bytes(sent.sent_bytes)} sent, "
            f"{sent.kept_files} were there{unread}, in {sent.place}{checked}\n"
        )
    return entries, "".join(lines)


def _fetch(
    checkout: Checkout, meant: Sequence[CheckpointLock], store: mirror.Store, way: Way, progress: Progress
) -> tuple[list[Json], str]:
    entries: list[Json] = []
    lines: list[str] = []
    for item in meant:
        got = mirror.download(item, way.folder or checkout.models, store, workers=way.workers, progress=progress)
        records.remember_fetch(item, got.folder, skipped=got.skipped, progress=progress)
        entries.append({"repo": item.repo, "revision": item.revision, **asdict(got), "folder": str(got.folder)})
        lines.append(f"{models.fetched_text(item, got)}\n")
    return entries, "".join(lines)
