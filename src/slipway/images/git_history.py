"""Where a pull request was merged, and whether a later commit took it back: read from commit messages, pure.

A revert leaves the merge commit an ancestor, so ancestry alone proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"\(#(\d+)\)$")
_MERGED = re.compile(r"Merge pull request #(\d+) from ")
_LAYER = re.compile(r"(Revert|Reapply) \"(.*)\"(?: \(#\d+\))?")
_REVERTED_COMMITS = re.compile(r"\breverts? commits? ([^\n]*(?:\n[^\n]+)*)", re.IGNORECASE)
_REVERTED_NUMBER = re.compile(r"^\s*Reverts (?:[\w.-]+/[\w.-]+)?#(\d+)\b", re.IGNORECASE | re.MULTILINE)
_SHA = re.compile(r"\b[0-9a-f]{7,40}\b")


@dataclass(frozen=True)
class Commit:
    """One commit by its message: `subject` is the first paragraph on one line, `body` the rest."""

    sha: str
    subject: str
    body: str = ""

    @property
    def number(self) -> int | None:
        """The pull request that this commit merged, by its subject: `… (#N)` or `Merge pull request #N from …`."""
        found = _NUMBER.search(self.subject.strip()) or _MERGED.match(self.subject)
        return int(found[1]) if found else None

    @property
    def title(self) -> str:
        """The subject without its `(#N)`."""
        return _NUMBER.sub("", self.subject.strip()).strip()


def merge_of(number: int, commits: Iterable[Commit]) -> Commit | None:
    """The first of `commits`, newest first, that merged pull request `number`."""
    return next((commit for commit in commits if commit.number == number), None)


def standing_revert(merge: Commit, number: int, later: Sequence[Commit]) -> Commit | None:
    """The commit among `later`, oldest first, that took `merge` back and was not itself taken back; None when all stands.

    A revert is known by `This reverts commit SHA` or `Reverts owner/repository#N` in its body, else by its subject:
    `Revert "…"` and `Reapply "…"`, nested as often as it happened, around the title that was merged.
    """
    # Whether the change is in the tree after each commit that touched it, by commit and by pull request.
    applied = {merge.sha: True}
    applied_by_number = {number: True}
    revert: Commit | None = None
    for commit in later:
        state = _state_after(commit, merge, applied, applied_by_number)
        if state is None:
            continue
        applied[commit.sha] = state
        if commit.number is not None:
            applied_by_number[commit.number] = state
        revert = None if state else commit
    return revert


def _state_after(
    commit: Commit, merge: Commit, applied: dict[str, bool], applied_by_number: dict[int, bool]
) -> bool | None:
    """Whether the change is applied after `commit`; None when the commit does not speak of it."""
    named = [applied[sha] for prefix in _reverted(commit.body) for sha in applied if sha.startswith(prefix)]
    numbers = [int(found) for found in _REVERTED_NUMBER.findall(commit.body)]
    named += [applied_by_number[number] for number in numbers if number in applied_by_number]
    if named:
        return not named[-1]
    layers, title = 0, commit.subject.strip()
    while found := _LAYER.fullmatch(title):
        layers += 1 if found[1] == "Revert" else 2
        title = found[2]
    inner = Commit("", title)
    if not layers or not (inner.title == merge.title and inner.number in {None, merge.number}):
        return None
    return layers % 2 == 0


def _reverted(body: str) -> Iterator[str]:
    """The SHAs, full or short, that the body says are reverted."""
    for found in _REVERTED_COMMITS.finditer(body):
        yield from _SHA.findall(found[1])
