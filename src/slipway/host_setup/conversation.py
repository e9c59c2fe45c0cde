"""One program that is fed a text and listened to: its lines as they come, and an end in every case, whatever it does."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO

from slipway.errors import UsageError

MAX_LINES = 10_000
MAX_LINE_CHARACTERS = 2_000
CHUNK_BYTES = 65_536
POLL_S = 0.5
"""How soon the end of a program is seen when something that it left behind still holds its output open."""


@dataclass
class Ran:
    """How it went: the exit code (None: its time was over and it was ended), and the last lines of both streams."""

    exit_code: int | None = None
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_LINES))


def hold(words: tuple[str, ...], text: str, heard: Callable[[bool, str], None], until: Callable[[float], float]) -> Ran:
    """What became of the program `words` with `text` on its stdin. `heard` gets each line and whether it came on stdout,
    without control characters; `until` says for the time of the last output when it is given up (both as time.monotonic).

    However this is left, nothing that the program started in its process group goes on.

    Raises: UsageError when the program is not installed.
    """
    ran = Ran()
    with tempfile.TemporaryFile() as script:
        # A file and not a pipe: nothing has to be written while the program is listened to.
        script.write(text.encode())
        script.seek(0)
        with _started(words, script) as process:
            for is_stdout, line in _lines(process, ran, until):
                ran.lines.append(line)
                heard(is_stdout, line)
    return ran


def printable(text: str) -> str:
    """`text` as a terminal may get it: whatever could move its cursor or change its colours is a replacement mark."""
    return "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in text)


@contextlib.contextmanager
def _started(words: tuple[str, ...], script: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        # A group of its own, so that what it starts can be ended with it; the terminal stays, which sudo knows users by.
        process = subprocess.Popen(
            words, stdin=script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0, bufsize=0
        )
    except FileNotFoundError:
        raise UsageError(
            words[0], "is not installed", "hosts are reached through it", "install OpenSSH's client"
        ) from None
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                # What runs as root through sudo cannot be ended from here; it ends when its output is closed.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()


def _lines(process: subprocess.Popen[bytes], ran: Ran, until: Callable[[float], float]) -> Iterator[tuple[bool, str]]:
    assert process.stdout is not None
    assert process.stderr is not None
    begun = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    last = time.monotonic()
    with selectors.DefaultSelector() as waiting:
        for descriptor in begun:
            waiting.register(descriptor, selectors.EVENT_READ)
        while waiting.get_map():
            if time.monotonic() >= until(last):
                return
            ready = waiting.select(min(POLL_S, max(0.0, until(last) - time.monotonic())))
            for key, _ in ready:
                data = os.read(key.fd, CHUNK_BYTES)
                last = time.monotonic() if data else last
                if not data:
                    waiting.unregister(key.fd)
                *whole, begun[key.fd] = (begun[key.fd] + data).split(b"\n")
                if begun[key.fd] and (not data or len(begun[key.fd]) > CHUNK_BYTES):
                    whole, begun[key.fd] = [*whole, begun[key.fd]], b""
                yield from ((key.fd == process.stdout.fileno(), _text(line)) for line in whole)
            if not ready and process.poll() is not None:
                break
    with contextlib.suppress(subprocess.TimeoutExpired):
        ran.exit_code = process.wait(max(0.0, until(last) - time.monotonic()))


def _text(line: bytes) -> str:
    return printable(line[: 4 * MAX_LINE_CHARACTERS].decode(errors="replace").removesuffix("\r"))[:MAX_LINE_CHARACTERS]
