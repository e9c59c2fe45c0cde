"""Which hub is asked, and with what token: read from the environment in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from slipway.errors import NetworkFailure, UsageError, from_os_error

DEFAULT_ENDPOINT = "https://huggingface.co"


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
                f"is not the address of a hub (got {_without_userinfo(self.endpoint)!a})",
                "http:// or https://, a host, perhaps a port and a path",
                "correct it or unset it",
            )
        if self.token and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise UsageError("HF_TOKEN", "has characters that no token has", "", "copy the token again")
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


def _without_userinfo(address: str) -> str:
    """`address` as it may be printed: a name and password in it are not."""
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
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise UsageError(path, "the token file is not text", "", "log in again: hf auth login") from None
    except OSError as error:
        raise from_os_error(error, path, "reading the token file") from error


def _is_true(value: str) -> bool:
    return value.strip().upper() in {"1", "ON", "YES", "TRUE"}
