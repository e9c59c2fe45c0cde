"""One file from the hub to the disk: written, hashed and counted in one pass, retried with patience, never trusted."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from slipway.checkpoints.pins import digest_of
from slipway.checkpoints.transport import Answer, Failed, Refused, Transport
from slipway.errors import AuthFailure, IntegrityMismatch, MissingFile, NetworkFailure, SlipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slipway.checkpoints.part import Donor, Part
    from slipway.checkpoints.pins import PinnedFile

_PROGRESS_BYTES = 1 << 20

_SAID_FROM_S = 5.0
"""Waits from this length on are said: a silent fetch looks like one that hangs."""


@dataclass(frozen=True)
class Patience:
    """How long a fetch goes on: `attempts` failures in a row without progress, waits that double up to `max_wait_s`.

    A connection that brings fewer than `min_bytes_per_stall` in `stall_s` seconds is given up. A hub that asks for more than
    `max_retry_after_s` is not waited for. `wait` replaces the clock in tests.
    """

    attempts: int = 6
    base_wait_s: float = 1.0
    max_wait_s: float = 30.0
    max_retry_after_s: float = 300.0
    stall_s: float = 60.0
    min_bytes_per_stall: int = 1 << 16
    wait: Callable[[float], Any] | None = None


class Carrier(Protocol):
    """Another way by which whole files come. What it brings is hashed before it counts; what it fails to bring comes by HTTP."""

    def carries(self, file: PinnedFile) -> bool:
        """Whether it knows `file`."""

    def bring(self, file: PinnedFile, path: Path, advance: Callable[[int], None], stall_s: float) -> None:
        """Nothing; `path` then holds what is said to be `file`. `advance` is told the bytes as they come.

        Raises: Failed; also when nothing came for `stall_s` seconds.
        """

    def cancel(self) -> None:
        """Make every running `bring` end soon."""


class Cancelled(Exception):
    """Another file failed for good, or the user interrupted."""


class Transfer:
    """Files of one lock from one or more sources; shared by all workers of a fetch."""

    def __init__(
        self,
        transport: Transport,
        urls_of: Callable[[PinnedFile], Sequence[str]],
        patience: Patience,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._transport = transport
        self._urls_of = urls_of
        self._patience = patience
        self._note = note
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Make every running `receive` end soon."""
        self._cancelled.set()
        self._transport.cut()

    def refuse_cancelled(self) -> None:
        """Nothing.

        Raises: Cancelled after `cancel`.
        """
        if self._cancelled.is_set():
            raise Cancelled

    def receive(self, file: PinnedFile, part: Part, donors: Sequence[Donor] = ()) -> None:
        """Nothing; `part` then holds the locked bytes, on disk (fsync) and read-only.

        Chunks of `donors` that are proved are not fetched. Bytes that are wrong as a whole come once more over a fresh
        connection, from the next source where there is one.

        Raises: IntegrityMismatch, MissingFile, AuthFailure, NetworkFailure, DiskFailure, Cancelled.
        """
        urls = deque(self._urls_of(file))
        got: list[str] = []
        for helpers in ([donors] if donors else []) + [(), ()]:
            found = self._whole(file, part, helpers, urls)
            if found == digest_of(file):
                part.finish()
                return
            header = bool(part.problem)
            part.restart()
            if not helpers:
                got.append(found)
                urls.rotate(-1)
        raise _mismatch(urls[0], file, got, header=header)

    def _whole(self, file: PinnedFile, part: Part, donors: Sequence[Donor], urls: deque[str]) -> str:
        """The digest of all bytes of `file` as they came, or what else was wrong with them.

        A source that fails for good is left for the next one; the last one's failure is raised.
        """
        failures, high_bytes, gone = 0, part.received_bytes, 0
        while True:
            try:
                return self._once(file, part, donors, urls[0])
            except Failed as failure:
                # Only bytes never had before count as progress: a server that restarts at 0 each time must not hold us.
                if part.received_bytes >= high_bytes + _PROGRESS_BYTES:
                    high_bytes, failures = part.received_bytes, 0
                failures += 1
                if gone + 1 < len(urls) and not self._cancelled.is_set() and self._is_final(failure, failures):
                    gone, failures = gone + 1, 0
                    urls.rotate(-1)
                    continue
                self._pause(urls[0], failure, failures)

    def _once(self, file: PinnedFile, part: Part, donors: Sequence[Donor], url: str) -> str:
        """One try; goes on where the last one ended."""
        while part.received_bytes < file.size_bytes:
            self.refuse_cancelled()
            if part.problem:
                return part.problem
            if donors and part.at_chunk and any(part.offer(donor) for donor in donors):
                continue
            problem = self._request(file, part, url, part.missing_until(donors))
            if problem:
                return problem
        return part.problem or part.digest

    def _request(self, file: PinnedFile, part: Part, url: str, end: int | None) -> str:
        """What is wrong with one answer to one request; empty when it brought all that was asked for."""
        start = part.received_bytes
        try:
            answer = self._transport.get(url, start, end)
        except Refused as refusal:
            if refusal.status == 416 and start:
                return "a shorter file (range not satisfiable)"
            raise
        try:
            if answer.total is not None and answer.total != file.size_bytes:
                return f"{answer.total} bytes"
            if answer.start != start:
                part.restart()
            self._drain(answer, part, file.size_bytes)
            if part.problem:
                return part.problem
            if part.received_bytes < (end or file.size_bytes):
                text = f"the connection ended after {part.received_bytes} of {file.size_bytes} bytes"
                raise Failed(text, again=True)
            if answer.total is None and end is None and answer.read_into(part.room):
                return f"more than {file.size_bytes} bytes"
        finally:
            answer.close()
        return ""

    def _drain(self, answer: Answer, part: Part, size_bytes: int) -> None:
        since_s, since_bytes = time.monotonic(), part.received_bytes
        while part.received_bytes < size_bytes:
            count = answer.read_into(part.room)
            self.refuse_cancelled()
            if not count:
                return
            part.took(count)
            if part.problem:
                return
            now_s = time.monotonic()
            if now_s - since_s >= self._patience.stall_s:
                if part.received_bytes - since_bytes < self._patience.min_bytes_per_stall:
                    raise Failed("the connection is stalled", again=True)
                since_s, since_bytes = now_s, part.received_bytes

    def _is_final(self, failure: Failed, failures: int) -> bool:
        """Whether this source is not asked again."""
        asked_s = failure.retry_after_s if isinstance(failure, Refused) else None
        patience = self._patience
        return not failure.again or failures >= patience.attempts or (asked_s or 0) > patience.max_retry_after_s

    def _pause(self, url: str, failure: Failed, failures: int) -> None:
        """Wait before the next try.

        Raises: what the failure means to the user, when there is no next try; Cancelled.
        """
        self.refuse_cancelled()
        patience = self._patience
        asked_s = failure.retry_after_s if isinstance(failure, Refused) else None
        if self._is_final(failure, failures):
            raise _final(url, failure, failures, asked_s)
        backoff_s = min(patience.max_wait_s, patience.base_wait_s * 2 ** (failures - 1)) * random.uniform(0.5, 1)  # noqa: S311
        wait = self._cancelled.wait if patience.wait is None else patience.wait
        wait_s = max(asked_s or 0, backoff_s)
        if wait_s >= _SAID_FROM_S:
            asked = " as it asks" if wait_s == asked_s else ""
            self._note(f"{url}: {failure.text}; waiting {wait_s:.0f} s{asked} (try {failures} of {patience.attempts})")
        wait(wait_s)
        self.refuse_cancelled()


def _mismatch(url: str, file: PinnedFile, got: Sequence[str], *, header: bool) -> IntegrityMismatch:
    first, second = got
    what = (
        "upstream serves other bytes than the lock names" if first == second else "the way from upstream spoils bytes"
    )
    if header and first == second:
        what = "the repository was published so, or " + what
    return IntegrityMismatch(
        file.path,
        f"expected {digest_of(file)} and {file.size_bytes} bytes, got {first if first == second else f'{first}, then {second}'}",
        f"{what} ({url}, fetched twice)",
        "nothing was published; try another HF_ENDPOINT, or make the lock anew if the repository was rewritten",
    )


def _final(url: str, failure: Failed, failures: int, asked_s: float | None) -> SlipwayError:
    """The user's error for a failure after which nothing is tried."""
    status = failure.status if isinstance(failure, Refused) and failure.by_hub else 0
    if status in {401, 403}:
        return AuthFailure(
            url,
            f"the hub refuses access ({failure.text})",
            "the repository is gated, private or misspelt, or the token is missing or expired",
            "accept the licence on the model's page, then set HF_TOKEN (or run: hf auth login)",
        )
    if status in {404, 410}:
        return MissingFile(
            url,
            f"the hub does not have it ({failure.text})",
            "the lock names a repository, revision or file that is gone",
            "check HF_ENDPOINT, or make the lock anew: lock-models",
        )
    tries = f"after {failures} attempt{'s' if failures > 1 else ''}"
    wait = f"; Retry-After is {asked_s:.0f} s" if asked_s is not None else ""
    remedy = "wait as long as the hub asks, or set HF_TOKEN for a higher limit" if wait else ""
    return NetworkFailure(
        url,
        f"{failure.text} {tries}{wait}",
        "",
        remedy or "check the network, HF_ENDPOINT and proxies, then run it again",
    )
