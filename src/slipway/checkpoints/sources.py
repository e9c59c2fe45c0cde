"""Where the bytes of a locked file may come from: the hub, or a server that mirrors it. None of them is trusted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from slipway.checkpoints.hub import without_user_info
from slipway.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipway.checkpoints.hub import Hub
    from slipway.checkpoints.pins import PinnedFile, Pins

HUB = "hub"
"""The word that names the hub of HF_ENDPOINT among sources."""

_BLOBS = "/blobs/sha256"


@dataclass(frozen=True)
class Source:
    """A server; `layout` is hub, store (`BASE/<owner>/<name>/<revision>/<path>`, as a published store is served), or blobs
    (`BASE/<digest>`, where BASE ends in /blobs/sha256; files that the lock knows by git-sha1 lie beside it in /blobs/git-sha1)."""

    base: str
    layout: str

    def url(self, lock: Pins, file: PinnedFile) -> str:
        """Where the bytes of `file` are asked for."""
        if self.layout == HUB:
            return f"{self.base}/{lock.repo}/resolve/{lock.revision}/{quote(file.path)}"
        if self.layout == "store":
            return f"{self.base}/{lock.repo}/{lock.revision}/{quote(file.path)}"
        if file.sha256:
            return f"{self.base}/{file.sha256}"
        return f"{self.base[: -len('sha256')]}git-sha1/{file.git_sha1}"


def read(texts: Sequence[str], hub: Hub) -> tuple[Source, ...]:
    """The sources that `texts` name, in their order; the hub alone when there are none. Nothing is asked.

    Whoever names sources and wants the hub as well says `hub`: a node that is to spare the hub must not fall back to it.

    Raises: UsageError.
    """
    return tuple(_source(text, hub) for text in texts or (HUB,))


def _source(text: str, hub: Hub) -> Source:
    if text == HUB:
        return Source(hub.endpoint, HUB)
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.username or parts.query or parts.fragment or not text.isprintable():
        raise UsageError(
            "--source",
            f"is no source (got {without_user_info(text)!a})",
            f"`{HUB}`, or an http(s) address without user name and query: a served store, or one that ends in {_BLOBS}",
            "correct it",
        )
    base = text.rstrip("/")
    return Source(base, "blobs" if base.endswith(_BLOBS) else "store")
