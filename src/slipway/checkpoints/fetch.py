"""A locked checkpoint brought to this host: downloaded and hashed in one pass, checked, published whole.

Standard library only: the same code is sent to hosts as a zipapp.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.checkpoints import early, io_choice, publish, reuse, staging, structure
from slipway.checkpoints.part import Donor, Io, Part, part_name
from slipway.checkpoints.pins import Pins, Progress, digest_of, plain_bytes, silent
from slipway.checkpoints.publish import Places
from slipway.checkpoints.reuse import Held
from slipway.checkpoints.sources import HUB
from slipway.checkpoints.sources import read as read_sources
from slipway.checkpoints.transfer import Cancelled, Patience, Transfer
from slipway.checkpoints.transport import Failed, Transport
from slipway.errors import from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipway.checkpoints.hub import Hub
    from slipway.checkpoints.pins import PinnedFile
    from slipway.checkpoints.sources import Source
    from slipway.checkpoints.staging import Place
    from slipway.checkpoints.transfer import Carrier

_LOOK_S = 0.5
"""How long the main thread sleeps at a time: a signal that comes just before it falls asleep is only met when it wakes."""


@dataclass(frozen=True)
class FetchResult:
    """Where the checkpoint lies (its folder in the store) and what it took; `skipped` when it was there already.

    `carried_files` are those of the fetched ones that a carrier brought (the hub's chunk store, Xet) and not plain HTTP.
    """

    folder: Path
    fetched_files: int
    fetched_bytes: int
    reused_files: int
    skipped: bool
    seconds: float
    carried_files: int = 0


def fetch(  # noqa: PLR0913 -- each is one flag of the command
    lock: Pins,
    root: Path,
    *,
    hub: Hub,
    workers: int = 4,
    progress: Progress = silent,
    patience: Patience | None = None,
    sources: Sequence[str] = (),
    io: str | Io = "",
    adopt: bool = False,
    carrier: Carrier | None = None,
) -> FetchResult:
    """The published checkpoint under `root`, every file hashed while it came and equal to the lock.

    `workers` files come at a time, the largest first. A checkpoint that is there and untouched costs a stat per file and no
    request. What earlier fetches proved, good files of damaged folders and of other revisions are used again; of a damaged
    file only the wrong chunks come anew. `sources` are tried in their order (module `sources`; the hub when there are none);
    `io` is auto, buffered or direct. With `adopt`, right files of a plain folder at `ROOT/<name>` are taken over once hashed;
    what else is in it stays beside the link. Where the hub is the first source, a `carrier` brings the files that it knows and
    of which nothing is on this disk; what it fails to bring, or brings wrong, comes by HTTP. On any failure nothing is
    published and what was published before stays.

    Raises: IntegrityMismatch, MissingFile, AuthFailure, NetworkFailure, DiskFailure, UsageError.
    """
    began_s = time.monotonic()
    places = Places.of(lock, root)
    servers = read_sources(sources, hub)
    carrier = carrier if servers[0].layout == HUB else None
    way = _Way(hub, servers, max(workers, 1), patience or Patience(), _io(io, lock), adopt=adopt, carrier=carrier)
    folder = publish.published(lock, root)
    if folder is not None:
        publish.tidy(folder, progress)
    if folder is None:
        places.prepare(adopt=adopt)
        with staging.one_at_a_time(root, lock.repo, progress):
            try:
                return _Fetch(lock, places, way, progress).run(began_s)
            except OSError as error:
                raise from_os_error(error, root, "publishing the checkpoint") from error
    return _skipped(lock, folder, progress, began_s)


@dataclass(frozen=True)
class _Way:
    """How a fetch is to be done."""

    hub: Hub
    sources: tuple[Source, ...]
    workers: int
    patience: Patience
    io: Io
    adopt: bool
    carrier: Carrier | None


def _io(io: str | Io, lock: Pins) -> Io:
    return io if isinstance(io, Io) else io_choice.choose(io, sum(file.size_bytes for file in lock.files))


def _skipped(lock: Pins, folder: Path, progress: Progress, began_s: float, how: str = "untouched") -> FetchResult:
    progress.note(f"{lock.repo}@{lock.revision[:12]} is already in {folder}, {how}; not fetched")
    return FetchResult(folder, 0, 0, len(lock.files), skipped=True, seconds=time.monotonic() - began_s)


class _Fetch:
    """One fetch, once it has its turn."""

    def __init__(self, lock: Pins, places: Places, way: _Way, progress: Progress) -> None:
        self._lock = lock
        self._places = places
        self._way = way
        self._progress = progress
        self._chunks: dict[str, dict[int, str]] = {}
        self._seen: dict[str, os.stat_result] = {}
        self._carried = 0

    def run(self, began_s: float) -> FetchResult:
        surveys = [self._survey(folder) for folder in self._places.candidates()]
        whole, how = next((survey.folder for survey in surveys if survey.intact), None), "untouched"
        good: dict[str, Held] = {}
        if whole is None and surveys:
            good = self._right(surveys[0], surveys[0].doubtful)
            if len(good) == len(surveys[0].doubtful) and not (surveys[0].missing or surveys[0].extra):
                reuse.remember_touched(self._lock, surveys[0], good)
                whole, how = surveys[0].folder, "touched but equal by digest"
            else:
                good.update(self._right(surveys[0], surveys[0].good))
        if whole is not None and not (self._way.adopt and self._places.foreign):
            self._places.swap_link(whole)
            staging.remove_litter(self._places.root, self._progress)
            return _skipped(self._lock, whole, self._progress, began_s, how)
        held = self._held(surveys[0].folder if surveys else None, good)
        wanted = [file for file in self._lock.files if file.path not in held]
        if wanted and any(source.layout == HUB for source in self._way.sources):
            self._way.hub.require_online()
        with staging.staging(self._places.root) as place:
            donors = self._donors(place, wanted, surveys)
            staging.remove_litter(self._places.root, self._progress)
            staging.refuse_without_room(place, wanted)
            staging.refuse_without_links(place)
            self._download(wanted, held, place, donors)
            self._arrange(wanted, held, place)
            folder = self._publish(place.tree, surveys)
        size = sum(file.size_bytes for file in wanted)
        seconds = time.monotonic() - began_s
        return FetchResult(folder, len(wanted), size, len(held), False, seconds, self._carried)

    def _survey(self, folder: Path) -> publish.Survey:
        publish.tidy(folder, self._progress)
        return publish.survey(self._lock, folder)

    def _right(self, survey: publish.Survey, files: Sequence[PinnedFile]) -> dict[str, Held]:
        """Those of `files` in a damaged folder that are right, each of them hashed; the others are said, with what is missing."""
        held = {file.path: Held(survey.folder / file.path) for file in files}
        right = reuse.proved(held, files, self._way.workers, self._progress)
        bad = sorted(held.keys() - right.keys())
        if files is survey.good:
            if bad:
                reuse.doubt(survey.folder, bad, self._progress)
        elif bad or survey.missing:
            named = sorted([*bad, *(file.path for file in survey.missing)])
            self._progress.note(f"damaged or missing in {survey.folder}: {', '.join(named)}")
        return right

    def _held(self, damaged: Path | None, good: dict[str, Held]) -> dict[str, Held]:
        """Per path, the files that need not be fetched, each of them hashed, with what is known of their chunks."""
        held = dict(good)
        rest = [file for file in self._lock.files if file.path not in held]
        held.update(reuse.in_store(self._places.root, rest, self._way.workers, self._progress))
        rest = [file for file in rest if file.path not in held]
        foreign = self._places.foreign
        if self._way.adopt and foreign:
            held.update(reuse.in_folder(foreign, rest, self._way.workers, self._progress))
        known = publish.read_chunks(damaged) if damaged else {}
        self._chunks = {path: known[path] for path in held if path in known}
        for path, one in held.items():
            if one.folder:
                self._chunks[path] = publish.read_chunks(one.folder).get(one.inside, {})
        return held

    def _donors(
        self, place: Place, wanted: Sequence[PinnedFile], surveys: Sequence[publish.Survey]
    ) -> dict[str, list[Donor]]:
        """Per name of a part, what lies on this disk already of files that must be fetched: parts, and damaged files."""
        donors = staging.claim(self._places.root, place, {part_name(file) for file in wanted})
        for survey in surveys:
            known = publish.read_chunks(survey.folder)
            for file in wanted:
                if file.path in known:
                    digests = {**known[file.path], file.size_bytes: digest_of(file)}
                    donors.setdefault(part_name(file), []).append(Donor(survey.folder / file.path, digests))
        return donors

    def _download(
        self, wanted: Sequence[PinnedFile], held: dict[str, Held], place: Place, donors: dict[str, list[Donor]]
    ) -> None:
        """Nothing; every file of `wanted` is among the parts of `place`."""
        lock, way = self._lock, self._way
        transport = Transport(way.hub, way.patience.stall_s)
        urls_of = lambda file: [source.url(lock, file) for source in way.sources]  # noqa: E731
        transfer = Transfer(transport, urls_of, way.patience, self._progress.note)
        label = f"fetching {lock.repo}@{lock.revision[:12]}"
        different: dict[str, PinnedFile] = {}
        for file in wanted:
            different.setdefault(part_name(file), file)
        counted = threading.Lock()
        shards: list[early.Shards] = []
        with self._progress.track(label, sum(file.size_bytes for file in different.values())) as advance:

            def count(amount: int) -> None:
                with counted:
                    advance(amount)

            def one(name: str, file: PinnedFile) -> None:
                path, helpers = place.parts / name, donors.get(name, ())
                if not helpers and self._carry(file, path, transfer, count):
                    return
                part = Part(path, file, way.io, count, shards[0].look(file) if shards else None)
                try:
                    transfer.receive(file, part, helpers)
                finally:
                    part.close()
                self._arrived(file, part, "")

            largest_first = sorted(different.items(), key=lambda item: -item[1].size_bytes)
            jobs = {name: partial(one, name, file) for name, file in largest_first}
            first = [part_name(file) for file in early.indexes(wanted)]
            with ThreadPoolExecutor(way.workers) as pool:
                _all(transfer, way.carrier, pool, [jobs.pop(name) for name in dict.fromkeys(first)])
                shards.append(self._shards(held, place))
                _all(transfer, way.carrier, pool, list(jobs.values()))

    def _shards(self, held: dict[str, Held], place: Place) -> early.Shards:
        """What the indexes, which are here now, say of the shards that are to come."""
        texts = {}
        for file in early.indexes(self._lock.files):
            path = held[file.path].path if file.path in held else place.parts / part_name(file)
            texts[file.path] = plain_bytes(path)
        return early.Shards(self._places.root, self._lock.files, texts)

    def _carry(self, file: PinnedFile, path: Path, transfer: Transfer, count: Callable[[int], None]) -> bool:
        """Whether the carrier has brought `file` to `path`, and every byte of it is right."""
        carrier, told = self._way.carrier, []
        if carrier is None or not carrier.carries(file):
            return False

        def tell(amount: int) -> None:
            told.append(amount)
            count(amount)

        try:
            carrier.bring(file, path, tell, self._way.patience.stall_s)
            part = Part(path, file, self._way.io, lambda _: None)
            try:
                if part.proved():
                    part.finish()
                    self._arrived(file, part, " by xet")
                    self._carried += 1
                    return True
            finally:
                part.close()
            problem = "other bytes than the lock names came"
        except Failed as failure:
            problem = failure.text
        transfer.refuse_cancelled()
        count(-sum(told))
        self._progress.note(f"{file.path}: not by xet ({problem}); fetching it by HTTP")
        return False

    def _arrived(self, file: PinnedFile, part: Part, how: str) -> None:
        self._chunks[file.path] = part.digests
        self._progress.note(f"fetched {file.path}{how} ({file.size_bytes} bytes, {digest_of(file)[:19]}… ok)")

    def _arrange(self, wanted: Sequence[PinnedFile], held: dict[str, Held], place: Place) -> None:
        """Nothing; every file of the lock is in the tree of `place`, and is what was fetched or hashed."""
        placed: dict[str, str] = {}
        for file in wanted:
            target = place.tree / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            twin = placed.setdefault(part_name(file), file.path)
            if twin == file.path:
                (place.parts / part_name(file)).rename(target)
            else:
                reuse.place(file, Held(place.tree / twin), place.tree)
        linked: dict[Path, list[str]] = {}
        for file in self._lock.files:
            one = held.get(file.path)
            if one and reuse.place(file, one, place.tree) and one.folder:
                linked.setdefault(one.folder, []).append(one.inside)
            self._seen[file.path] = os.lstat(place.tree / file.path)
        for file in self._lock.files:
            # One file may stand at two paths: the second link changed the ctime of the first.
            self._seen[file.path] = reuse.settled(file, place.tree, self._seen[file.path], links=True)
        for folder, paths in linked.items():
            publish.remember_links(folder, paths)

    def _publish(self, tree: Path, surveys: Sequence[publish.Survey]) -> Path:
        """The folder that `tree` has become, linked; folders of the same revision that it replaces are removed."""
        if any(file.path.endswith(structure.SHARD_SUFFIX) for file in self._lock.files):
            structure.check(tree, digests_known=True)
        publish.make_read_only(tree, self._lock.files)
        for file in self._lock.files:
            self._seen[file.path] = reuse.settled(file, tree, self._seen[file.path], links=False)
        publish.write_manifest(self._lock, tree, self._chunks, self._seen)
        rival = publish.published(self._lock, self._places.root)
        if rival is not None:
            self._progress.note(f"another fetch has published {rival} meanwhile; using it")
            return rival
        folder = self._places.adopt(tree, repair=bool(surveys))
        untouched = [file.path for file in publish.survey(self._lock, folder).good]
        foreign = self._places.foreign if self._way.adopt else None
        aside = reuse.set_aside(foreign) if foreign else None
        self._places.swap_link(folder)
        if aside and reuse.drop_shared(aside, folder, self._lock.files):
            self._progress.note(f"what was in {foreign} and is not in the lock is now in {aside}")
        removable = bool(surveys) and publish.survey(self._lock, folder).intact
        for survey in surveys if removable else ():
            self._remove(survey.folder)
        if aside or removable:
            # A hard link less is a new ctime; remember it, or the next look would hash everything.
            publish.remember_links(folder, untouched)
        return folder

    def _remove(self, folder: Path) -> None:
        """Nothing; the replaced `folder` is gone, and what somebody else had put into it is beside the link."""
        kept = reuse.keep_strangers(folder, publish.strangers(self._lock, folder), self._places.link)
        if kept:
            self._progress.note(f"what was in {folder} and is not in the lock is now in {kept}")
        reuse.remove(self._places.root, folder)


def _all(
    transfer: Transfer, carrier: Carrier | None, pool: ThreadPoolExecutor, jobs: Sequence[Callable[[], None]]
) -> None:
    """Nothing; every job is done. The first failure ends the others and is raised."""
    futures: list[Future[None]] = []
    try:
        for job in jobs:
            futures.append(pool.submit(job))
        done, left = wait(futures, _LOOK_S, FIRST_EXCEPTION)
        while left and not any(future.exception() for future in done):
            done, left = wait(futures, _LOOK_S, FIRST_EXCEPTION)
        for future in sorted(done, key=lambda future: isinstance(future.exception(), Cancelled)):
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        transfer.cancel()
        if carrier is not None:
            carrier.cancel()
        raise
