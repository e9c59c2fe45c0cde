"""The closed loop: N streams over sockets of our own, each frame stamped when its bytes arrive.

Between two reads nothing is done but finding the end of the body, so that a thousand streams do not wait for each
other's JSON; `records` reads the answers after the run. Connections are kept and used again; connecting is not part of
a request's time. There is no proxy support on purpose: a proxy's buffering would be measured instead of the server.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from slipway.bench.http1 import Malformed, Response
from slipway.endpoint import Endpoint

HEARTBEAT_S = 0.05
"""How often the loop's own lateness is taken; a late loop means that the client was the bottleneck."""


@dataclass
class Exchange:
    """One request as it went: seconds on the `time.perf_counter` clock. `failure` is empty when a whole response came."""

    index: int
    stream: int
    sent_s: float = 0.0
    end_s: float = 0.0
    connect_s: float | None = None
    reconnected: bool = False
    failure: str = ""
    detail: str = ""
    response: Response = field(default_factory=Response)


@dataclass(frozen=True)
class Target:
    """Where the sockets go, and the head that every request begins with."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: bytes
    timeout_s: float

    @classmethod
    def of(cls, endpoint: Endpoint, path: str) -> Target:
        """The target for POSTs to `path` of `endpoint`."""
        url = urlsplit(endpoint.url)
        secure = url.scheme == "https"
        lines = [f"POST {url.path}{path} HTTP/1.1", f"host: {url.netloc}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in endpoint.headers().items()]
        return cls(
            host=url.hostname or "",
            port=url.port or (443 if secure else 80),
            tls=ssl.create_default_context() if secure else None,
            head="\r\n".join(lines).encode(),
            timeout_s=endpoint.timeout_s,
        )

    def request(self, body: bytes) -> bytes:
        """The bytes of one request with `body`."""
        return self.head + f"\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def drive(
    target: Target, bodies: Sequence[bytes], concurrency: int, on_done: Callable[[int], None]
) -> tuple[list[Exchange], float]:
    """Every exchange in the order of `bodies`, and the loop's greatest lateness in seconds.

    Raises: KeyboardInterrupt on Ctrl-C, after all connections are closed.
    """
    with _no_collection():
        return asyncio.run(_drive(target, bodies, concurrency, on_done))


async def _drive(
    target: Target, bodies: Sequence[bytes], concurrency: int, on_done: Callable[[int], None]
) -> tuple[list[Exchange], float]:
    waiting = iter(enumerate(bodies))
    exchanges: list[Exchange] = []
    heart = _Heartbeat()

    async def stream(number: int) -> None:
        line = _Line(target)
        try:
            for index, body in waiting:
                exchange = Exchange(index, number)
                await line.ask(exchange, target.request(body))
                exchanges.append(exchange)
                on_done(1)
        finally:
            line.close()

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(min(concurrency, len(bodies))):
                group.create_task(stream(number))
    finally:
        heart.stop()
    return sorted(exchanges, key=lambda exchange: exchange.index), heart.lag_s


class _Line:
    """One stream's connection, opened when needed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._socket: _Socket | None = None

    async def ask(self, exchange: Exchange, request: bytes) -> None:
        """Send `request` and wait for its end; what went wrong is in `exchange`, never raised."""
        used_before = self._socket is not None and self._socket.usable
        if not used_before and not await self._connect(exchange):
            return
        await self._send(exchange, request)
        if used_before and exchange.failure == "cut" and not exchange.response.started:
            # The server closed an idle connection just as we used it; that says nothing about its answers.
            exchange.failure = exchange.detail = ""
            exchange.reconnected = True
            if await self._connect(exchange):
                await self._send(exchange, request)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.abort()
            self._socket = None

    async def _connect(self, exchange: Exchange) -> bool:
        self.close()
        target = self._target
        start_s = time.perf_counter()
        exchange.sent_s = start_s
        try:
            async with asyncio.timeout(target.timeout_s):
                _, self._socket = await asyncio.get_running_loop().create_connection(
                    _Socket, target.host, target.port, ssl=target.tls
                )
        except (OSError, TimeoutError) as error:
            exchange.failure, exchange.detail = "connect", str(error) or type(error).__name__
            exchange.end_s = time.perf_counter()
            return False
        exchange.connect_s = time.perf_counter() - start_s
        return True

    async def _send(self, exchange: Exchange, request: bytes) -> None:
        if self._socket is not None:
            await self._socket.ask(exchange, request, self._target.timeout_s)


class _Socket(asyncio.Protocol):
    """One connection; at most one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._finished: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, exchange: Exchange, request: bytes, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        exchange.response = Response()
        self._exchange, self._finished = exchange, loop.create_future()
        timer = loop.call_later(timeout_s, self._finish, "timeout", f"no end within {timeout_s:g} s")
        exchange.sent_s = time.perf_counter()
        if self._transport is None or self._transport.is_closing():
            self._finish("cut", "the connection was closed")
        else:
            self._transport.write(request)
        try:
            await self._finished
        finally:
            timer.cancel()
        if not exchange.response.reusable:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        exchange = self._exchange
        if exchange is None or exchange.response.complete:
            self.abort()  # bytes that no request asked for
            return
        try:
            exchange.response.feed(now_s, data)
        except Malformed as error:
            self._finish("malformed http", str(error))
            return
        if exchange.response.complete:
            self._finish("", "")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._exchange is not None:
            whole = self._exchange.response.end()
            self._finish("" if whole else "cut", "" if whole else str(exc or "the connection ended before the answer"))

    def _finish(self, failure: str, detail: str) -> None:
        if self._exchange is None or self._finished is None or self._finished.done():
            return
        self._exchange.end_s = time.perf_counter()
        self._exchange.failure, self._exchange.detail = failure, detail
        self._exchange = None
        self._finished.set_result(None)


class _Heartbeat:
    """Measures how late the loop runs what is due."""

    def __init__(self) -> None:
        self.lag_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time() + HEARTBEAT_S
        self._timer = self._loop.call_at(self._due_s, self._beat)

    def stop(self) -> None:
        self._timer.cancel()

    def _beat(self) -> None:
        now_s = self._loop.time()
        self.lag_s = max(self.lag_s, now_s - self._due_s)
        self._due_s = now_s + HEARTBEAT_S
        self._timer = self._loop.call_at(self._due_s, self._beat)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection, whose pauses would be measured as the server's."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
