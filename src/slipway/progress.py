"""Progress of anything longer than a second: bars on a terminal, plain lines elsewhere, always on stderr.

Library functions take a `Progress` and never print. `silent` is the default everywhere, so a caller that wants
nothing gets nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import IO, Protocol, runtime_checkable

from rich.console import Console, RenderableType
from rich.live import Live as RichLive
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichBars

Advance = Callable[[int], None]
"""Call with how much was done since the last call: bytes, or items where `unit` says so. Thread-safe."""


class Progress(Protocol):
    """Where a long-running function reports what it does."""

    def note(self, text: str) -> None:
        """Say one finished fact, as `fetched config.json (1.4 kB, sha256 ok)`."""

    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> AbstractContextManager[Advance]:
        """Show `label` while the `with` block runs; `total` is None where it is not known beforehand."""


@runtime_checkable
class Live(Protocol):
    """A `Progress` on a terminal, which can also show something that is drawn anew as it changes."""

    def live(self) -> AbstractContextManager[Callable[[RenderableType], None]]:
        """Call the value with what to show now; it disappears when the `with` block ends."""


class _Silent:
    def note(self, text: str) -> None:
        pass

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Advance]:
        yield lambda _: None


silent: Progress = _Silent()
"""Reports nothing."""


class Bars:
    """Live bars with bytes, rate and ETA, for a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = Console(file=stream)

    def note(self, text: str) -> None:
        """Print one line above any live bar."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def live(self) -> Iterator[Callable[[RenderableType], None]]:
        """Show what the value is called with last, in place, while the `with` block runs."""
        with RichLive(console=self._console, transient=True, refresh_per_second=8) as shown:
            yield shown.update

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Advance]:
        """Show a bar with bytes, rate and ETA; without a total, a spinner with the time elapsed."""
        if total is None:
            columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
        elif unit == "bytes":
            columns = [
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            ]
        else:
            columns = [
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(unit),
                TimeRemainingColumn(),
            ]
        with RichBars(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(label, total=total)
            yield lambda amount: bars.advance(task, amount)


class Lines:
    """Plain lines for a log file or CI: one at the start, one every `every_s` seconds, none at the end (a note says the result)."""

    def __init__(self, stream: IO[str], every_s: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._every_s = every_s
        self._clock = clock
        self._lock = threading.Lock()

    def note(self, text: str) -> None:
        """Print one line. Where nobody reads any more, or the log's disk is full, the work goes on."""
        with self._lock, suppress(OSError):
            print(text, file=self._stream, flush=True)

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Advance]:
        """Print `label`, then how far it is now and then."""
        start = last = self._clock()
        done = 0
        self.note(f"{label} …")

        def advance(amount: int) -> None:
            nonlocal done, last
            done += amount
            now = self._clock()
            if now - last < self._every_s:
                return
            last = now
            self.note(f"{label}: {', '.join([_amount(done, total, unit), *_speed(done, total, unit, now - start)])}")

        yield advance


def for_stream(stream: IO[str]) -> Progress:
    """Bars where `stream` is a terminal, plain lines otherwise."""
    return Bars(stream) if stream.isatty() else Lines(stream)


def human_bytes(count: float) -> str:
    """`count` bytes in decimal units, three significant digits, as `1.48 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _amount(done: int, total: int | None, unit: str) -> str:
    show = human_bytes if unit == "bytes" else lambda count: f"{count} {unit}"
    return show(done) if total is None else f"{show(done)} of {show(total)}"


def _speed(done: int, total: int | None, unit: str, elapsed_s: float) -> Iterator[str]:
    """The rate of what comes evenly enough to have one, and how long the rest takes; steps are too unlike each other."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    if unit == "bytes":
        yield f"{human_bytes(rate)}/s"
    elif unit == "tokens":
        yield f"{rate:.3g} {unit}/s"
    if total is not None and rate > 0 and unit != "steps":
        yield f"{max(total - done, 0) / rate:.0f} s left"
