"""What can go wrong between a hub and its client, as data: each fault names the requests it meets and what it does."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal[
    "close",  # the connection ends after `at` bytes of the body
    "stall",  # nothing more comes after `at` bytes of the body
    "slow",  # after `at` bytes of the body one byte comes every 50 ms
    "flip",  # the byte at `at` of the file has one bit changed
    "zero-tail",  # from `at` on, the file reads as zeros
    "ignore-range",  # a Range request is answered with 200 and the whole file
    "short-length",  # Content-Length and body are `at` bytes, as if the file were that short
    "status",  # answered with `status`, and `retry_after_s` where it is set
    "gated",  # 403 GatedRepo
    "main-moves",  # `main` is what `folder` holds
]

BODY_KINDS = {"close", "stall", "slow", "flip", "zero-tail", "short-length"}


@dataclass(frozen=True)
class Fault:
    """One fault; `match` is searched in "METHOD /path"; it acts on `times` requests (None: all) after skipping `after`."""

    match: str
    kind: Kind
    at: int = 0
    times: int | None = None
    after: int = 0
    status: int = 503
    retry_after_s: int | None = None
    folder: Path | None = None


class Faults:
    """The faults in force, with how often each was met. Thread-safe."""

    def __init__(self, faults: tuple[Fault, ...] = ()) -> None:
        self._lock = threading.Lock()
        self._faults = [(fault, [0]) for fault in faults]

    def add(self, *faults: Fault) -> None:
        """Put more faults in force, after those that are."""
        with self._lock:
            self._faults += [(fault, [0]) for fault in faults]

    def clear(self) -> None:
        """Take all faults away."""
        with self._lock:
            self._faults = []

    def met(self, request: str, *kinds: str) -> list[Fault]:
        """The faults of these kinds that act on `request` ("METHOD /path"), each counted as met once more."""
        acting = []
        with self._lock:
            for fault, count in self._faults:
                if fault.kind in kinds and re.search(fault.match, request):
                    count[0] += 1
                    if count[0] > fault.after and (fault.times is None or count[0] <= fault.after + fault.times):
                        acting.append(fault)
        return acting
