"""Open pull requests put on a base commit, as commits whose SHA comes out the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipway.errors import LockDrift, MissingFile, UsageError
from slipway.images.git_history import Commit
from slipway.images.git_repository import Repository, open_repository, require_commit
from slipway.images.git_source import log
from slipway.progress import Progress, silent


@dataclass(frozen=True)
class PullRequestHead:
    """A pull request and the head commit that was reviewed: 40 hex digits."""

    number: int
    head: str


@dataclass(frozen=True)
class Committer:
    """Who commits, and when: the same value gives the same SHA. `epoch` in seconds, written as UTC."""

    name: str
    email: str
    epoch: int


@dataclass(frozen=True)
class Picked:
    """The commit that holds the base and every head; `tree` names its content, whoever committed it."""

    repository: str
    base_commit: str
    heads: tuple[PullRequestHead, ...]
    commit: str
    tree: str
    commit_epoch: int


def cherry_pick(
    repository: str,
    base_commit: str,
    heads: Sequence[PullRequestHead],
    committer: Committer,
    cache_dir: Path,
    progress: Progress = silent,
) -> Picked:
    """`base_commit` of `repository` with each head on top, in the given order, as one commit per pull request.

    Each is put on as a squash merge would: a three-way merge of its head, its first author kept, the subject `… (#N)`; so
    `prove` finds it like one that upstream merged. The commit stays in the cache, for `prove` and `archive`.

    Raises: UsageError for what is no full SHA, and for a head that would bring other pull requests along; LockDrift for a
    conflict (names the files), a head that was force-pushed away, or one that is already contained; MissingFile;
    AuthFailure; NetworkFailure.
    """
    require_commit(base_commit, "base commit")
    for wanted in heads:
        require_commit(wanted.head, f"pull request {wanted.number}")
    source = open_repository(repository, cache_dir)
    source.fetch(base_commit, progress)
    commit = base_commit
    for wanted in heads:
        _fetch_head(source, wanted, progress)
        commit = _put_on(source, commit, wanted, committer)
        progress.note(f"pull request {wanted.number} put on {base_commit[:12]}: {commit}")
    source.keep(commit)
    tree = source.text("rev-parse", f"{commit}^{{tree}}")
    return Picked(source.shown, base_commit, tuple(heads), commit, tree, committer.epoch)


def _fetch_head(source: Repository, wanted: PullRequestHead, progress: Progress) -> None:
    """Fetch the recorded head, and see that the pull request still stands on it."""
    if source.holds(wanted.head):
        return
    place = f"{source.shown} pull request {wanted.number}"
    try:
        now = source.fetch_pull_request(wanted.number, progress)
    except MissingFile as error:
        raise MissingFile(
            place, error.problem, "", "check the number; forks' pull requests are upstream's refs"
        ) from error
    if not source.is_ancestor(wanted.head, now):
        raise LockDrift(
            place,
            f"its head was {wanted.head}, and is {now} now: it was force-pushed",
            "what was reviewed is not what the pull request holds",
            "review the new head and record it",
        )
    source.keep(wanted.head)


def _put_on(source: Repository, onto: str, wanted: PullRequestHead, committer: Committer) -> str:
    place = f"{source.shown} pull request {wanted.number}"
    if source.is_ancestor(wanted.head, onto):
        raise LockDrift(
            place, f"its head {wanted.head} is contained already", "", "list it under pull_requests instead"
        )
    if source.run("merge-base", onto, wanted.head, allowed=(0, 1)).returncode:
        raise UsageError(
            place, f"its head {wanted.head} shares no history with {onto}", "", "check repository and number"
        )
    new = list(log(source, "--topo-order", "--reverse", f"{onto}..{wanted.head}"))
    _require_own(place, new, wanted.number)
    merged = source.run(
        "merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", onto, wanted.head, allowed=(0, 1)
    )
    tree, *files = filter(None, merged.stdout.decode(errors="replace").split("\0"))
    if merged.returncode == 1:
        problem = f"its head {wanted.head} conflicts in {', '.join(sorted(set(files)))}"
        raise LockDrift(
            place, problem, f"it was written on another commit than {onto}", "choose another base commit or head"
        )
    return _commit(source, tree, onto, new[0], wanted, committer)


def _require_own(place: str, new: Sequence[Commit], number: int) -> None:
    """A branch that grew from a newer main would smuggle in what was merged there since."""
    others = [commit for commit in new if commit.number not in {None, number}]
    if others:
        listed = ", ".join(f"#{commit.number}" for commit in others[:5]) + (" …" if len(others) > 5 else "")
        why = "it was branched from a commit after the base"
        raise UsageError(
            place, f"would bring {len(others)} merged pull requests along ({listed})", why, "choose a newer base"
        )


def _commit(
    source: Repository, tree: str, parent: str, first: Commit, wanted: PullRequestHead, committer: Committer
) -> str:
    name, email, date = source.text(
        "show", "--no-patch", "--no-notes", "--no-mailmap", "--date=raw", "--format=%an%x00%ae%x00%ad", first.sha, "--"
    ).split("\0")
    env = {
        # git refuses an author without a name; the address stands in.
        "GIT_AUTHOR_NAME": name or email or "unknown",
        "GIT_AUTHOR_EMAIL": email,
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_NAME": committer.name,
        "GIT_COMMITTER_EMAIL": committer.email,
        "GIT_COMMITTER_DATE": f"{committer.epoch} +0000",
    }
    title = first.title or f"Pull request {wanted.number}"
    message = f"{title} (#{wanted.number})\n\nPicked from {wanted.head}\n".encode()
    return source.text("commit-tree", tree, "-p", parent, "-F", "-", stdin=message, env=env)
