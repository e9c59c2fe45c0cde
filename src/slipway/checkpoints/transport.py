"""HTTP for the fetcher: one GET at a time, redirects followed by hand, every connection known so that it can be cut.

urllib brings proxies (`http_proxy`, `no_proxy`) and TLS with SSL_CERT_FILE; what stands here is what it lacks.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import threading
import time
import weakref
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.parse import urljoin, urlsplit
from urllib.request import AbstractHTTPHandler, HTTPHandler, OpenerDirector, ProxyHandler, Request, getproxies

from slipway.checkpoints.hub import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipway.checkpoints.hub import Hub

_MAX_REDIRECTS = 5
_AGENT = "slipway-fetch"

_GATHER_BYTES = 1 << 20
"""Handed on at a time: enough that Python costs little per byte, and still in the core's cache when it is hashed."""

_GATHER_S = 0.25

_SAID_CHARS = 200
"""Most of what a server says that is repeated in an error."""


class Failed(Exception):
    """A request without a usable answer: `text` says what happened, `again` whether another try may help."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(text)
        self.text = text
        self.again = again


class Refused(Failed):
    """An answer with an error status, with what it says about it. `by_hub` is false once a redirect led elsewhere."""

    def __init__(self, status: int, code: str, *, by_hub: bool, retry_after_s: float | None) -> None:
        # A signed address expires; the hub gives a fresh one at the next try.
        again = status in {408, 429} or status >= 500 or not by_hub
        super().__init__(f"HTTP {status}{f' {_plain(code)}' if code else ''}", again=again)
        self.status = status
        self.code = code
        self.by_hub = by_hub
        self.retry_after_s = retry_after_s


class Answer:
    """An open body: the file offset of its first byte, and the length of the whole file, if the server says so."""

    def __init__(self, body: HTTPResponse, start: int, total: int | None) -> None:
        self._body = body
        self._left = None if body.chunked else body.length
        self._ahead: int | None = None
        self._read: Callable[[memoryview], int] = len
        self.start = start
        self.total = total

    def read_into(self, room: memoryview) -> int:
        """How many bytes now stand at the front of `room`: what has arrived, at least one; 0 at the end.

        Raises: Failed.
        """
        try:
            if self._left is None:
                piece = self._body.read1(len(room))
                room[: len(piece)] = piece
                return len(piece)
            count = self._gather(room[: min(self._left, _GATHER_BYTES)])
        except (OSError, HTTPException, ValueError, AttributeError) as error:
            raise _failed(error) from error
        self._left -= count
        return count

    def _gather(self, room: memoryview) -> int:
        """As `read_into`, but goes on for a moment while `room` is not full: TLS hands out 16 KiB at a time."""
        count, since_s = 0, time.monotonic()
        while count < len(room) and (not count or time.monotonic() - since_s < _GATHER_S):
            try:
                received = self._receive(room[count:])
            except OSError:
                if count:
                    break  # what came before is good; the next call meets the failure again
                raise
            if not received:
                break
            count += received
        return count

    def _receive(self, room: memoryview) -> int:
        """One read, past HTTPResponse and its buffer once that is empty: they would copy everything, or wait until it is full."""
        buffered: Any = self._body.fp
        if self._ahead is None:
            self._ahead = len(buffered.peek())
            self._read = _reader(buffered)
            if not self._ahead:
                return 0
        if self._ahead:
            count = int(buffered.readinto1(room[: self._ahead]))
            self._ahead -= count
            return count
        return self._read(room)

    def close(self) -> None:
        self._body.close()


def _reader(buffered: Any) -> Callable[[memoryview], int]:
    """What reads on where `buffered`, now empty, would: its socket, without the layers between."""
    connection = getattr(buffered.raw, "_sock", None)
    if isinstance(connection, ssl.SSLSocket):
        return lambda room: connection.read(len(room), room)  # type: ignore[return-value]
    return connection.recv_into if isinstance(connection, socket.socket) else buffered.readinto1


class Transport:
    """GETs from one hub and its mirrors; `stall_s` is how long a read may bring nothing. Only the hub sees its token."""

    def __init__(self, hub: Hub, stall_s: float) -> None:
        self._hub = hub
        self._stall_s = stall_s
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._asking = threading.local()
        self._is_cut = False
        self._opener = OpenerDirector()
        for handler in (_Proxies(getproxies()), _Http(self._keep), _Https(self._keep)):
            self._opener.add_handler(handler)

    def get(self, url: str, start: int = 0, end: int | None = None) -> Answer:
        """The body of `url` from byte `start` to `end` (None: all), or from 0 when the server ignores ranges.

        Raises: Failed, Refused.
        """
        origin = url
        span = f"bytes={start}-{'' if end is None else end - 1}" if start or end is not None else ""
        for _ in range(_MAX_REDIRECTS + 1):
            response = self._request(url, span)
            status = response.status
            if status in {200, 206}:
                return _answer(response, start)
            headers = response.headers
            response.close()
            if status not in {301, 302, 303, 307, 308}:
                by_hub = _origin(url) == _origin(origin)
                raise Refused(status, headers.get("X-Error-Code", ""), by_hub=by_hub, retry_after_s=_wait_s(headers))
            url = _redirected(url, headers.get("Location", ""))
            if origin.startswith("https:") > url.startswith("https:"):
                raise Failed(f"a redirect leads to {_shown(url)}, which is not followed", again=False)
        raise Failed(f"more than {_MAX_REDIRECTS} redirects", again=False)

    def cut(self) -> None:
        """End every open connection, and those to come, so that no reader waits on."""
        with self._lock:
            self._is_cut = True
            for connection in list(self._open):
                _end(connection)

    def _request(self, url: str, span: str) -> HTTPResponse:
        request = Request(url, headers={"User-Agent": _AGENT, "Accept-Encoding": "identity"})  # noqa: S310 -- scheme checked
        if span:
            request.add_unredirected_header("Range", span)
        if self._hub.token and _origin(url) == _origin(self._hub.endpoint):
            request.add_unredirected_header("Authorization", f"Bearer {self._hub.token}")
        try:
            with self._deadline() as late:
                response = self._opener.open(request, timeout=self._stall_s)
        except (OSError, HTTPException, ValueError) as error:
            if late.is_set():
                raise _late() from error
            raise _failed(error) from error
        if late.is_set():
            response.close()  # headers that were cut short read as if they had ended
            raise _late()
        if not isinstance(response, HTTPResponse):
            raise Failed(f"no way to ask {_shown(url)}", again=False)
        return response

    @contextmanager
    def _deadline(self) -> Iterator[threading.Event]:
        """Set when the block took longer than `stall_s`; its connection is then ended. A socket's own limit bounds one read
        only, and a server may drip headers for ever."""
        late = threading.Event()
        self._asking.connection = None
        asking = self._asking.__dict__

        def end() -> None:
            late.set()
            if asking["connection"] is not None:
                _end(asking["connection"])

        timer = threading.Timer(self._stall_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()

    def _keep(self, connection: socket.socket) -> None:
        self._asking.connection = connection
        with self._lock:
            self._open.add(connection)
            if self._is_cut:
                _end(connection)


class _Proxies(ProxyHandler):
    """The environment's proxies. None of them is asked for this machine's own addresses: it could not reach them."""

    def proxy_open(self, req: Request, proxy: str, type: str) -> Any:
        if is_loopback(req.host):
            return None
        scheme, slashes, _ = proxy.partition("://")
        if slashes and scheme.lower() not in {"http", "https"}:
            raise Failed(f"{type}_proxy ({_shown(proxy)}) is no http:// or https:// proxy", again=False)
        return super().proxy_open(req, proxy, type)


class _Http(HTTPHandler):
    def __init__(self, keep: Any) -> None:
        super().__init__()
        self._keep = keep

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_kept(HTTPConnection, self._keep), req)


class _Https(AbstractHTTPHandler):
    # Not HTTPSHandler: newer ones load the certificates when they are made.
    https_request = AbstractHTTPHandler.do_request_

    def __init__(self, keep: Any) -> None:
        super().__init__()
        self._keep = keep
        self._lock = threading.Lock()
        self._tls: ssl.SSLContext | None = None

    def https_open(self, req: Request) -> HTTPResponse:
        with self._lock:
            if self._tls is None:
                # It reads SSL_CERT_FILE and SSL_CERT_DIR, or hundreds of certificates: not before one is needed.
                self._tls = ssl.create_default_context()
        return self.do_open(_kept(HTTPSConnection, self._keep), req, context=self._tls)


def _kept(base: Any, keep: Any) -> Any:
    """The connection class `base`, which hands each socket to `keep`."""

    class Kept(base):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            keep(self.sock)

    return Kept


def _end(connection: socket.socket) -> None:
    try:
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        return  # already at its end


def _answer(response: HTTPResponse, start: int) -> Answer:
    length = _number(response.headers.get("Content-Length", ""))
    if response.status == 206:
        match = re.fullmatch(
            r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|\*)", response.headers.get("Content-Range", "").strip()
        )
        if match is None or int(match[1]) != start:
            response.close()
            raise Failed("the server answered another range than it was asked for", again=False)
        return Answer(response, start, None if match[2] == "*" else int(match[2]))
    return Answer(response, 0, length)


def _late() -> Failed:
    return Failed("no whole answer came before the time limit", again=True)


def _failed(error: Exception) -> Failed:
    """What went wrong on the wire; a certificate that is not trusted will not be at the next try either."""
    reason: object = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return Failed(f"its certificate is not trusted ({reason.verify_message}); set SSL_CERT_FILE", again=False)
    if isinstance(reason, socket.timeout):
        return Failed("nothing came before the time limit", again=True)
    said = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
    return Failed(_plain(said or type(reason).__name__).lower(), again=True)


def _wait_s(headers: Any) -> float | None:
    """Seconds that the server asks to wait: Retry-After, or the reset time of an exhausted RateLimit."""
    after = str(headers.get("Retry-After", "")).strip()
    seconds = _number(after)
    if seconds is not None:
        return float(seconds)
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except (TypeError, ValueError, IndexError, OverflowError):
        pass  # no date either; perhaps the other header says it
    match = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})", str(headers.get("RateLimit", "")))
    return float(match[1]) if match else None


def _number(text: str) -> int | None:
    """The number that a header says; None for what is none, or is longer than any that is meant."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text.strip()) else None


def _redirected(url: str, location: str) -> str:
    """Where an answer of `url` sends us.

    Raises: Failed when that is nowhere.
    """
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        target, usable = location, False
    if not usable or not target.isascii() or not target.isprintable() or " " in target:
        raise Failed(f"a redirect leads to {_plain(target.partition('?')[0])}, which is not followed", again=False)
    return target


def is_loopback(netloc: str) -> bool:
    """Whether `netloc`, a host and perhaps a port, is this machine as it sees itself."""
    try:
        host = (urlsplit(f"//{netloc}").hostname or "").rstrip(".")
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(text: str) -> str:
    """What a server says, as it may be printed: on one line, without secrets and what moves a terminal's cursor."""
    return ascii(masked(text)[:_SAID_CHARS])[1:-1]


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def _shown(url: str) -> str:
    """`url` without its query, which may hold a signature."""
    return _plain(url.partition("?")[0].partition("#")[0])
