"""Files of repositories that the hub keeps in its chunk store (Xet), brought by the hub's own library where it is installed.

hf-xet compares lengths and no content, and cannot go on where a killed process stopped: so each file is hashed as soon as it has
landed (module `fetch`), and whatever is on this disk already in part is completed by HTTP instead.

Source: huggingface_hub 2.4.0 file_download.py and utils/_xet.py, hf-xet 1.8.0, read and run 2026-12-01.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from slipway.checkpoints import asking
from slipway.checkpoints.hub import Hub, masked
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.pins import PinnedFile, digest_of
from slipway.checkpoints.transport import Failed
from slipway.errors import UsageError

VARIABLE = "HF_HUB_DISABLE_XET"
"""Set to 1, everything comes by HTTP; huggingface_hub's own switch."""

_LIBRARY = "hf_xet"
_LOOK_S = 0.1
_TOKEN_TIMEOUT_S = 30.0


def carrier(lock: CheckpointLock, hub: Hub) -> Xet | None:
    """What brings the files of `lock` that have a xet hash; None where there are none, or hf-xet is absent or switched off."""
    names = {digest_of(file): file.xet_hash for file in lock.files if file.xet_hash}
    off = os.environ.get(VARIABLE, "").strip().upper() in {"1", "ON", "YES", "TRUE"}
    if not names or off or hub.offline or importlib.util.find_spec(_LIBRARY) is None:
        return None
    return Xet(hub, lock.repo, lock.revision, names)


def store_problem(store: str, hub: Hub) -> str:
    """Why files are not taken from the chunk store at `store`, which the hub names; empty when they are.

    A hub elsewhere must not make us read folders of this machine, nor take away its own TLS.
    """
    theirs, ours = urlsplit(store), urlsplit(hub.endpoint)
    if theirs.scheme == "https" and theirs.hostname:
        return ""
    if ours.hostname in {"127.0.0.1", "localhost", "::1"} and theirs.scheme in {"http", "local"}:
        return ""
    if theirs.scheme == "http" and theirs.hostname and ours.scheme == "http":
        return ""
    return f"the hub names a chunk store that is not used ({ascii(store)[1:-1][:120]})"


class Xet:
    """A `transfer.Carrier`; `names` says how the chunk store names the file of a digest. Asks nothing before the first file."""

    def __init__(self, hub: Hub, repo: str, revision: str, names: dict[str, str]) -> None:
        self._names = names
        self._hub = hub
        self._token_url = f"{hub.endpoint}/api/models/{repo}/xet-read-token/{revision}"
        self._headers = {"Authorization": f"Bearer {hub.token}"} if hub.token else {}
        self._lock = threading.Lock()
        self._group: Any = None
        self._failed: Failed | None = None
        self._cancelled = threading.Event()

    def carries(self, file: PinnedFile) -> bool:
        """Whether the lock has a xet hash for `file`, and the chunk store could be reached so far."""
        return digest_of(file) in self._names and self._failed is None

    def bring(self, file: PinnedFile, path: Path, advance: Callable[[int], None], stall_s: float) -> None:
        """Nothing; `path` then holds what the chunk store says is `file`. No byte of it is proved.

        Raises: Failed.
        """
        library, group = importlib.import_module(_LIBRARY), self._opened()
        done = threading.Event()
        try:
            what = library.XetFileInfo(self._names[digest_of(file)], file.size_bytes)
            download = group.start_download_file(what, str(path.absolute()))
            watch = _Watch(download, file.size_bytes, advance, stall_s)
            watcher = threading.Thread(target=watch.run, args=(done, self._cancelled), name="xet", daemon=True)
            watcher.start()
            try:
                download.result()  # the only call that waits; it lets other threads run
            finally:
                done.set()
                watcher.join()
        except Exception as error:  # the library documents no errors of its own; whatever it is, HTTP comes next
            raise Failed(f"hf-xet: {_said(error)}", again=False) from error
        watch.complete()

    def cancel(self) -> None:
        """Make every running `bring` end soon."""
        self._cancelled.set()

    def _opened(self) -> Any:
        """The group of downloads that all files share.

        Raises: Failed; the same one for all files, so that a chunk store that is down is asked once.
        """
        with self._lock:
            if self._failed is not None:
                raise self._failed
            if self._group is None:
                try:
                    self._group = self._open()
                except Failed as failure:
                    self._failed = failure
                    raise
            return self._group

    def _open(self) -> Any:
        try:
            with asking.bounded(_TOKEN_TIMEOUT_S) as client:
                answer = client.get(self._token_url, headers=self._headers, follow_redirects=False)
                answer.raise_for_status()
            store = answer.headers["X-Xet-Cas-Url"]
            token, expires_s = answer.headers["X-Xet-Access-Token"], int(answer.headers["X-Xet-Token-Expiration"])
        except (httpx2.HTTPError, httpx2.InvalidURL, UsageError) as error:
            raise Failed(f"no token for the chunk store: {_said(error)}", again=False) from error
        except (KeyError, ValueError) as error:
            raise Failed("the hub's answer names no chunk store", again=False) from error
        problem = store_problem(store, self._hub)
        if problem:
            raise Failed(problem, again=False)
        try:
            return (
                importlib.import_module(_LIBRARY)
                .XetSession()
                .new_file_download_group(
                    endpoint=store,
                    token=token,
                    token_expiry_unix_secs=expires_s,
                    token_refresh_url=self._token_url,
                    token_refresh_headers=self._headers,
                )
            )
        except Exception as error:  # as above: anything may come, and none of it may end a fetch
            raise Failed(f"hf-xet: {_said(error)}", again=False) from error


def _said(error: Exception) -> str:
    """What went wrong, on one line, as it may be shown."""
    return masked(" ".join(str(error).split()))[:200]


class _Watch:
    """Looks at one download from beside: tells how far it is, and ends it when nothing comes or nobody wants it any more."""

    def __init__(self, download: Any, size_bytes: int, advance: Callable[[int], None], stall_s: float) -> None:
        self._download = download
        self._size_bytes = size_bytes
        self._advance = advance
        self._stall_s = stall_s
        self._told_bytes = 0

    def run(self, done: threading.Event, cancelled: threading.Event) -> None:
        """Nothing, once `done` is set."""
        since_s = time.monotonic()
        while not done.wait(_LOOK_S):
            report = self._download.progress()
            here = min(report.bytes_completed, self._size_bytes) if report else 0
            if here > self._told_bytes:
                self._tell(here)
                since_s = time.monotonic()
            if cancelled.is_set() or time.monotonic() - since_s > self._stall_s:
                self._download.cancel()
                return

    def complete(self) -> None:
        """Tell of the rest, once the download has succeeded."""
        self._tell(self._size_bytes)

    def _tell(self, here: int) -> None:
        self._advance(here - self._told_bytes)
        self._told_bytes = here
