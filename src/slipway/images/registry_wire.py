"""HTTP to registries: retries, deadlines, redirects by hand, logins, and TLS everywhere but on loopback.

A login goes to the registry that docker keeps it for, and to the token service which that registry names over TLS; never to where
a redirect leads. Bodies are handed on as they come: what they must be is checked by whoever asked.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

import httpx

from slipway.errors import AuthFailure, IntegrityMismatch, MissingFile, NetworkFailure
from slipway.images.image_name import HUB, is_loopback
from slipway.images.registry_failures import WORTH_ANOTHER_TRY, Again, failed, refusal, shown, unauthorised, wait_s
from slipway.images.registry_login import Challenge, Login, Logins, challenges

_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_FREE_S = 600
SMALL_BYTES = 1 << 20
"""Blobs up to this size, as configs are, must come as fast as manifests."""
_MAX_TOKEN_BYTES = 1 << 20
_SHOWN_BYTES = 4096

Found = TypeVar("Found")


@dataclass(frozen=True)
class Limits:
    """How long and how often a registry is waited for: seconds, except where the name says otherwise."""

    connect_s: float = 10
    stall_s: float = 60
    """Longest pause within an answer."""
    answer_s: float = 300
    """Longest wait for one small answer, with all its tries."""
    least_bytes_per_s: int = 50_000
    """What is slower than this on the whole is given up; `free_s` are free, and of large blobs the first ten minutes."""
    free_s: float = 20
    """How long a small answer (a manifest, a config) may take besides."""
    tries: int = 5
    pause_s: float = 0.5
    """Before the second try; doubled after each."""
    chunk_bytes: int | None = None
    """Blobs are sent in pieces of this size, for a proxy that limits a request; None sends each in one, as docker does."""

    def sent_s(self, size_bytes: int) -> float:
        """How long a blob may take on its way."""
        return _FREE_S + size_bytes / self.least_bytes_per_s

    def require_pace(self, place: object, got_bytes: int, started_s: float) -> None:
        """Nothing while a small answer comes fast enough, with `got_bytes` since `started_s` (monotonic).

        Raises: NetworkFailure; it is not tried again, since who drips would be waited for as often as we try.
        """
        took_s = time.monotonic() - started_s
        if took_s > min(self.answer_s, self.free_s + got_bytes / self.least_bytes_per_s):
            problem = f"answers too slowly ({got_bytes} bytes in {took_s:.0f} s)"
            raise NetworkFailure(place, problem, "manifests and configs are small", "check network and proxy")


@dataclass(frozen=True)
class Ask:
    """One request: `path` is a path on `registry`, or the whole address that it gave for an upload."""

    method: str
    registry: str
    path: str
    repository: str = ""
    push: bool = False
    """Whether it needs the right to push; also a question may, since a repository may not exist before its first push."""
    mount_from: str = ""
    """A repository of the same registry that is read from, too."""
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Callable[[], Iterator[bytes]] | None = None
    allowed: frozenset[int] = frozenset({404})
    """Statuses besides 2xx that the caller understands."""

    @property
    def place(self) -> str:
        return f"{self.registry}/{self.repository}" if self.repository else self.registry

    @property
    def key(self) -> tuple[str, str, bool, str]:
        """Requests that one pass is good for."""
        return self.registry, self.repository, self.push, self.mount_from

    @property
    def scopes(self) -> tuple[str, ...]:
        """What a token must allow."""
        own = f"repository:{self.repository}:{'pull,push' if self.push else 'pull'}"
        return (own, f"repository:{self.mount_from}:pull") if self.mount_from else (own,)


@dataclass(frozen=True)
class Answer:
    """A whole answer; `url` is where it came from, for a relative Location."""

    status: int
    headers: httpx.Headers
    body: bytes
    url: str


class Wire:
    """Connections to registries. Thread-safe. `ca` is a file of certificates to trust besides the system's."""

    def __init__(self, logins: Logins, limits: Limits, ca: Path | None = None) -> None:
        self.limits = limits
        self._logins = logins
        tls = _tls(ca)
        timeout = httpx.Timeout(limits.stall_s, connect=limits.connect_s)
        # A proxy is for the way out; loopback is never reached through one.
        self._outside = httpx.Client(verify=tls, timeout=timeout, headers={"Accept-Encoding": "identity"})
        self._inside = httpx.Client(
            verify=tls, timeout=timeout, headers={"Accept-Encoding": "identity"}, trust_env=False
        )
        self._origins: dict[str, str] = {}
        self._passes: dict[tuple[str, str, bool, str], str] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """End all connections."""
        self._outside.close()
        self._inside.close()

    def ask(self, ask: Ask, cap_bytes: int = _MAX_TOKEN_BYTES) -> Answer:
        """The answer to `ask`, whose body has at most `cap_bytes`.

        Raises: AuthFailure, NetworkFailure, IntegrityMismatch for a longer body.
        """

        def attempt() -> Answer:
            with self.once(ask) as response:
                body = _body(response, cap_bytes, ask.place, self.limits)
                return Answer(response.status_code, response.headers, body, str(response.url))

        return self.again(ask.place, attempt)

    def again(self, place: str, attempt: Callable[[], Found], more_s: float = 0) -> Found:
        """What `attempt` returns, tried anew while it raises Again and the limits (and `more_s`) allow.

        Raises: NetworkFailure, and whatever else it raises.
        """
        ends_s = time.monotonic() + self.limits.answer_s + more_s
        tried = 0
        while True:
            try:
                return attempt()
            except Again as again:
                tried += 1
                self.pause(place, again, tried, ends_s)

    def pause(self, place: str, again: Again, tried: int, ends_s: float) -> None:
        """Nothing, once it is time for another try after `tried` of them; the server may ask for a longer wait.

        Raises: NetworkFailure when there is none.
        """
        pause_s = self.limits.pause_s * 2 ** (tried - 1) if again.wait_s is None else again.wait_s
        if tried >= self.limits.tries or time.monotonic() + pause_s > ends_s:
            asked = f", and it asks to wait {again.wait_s:.0f} s" if again.wait_s else ""
            why = f"tried {tried} time{'s' if tried > 1 else ''}"
            raise NetworkFailure(
                place, f"{again.text}{asked}", why, "check network and proxy, then run it again"
            ) from None
        threading.Event().wait(pause_s)

    @contextmanager
    def once(self, ask: Ask) -> Iterator[httpx.Response]:
        """The open answer to one try: a 2xx or an allowed status.

        Raises: Again, AuthFailure, NetworkFailure.
        """
        origin = self._origin(ask.registry)
        url = ask.path if "://" in ask.path else origin + ask.path
        response = self._send(ask, url, origin)
        if response.status_code == 401 and _same_origin(url, origin):
            response.close()
            self._authorise(ask, response.headers.get_list("www-authenticate"))
            response = self._send(ask, url, origin)
        response = self._follow(ask, response, origin)
        try:
            if not (response.is_success or response.status_code in ask.allowed):
                login = unauthorised(ask.place, "", push=ask.push)
                raise refusal(response, ask.place, login, by_registry=_same_origin(str(response.url), origin))
            yield response
        except httpx.TransportError as error:
            raise failed(ask.place, error) from error
        finally:
            response.close()

    def _send(self, ask: Ask, url: str, origin: str) -> httpx.Response:
        headers = dict(ask.headers)
        content = ask.content() if callable(ask.content) else ask.content
        try:
            if ask.key in self._passes and _same_origin(url, origin):
                headers["Authorization"] = self._passes[ask.key]
            client = self._client(url)
            request = client.build_request(ask.method, url, headers=headers, content=content)
            if ask.push:
                # A registry may first copy or hash what it has got, and say nothing the while.
                request.extensions["timeout"]["read"] = self.limits.answer_s
            return client.send(request, stream=True)
        except httpx.TransportError as error:
            raise failed(ask.place, error) from error
        except (httpx.InvalidURL, ValueError) as error:
            raise NetworkFailure(ask.place, "names an address that cannot be used", str(error)[:120]) from None

    def _follow(self, ask: Ask, response: httpx.Response, origin: str) -> httpx.Response:
        """The answer behind the redirects of `response`: blobs often lie in a store of their own."""
        for _ in range(_MAX_REDIRECTS):
            if response.status_code not in _REDIRECTS or ask.method not in {"GET", "HEAD"}:
                return response
            response.close()
            url = self.onward(ask, response.headers.get("location", ""), str(response.url))
            response = self._send(ask, url, origin)
        if response.status_code in _REDIRECTS:
            response.close()
            raise NetworkFailure(
                ask.place, f"redirects more than {_MAX_REDIRECTS} times", "", "ask who runs the registry"
            )
        return response

    def onward(self, ask: Ask, location: str, base: str) -> str:
        """The address that `location`, in an answer from `base`, sends `ask` on to; as well protected as its registry.

        Raises: NetworkFailure.
        """
        origin = self._origin(ask.registry)
        try:
            url = urljoin(base, location)
            parts = urlsplit(url)
            plain = parts.scheme == "http" and origin.startswith("http:") and is_loopback(parts.hostname or "")
        except ValueError as error:
            raise NetworkFailure(
                ask.place, "sends us on to no address", str(error), "ask who runs the registry"
            ) from None
        if not plain and parts.scheme != "https":
            why = "only TLS is followed, except on loopback"
            raise NetworkFailure(ask.place, f"sends us on to {shown(url)}", why, "ask who runs the registry")
        return url

    def _authorise(self, ask: Ask, said: list[str]) -> None:
        """A pass for `ask` is kept, by the challenge that the registry `said`."""
        login = self._logins.login(ask.registry)
        for challenge in challenges(said):
            if challenge.scheme == "bearer" and challenge.realm:
                found = "Bearer " + self._token(ask, challenge, login)
            elif challenge.scheme == "basic" and login is not None and login.user:
                found = login.basic
            else:
                continue
            with self._lock:
                self._passes[ask.key] = found
            return
        problem = "asks for a login" if login is None else "asks for another kind of login than we have"
        raise unauthorised(ask.place, problem, push=ask.push)

    def _token(self, ask: Ask, challenge: Challenge, login: Login | None) -> str:
        realm = urlsplit(challenge.realm)
        here = is_loopback(ask.registry) and is_loopback(realm.hostname or "")
        if realm.scheme != "https" and not (here and realm.scheme == "http"):
            # Over TLS the registry may name any service: the login is its own, and it could ask for it itself.
            problem = f"names a token service without TLS ({shown(challenge.realm)})"
            raise AuthFailure(ask.place, problem, "a login is never sent in clear", "ask who runs the registry")
        body = self.again(ask.place, lambda: self._ask_token(ask, challenge, login))
        token = body.get("token") or body.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise AuthFailure(ask.place, "its token service gave no token", "", "ask who runs the registry")
        return token

    def _ask_token(self, ask: Ask, challenge: Challenge, login: Login | None) -> dict[str, object]:
        client, realm = self._client(challenge.realm), challenge.realm
        service = {"service": challenge.service} if challenge.service else {}
        if login is not None and login.identity_token:
            grant = {"grant_type": "refresh_token", "client_id": "slipway", "refresh_token": login.identity_token}
            request = client.build_request("POST", realm, data={**service, **grant, "scope": " ".join(ask.scopes)})
        else:
            headers = {"Authorization": login.basic} if login is not None and login.user else {}
            request = client.build_request(
                "GET", httpx.URL(realm).copy_merge_params({**service, "scope": ask.scopes}), headers=headers
            )
        try:
            response = client.send(request, stream=True)
            try:
                if response.status_code in WORTH_ANOTHER_TRY:
                    raise Again(f"its token service answers HTTP {response.status_code}", wait_s(response.headers))
                if not response.is_success:
                    raise unauthorised(
                        ask.place, f"its token service answers HTTP {response.status_code}", push=ask.push
                    )
                data = _body(response, _MAX_TOKEN_BYTES, ask.place, self.limits)
                value = httpx.Response(200, content=data).json()
            finally:
                response.close()
        except httpx.TransportError as error:
            raise failed(f"{ask.place} (its token service)", error) from error
        except ValueError:
            value = None
        return value if isinstance(value, dict) else {}

    def _client(self, url: str) -> httpx.Client:
        return self._inside if is_loopback(urlsplit(url).hostname or "") else self._outside

    def _origin(self, registry: str) -> str:
        """Scheme and host to ask for `registry`; on loopback plain HTTP, unless TLS is spoken there."""
        if registry not in self._origins:
            if registry == HUB:
                self._origins[registry] = "https://registry-1.docker.io"
            elif is_loopback(registry) and not self._speaks_tls(registry):
                self._origins[registry] = f"http://{registry}"
            else:
                self._origins[registry] = f"https://{registry}"
        return self._origins[registry]

    def _speaks_tls(self, registry: str) -> bool:
        """Asked in clear, since a server in clear may wait for ever for the rest of a TLS greeting; nothing secret is sent."""
        try:
            answer = self._inside.get(f"http://{registry}/v2/")
        except (httpx.RemoteProtocolError, httpx.ReadError):
            return True
        except httpx.TransportError as error:
            raise failed(registry, error) from error
        return answer.status_code == 400 and "https" in answer.text[:_SHOWN_BYTES].lower()


def _tls(ca: Path | None) -> ssl.SSLContext:
    """The system's certificates (SSL_CERT_FILE and SSL_CERT_DIR are honoured) and those in `ca`."""
    context = ssl.create_default_context()
    if ca is not None:
        try:
            context.load_verify_locations(cafile=ca)
        except FileNotFoundError:
            raise MissingFile(ca, "no such file", "certificates to trust are read here", "check the path") from None
        except ssl.SSLError as error:
            raise AuthFailure(ca, "holds no certificates", f"{error.reason}", "PEM is read here") from None
    return context


def _body(response: httpx.Response, cap_bytes: int, place: str, limits: Limits) -> bytes:
    body, started_s = bytearray(), time.monotonic()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > cap_bytes:
            raise IntegrityMismatch(place, f"answers with more than {cap_bytes} bytes", "no such answer is that long")
        limits.require_pace(place, len(body), started_s)
    return bytes(body)


def _same_origin(left: str, right: str) -> bool:
    one, other = httpx.URL(left), httpx.URL(right)
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)
