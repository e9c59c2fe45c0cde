"""Which hub is asked, and with what token: read from the environment in one place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from slipway.checkpoints.pins import plain_bytes
from slipway.errors import NetworkFailure, UsageError, from_os_error

DEFAULT_ENDPOINT = "https://huggingface.co"

_SHORTEST_SECRET = 6
"""Shorter texts are not masked: they would be found inside of ordinary words."""

_LONGEST_TOKEN_FILE_BYTES = 1 << 16
_USER_INFO = re.compile(r"((?:https?|ftp|socks[0-9]?[a-z]?)://)[^\s/?#\"'<>]*@", re.IGNORECASE)

_tokens: set[str] = set()
"""Every token that a hub was made with in this process; others may echo them in any text."""


@dataclass(frozen=True)
class Hub:
    """A hub's address, its token (never printed), and whether the user has forbidden to ask it.

    Raises: UsageError when the endpoint is no http(s) address or the token cannot stand in a header.
    """

    endpoint: str = DEFAULT_ENDPOINT
    token: str | None = field(default=None, repr=False)
    offline: bool = False

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.endpoint)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            usable = False
        if not usable or parts.username or parts.query or parts.fragment or not self.endpoint.isprintable():
            raise UsageError(
                "HF_ENDPOINT",
                f"is not the address of a hub (got {without_user_info(self.endpoint)!a})",
                "http:// or https://, a host, perhaps a port and a path",
                "correct it or unset it",
            )
        if self.token and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise UsageError("HF_TOKEN", "has characters that no token has", "", "copy the token again")
        if self.token and len(self.token) >= _SHORTEST_SECRET:
            _tokens.add(self.token)
        object.__setattr__(self, "endpoint", self.endpoint.rstrip("/"))

    def file_url(self, repo: str, revision: str, path: str) -> str:
        """Where the bytes of one file are asked for."""
        return f"{self.endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"

    def require_online(self) -> None:
        """Nothing; call it before the first request.

        Raises: NetworkFailure when HF_HUB_OFFLINE forbids requests.
        """
        if self.offline:
            raise offline(self.endpoint)


def masked(text: str) -> str:
    """`text` as it may be shown, whoever has said it: without a token in use, in capitals or not, and without names and
    passwords in addresses."""
    # The longest first: one token may begin like another, and the rest of that one would be left.
    for token in sorted(_tokens, key=len, reverse=True):
        text = re.sub(re.escape(token), "***", text, flags=re.IGNORECASE)
    return _USER_INFO.sub(r"\1***@", text)


def without_user_info(address: str) -> str:
    """`address`, all of it one address, as it may be shown: a name and password in it are not, whatever they consist of."""
    scheme, slashes, rest = address.partition("://")
    return f"{scheme}{slashes}***@{rest.rpartition('@')[2]}" if "@" in rest else address


def offline(endpoint: str) -> NetworkFailure:
    """The error of a command that needs the hub while HF_HUB_OFFLINE forbids to ask it."""
    return NetworkFailure(
        endpoint,
        "is not asked because HF_HUB_OFFLINE is set",
        "this step needs the hub once; everything after it works offline",
        "unset HF_HUB_OFFLINE and run the command again",
    )


def hub_from_environment() -> Hub:
    """The hub that HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH (or HF_HOME) and HF_HUB_OFFLINE describe.

    Raises: UsageError, DiskFailure when the token file cannot be read.
    Source: huggingface_hub 2.4.0 constants.py and utils/_auth.py, read 2026-11-30.
    """
    get = os.environ.get
    endpoint = get("HF_ENDPOINT", "").strip() or DEFAULT_ENDPOINT
    token = get("HF_TOKEN", "").strip() or get("HUGGING_FACE_HUB_TOKEN", "").strip()
    if not token and not _is_true(get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "")):
        token = _token_file()
    return Hub(endpoint, token or None, _is_true(get("HF_HUB_OFFLINE", "") or get("TRANSFORMERS_OFFLINE", "")))


def _token_file() -> str:
    """The token that `hf auth login` left, or an empty text."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    path = Path(os.path.expandvars(os.environ.get("HF_TOKEN_PATH") or f"{home}/token")).expanduser()
    try:
        if path.is_file() and path.stat().st_size > _LONGEST_TOKEN_FILE_BYTES:
            raise UsageError(path, "the token file is too long to be one", "", "log in again: hf auth login")
        real = Path(os.path.realpath(path))
        if real == Path(os.devnull):
            return ""
        # A link is somebody's own; a pipe or a device would make the command wait, or never end.
        return plain_bytes(real).decode().strip()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise UsageError(path, "the token file is not text", "", "log in again: hf auth login") from None
    except OSError as error:
        raise from_os_error(error, path, "reading the token file") from error


def _is_true(value: str) -> bool:
    return value.strip().upper() in {"1", "ON", "YES", "TRUE"}
