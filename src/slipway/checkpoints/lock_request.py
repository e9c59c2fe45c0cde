"""Lock requests: what is to be locked, written by hand where a repository's digests are not known yet.

A request names repository, revision, pair and patterns; `complete` asks a hub for the rest and makes the lock. The digests of
shards are not in public documents, so a request is as far as anyone comes without a hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slipway import documents
from slipway.checkpoints import lock as locks
from slipway.checkpoints import upstream
from slipway.checkpoints.hub import Hub
from slipway.checkpoints.lock import CheckpointLock, Hex40, Pair
from slipway.checkpoints.pins import repo_problem
from slipway.errors import NetworkFailure
from slipway.progress import Progress, silent
from slipway.recipe.words import ALLOW_PATTERNS

SUFFIX = ".lock-request.json"


class RequestedPair(documents.Document):
    """The other half of a pair; without a revision it is locked at whatever its `main` is when both are completed."""

    role: Literal["target", "drafter"]
    repo: str
    revision: Hex40 | None


class LockRequest(documents.Document):
    """One checkpoint to be locked. `source` says where the revision, or its absence, comes from."""

    schema_: Literal["slipway/checkpoint-lock-request/v1"] = Field(alias="schema")
    repo: str
    revision: Hex40 | None
    pairs: Annotated[tuple[RequestedPair, ...], Field(strict=False)] = ()
    allow_patterns: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ALLOW_PATTERNS
    source: str = Field(min_length=1)

    @model_validator(mode="after")
    def _names_repositories(self) -> Self:
        for repo in (self.repo, *(pair.repo for pair in self.pairs)):
            problem = repo_problem(repo)
            if problem:
                raise ValueError(f"{repo!a} is no repository: {problem}")
        return self


def read(path: Path) -> LockRequest:
    """The request at `path`.

    Raises: MissingFile, DiskFailure, DocumentError with every problem in the file.
    """
    return documents.read(path, LockRequest)


def complete(
    request: LockRequest, hub: Hub, known: Mapping[str, str], *, progress: Progress = silent
) -> CheckpointLock:
    """The lock that `request` asks for. `known` says at which revision other repositories are locked in the same go.

    Raises: UsageError, AuthFailure, MissingFile, NetworkFailure.
    """
    found = locks.resolve(
        request.repo,
        request.revision or known.get(request.repo) or "main",
        endpoint=hub.endpoint,
        token=hub.token,
        allow_patterns=request.allow_patterns,
        progress=progress,
    )
    pairs = [
        Pair(role=pair.role, repo=pair.repo, revision=pair.revision or known.get(pair.repo) or head(hub, pair.repo))
        for pair in request.pairs
    ]
    return locks.with_pairs(found, pairs)


def head(hub: Hub, repo: str) -> str:
    """The commit that `main` of `repo` is now.

    Raises: AuthFailure, MissingFile, NetworkFailure.
    """
    commit = upstream.model_info(hub, repo, "main").sha
    if not commit:
        raise NetworkFailure(repo, f"{hub.endpoint} names no commit", "", "check HF_ENDPOINT")
    return commit
