"""A checkpoint lock: one repository at one commit, with size and digest of every file. Written by machine, kept in git."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from huggingface_hub import ModelInfo
from pydantic import Field, StringConstraints, model_validator

from slipway import documents
from slipway.checkpoints import upstream
from slipway.checkpoints.hub import Hub
from slipway.checkpoints.pins import digest_of, path_problem, paths_problem, repo_problem
from slipway.durable import write_durably
from slipway.errors import LockDrift, MissingFile, NetworkFailure, UsageError, from_os_error
from slipway.progress import Progress, human_bytes, silent

SCHEMA: Literal["slipway/checkpoint-lock/v1"] = "slipway/checkpoint-lock/v1"

Hex40 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class LockedFile(documents.Document):
    """One file; LFS files have `sha256`, small ones git's own `git_sha1`, as the hub publishes them."""

    path: str
    size_bytes: int = Field(ge=0, lt=1 << 62)
    sha256: Hex64 | None = None
    git_sha1: Hex40 | None = None
    xet_hash: Hex64 | None = None
    """How the hub's chunk store names the file, where it says so; what proves the bytes is the other digest."""

    @model_validator(mode="after")
    def _one_digest(self) -> Self:
        if (self.sha256 is None) == (self.git_sha1 is None):
            raise ValueError("needs exactly one of sha256 and git_sha1")
        problem = path_problem(self.path)
        if problem:
            raise ValueError(f"the path {self.path!a} {problem}")
        return self


class Summary(documents.Document):
    """Totals for people; `tensors` is None where nobody has counted them."""

    shards: int
    tensors: int | None = None
    total_bytes: int


class Pair(documents.Document):
    """Another checkpoint that this one is known to work with, at that revision; `role` is what the other one is."""

    role: Literal["target", "drafter"]
    repo: str
    revision: Hex40


class CheckpointLock(documents.Document):
    """A whole lock. `allow_patterns` says which files of the repository were meant; None means all.

    `pairs` tie target and drafter: a drafter of another revision is served without any error and drafts in vain.
    """

    schema_: Literal["slipway/checkpoint-lock/v1"] = Field(SCHEMA, alias="schema")
    repo: str
    revision: Hex40
    licence: str | None = None
    allow_patterns: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    summary: Summary
    pairs: Annotated[tuple[Pair, ...], Field(strict=False)] = ()
    files: Annotated[tuple[LockedFile, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        problem = repo_problem(self.repo) or paths_problem([file.path for file in self.files])
        if problem:
            raise ValueError(problem)
        if self.summary.shards != _shards(self.files) or self.summary.total_bytes != _total_bytes(self.files):
            raise ValueError("the summary does not agree with the files; make the lock anew")
        return self


@dataclass(frozen=True)
class Drift:
    """Where a lock and what the hub says now differ, by path."""

    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]


def resolve(
    repo: str,
    revision: str,
    *,
    endpoint: str,
    token: str | None,
    allow_patterns: Sequence[str] | None = None,
    progress: Progress = silent,
) -> CheckpointLock:
    """The lock of `repo` at `revision` (a branch, tag or commit; written as the commit), from the hub's metadata alone.

    `allow_patterns` are shell patterns as in `hf download --include`; without them every file is locked.

    Raises: UsageError, AuthFailure, MissingFile, NetworkFailure.
    """
    problem = repo_problem(repo)
    if problem:
        raise UsageError("--repo", f"is no repository (got {repo!a})", problem, "correct it")
    if not revision or not revision.isprintable():
        raise UsageError("--revision", f"is no revision (got {revision!a})", "a branch, tag or commit", "correct it")
    hub = Hub(endpoint, token)
    with progress.track(f"asking {hub.endpoint} about {repo}@{revision}", unit="answers"):
        info = upstream.model_info(hub, repo, revision)
        files = _files(info, allow_patterns)
        xet = upstream.xet_hashes(hub, repo, info.sha or "", [file.path for file in files if file.sha256], progress)
        tensors = upstream.tensor_count(hub, repo, info.sha or "", files, progress)
    files = tuple(file.model_copy(update={"xet_hash": xet.get(file.path)}) for file in files)
    if not files:
        if allow_patterns:
            raise MissingFile(
                f"{repo}@{revision}",
                f"has no file that matches {', '.join(allow_patterns)}",
                "",
                "correct the patterns",
            )
        raise MissingFile(f"{repo}@{revision}", "has no files", "", "check the repository's name")
    summary = Summary(shards=_shards(files), tensors=tensors, total_bytes=_total_bytes(files))
    try:
        lock = CheckpointLock(
            repo=repo,
            revision=info.sha or "",
            licence=_licence(info),
            allow_patterns=tuple(allow_patterns) if allow_patterns else None,
            summary=summary,
            files=files,
        )
    except ValueError as error:
        raise _unlockable(hub, repo, error) from error
    progress.note(f"{repo}@{lock.revision}: {len(files)} files, {human_bytes(summary.total_bytes)}")
    return lock


def default_path(repo: str) -> Path:
    """Where the lock of `repo` lies in a checkout: `checkpoints/<name in lower case>.lock.json`."""
    return Path("checkpoints", f"{repo.rpartition('/')[2].lower()}.lock.json")


def read(path: Path) -> CheckpointLock:
    """The lock at `path`.

    Raises: MissingFile, DiskFailure, DocumentError with every problem in the file.
    """
    return documents.read(path, CheckpointLock)


def write(lock: CheckpointLock, path: Path) -> None:
    """Nothing; `path` then holds `lock`, sorted and with a final newline, or what it held before if anything fails.

    Raises: DiskFailure.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise from_os_error(error, path, "writing the lock") from error
    write_durably(path, text(lock).encode())


def text(lock: CheckpointLock) -> str:
    """The lock as its file has it: JSON, sorted, with a final newline."""
    return json.dumps(_plain(lock), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def with_pairs(lock: CheckpointLock, pairs: Sequence[Pair]) -> CheckpointLock:
    """`lock`, tied to `pairs`."""
    return lock.model_copy(update={"pairs": tuple(sorted(pairs, key=lambda pair: (pair.role, pair.repo)))})


def refuse_broken_pairs(locks: Sequence[CheckpointLock]) -> None:
    """Nothing when those of `locks` that name each other were locked together.

    Raises: LockDrift naming both.
    """
    revisions = {lock.repo: lock.revision for lock in locks}
    for lock in locks:
        for pair in lock.pairs:
            found = revisions.get(pair.repo, pair.revision)
            if found != pair.revision:
                raise LockDrift(
                    f"lock of {lock.repo}",
                    f"is paired with {pair.role} {pair.repo}@{pair.revision}, but that is locked at {found}",
                    "a drafter of another revision serves without an error and its drafts are not accepted",
                    "lock both again: lock-models --request, or pin the paired revision in the recipe",
                )


def digest(lock: CheckpointLock) -> str:
    """`sha256:…` over the lock's canonical JSON: sorted keys, no spaces, absent values left out."""
    canonical = json.dumps(_plain(lock), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def compare(lock: CheckpointLock, upstream: CheckpointLock) -> Drift:
    """Paths that differ between `lock` and `upstream`, sorted."""
    ours = {file.path: digest_of(file) for file in lock.files}
    theirs = {file.path: digest_of(file) for file in upstream.files}
    return Drift(
        tuple(sorted(path for path in ours.keys() & theirs.keys() if ours[path] != theirs[path])),
        tuple(sorted(theirs.keys() - ours.keys())),
        tuple(sorted(ours.keys() - theirs.keys())),
    )


def check(lock: CheckpointLock, upstream: CheckpointLock) -> None:
    """Nothing when `upstream`, resolved now with the lock's patterns, is what was locked.

    Raises: LockDrift naming the files that changed, came and went.
    """
    if lock.repo != upstream.repo:
        raise UsageError(lock.repo, f"cannot be compared with {upstream.repo}", "a lock drifts from its own repository")
    drift = compare(lock, upstream)
    if lock.revision == upstream.revision and drift == Drift((), (), ()):
        return
    what = [
        f"{word} {', '.join(paths)}"
        for word, paths in (("changed", drift.changed), ("added", drift.added), ("removed", drift.removed))
        if paths
    ]
    raise LockDrift(
        f"lock of {lock.repo}",
        f"upstream is at {upstream.revision}, the lock at {lock.revision}: {'; '.join(what) or 'the same files'}",
        "target and drafter are only known to work together as they were locked",
        "keep the lock, or accept the new revision: lock-models, then run the gates again",
    )


def _files(info: ModelInfo, allow_patterns: Sequence[str] | None) -> tuple[LockedFile, ...]:
    """The locked files among those that the hub names, sorted by path."""
    patterns = [f"{pattern}*" if pattern.endswith("/") else pattern for pattern in allow_patterns or ("*",)]
    files = []
    for sibling in sorted(info.siblings or [], key=lambda sibling: sibling.rfilename):
        if not any(fnmatchcase(sibling.rfilename, pattern) for pattern in patterns):
            continue
        sha256 = sibling.lfs.sha256 if sibling.lfs else None
        size = sibling.lfs.size if sibling.lfs else sibling.size
        try:
            files.append(
                LockedFile(
                    path=sibling.rfilename,
                    size_bytes=size if size is not None else -1,
                    sha256=sha256,
                    git_sha1=None if sha256 else sibling.blob_id,
                )
            )
        except ValueError as error:
            raise _unlockable(info.id, ascii(sibling.rfilename), error) from error
    return tuple(files)


def _unlockable(place: object, what: str, error: ValueError) -> NetworkFailure:
    said = "; ".join(line.strip() for line in str(error).splitlines()[1:] if not line.lstrip().startswith("For"))
    return NetworkFailure(
        place,
        f"says of {what} what cannot be locked: {said[:300]}",
        "",
        "check HF_ENDPOINT, or ask the repository's owner",
    )


def _licence(info: ModelInfo) -> str | None:
    """The licence id of the model card; a custom one by its own name."""
    card = info.card_data
    name = card.get("license") if card else None
    if name == "other" and card:
        name = card.get("license_name") or name
    return name if isinstance(name, str) and name.isprintable() and name else None


def _plain(lock: CheckpointLock) -> dict[str, Any]:
    data = lock.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not lock.pairs:
        del data["pairs"]
    return {"licence": None, **data}


def _shards(files: Sequence[LockedFile]) -> int:
    return sum(file.path.endswith(".safetensors") for file in files)


def _total_bytes(files: Sequence[LockedFile]) -> int:
    return sum(file.size_bytes for file in files)
