"""A locked checkpoint brought to this host: downloaded and hashed in one pass, checked, published whole.

Standard library only: the same code is sent to hosts as a zipapp.
"""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.checkpoints import publish, staging, structure
from slipway.checkpoints.pins import Pins, Progress, digest_of, silent
from slipway.checkpoints.publish import Places
from slipway.checkpoints.transfer import Cancelled, Patience, Transfer
from slipway.checkpoints.transport import Transport
from slipway.checkpoints.verify import digest_on_disk, digests_on_disk
from slipway.errors import DiskFailure, from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipway.checkpoints.hub import Hub
    from slipway.checkpoints.pins import PinnedFile

_SPARE = 0.02
"""Part of the bytes that must stay free besides: blocks, folders, other writers."""


@dataclass(frozen=True)
class FetchResult:
    """Where the checkpoint lies (its folder in the store) and what it took; `skipped` when it was there already."""

    folder: Path
    fetched_files: int
    fetched_bytes: int
    reused_files: int
    skipped: bool
    seconds: float


def fetch(
    lock: Pins,
    root: Path,
    *,
    hub: Hub,
    workers: int = 4,
    progress: Progress = silent,
    patience: Patience | None = None,
) -> FetchResult:
    """The published checkpoint under `root`, every file hashed while it came and equal to the lock.

    `workers` files come at a time, the largest first. A checkpoint that is there and untouched costs a stat per file and no
    request. Files of a damaged one that are still good by digest are used again. On any failure nothing is published and
    what was published before stays.

    Raises: IntegrityMismatch, MissingFile, AuthFailure, NetworkFailure, DiskFailure, UsageError.
    """
    began_s = time.monotonic()
    places = Places.of(lock, root)
    folder = publish.published(lock, root)
    if folder is None:
        places.prepare()
        with staging.one_at_a_time(root, lock.repo, progress):
            try:
                return _Fetch(lock, places, progress).run(hub, max(workers, 1), patience or Patience(), began_s)
            except OSError as error:
                raise from_os_error(error, root, "publishing the checkpoint") from error
    return _skipped(lock, folder, progress, began_s)


def _skipped(lock: Pins, folder: Path, progress: Progress, began_s: float, how: str = "untouched") -> FetchResult:
    progress.note(f"{lock.repo}@{lock.revision[:12]} is already in {folder}, {how}; not fetched")
    return FetchResult(folder, 0, 0, len(lock.files), skipped=True, seconds=time.monotonic() - began_s)


class _Fetch:
    """One fetch, once it has its turn."""

    def __init__(self, lock: Pins, places: Places, progress: Progress) -> None:
        self._lock = lock
        self._places = places
        self._progress = progress

    def run(self, hub: Hub, workers: int, patience: Patience, began_s: float) -> FetchResult:
        staging.remove_litter(self._places.root, self._progress)
        surveys = [publish.survey(self._lock, folder) for folder in self._places.candidates()]
        whole, how = next((survey.folder for survey in surveys if survey.intact), None), "untouched"
        good: tuple[PinnedFile, ...] = ()
        if whole is None and surveys:
            good = self._good(surveys[0], workers)
            if len(good) == len(self._lock.files) and not surveys[0].extra:
                publish.write_manifest(self._lock, surveys[0].folder)
                whole, how = surveys[0].folder, "touched but equal by digest"
        if whole is not None:
            self._places.swap_link(whole)
            return _skipped(self._lock, whole, self._progress, began_s, how)
        wanted = [file for file in self._lock.files if file not in good]
        hub.require_online()
        with staging.staging(self._places.root) as tree:
            self._preflight(wanted)
            self._download(wanted, tree, hub, workers, patience)
            for file in good:
                _reuse(file, surveys[0].folder, tree)
            folder = self._publish(tree, surveys)
        size = sum(file.size_bytes for file in wanted)
        return FetchResult(folder, len(wanted), size, len(good), skipped=False, seconds=time.monotonic() - began_s)

    def _good(self, survey: publish.Survey, workers: int) -> tuple[PinnedFile, ...]:
        """The files of a damaged folder that are right after all: untouched, or changed outside but equal by digest."""
        digests = digests_on_disk(survey.folder, survey.doubtful, workers, self._progress)
        right = [file for file, digest in zip(survey.doubtful, digests) if digest == digest_of(file)]  # noqa: B905 -- 3.8
        bad = [file.path for file in (*survey.missing, *survey.doubtful) if file not in right]
        if bad:
            self._progress.note(f"damaged or missing in {survey.folder}: {', '.join(sorted(bad))}")
        return (*survey.good, *right)

    def _preflight(self, wanted: Sequence[PinnedFile]) -> None:
        """Nothing; there is room for `wanted`.

        Raises: DiskFailure with the numbers.
        """
        root = self._places.root
        space = os.statvfs(root)
        needed, free = sum(file.size_bytes for file in wanted), space.f_bavail * space.f_frsize
        needed += int(needed * _SPARE)
        advice = f"free {needed - free} bytes, or fetch into another folder with --dest"
        if needed > free:
            raise DiskFailure(
                root, f"{free} bytes are free, {needed} are needed", "bytes of all missing files and 2 %", advice
            )
        inodes = len(wanted) + 16
        if space.f_files and space.f_favail < inodes:
            raise DiskFailure(root, f"{space.f_favail} inodes are free, {inodes} are needed", "", "remove small files")
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        largest = max((file.size_bytes for file in wanted), default=0)
        if limit != resource.RLIM_INFINITY and largest > limit:
            raise DiskFailure(
                root,
                f"files may have {limit} bytes here (ulimit -f), one has {largest}",
                "",
                "raise it: ulimit -f unlimited",
            )

    def _download(self, wanted: Sequence[PinnedFile], tree: Path, hub: Hub, workers: int, patience: Patience) -> None:
        """Nothing; every file of `wanted` is in `tree`."""
        for file in wanted:
            (tree / file.path).parent.mkdir(parents=True, exist_ok=True)
        transport = Transport(hub, patience.stall_s)
        url_of: Callable[[str], str] = lambda path: hub.file_url(self._lock.repo, self._lock.revision, path)  # noqa: E731
        transfer = Transfer(transport, url_of, patience)
        label = f"fetching {self._lock.repo}@{self._lock.revision[:12]}"
        counted = threading.Lock()
        with self._progress.track(label, sum(file.size_bytes for file in wanted)) as advance:

            def count(amount: int) -> None:
                with counted:
                    advance(amount)

            def one(file: PinnedFile) -> None:
                transfer.receive(file, tree / file.path, count)
                self._progress.note(f"fetched {file.path} ({file.size_bytes} bytes, {digest_of(file)[:19]}… ok)")

            with ThreadPoolExecutor(workers) as pool:
                largest_first = sorted(wanted, key=lambda file: -file.size_bytes)
                _all(transfer, [pool.submit(one, file) for file in largest_first])

    def _publish(self, tree: Path, surveys: Sequence[publish.Survey]) -> Path:
        """The folder that `tree` has become, linked; folders of the same revision that it replaces are removed."""
        if any(file.path.endswith(structure.SHARD_SUFFIX) for file in self._lock.files):
            structure.check(tree, digests_known=True)
        publish.make_read_only(tree, self._lock.files)
        publish.write_manifest(self._lock, tree)
        rival = publish.published(self._lock, self._places.root)
        if rival is not None:
            self._progress.note(f"another fetch has published {rival} meanwhile; using it")
            return rival
        folder = self._places.adopt(tree, repair=bool(surveys))
        self._places.swap_link(folder)
        if surveys and publish.survey(self._lock, folder).intact:
            for survey in surveys:
                staging.remove_tree(survey.folder)
            # A hard link less is a new ctime; remember it, or the next look would hash everything.
            publish.write_manifest(self._lock, folder)
        return folder


def _all(transfer: Transfer, futures: Sequence[Future[None]]) -> None:
    """Nothing; every future is done. The first failure ends the others and is raised."""
    try:
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in sorted(done, key=lambda future: isinstance(future.exception(), Cancelled)):
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        transfer.cancel()
        raise


def _reuse(file: PinnedFile, source: Path, tree: Path) -> None:
    """Nothing; `tree` has the good file of `source` too, as a hard link where the file system can.

    Raises: DiskFailure when a copy differs from what was hashed before.
    """
    target = tree / file.path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not _linked(source / file.path, target):
        shutil.copyfile(source / file.path, target)
        if digest_on_disk(target, file) != digest_of(file):
            raise DiskFailure(source / file.path, "changed while it was copied", "", "fetch again")
        with target.open("rb") as stream:
            os.fsync(stream.fileno())
    target.chmod(0o444)


def _linked(source: Path, target: Path) -> bool:
    """Whether `target` is now a hard link to `source`; where it cannot be one, it is to be copied."""
    if os.lstat(source).st_uid != os.geteuid():
        return False  # whoever owns the inode could change it afterwards
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
