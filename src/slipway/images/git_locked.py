"""The git source of an image.yaml as a lock has it: proved, with open pull requests on top, and as an archive with a digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slipway.errors import LockDrift
from slipway.images import git_source
from slipway.images.git_pick import Committer, PullRequestHead, cherry_pick
from slipway.images.git_source import Assertion, PullRequest
from slipway.images.lock import LockedGit, LockedPullRequest
from slipway.images.spec import ContentAssertion, GitSource
from slipway.progress import Progress, silent

_NAME, _EMAIL = "Slipway", "slipway@localhost"
"""Who commits a picked pull request: always the same, since it is part of the commit's SHA."""


def locked(source: GitSource, cache: Path, progress: Progress = silent) -> LockedGit:
    """`source` with everything proved that it claims.

    Raises: UsageError, LockDrift, MissingFile, AuthFailure, NetworkFailure, as `git_source.prove` and `git_pick.cherry_pick`.
    """
    wanted = [PullRequest(one.number, one.merge_commit or "") for one in source.must_contain]
    proof = git_source.prove(source.repository, source.commit, wanted, (), cache, progress)
    heads = [PullRequestHead(one.number, one.head) for one in source.cherry_picks]
    commit = _picked(source.repository, source.commit, heads, proof.commit_epoch, cache, progress)
    final = git_source.prove(source.repository, commit, wanted, _assertions(source.assertions), cache, progress)
    archive = git_source.archive(source.repository, commit, cache / f"{commit}.tar", cache, progress)
    contained = [
        LockedPullRequest(number=one.number, merge_commit=one.merge_commit, subject=one.subject)
        for one in final.pull_requests
    ]
    titles = {one.number: one.head for one in source.cherry_picks}
    picked = [
        LockedPullRequest(number=number, head=head, subject=f"put on top (#{number})")
        for number, head in titles.items()
    ]
    return LockedGit(
        repository=source.repository,
        base_commit=source.commit,
        commit=commit,
        tree=final.tree,
        epoch=final.commit_epoch,
        pull_requests=[*contained, *picked],
        assertions=len(source.assertions),
        archive_sha256=archive.sha256,
    )


def restore(made: LockedGit, cache: Path, progress: Progress = silent) -> None:
    """Nothing; the commit of `made` is then in the cache: a commit with pull requests put on top exists nowhere else.

    Raises: LockDrift when the same pull requests no longer give the same commit, and as `locked`.
    """
    heads = [PullRequestHead(one.number, one.head) for one in made.pull_requests if one.head]
    commit = _picked(made.repository, made.base_commit, heads, made.epoch, cache, progress)
    if commit != made.commit:
        why = f"the lock says {made.commit}"
        raise LockDrift(made.repository, f"the pull requests give another commit (got {commit})", why, "lock it anew")


def _picked(
    repository: str, base: str, heads: Sequence[PullRequestHead], epoch: int, cache: Path, progress: Progress
) -> str:
    if not heads:
        return base
    return cherry_pick(repository, base, heads, Committer(_NAME, _EMAIL, epoch), cache, progress).commit


def _assertions(written: Sequence[ContentAssertion]) -> tuple[Assertion, ...]:
    return tuple(
        Assertion(one.path, (one.contains,) if one.contains else (), (one.lacks,) if one.lacks else ())
        for one in written
    )
