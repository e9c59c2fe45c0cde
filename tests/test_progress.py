"""Progress: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import itertools

import pytest

from slipway import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_say_how_far_and_how_long_to_go() -> None:
    stream = io.StringIO()
    clock = itertools.count(step=2.0)
    lines = progress.Lines(stream, every_s=3.0, clock=lambda: next(clock))
    with lines.track("fetching", total=4_000_000) as advance:
        for _ in range(4):
            advance(1_000_000)
    assert stream.getvalue().splitlines() == [
        "fetching …",
        "fetching: 2 MB of 4 MB, 500 kB/s, 4 s left",
        "fetching: 4 MB of 4 MB, 500 kB/s, 0 s left",
    ]


@pytest.mark.parametrize(
    ("total", "unit", "said"),
    [
        (None, "requests", "5 requests"),
        (10, "requests", "5 requests of 10 requests, 10 s left"),
        (None, "steps", "5 steps"),
        (10, "steps", "5 steps of 10 steps"),
        (None, "tokens", "5 tokens, 0.5 tokens/s"),
    ],
)
def test_lines_count_items_where_the_unit_says_so(total: int | None, unit: str, said: str) -> None:
    stream = io.StringIO()
    clock = itertools.count(step=10.0)
    with progress.Lines(stream, clock=lambda: next(clock)).track("work", total, unit=unit) as advance:
        advance(5)
    assert stream.getvalue().splitlines()[-1] == f"work: {said}"


@pytest.mark.parametrize(("total", "unit"), [(None, "bytes"), (10, "bytes"), (10, "requests")])
def test_a_terminal_gets_bars(total: int | None, unit: str) -> None:
    stream = Terminal()
    bars = progress.for_stream(stream)
    assert isinstance(bars, progress.Bars)
    with bars.track("working", total, unit) as advance:
        advance(10)
    bars.note("done [not markup]")
    assert "working" in stream.getvalue()
    assert "done [not markup]" in stream.getvalue()


def test_a_file_gets_lines_and_silence_says_nothing() -> None:
    assert isinstance(progress.for_stream(io.StringIO()), progress.Lines)
    progress.silent.note("x")
    with progress.silent.track("x") as advance:
        advance(1)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_480_000_000, "1.48 GB"), (3e15, "3e+03 TB")]
)
def test_bytes_are_decimal(count: float, text: str) -> None:
    assert progress.human_bytes(count) == text
