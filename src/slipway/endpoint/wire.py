"""The connection under an HTTP client, so that a request can end at its deadline whatever the server does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any


class Wire:
    """Knows the socket of the connection in use. httpx bounds one read only, and a server may drip headers for ever."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Give this to httpx as the `trace` extension of a request."""
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            self._socket = info["return_value"].get_extra_info("socket")

    @contextmanager
    def cut_at(self, deadline_s: float) -> Iterator[None]:
        """Shut the connection down when the monotonic clock reaches `deadline_s` before the block has ended."""
        timer = threading.Timer(max(deadline_s - time.monotonic(), 0), self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # closed already: the request has ended by itself
                self._socket.shutdown(socket.SHUT_RDWR)
