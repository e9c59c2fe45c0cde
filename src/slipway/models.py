"""Which checkpoints are meant (a stack's, a recipe's, one lock file's), and what is done with them: lock, fetch, verify."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict, Unpack

from slipway import recipe, stacks
from slipway.checkpoints import lock as locks
from slipway.checkpoints import lock_request as requests
from slipway.checkpoints import records, xet
from slipway.checkpoints.fetch import FetchResult
from slipway.checkpoints.fetch import fetch as fetch_one
from slipway.checkpoints.hub import DEFAULT_ENDPOINT, Hub, hub_from_environment
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.verify import verify as verify_one
from slipway.errors import MissingFile, UsageError
from slipway.progress import Progress, human_bytes
from slipway.recipe import Checkpoint
from slipway.recipe.words import ALLOW_PATTERNS
from slipway.reference import embedded
from slipway.stacks import Checkout

Json = dict[str, Any]


class Way(TypedDict, total=False):
    """How files are fetched: from which sources, written how, and whether a plain folder may be taken over."""

    sources: Sequence[str]
    io: str
    adopt: bool


def wanted(
    checkout: Checkout, stack: str | None, recipe_id: str | None, lock: Path | None
) -> tuple[CheckpointLock, ...]:
    """The locks of what is meant: one lock file, or target and drafter of a recipe or of the stack that is meant.

    Raises: UsageError, MissingFile when a checkpoint has no lock yet, DocumentError.
    """
    given = [name for name, value in (("--stack", stack), ("--recipe", recipe_id), ("--lock", lock)) if value]
    if len(given) > 1:
        raise UsageError(
            given[0], f"stands beside {given[1]}", "each of them says which checkpoints are meant", "give one"
        )
    if lock:
        return (locks.read(lock),)
    if not recipe_id:
        recipe_id = stacks.read(checkout, stacks.choose(checkout, stack)).recipe_id
    found = tuple(_locked(checkpoint, checkout) for checkpoint in recipe.find(checkout.recipes, recipe_id).checkpoints)
    locks.refuse_broken_pairs(found)
    return found


def lock(
    checkout: Checkout, repo: str, revision: str, path: Path | None, *, check: bool, progress: Progress
) -> tuple[Json, str]:
    """The lock of `repo` at `revision` as JSON, and a sentence; written to `path` (default: the checkout's), or only compared.

    The patterns of a recipe that names `repo` say which files are meant; a comparison keeps to those of the lock.

    Raises: LockDrift when `check` finds that upstream moved; UsageError, also when `path` is another repository's lock;
    AuthFailure, MissingFile, NetworkFailure.
    """
    path = path or checkout.root / locks.default_path(repo)
    before = locks.read(path) if check else None
    old = None if check else _refuse_another(path, repo)
    with hub_for([repo], checkout) as hub:
        found = locks.resolve(
            repo,
            revision,
            endpoint=hub.endpoint,
            token=hub.token,
            allow_patterns=before.allow_patterns if before else _patterns(checkout, repo),
            progress=progress,
        )
    if before:
        locks.check(before, found)
        return found.as_json(), f"{path} agrees with {repo}@{found.revision}\n"
    if old and old.pairs:
        found = _with_pairs_of(old, found, progress)
    locks.write(found, path)
    return found.as_json(), f"wrote {path} ({locks.digest(found)})\n"


def lock_requested(
    checkout: Checkout, paths: Sequence[Path], *, check: bool, progress: Progress
) -> tuple[list[Json], str]:
    """The locks that the requests at `paths` ask for, as JSON and as text; written beside them, or only compared.

    What is completed in one go is paired in one go: a pair without a revision gets the one its other half is locked at.

    Raises: LockDrift when `check` finds that upstream moved; DocumentError, UsageError, AuthFailure, MissingFile, NetworkFailure.
    """
    meant = [(path, requests.read(path)) for path in paths]
    known = {found.repo: found.revision for found in locks_of(checkout)}
    entries: list[Json] = []
    lines: list[str] = []
    with hub_for([request.repo for _, request in meant], checkout) as hub:
        known |= {request.repo: request.revision or requests.head(hub, request.repo) for _, request in meant}
        for path, request in meant:
            place = path.with_name(path.name.removesuffix(requests.SUFFIX) + ".lock.json")
            before = locks.read(place) if check else None
            if not check:
                _refuse_another(place, request.repo)
            found = requests.complete(request, hub, known, progress=progress)
            if before:
                locks.check(before, found)
            else:
                locks.write(found, place)
            entries.append(found.as_json())
            said = "agrees with" if check else "locks"
            lines.append(f"{place} {said} {found.repo}@{found.revision} ({locks.digest(found)})\n")
    return entries, "".join(lines)


def requested(checkout: Checkout, *, locked: bool) -> list[Path]:
    """The lock requests of the checkout, sorted; with `locked`, those that have been completed.

    Raises: MissingFile when there is none.
    """
    paths = sorted(checkout.locks.glob(f"*{requests.SUFFIX}"))
    if locked:
        paths = [
            path for path in paths if (path.parent / f"{path.name.removesuffix(requests.SUFFIX)}.lock.json").is_file()
        ]
    if not paths:
        which = "completed lock request" if locked else "lock request"
        raise MissingFile(checkout.locks, f"has no {which} (*{requests.SUFFIX})", "", "give --repo")
    return paths


def fetch(
    checkout: Checkout,
    meant: Sequence[CheckpointLock],
    dest: Path | None,
    *,
    workers: int,
    progress: Progress,
    **way: Unpack[Way],
) -> tuple[list[Json], str]:
    """What was fetched, as JSON and as text, one entry per lock; `way` is what `checkpoints.fetch.fetch` knows besides.

    Raises: IntegrityMismatch, MissingFile, AuthFailure, NetworkFailure, DiskFailure, UsageError.
    """
    if workers < 1:
        raise UsageError("--workers", f"must be at least 1 (got {workers})", "", "give a positive number")
    root = dest or checkout.models
    results: list[FetchResult] = []
    with hub_for([item.repo for item in meant], checkout) as hub:
        for item in meant:
            carrier = xet.carrier(item, hub)
            results.append(fetch_one(item, root, hub=hub, workers=workers, progress=progress, carrier=carrier, **way))
    pairs = list(zip(meant, results, strict=True))
    for item, result in pairs:
        records.remember_fetch(item, result.folder, skipped=result.skipped, progress=progress)
    entries = [
        {"repo": item.repo, "revision": item.revision, **asdict(result), "folder": str(result.folder)}
        for item, result in pairs
    ]
    return entries, "".join(f"{fetched_text(item, result)}\n" for item, result in pairs)


def fetched_text(item: CheckpointLock, result: FetchResult) -> str:
    """One sentence about one fetch."""
    what = f"{item.repo}@{item.revision[:12]}"
    if result.skipped:
        return f"{what}: already in {result.folder}, untouched since it was verified"
    kept = f", {result.reused_files} kept" if result.reused_files else ""
    kept += f", {result.carried_files} by xet" if result.carried_files else ""
    size = human_bytes(result.fetched_bytes)
    return f"{what}: {result.fetched_files} files, {size}{kept}, every digest equal to the lock, in {result.folder}"


def verify(
    checkout: Checkout,
    meant: Sequence[CheckpointLock],
    folder: Path | None,
    *,
    level: str,
    workers: int,
    progress: Progress,
) -> tuple[list[Json], str]:
    """What was verified, as JSON and as text, one entry per lock; `folder` names one checkpoint's own folder.

    Raises: MissingFile, IntegrityMismatch, DiskFailure, UsageError.
    """
    if folder and len(meant) > 1:
        names = ", ".join(item.repo for item in meant)
        raise UsageError(
            "--dir", f"names one folder for {len(meant)} checkpoints", names, "give --lock, or leave --dir out"
        )
    if workers < 1:
        raise UsageError("--workers", f"must be at least 1 (got {workers})", "", "give a positive number")
    entries: list[Json] = []
    lines: list[str] = []
    for item in meant:
        place = folder or checkout.models / item.repo.rpartition("/")[2]
        done = verify_one(item, place, level=level, workers=workers, progress=progress)
        entries.append({"repo": item.repo, "revision": item.revision, "folder": str(place), **asdict(done)})
        lines.append(f"{verified_text(entries[-1])}\n")
    return entries, "".join(lines)


def verified_text(entry: Json) -> str:
    """One sentence about one verification."""
    what = f"{entry['repo']}@{entry['revision'][:12]}"
    return f"{what}: {entry['files']} files, {human_bytes(entry['bytes'])} agree with the lock ({entry['level']})"


@contextlib.contextmanager
def hub_for(repos: Sequence[str], checkout: Checkout) -> Iterator[Hub]:
    """The hub that the environment names; for the embedded checkpoint the embedded hub, unless HF_ENDPOINT says otherwise."""
    hub = hub_from_environment()
    if all(repo == embedded.REPO for repo in repos) and hub.endpoint == DEFAULT_ENDPOINT and not hub.offline:
        with embedded.hub(checkout.state / "hub") as local:
            yield Hub(local.url)
    else:
        yield hub


def lock_of(checkout: Checkout, repo: str, revision: str | None) -> CheckpointLock | None:
    """The lock of `repo` at `revision`, None where the checkout has none."""
    return next((found for found in locks_of(checkout) if (found.repo, found.revision) == (repo, revision)), None)


def locks_of(checkout: Checkout) -> list[CheckpointLock]:
    """Every lock of the checkout.

    Raises: DocumentError, DiskFailure.
    """
    return [locks.read(path) for path in sorted(checkout.locks.glob("*.lock.json"))]


def _refuse_another(path: Path, repo: str) -> CheckpointLock | None:
    """The lock that `path` holds, None where there is none.

    Raises: UsageError when it is another repository's; DocumentError when it is no lock.
    """
    if not path.exists():
        return None
    old = locks.read(path)
    if old.repo.lower() != repo.lower():
        raise UsageError(
            path,
            f"is the lock of another repository (got {old.repo})",
            "a lock is replaced by one of its own repository only",
            f"name another file for {repo}: --out, or the request's own name",
        )
    return old


def _with_pairs_of(old: CheckpointLock, found: CheckpointLock, progress: Progress) -> CheckpointLock:
    """`found` with the pairs of the lock before, which hold for its revision alone."""
    if old.revision == found.revision:
        return locks.with_pairs(found, old.pairs)
    pairs = ", ".join(f"{pair.role} {pair.repo}@{pair.revision[:12]}" for pair in old.pairs)
    progress.note(
        f"the lock of {old.repo}@{old.revision[:12]} was paired with {pairs}; that is not known of {found.revision[:12]} "
        "and was left out: lock both with lock-models --request"
    )
    return found


def _patterns(checkout: Checkout, repo: str) -> list[str]:
    """The shell patterns of `repo`'s files that recipes allow, or the general ones where no recipe names it."""
    files = [path for path in sorted(checkout.recipes.glob("*.yaml")) if repo in path.read_text(encoding="utf-8")]
    named = [
        checkpoint
        for path in files  # a whole book takes seconds to read
        for item in recipe.cells(recipe.read_file(path))
        for checkpoint in item.checkpoints
        if checkpoint.repo == repo
    ]
    patterns = [pattern for checkpoint in named for pattern in checkpoint.allow_patterns]
    return list(dict.fromkeys(patterns)) or list(ALLOW_PATTERNS)


def _locked(checkpoint: Checkpoint, checkout: Checkout) -> CheckpointLock:
    known = [found for found in locks_of(checkout) if found.repo == checkpoint.repo]
    for found in known:
        if found.revision == checkpoint.revision:
            return found
    what = f"{checkpoint.repo}@{checkpoint.revision or '(not pinned)'}"
    why = "weights are fetched by size and sha256 of every file, which only a lock file names"
    request = checkout.locks / f"{checkpoint.name.lower()}{requests.SUFFIX}"
    pinned = f" --revision {checkpoint.revision}" if checkpoint.revision else ""
    remedy = f"run `invoke lock-models --repo {checkpoint.repo}{pinned}`"
    if request.is_file():
        remedy = f"run `invoke lock-models --request {request.relative_to(checkout.root)}`"
    if known and not checkpoint.revision:
        remedy = f"write the commit that is locked, {known[0].revision}, into the recipe"
    elif not checkpoint.revision:
        remedy += ", then write the commit it prints into the recipe"
    raise MissingFile(f"lock of {what}", "is not in checkpoints/", why, remedy)
