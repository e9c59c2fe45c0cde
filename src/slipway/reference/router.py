"""`python -m slipway.reference.router --pd-disaggregation …`: the front door of a prefill and a decode server.

It does what SGLang's router does with them: each request goes to one of either, with the room in which they hand the KV over, and
the decode server's answer goes back. It starts to listen when all servers are healthy.
Exit codes: 0 after SIGTERM, 130 after SIGINT, 2 for a bad command line, 9 when it cannot start (one line on stderr).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import logging
import logging.config
import secrets
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slipway.errors import EngineFailed, SlipwayError
from slipway.reference.api import unless_gone
from slipway.reference.server import LOGGING, Door, bound, end_now, listen, port_number, positive, serve

log = logging.getLogger("slipway.reference")

PASSED_ON = ("authorization", "content-type")
"""Request headers that the servers get too."""


@dataclass(frozen=True)
class Worker:
    """A server behind the router; a prefill server also has the port on which it hands KV out."""

    url: str
    bootstrap_port: int | None = None

    @property
    def host(self) -> str:
        """What the decode server connects to."""
        return urlsplit(self.url).hostname or ""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, once the router has ended."""
    args = parse_arguments(argv)
    logging.config.dictConfig(LOGGING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, end_now)
    try:
        with bound(args.host, args.port) as listener:
            wait_for_workers([*args.prefill, *args.decode], args.worker_startup_timeout_secs)
            listen(listener, args.host, args.port)
            router = Router(args.prefill, args.decode, args.request_timeout_secs)
            return asyncio.run(serve([Door(router.app(), listener)], lambda: None))
    except SlipwayError as error:
        sys.stderr.write(f"slipway.reference.router: {' '.join(str(error).split())}\n")
        return EngineFailed.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags in `argv`, checked; `prefill` and `decode` are lists of workers."""
    parser = argparse.ArgumentParser(prog="slipway.reference.router", allow_abbrev=False)
    parser.add_argument("--pd-disaggregation", action="store_true", required=True)
    parser.add_argument("--prefill", nargs="+", action="append", required=True, metavar=("URL", "BOOTSTRAP_PORT"))
    parser.add_argument("--decode", nargs=1, action="append", required=True, metavar="URL")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=port_number, default=30000)
    parser.add_argument("--policy", choices=("round_robin",), default="round_robin")
    parser.add_argument("--worker-startup-timeout-secs", type=positive, default=600)
    parser.add_argument("--request-timeout-secs", type=positive, default=1800)
    args = parser.parse_args(argv)
    args.prefill = [_prefill(parser, words) for words in args.prefill]
    args.decode = [Worker(_url(parser, url)) for (url,) in args.decode]
    return args


def wait_for_workers(workers: Sequence[Worker], timeout_s: float) -> None:
    """Nothing, once every worker says that it is healthy.

    Raises: EngineFailed naming the first that is not in time.
    """
    deadline, pause = time.monotonic() + timeout_s, threading.Event()
    with httpx.Client(trust_env=False, timeout=5) as client:
        for worker in workers:
            while True:
                try:
                    said = f"HTTP {client.get(f'{worker.url}/health').status_code}"
                except httpx.HTTPError as error:
                    said = _words(error)
                if said == "HTTP 200":
                    log.info("%s is healthy", worker.url)
                    break
                if time.monotonic() > deadline:
                    raise EngineFailed(worker.url, f"is not healthy within {timeout_s:g} s ({said})", "", "see its log")
                pause.wait(0.05)


class Router:
    """Sends each request to a prefill and a decode server, in turn."""

    def __init__(self, prefill: Sequence[Worker], decode: Sequence[Worker], timeout_s: float) -> None:
        self._workers = {"prefill": tuple(prefill), "decode": tuple(decode)}
        self._turns = zip(itertools.cycle(prefill), itertools.cycle(decode), strict=True)
        self._timeout_s = timeout_s

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/v1/chat/completions", self._generate, methods=["POST"]),
            Route("/v1/completions", self._generate, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/workers", self._list),
            Route("/liveness", _alive),
            Route("/health", self._ready),
            Route("/readiness", self._ready),
        ]
        return Starlette(routes=routes, lifespan=self._connected)

    @contextlib.asynccontextmanager
    async def _connected(self, _: Starlette) -> AsyncIterator[None]:
        # No proxy of the environment, and no limit on connections: the servers queue by themselves.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        timeout = httpx.Timeout(self._timeout_s, connect=5)
        async with httpx.AsyncClient(trust_env=False, limits=limits, timeout=timeout) as self._client:
            yield

    async def _generate(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            return _error(400, "the body is not a JSON object")
        prefill, decode = next(self._turns)
        room = {"bootstrap_host": prefill.host, "bootstrap_port": prefill.bootstrap_port}
        body = {**body, **room, "bootstrap_room": secrets.randbits(63)}
        answered = await unless_gone(request, self._answer(request, body, prefill, decode))
        return answered or Response(status_code=499)

    async def _answer(self, request: Request, body: dict[str, Any], prefill: Worker, decode: Worker) -> Response:
        """The decode server's answer, or what went wrong first on either side."""
        path = request.url.path
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        computing = asyncio.create_task(self._prefilled(prefill.url + path, body, headers))
        asking = self._client.build_request("POST", decode.url + path, json=body, headers=headers)
        generating = asyncio.create_task(self._client.send(asking, stream=True))
        try:
            await asyncio.wait({computing, generating}, return_when=asyncio.FIRST_COMPLETED)
            refused = computing.result() if computing.done() else None
            if refused is None:
                answer = await generating
                kind = answer.headers.get("content-type", "application/json")
                return StreamingResponse(_body(answer, computing), answer.status_code, {"content-type": kind})
        except httpx.HTTPError as error:
            refused = _error(502, f"{decode.url} did not answer: {_words(error)}")
        except asyncio.CancelledError:
            await _dropped(computing, generating)
            raise
        await _dropped(computing, generating)
        return refused

    async def _prefilled(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> Response | None:
        """None once the prefill server has handed the KV over; its refusal, or what became of it, otherwise."""
        try:
            answer = await self._client.post(url, json={**body, "stream": False}, headers=headers)
        except httpx.HTTPError as error:
            return _error(502, f"{url} did not answer: {_words(error)}")
        if answer.status_code == 200:
            return None
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    async def _models(self, request: Request) -> Response:
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        worker = self._workers["decode"][0]
        try:
            answer = await self._client.get(f"{worker.url}/v1/models", headers=headers)
        except httpx.HTTPError as error:
            return _error(502, f"{worker.url} did not answer: {_words(error)}")
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))

    async def _list(self, _: Request) -> Response:
        told = [
            {"url": worker.url, "worker_type": kind, "bootstrap_port": worker.bootstrap_port, "is_healthy": healthy}
            for kind, workers in self._workers.items()
            for worker, healthy in zip(workers, await self._healthy(workers), strict=True)
        ]
        counts = {f"{kind}_count": len(workers) for kind, workers in self._workers.items()}
        return JSONResponse({"workers": told, "total": len(told), "stats": counts})

    async def _ready(self, _: Request) -> Response:
        healthy = [await self._healthy(workers) for workers in self._workers.values()]
        ready = all(any(kind) for kind in healthy)
        return Response("OK" if ready else "no healthy prefill or decode server", 200 if ready else 503)

    async def _healthy(self, workers: Sequence[Worker]) -> list[bool]:
        async def one(worker: Worker) -> bool:
            try:
                return (await self._client.get(f"{worker.url}/health", timeout=5)).status_code == 200
            except httpx.HTTPError:
                return False

        return list(await asyncio.gather(*(one(worker) for worker in workers)))


async def _body(answer: httpx.Response, computing: asyncio.Task[Response | None]) -> AsyncIterator[bytes]:
    """The answer's bytes as they come; whoever stops listening ends both halves."""
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except httpx.HTTPError as error:
        # The headers are out; a stream that breaks off is all that HTTP has left to say.
        log.warning("the decode server's answer broke off: %s", _words(error))
        raise
    finally:
        await answer.aclose()
        await _dropped(computing)


async def _dropped(*tasks: asyncio.Task[Any]) -> None:
    """End `tasks`, and the connections of those that had an answer already."""
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, httpx.Response):
            await ended.aclose()


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


async def _alive(_: Request) -> Response:
    return Response("OK")


def _error(status: int, message: str) -> Response:
    kind = "invalid_request_error" if status < 500 else "service_unavailable"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


def _prefill(parser: argparse.ArgumentParser, words: Sequence[str]) -> Worker:
    if len(words) != 2 or not words[1].isdigit():
        parser.error(f"--prefill: a URL and its bootstrap port are needed (got {' '.join(words)})")
    return Worker(_url(parser, words[0]), int(words[1]))


def _url(parser: argparse.ArgumentParser, text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        parser.error(f"a URL like http://127.0.0.1:30000 is needed (got {text})")
    return text.rstrip("/")


if __name__ == "__main__":
    sys.exit(main())
