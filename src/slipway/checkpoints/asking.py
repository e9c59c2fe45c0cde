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

import httpx2
from huggingface_hub import close_session, get_session

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
        with self.lock:
            client = get_session()
            if self._client is None or self._client() is not client:
                close_session()  # it may have connections that nobody could end
                client = get_session()
                self._client = weakref.ref(client)
            return client


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
