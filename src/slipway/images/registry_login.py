"""Who we are to a registry: logins as docker keeps them, and what a registry's challenge asks for.

Docker's config file is read, never written: `docker login` does that. Nothing here is shown in an error or a log.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slipway.errors import AuthFailure, UsageError, from_os_error
from slipway.images.image_name import HUB

_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io")
"""Under what docker keeps the login of its own hub."""

_HELPER_S = 30
_HELPER = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Login:
    """A user and a secret, or a token that stands for both."""

    user: str = ""
    secret: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode("ascii")


@dataclass(frozen=True)
class Challenge:
    """What `WWW-Authenticate` asks for: `scheme` is `basic` or `bearer`."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


class Logins:
    """The logins of one docker configuration, looked up per registry when they are first needed."""

    def __init__(self, config: Mapping[str, Any] | None = None, place: object = "docker's config") -> None:
        self._config = config or {}
        self._place = place
        self._known: dict[str, Login | None] = {}

    def login(self, registry: str) -> Login | None:
        """The login for `registry`; None where docker has none, and it is asked anonymously.

        Raises: AuthFailure when a credential helper fails.
        """
        if registry not in self._known:
            self._known[registry] = self._find(registry)
        return self._known[registry]

    def _find(self, registry: str) -> Login | None:
        keys = _HUB_KEYS if registry == HUB else (registry, f"https://{registry}", f"https://{registry}/")
        helpers = _table(self._config, "credHelpers")
        for key in keys:
            if isinstance(helpers.get(key), str):
                return _ask_helper(helpers[key], key)
        store = self._config.get("credsStore")
        found = _ask_helper(store, keys[0]) if isinstance(store, str) and store else None
        if found is not None:
            return found
        entries = _table(self._config, "auths")
        entry = next((entries[key] for key in keys if isinstance(entries.get(key), dict)), None)
        return _decoded(entry, self._place) if entry else None


def logins_from(environ: Mapping[str, str]) -> Logins:
    """The logins of `DOCKER_AUTH_CONFIG` (the text of a config file) or else of the file itself; none where neither is.

    Raises: UsageError for a text that is no JSON, DiskFailure for a file that cannot be read.
    """
    text = environ.get("DOCKER_AUTH_CONFIG", "")
    if text:
        return Logins(_config(text, "DOCKER_AUTH_CONFIG"), "DOCKER_AUTH_CONFIG")
    folder = environ.get("DOCKER_CONFIG") or str(Path(environ.get("HOME", "~")).expanduser() / ".docker")
    path = Path(folder) / "config.json"
    try:
        return Logins(_config(path.read_text(encoding="utf-8"), path), path)
    except FileNotFoundError:
        return Logins()
    except OSError as error:
        raise from_os_error(error, path, "reading docker's logins") from error


def challenges(values: Iterable[str]) -> tuple[Challenge, ...]:
    """The challenges in `WWW-Authenticate` headers that can be met, bearer first."""
    found = []
    for value in values:
        for match in re.finditer(r"(?i)(?:^|,\s*)(basic|bearer)(?:\s+|$)", value):
            rest = value[match.end() :]
            following = re.search(r"(?i),\s*(?:basic|bearer)\s", rest)
            pairs = re.findall(
                r'([A-Za-z]+)\s*=\s*(?:"([^"]*)"|([^\s,"]+))', rest[: following.start()] if following else rest
            )
            said = {key.lower(): quoted or bare for key, quoted, bare in pairs}
            words = (said.get(key, "") for key in ("realm", "service", "scope"))
            found.append(Challenge(match[1].lower(), *words))
    return tuple(sorted(found, key=lambda challenge: challenge.scheme != "bearer"))


def _config(text: str, place: object) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(place, "is not JSON", "docker's config.json is read for logins", "run docker login again")
    return value


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _decoded(entry: dict[str, Any], place: object) -> Login | None:
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return Login(identity_token=token)
    auth = entry.get("auth")
    if not isinstance(auth, str) or not auth:
        name, word = entry.get("username"), entry.get("password")
        return Login(name, word) if isinstance(name, str) and isinstance(word, str) else None
    try:
        user, colon, secret = base64.b64decode(auth, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if not colon:
        raise AuthFailure(place, "holds a login that cannot be read", "base64 of user:secret", "run docker login again")
    return Login(user, secret)


def _ask_helper(helper: str, server: str) -> Login | None:
    """What `docker-credential-HELPER get` says of `server`; None when it has nothing."""
    program = f"docker-credential-{helper}"
    if not _HELPER.fullmatch(helper):
        raise AuthFailure(ascii(program)[1:-1], "is no name of a credential helper", "", "correct docker's config.json")
    try:
        ran = subprocess.run(
            (program, "get"),
            input=server,
            capture_output=True,
            text=True,
            timeout=_HELPER_S,
            check=False,
            env=os.environ,
        )
    except FileNotFoundError:
        why = f"docker's config.json names it for {server}"
        raise AuthFailure(program, "is not installed", why, "install it, or run docker login without it") from None
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise AuthFailure(
            program, f"gave no answer ({type(error).__name__})", "", f"run {program} get by hand"
        ) from None
    if ran.returncode != 0:
        if "credentials not found" in ran.stdout + ran.stderr:
            return None
        raise AuthFailure(
            program, f"ended with exit code {ran.returncode}", f"asked for {server}", f"run {program} get by hand"
        )
    try:
        said = json.loads(ran.stdout)
        user, secret = str(said["Username"]), str(said["Secret"])
    except (ValueError, KeyError, TypeError):
        # What it printed may be a secret, so it is not shown.
        raise AuthFailure(program, "answered something else than a login", "", f"run {program} get by hand") from None
    # Docker's own convention for a token that stands for the user.
    return Login(identity_token=secret) if user == "<token>" else Login(user, secret)
