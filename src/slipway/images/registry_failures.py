"""What may go wrong with a registry on the wire, and whether another try may help."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx

from slipway.errors import AuthFailure, NetworkFailure
from slipway.network import meaning

WORTH_ANOTHER_TRY = frozenset({408, 429, 500, 502, 503, 504})

_SHOWN_BYTES = 4096


class Again(Exception):
    """A try that failed in a way that another may not; `wait_s` is what the server asked for."""

    def __init__(self, text: str, wait_s: float | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.wait_s = wait_s


def refusal(response: httpx.Response, place: str, login: AuthFailure, *, by_registry: bool) -> Exception:
    """The error for a status of `place` that nobody asked for: Again, `login` for what a login decides, or NetworkFailure.

    The registry's own code for it is shown, without control characters.
    """
    status = response.status_code
    code = _error_code(response)
    said = f"answers HTTP {status}{f' {code}' if code else ''} to {response.request.method}"
    if status in WORTH_ANOTHER_TRY:
        return Again(said, wait_s(response.headers))
    if not by_registry:
        return Again(f"the store it sends us to {said}")  # a signed address expires; the registry gives a fresh one
    if status in {401, 403}:
        return AuthFailure(login.place, said, login.why, login.remedy)
    return NetworkFailure(
        place, said, "a registry of the OCI distribution API is asked", "check the name, and who answers there"
    )


def unauthorised(place: str, problem: str, *, push: bool) -> AuthFailure:
    """The error for a login that is missing, or not enough for `place` (registry and repository)."""
    registry = place.partition("/")[0]
    act = "push to" if push else "pull from"
    why = f"the login that docker keeps for {registry} must allow to {act} it, and the repository must exist"
    return AuthFailure(place, problem, why, f"docker login {registry}")


def failed(place: str, error: httpx.TransportError) -> Exception:
    """What went wrong on the wire; a certificate that is not trusted will not be at the next try either."""
    found = meaning(error, _host(error))
    if found and found.lasting:
        return NetworkFailure(place, found.problem, "TLS is checked always", found.remedy)
    if found:
        return Again(found.problem)
    if isinstance(error, httpx.UnsupportedProtocol):
        return NetworkFailure(place, "names an address that cannot be used", str(error)[:120])
    if isinstance(error, httpx.TimeoutException):
        return Again("nothing came before the time limit")
    return Again(f"{str(error) or type(error).__name__}".lower()[:200])


def _host(error: httpx.TransportError) -> str:
    """The host that was asked, which may be a proxy's, a mirror's, or the one of a redirect."""
    try:
        return error.request.url.netloc.decode("ascii", "replace")
    except RuntimeError:  # raised before there was a request
        return "the host"


def wait_s(headers: httpx.Headers) -> float | None:
    """Seconds that the server asks to wait, if it does."""
    after = headers.get("retry-after", "").strip()
    if after.isdigit():
        return float(after)
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except (TypeError, ValueError, IndexError):
        return None  # no date either


def shown(url: str) -> str:
    """`url` without its query, which may hold a signature."""
    return ascii(urlsplit(url)._replace(query="", fragment="").geturl())[1:-1][:200]


def _error_code(response: httpx.Response) -> str:
    try:
        data = b"".join(_at_most(response.iter_raw(), _SHOWN_BYTES))
        found = httpx.Response(200, content=data).json()["errors"][0]
        return ascii(f"{found.get('code')}: {found.get('message')}"[:160])[1:-1]
    except (httpx.TransportError, ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""  # no error document: the status says enough


def _at_most(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk[:count]
        count -= len(chunk)
        if count <= 0:
            return
