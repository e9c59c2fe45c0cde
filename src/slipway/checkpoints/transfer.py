"""One file from the hub to the disk: written, hashed and counted in one pass, retried with patience, never trusted."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway.checkpoints.pins import Hasher, digest_of
from slipway.checkpoints.transport import Answer, Failed, Refused, Transport
from slipway.errors import AuthFailure, IntegrityMismatch, MissingFile, NetworkFailure, SlipwayError, from_os_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slipway.checkpoints.pins import PinnedFile

_PIECE_BYTES = 1 << 20
_PROGRESS_BYTES = 1 << 20


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


class Cancelled(Exception):
    """Another file failed for good, or the user interrupted."""


class Transfer:
    """Files of one repository at one revision; shared by all workers of a fetch."""

    def __init__(self, transport: Transport, url_of: Callable[[str], str], patience: Patience) -> None:
        self._transport = transport
        self._url_of = url_of
        self._patience = patience
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Make every running `receive` end soon."""
        self._cancelled.set()
        self._transport.cut()

    def receive(self, file: PinnedFile, target: Path, advance: Callable[[int], None]) -> None:
        """Nothing; `target` is then a new file with the locked bytes, on disk (fsync) and read-only.

        `advance` is told the bytes received, negative when they have to come again.

        Raises: IntegrityMismatch, MissingFile, AuthFailure, NetworkFailure, DiskFailure, Cancelled.
        """
        try:
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise from_os_error(error, target, "creating the file") from error
        try:
            state = _State(file, target, descriptor, advance)
            first = self._whole(file, state)
            if first != digest_of(file):
                state.restart()
                second = self._whole(file, state)
                if second != digest_of(file):
                    raise _mismatch(self._url_of(file.path), file, first, second)
            try:
                os.fchmod(descriptor, 0o444)
                os.fsync(descriptor)
            except OSError as error:
                raise from_os_error(error, target, "syncing the file") from error
        finally:
            os.close(descriptor)

    def _whole(self, file: PinnedFile, state: _State) -> str:
        """The digest of all bytes of `file` as they came, or what else was wrong with them."""
        failures, high_bytes = 0, 0
        while True:
            try:
                return self._once(file, state)
            except Failed as failure:
                # Only bytes never had before count as progress: a server that restarts at 0 each time must not hold us.
                if state.received_bytes >= high_bytes + _PROGRESS_BYTES:
                    high_bytes, failures = state.received_bytes, 0
                failures += 1
                self._pause(self._url_of(file.path), failure, failures)

    def _once(self, file: PinnedFile, state: _State) -> str:
        """One connection's worth; goes on where the last one ended."""
        if self._cancelled.is_set():
            raise Cancelled
        try:
            answer = self._transport.get(self._url_of(file.path), state.received_bytes)
        except Refused as refusal:
            if refusal.status == 416 and state.received_bytes:
                state.restart()
                return "a shorter file (range not satisfiable)"
            raise
        try:
            if answer.end is not None and answer.end != file.size_bytes:
                return f"{answer.end} bytes"
            if answer.start != state.received_bytes:
                state.restart()
            self._drain(answer, state)
        finally:
            answer.close()
        if state.received_bytes < file.size_bytes:
            raise Failed(f"the connection ended after {state.received_bytes} of {file.size_bytes} bytes", again=True)
        return state.hasher.digest if state.received_bytes == file.size_bytes else f"more than {file.size_bytes} bytes"

    def _drain(self, answer: Answer, state: _State) -> None:
        since_s, since_bytes = time.monotonic(), state.received_bytes
        while not state.overfull:
            piece = answer.read(_PIECE_BYTES)
            if self._cancelled.is_set():
                raise Cancelled
            if not piece:
                return
            state.take(piece)
            now_s = time.monotonic()
            if now_s - since_s >= self._patience.stall_s:
                if state.received_bytes - since_bytes < self._patience.min_bytes_per_stall:
                    raise Failed("the connection is stalled", again=True)
                since_s, since_bytes = now_s, state.received_bytes

    def _pause(self, url: str, failure: Failed, failures: int) -> None:
        """Wait before the next try.

        Raises: what the failure means to the user, when there is no next try; Cancelled.
        """
        if self._cancelled.is_set():
            raise Cancelled
        patience = self._patience
        asked_s = failure.retry_after_s if isinstance(failure, Refused) else None
        if not failure.again or failures >= patience.attempts or (asked_s or 0) > patience.max_retry_after_s:
            raise _final(url, failure, failures, asked_s)
        backoff_s = min(patience.max_wait_s, patience.base_wait_s * 2 ** (failures - 1)) * random.uniform(0.5, 1)  # noqa: S311
        wait = self._cancelled.wait if patience.wait is None else patience.wait
        wait(max(asked_s or 0, backoff_s))
        if self._cancelled.is_set():
            raise Cancelled


class _State:
    """How far one file has come: the bytes on disk and the digest over them grow together."""

    def __init__(self, file: PinnedFile, target: Path, descriptor: int, advance: Callable[[int], None]) -> None:
        self._file = file
        self._target = target
        self._descriptor = descriptor
        self._advance = advance
        self.received_bytes = 0
        self.hasher = Hasher(file)

    @property
    def overfull(self) -> bool:
        return self.received_bytes > self._file.size_bytes

    def restart(self) -> None:
        self._advance(-self.received_bytes)
        self.received_bytes = 0
        self.hasher = Hasher(self._file)
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def take(self, piece: bytes) -> None:
        self.hasher.update(piece)
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise from_os_error(error, self._target, "writing the file") from error
        self.received_bytes += len(piece)
        self._advance(len(piece))


def _mismatch(url: str, file: PinnedFile, first: str, second: str) -> IntegrityMismatch:
    what = "the hub serves other bytes than the lock names" if first == second else "the way from the hub spoils bytes"
    got = first if first == second else f"{first}, then {second}"
    return IntegrityMismatch(
        file.path,
        f"expected {digest_of(file)} and {file.size_bytes} bytes, got {got}",
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
