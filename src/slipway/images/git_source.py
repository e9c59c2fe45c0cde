"""Proof that a commit of a git repository contains pull requests, and the commit as a tar with a digest that repeats."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slipway.errors import LockDrift, MissingFile, NetworkFailure, UsageError, from_os_error
from slipway.images.git_history import Commit, merge_of, standing_revert
from slipway.images.git_repository import BlobReader, Repository, open_repository, require_commit
from slipway.images.tarball import Member, TarWriter, leaves, sort_key, stays_inside
from slipway.progress import Progress, silent

_CHERRY_PICK = "cherry-pick its head onto the commit (kind: base plus heads), or pin a commit after the merge"


@dataclass(frozen=True)
class PullRequest:
    """A pull request that must be contained; `merge_commit` as the lock records it, or "" to look for it by subject."""

    number: int
    merge_commit: str = ""


@dataclass(frozen=True)
class Assertion:
    """What a file must say at the commit: each text of `contains` stands in it, none of `lacks` does."""

    path: str
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProvedPullRequest:
    """A pull request found in a history: the commit that merged it and that commit's subject."""

    number: int
    merge_commit: str
    subject: str


@dataclass(frozen=True)
class Proof:
    """What was proved of one commit; `repository` is masked, `commit_epoch` is the committer's date in seconds."""

    repository: str
    commit: str
    tree: str
    commit_epoch: int
    pull_requests: tuple[ProvedPullRequest, ...]
    assertions: tuple[Assertion, ...]

    def as_json(self) -> dict[str, Any]:
        """The proof as plain JSON values, for a lock."""
        return asdict(self)


@dataclass(frozen=True)
class Archive:
    """A source tar on disk, the sha256 of its bytes, and what it holds; a submodule is an empty folder in it."""

    path: Path
    sha256: str
    size_bytes: int
    file_count: int
    submodules: tuple[str, ...] = field(default=())


def prove(
    repository: str,
    commit: str,
    pull_requests: Sequence[PullRequest],
    assertions: Sequence[Assertion],
    cache_dir: Path,
    progress: Progress = silent,
) -> Proof:
    """That `commit` of `repository` (URL or path) contains every pull request, unreverted, and says what is asserted.

    A pull request is contained when the commit that merged it, recorded or found by `(#N)` at the end of a first-parent
    subject, is an ancestor. No network is used once the cache holds the commit, unless a pull request is missing.

    Raises: UsageError for a branch, a tag or a short SHA; LockDrift when a pull request is missing, reverted or recorded
    with another commit's SHA, or an assertion fails; MissingFile when the server does not give the commit; AuthFailure;
    NetworkFailure.
    """
    require_commit(commit, "commit")
    for wanted in pull_requests:
        if wanted.merge_commit:
            require_commit(wanted.merge_commit, f"pull request {wanted.number}")
    source = open_repository(repository, cache_dir)
    source.fetch(commit, progress)
    main_line = list(log(source, "--first-parent", commit))
    proved = tuple(_proved(source, commit, wanted, main_line, progress) for wanted in pull_requests)
    _check_assertions(source, commit, assertions)
    tree, epoch = source.text("show", "--no-patch", "--no-notes", "--format=%T %ct", commit, "--").split()
    return Proof(source.shown, commit, tree, int(epoch), proved, tuple(assertions))


def archive(repository: str, commit: str, target: Path, cache_dir: Path, progress: Progress = silent) -> Archive:
    """The files of `commit` as the tar `target`, the same bytes wherever and however often it is made.

    Members are sorted; owner 0, mode 0644, 0755 or a symlink, mtime the committer's date. The tree's own `.gitattributes`
    (export-subst, export-ignore) have no say, so the bytes depend on the commit alone and on no version of git.

    Raises: as `prove`; UsageError for a path or a symlink that would leave the folder where the tar is unpacked; DiskFailure.
    """
    source = open_repository(repository, cache_dir)
    source.fetch(commit, progress)
    epoch = int(source.text("show", "--no-patch", "--no-notes", "--format=%ct", commit, "--"))
    entries = sorted(_tree(source, commit), key=lambda entry: sort_key(entry.path))
    # A reader sees the whole tar or none.
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w+b") as stream:
            writer = TarWriter(stream, epoch)
            with source.blobs() as blobs, progress.track(f"pack {commit[:12]}", len(entries), "files") as advance:
                for entry in entries:
                    _add(writer, entry, blobs, f"{source.shown} {commit}")
                    advance(1)
            writer.close()
            size_bytes = stream.tell()
            stream.seek(0)
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        partial.replace(target)
    except OSError as error:
        raise from_os_error(error, target, "writing the source archive") from error
    finally:
        with suppress(OSError):  # already replaced, or its folder was never made
            partial.unlink()
    submodules = tuple(entry.path for entry in entries if entry.mode == _SUBMODULE)
    return Archive(target, sha256, size_bytes, len(entries) - len(submodules), submodules)


def log(source: Repository, *words: str) -> Iterator[Commit]:
    """The commits that `git log WORDS` lists, in its order; messages are data, whatever they hold. Raises: SlipwayError."""
    listed = source.text("log", "-z", "--no-show-signature", "--no-notes", "--format=%H%x1f%s%x1f%b", *words, "--")
    for record in filter(None, listed.split("\0")):
        sha, subject, body = [*record.split("\x1f", 2), "", ""][:3]
        yield Commit(sha, subject, body)


_SYMLINK, _SUBMODULE, _EXECUTABLE = "120000", "160000", "100755"


@dataclass(frozen=True)
class _Entry:
    mode: str
    object_id: str
    path: str


def _proved(
    source: Repository, commit: str, wanted: PullRequest, main_line: Sequence[Commit], progress: Progress
) -> ProvedPullRequest:
    place = f"{source.shown} {commit}"
    if wanted.merge_commit:
        merge = _recorded(source, commit, wanted, main_line)
    else:
        found = merge_of(wanted.number, main_line)
        if found is None:
            raise LockDrift(place, *_not_contained(source, commit, wanted.number, progress), _CHERRY_PICK)
        merge = found
    later = list(log(source, "--topo-order", "--reverse", f"{merge.sha}..{commit}"))
    revert = standing_revert(merge, wanted.number, later)
    if revert:
        raise LockDrift(
            place,
            f"pull request {wanted.number} was reverted by {revert.sha} ({revert.subject!r})",
            "its merge commit is still an ancestor, but what it changed is gone",
            "pin a commit before the revert or after it was applied again",
        )
    progress.note(f"pull request {wanted.number} is contained: {merge.sha[:12]} {merge.subject}")
    return ProvedPullRequest(wanted.number, merge.sha, merge.subject)


def _recorded(source: Repository, commit: str, wanted: PullRequest, main_line: Sequence[Commit]) -> Commit:
    place = f"{source.shown} {commit}"
    what = f"pull request {wanted.number}"
    if not source.is_ancestor(wanted.merge_commit, commit):
        now = merge_of(wanted.number, main_line)
        seen = f"; its history has {what} at {now.sha}" if now else ""
        problem = f"{what}: the recorded merge commit {wanted.merge_commit} is not an ancestor{seen}"
        why = "the head of a squash-merged pull request never is; the commit that merged it must be recorded"
        raise LockDrift(place, problem, why, f"{_CHERRY_PICK}, or correct the recorded SHA")
    merge = next(log(source, "--no-walk", wanted.merge_commit))
    if merge.number != wanted.number:
        problem = f"{what}: the recorded merge commit {merge.sha} is of another change ({merge.subject!r})"
        why = f"its subject must end in (#{wanted.number})"
        raise LockDrift(place, problem, why, "correct the recorded SHA, or leave it out to have it found")
    return merge


def _not_contained(source: Repository, commit: str, number: int, progress: Progress) -> tuple[str, str]:
    """Problem and reason for a pull request without a merge commit; the server is asked whether it is still open."""
    problem = f"pull request {number} is not contained: no first-parent subject ends in (#{number})"
    try:
        head = source.fetch_pull_request(number, progress)
    except MissingFile:
        return problem, "and the server knows no pull request of that number"
    except NetworkFailure:
        return problem, "whether it was ever merged could not be asked: the server does not answer"
    if source.is_ancestor(head, commit):
        return problem, f"its head {head} is an ancestor all the same: record that commit's own pull request"
    return f"pull request {number} is not merged into it (its head {head} is not an ancestor either)", ""


def _check_assertions(source: Repository, commit: str, assertions: Sequence[Assertion]) -> None:
    wanted = {assertion.path for assertion in assertions}
    entries = {entry.path: entry for entry in _tree(source, commit) if entry.path in wanted}
    with source.blobs() as blobs:
        for assertion in assertions:
            place = f"{source.shown} {commit[:12]}:{assertion.path}"
            entry = entries.get(assertion.path)
            if entry is None or entry.mode in {_SYMLINK, _SUBMODULE}:
                raise MissingFile(
                    place, "is no file at this commit", "an assertion speaks of it", "correct the assertion"
                )
            text = blobs.read(entry.object_id)
            why = "ancestry does not show what a later commit changed"
            for wanted_text in assertion.contains:
                if wanted_text.encode() not in text:
                    raise LockDrift(place, f"lacks {wanted_text!r}", why, "pin a commit that has it")
            for unwanted in assertion.lacks:
                if unwanted.encode() in text:
                    raise LockDrift(place, f"still holds {unwanted!r}", why, "pin a commit that does not")


def _tree(source: Repository, commit: str) -> Iterator[_Entry]:
    listed = source.run("ls-tree", "-r", "-z", "--full-tree", commit).stdout
    for record in filter(None, listed.split(b"\0")):
        fields, _, path = record.partition(b"\t")
        mode, _, object_id = fields.decode().split()
        yield _Entry(mode, object_id, os.fsdecode(path))


def _add(writer: TarWriter, entry: _Entry, blobs: BlobReader, place: str) -> None:
    if not stays_inside(entry.path):
        problem = f"holds the path {entry.path!r}"
        raise UsageError(
            place, problem, "it would land outside the folder where the source is unpacked", "do not use it"
        )
    if entry.mode == _SUBMODULE:
        writer.add_folder(entry.path)
        return
    data = blobs.read(entry.object_id)
    link = os.fsdecode(data) if entry.mode == _SYMLINK else ""
    if link and leaves(entry.path, link):
        problem = f"holds the symlink {entry.path!r} to {link!r}"
        raise UsageError(place, problem, "it points outside the folder where the source is unpacked", "do not use it")
    writer.add(Member(entry.path, entry.mode == _EXECUTABLE, link, lambda: data))
