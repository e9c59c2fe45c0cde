"""What the hub says about a repository, in our errors and never in the library's.

Source: huggingface_hub 2.4.0 errors.py and utils/_http.py, read 2026-11-30.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import HfApi, ModelInfo
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from slipway.checkpoints.hub import Hub, offline
from slipway.errors import AuthFailure, MissingFile, NetworkFailure, SlipwayError

TIMEOUT_S = 60.0
"""How long the hub may take for the listing of one repository."""


def model_info(hub: Hub, repo: str, revision: str) -> ModelInfo:
    """The hub's answer about `repo` at `revision`: the commit, and size and digests of every file, in one request.

    One request, so that commit and files belong together even while `main` moves; and one with a time limit, which the
    library's listing of a tree lacks.

    Raises: AuthFailure, MissingFile, NetworkFailure.
    """
    hub.require_online()
    with _translated(hub, f"{repo}@{revision}"):
        # Without a token the library would look for one by itself; what was read from the environment is all there is.
        api = HfApi(endpoint=hub.endpoint, token=hub.token or False)
        return api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S)


@contextmanager
def _translated(hub: Hub, place: str) -> Iterator[None]:
    try:
        yield
    except OfflineModeIsEnabled:
        raise offline(hub.endpoint) from None
    except HfHubHTTPError as error:
        raise _http_error(error, hub, place) from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise NetworkFailure(
            hub.endpoint, f"does not answer ({said[:200]})", "", "check the network, HF_ENDPOINT and proxies"
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
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
    return f"; Retry-After is {seconds[:40]} s" if seconds else ""
