"""Requests for metadata with an end: so many seconds and bytes for a whole exchange, whatever the hub does.

The library's own time limits bound one read each, and some of its calls have none; a server that drips one byte of a header per
second, or never ends a body, would hold a command for ever.
"""

from __future__ import annotations

import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import getproxies

import httpx2
from huggingface_hub import close_session, get_session, set_client_factory

from slipway.checkpoints.hub import without_user_info
from slipway.errors import UsageError

MAX_BYTES = 64 << 20
"""Longest answer that is read. The listing of a repository has some 300 bytes per file; the limit of a repository is 100,000 files."""


@contextmanager
def bounded(limit_s: float, max_bytes: int = MAX_BYTES) -> Iterator[httpx2.Client]:
    """The client that huggingface_hub uses too; its requests in the block end within `limit_s` together, by an httpx2 error.

    Raises: httpx2.ReadTimeout in place of whatever a request met when its connection was ended.
    """
    client, end = _known.client(), _End(max_bytes)
    hooks, timeout = client.event_hooks, client.timeout
    client.timeout = httpx2.Timeout(limit_s)
    client.event_hooks = {
        "request": [*hooks["request"], end.watch],
        "response": [*hooks["response"], end.limit],
    }
    timer = threading.Timer(limit_s, end.cut)
    timer.daemon = True
    timer.start()
    try:
        yield client
    except Exception as error:
        if end.late:
            raise httpx2.ReadTimeout(f"no whole answer in {limit_s:g} s") from error
        raise
    finally:
        timer.cancel()
        client.event_hooks, client.timeout = hooks, timeout


class _Known:
    """The client in use, of which every connection was seen being made, and those connections."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._client: weakref.ref[httpx2.Client] | None = None

    def client(self) -> httpx2.Client:
        """The library's client.

        Raises: UsageError for a proxy in the environment that it cannot use.
        """
        with self.lock, _proxies_named():
            client = get_session()
            if self._client is None or self._client() is not client:
                close_session()  # it may have connections that nobody could end
                client = _going_direct_to_loopback()
                self._client = weakref.ref(client)
            return client


@contextmanager
def _proxies_named() -> Iterator[None]:
    try:
        yield
    except (ImportError, ValueError, httpx2.InvalidURL) as error:
        found = {
            f"{scheme}_proxy": without_user_info(url) for scheme, url in sorted(getproxies().items()) if scheme != "no"
        }
        if not found:
            raise
        raise UsageError(
            " or ".join(found),
            f"names a proxy that cannot be used (got {', '.join(map(ascii, found.values()))})",
            "http://host:port or https://host:port; SOCKS is not supported",
            "correct it or unset it",
        ) from error


def _going_direct_to_loopback() -> httpx2.Client:
    """A new client of the library, which asks no proxy for this machine's own addresses: it could not reach them."""
    client = get_session()
    if getproxies():
        hooks = client.event_hooks
        set_client_factory(
            lambda: httpx2.Client(event_hooks=hooks, follow_redirects=True, timeout=None, mounts=_DIRECT)
        )
        client = get_session()
    return client


_DIRECT: dict[str, httpx2.BaseTransport | None] = dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))

_known = _Known()
"""A client of its own for each question would read all certificates each time."""


class _End:
    """The end of the requests in one block."""

    def __init__(self, max_bytes: int) -> None:
        self.late = False
        self._max_bytes = max_bytes

    def watch(self, request: httpx2.Request) -> None:
        # A short answer that unpacks to gigabytes is no listing.
        request.headers["Accept-Encoding"] = "identity"
        request.extensions = {**request.extensions, "trace": self._trace}

    def limit(self, response: httpx2.Response) -> None:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise httpx2.DecodingError("the answer is packed, though that was not asked for", request=response.request)
        response.stream = _Limited(response.stream, self._max_bytes, response.request)

    def cut(self) -> None:
        with _known.lock:
            self.late = True
            for connection in list(_known.sockets):
                _shut(connection)

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            connection = info["return_value"].get_extra_info("socket")
            with _known.lock:
                _known.sockets.add(connection)
                if self.late:
                    _shut(connection)


class _Limited(httpx2.SyncByteStream):
    """A body that ends by an error after so many bytes."""

    def __init__(self, stream: Any, max_bytes: int, request: httpx2.Request) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        left = self._max_bytes
        for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.ReadError(f"the answer has more than {self._max_bytes} bytes", request=self._request)
            yield piece

    def close(self) -> None:
        self._stream.close()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # closed already: the request has ended by itself
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
