"""What the hub says about a repository, in our errors and never in the library's.

Source: huggingface_hub 2.4.0 errors.py and utils/_http.py, read 2026-11-30.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx2
from huggingface_hub import HfApi, ModelInfo, get_session
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from slipway.checkpoints import asking
from slipway.checkpoints.hub import Hub, masked, offline
from slipway.checkpoints.pins import Hasher, PinnedFile, digest_of
from slipway.errors import AuthFailure, IntegrityMismatch, LockDrift, MissingFile, NetworkFailure, SlipwayError
from slipway.progress import Progress

TIMEOUT_S = 60.0
"""How long the hub may take for one question about a repository, from the first byte asked to the last one answered."""

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 32 << 20
"""Largest index that is read to count tensors. M.1's, with 51,456 tensors, has 6.4 MB."""


def model_info(hub: Hub, repo: str, revision: str) -> ModelInfo:
    """The hub's answer about `repo` at `revision`: the commit, and size and digests of every file, in one request.

    One request, so that commit and files belong together even while `main` moves; and one with a time limit, which the
    library's listing of a tree lacks.

    Raises: AuthFailure, MissingFile, NetworkFailure; LockDrift when it answers about another repository or commit.
    """
    hub.require_online()
    with _translated(hub, f"{repo}@{revision}"):
        # Without a token the library would look for one by itself; what was read from the environment is all there is.
        api = HfApi(endpoint=hub.endpoint, token=hub.token or False)
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
        if not all(isinstance(sibling.rfilename, str) for sibling in info.siblings or []):
            raise TypeError("the name of a file is no text")
        if not isinstance(info.id, str):
            raise TypeError("the name of the repository is no text")
    _refuse_another(hub, repo, revision, info)
    return info


def _refuse_another(hub: Hub, repo: str, revision: str, info: ModelInfo) -> None:
    """Nothing when the answer is about what was asked: a renamed repository is another one until somebody has looked."""
    place = f"{repo}@{revision}"
    if info.id.lower() != repo.lower():
        raise LockDrift(
            place,
            f"{hub.endpoint} answers about another repository (got {masked(info.id)[:200]!a})",
            "it was renamed, or something stands in between",
            "look at it, then lock it by the name it has now; or check HF_ENDPOINT",
        )
    if re.fullmatch("[0-9a-fA-F]{40}", revision) and str(info.sha).lower() != revision.lower():
        raise LockDrift(
            place,
            f"{hub.endpoint} answers about another commit (got {masked(str(info.sha))[:200]!a})",
            "a commit is asked for so that nothing else is locked",
            "check HF_ENDPOINT; a mirror that knows only one revision cannot be asked for others",
        )


def xet_hashes(hub: Hub, repo: str, revision: str, paths: Sequence[str], progress: Progress) -> dict[str, str]:
    """Path → name in the hub's chunk store, for those of `paths` that are kept there; empty, with a note, when it does not say."""
    if not paths:
        return {}
    try:
        with _translated(hub, f"{repo}@{revision}"):
            api = HfApi(endpoint=hub.endpoint, token=hub.token or False)
            found = api.get_paths_info(repo, list(paths), revision=revision)
            hashes = {entry.path: getattr(entry, "xet_hash", None) for entry in found}
            return {path: text for path, text in hashes.items() if text and re.fullmatch("[0-9a-f]{64}", text)}
    except SlipwayError as error:
        progress.note(f"no xet hashes for {repo}: {error}")
        return {}


def tensor_count(hub: Hub, repo: str, revision: str, files: Sequence[PinnedFile], progress: Progress) -> int | None:
    """How many tensors the checkpoint has, by its index or the header of its only shard; None, with a note, where that is dear."""
    shards = [file for file in files if file.path.endswith(".safetensors")]
    index = next((file for file in files if file.path == INDEX), None)
    try:
        with _translated(hub, f"{repo}@{revision}"):
            if index is not None and index.size_bytes <= MAX_INDEX_BYTES:
                return len(json.loads(_bytes(hub, repo, revision, index))["weight_map"])
            if index is None and len(shards) == 1:
                api = HfApi(endpoint=hub.endpoint, token=hub.token or False)
                return len(api.parse_safetensors_file_metadata(repo, shards[0].path, revision=revision).tensors)
    except Exception as error:  # noqa: BLE001 -- whatever it is: a lock needs no such number, and the note tells
        progress.note(f"tensors of {repo} are not counted: {masked(' '.join(str(error).split()))[:300]}")
    return None


def _bytes(hub: Hub, repo: str, revision: str, file: PinnedFile) -> bytes:
    """The bytes of one small file, equal to the hub's own digest of it."""
    hasher, pieces, size = Hasher(file), [], 0
    headers = {"Authorization": f"Bearer {hub.token}"} if hub.token else {}
    url = hub.file_url(repo, revision, file.path)
    with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as answer:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            size += len(piece)
            if size > file.size_bytes:
                break
            hasher.update(piece)
            pieces.append(piece)
    if size != file.size_bytes or hasher.digest != digest_of(file):
        raise IntegrityMismatch(file.path, "the hub serves other bytes than it names", "", "try again later")
    return b"".join(pieces)


@contextmanager
def _translated(hub: Hub, place: str) -> Iterator[None]:
    try:
        with asking.bounded(TIMEOUT_S):
            yield
    except OfflineModeIsEnabled:
        raise offline(hub.endpoint) from None
    except HfHubHTTPError as error:
        raise _http_error(error, hub, place) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        said = masked(" ".join(str(error).split())) or type(error).__name__
        raise NetworkFailure(
            hub.endpoint, f"does not answer ({said[:200]})", "", "check the network, HF_ENDPOINT and proxies"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise NetworkFailure(
            hub.endpoint,
            f"answers about {place} what no hub answers ({type(error).__name__})",
            "a proxy or another service may stand in between",
            "check HF_ENDPOINT",
        ) from error


def _http_error(error: HfHubHTTPError, hub: Hub, place: str) -> SlipwayError:
    status = error.response.status_code
    if isinstance(error, GatedRepoError) or status in {401, 403}:
        return AuthFailure(
            place,
            f"{hub.endpoint} refuses access (HTTP {status})",
            "the repository is gated, private or misspelt, or the token is missing or expired",
            "accept the licence on the model's page, then set HF_TOKEN (or run: hf auth login)",
        )
    if isinstance(error, RevisionNotFoundError):
        return MissingFile(
            place, f"{hub.endpoint} has no such revision", "", "give a branch, tag or commit that exists"
        )
    if isinstance(error, RepositoryNotFoundError) or status == 404:
        return MissingFile(
            place,
            f"{hub.endpoint} has no such repository",
            "a private one needs HF_TOKEN",
            "check owner, name and HF_ENDPOINT",
        )
    if status == 429:
        after = _retry_after(error)
        return NetworkFailure(
            place,
            f"{hub.endpoint} limits requests (HTTP 429){after}",
            "anonymous requests have a lower limit",
            "wait, or set HF_TOKEN for a higher limit",
        )
    return NetworkFailure(place, f"{hub.endpoint} answers HTTP {status}", "", "try again later, or check HF_ENDPOINT")


def _retry_after(error: HfHubHTTPError) -> str:
    headers = error.response.headers
    match = re.search(r"t\s*=\s*(\d{1,6})", headers.get("RateLimit", ""))
    seconds = headers.get("Retry-After") or (match[1] if match else "")
    return f"; Retry-After is {masked(seconds)[:40]} s" if seconds else ""
