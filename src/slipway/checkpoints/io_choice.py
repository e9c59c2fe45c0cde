"""Whether files are written past the page cache: that spares CPU time, but an engine that starts next finds it cold."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slipway.checkpoints.part import CHUNK_BYTES, Io
from slipway.errors import UsageError

VARIABLE = "SLIPWAY_FETCH_IO"
CHOICES = ("auto", "buffered", "direct")

_ROOM = 1.25
"""How many times the checkpoint memory must have: its pages, and what the engine itself needs meanwhile."""


def choose(wish: str, needed_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> Io:
    """How `needed_bytes` of files are written; an empty `wish` is what the environment says, or `auto`.

    `auto` is buffered where memory holds the whole checkpoint, so that an engine loads it from the page cache, and direct
    where most of it would be pushed out again before anybody reads it.

    Raises: UsageError.
    Source: measured 2026-11-30 on two cores: O_DIRECT takes a third less CPU time per byte than buffered writes.
    """
    wish = wish or os.environ.get(VARIABLE, "") or "auto"
    if wish not in CHOICES:
        raise UsageError("--io", f"is not known (got {wish!r})", f"one of {', '.join(CHOICES)}", "choose one")
    warm = wish == "buffered" or (wish == "auto" and _available_bytes() >= needed_bytes * _ROOM)
    return Io(direct=not warm, keep_cached=warm, chunk_bytes=chunk_bytes)


def _available_bytes() -> int:
    """MemAvailable, or 0 where the kernel does not say."""
    try:
        match = re.search(
            r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE
        )
    except OSError:
        match = None
    return int(match[1]) * 1024 if match else 0
