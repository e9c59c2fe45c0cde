"""What every server of this package shares: a socket that is bound before anything is loaded, signals, and the log's format."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Never

import uvicorn
from starlette.types import ASGIApp

from slipway.errors import EngineFailed

GRACE_S = 1
"""How long answers under way may take to end after a signal."""

LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "default": {
            "()": "uvicorn.logging.DefaultFormatter",
            "fmt": "%(levelprefix)s %(message)s",
            "use_colors": False,
        },
        "access": {
            "()": "uvicorn.logging.AccessFormatter",
            "fmt": '%(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s',
            "use_colors": False,
        },
    },
    "handlers": {
        "default": {"class": "logging.StreamHandler", "formatter": "default", "stream": "ext://sys.stderr"},
        "access": {"class": "logging.StreamHandler", "formatter": "access", "stream": "ext://sys.stderr"},
    },
    "loggers": {
        "uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False},
        "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
        "slipway.reference": {"handlers": ["default"], "level": "INFO", "propagate": False},
    },
}


@dataclass(frozen=True)
class Door:
    """An application and the bound socket that it answers on."""

    app: ASGIApp
    listener: socket.socket


async def serve(doors: Sequence[Door], on_signal: Callable[[], None]) -> int:
    """The exit code once all `doors` are closed: 0 after SIGTERM, 130 after SIGINT. `on_signal` is called first.

    Raises: EngineFailed when a server ends on its own.
    """
    servers = [
        _Server(uvicorn.Config(door.app, log_config=LOGGING, timeout_graceful_shutdown=GRACE_S, ws="none"))
        for door in doors
    ]
    stopped_by: list[int] = []

    def stop(number: int) -> None:
        stopped_by.append(number)
        for server in servers:
            server.should_exit = True
        on_signal()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    running = zip(servers, doors, strict=True)
    await asyncio.gather(*(server.serve(sockets=[door.listener]) for server, door in running))
    if not stopped_by:
        raise EngineFailed("HTTP server", "ended without a signal", "", "see its messages above")
    return 128 + signal.SIGINT if stopped_by[0] == signal.SIGINT else 0


class _Server(uvicorn.Server):
    """A uvicorn server whose signals are handled here, so that SIGTERM ends it with code 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound before anything is loaded, so that a port in use is told at once; it does not listen yet.

    Raises: EngineFailed.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _no_port(host, port, error) from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise _no_port(host, port, error) from error
        yield listener


def listen(listener: socket.socket, host: str, port: int) -> None:
    """Let clients connect to a bound socket.

    Raises: EngineFailed.
    """
    try:
        listener.listen(2048)
    except OSError as error:
        raise _no_port(host, port, error) from error


def end_now(number: int, frame: object) -> Never:
    """What SIGTERM does until a server has taken over: end at once, with code 0."""
    raise SystemExit(0)


def port_number(text: str) -> int:
    """`text` as a port, for a command line."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"a port is from 0 to 65535 (got {text})")
    return value


def positive(text: str) -> int:
    """`text` as a number above 0, for a command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 (got {text})")
    return value


def _no_port(host: str, port: int, error: OSError) -> EngineFailed:
    if error.errno == errno.EADDRINUSE:
        remedy = "stop what listens there, or choose another --port"
        return EngineFailed(
            f"{host}:{port}", f"port {port} is in use", "one process at a time can listen on it", remedy
        )
    return EngineFailed(f"{host}:{port}", f"cannot listen ({error.strerror or error})", "", "check --host and --port")
