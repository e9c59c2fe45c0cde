"""What a build may take in: the inputs that an image lock names, for the linter and for BuildKit's source policy.

Both read the same value, so what the linter lets pass and what the builder fetches cannot differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from slipway.errors import UsageError
from slipway.images.image_name import ImageName, parse

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Download:
    """One file by URL; `sha256` is 64 hex digits without a prefix."""

    url: str
    sha256: str


@dataclass(frozen=True)
class GitCommit:
    """One commit of one repository; `commit` is 40 hex digits."""

    url: str
    commit: str


@dataclass(frozen=True)
class AllowedInputs:
    """Everything from outside that a build of one image may use.

    `images`: `name@sha256:…`, one per name under which it may be pulled (mirrors too). `build_args`: name → value, exactly
    as the builder passes them. `debs`: `name=version`. `python_locks` and `deb_lists`: paths in the build context; a RUN has
    them only through a read-only bind mount.

    Raises: UsageError for an entry that pins nothing.
    """

    images: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    commits: tuple[GitCommit, ...] = ()
    build_args: Mapping[str, str] = field(default_factory=dict)
    debs: tuple[str, ...] = ()
    python_locks: tuple[str, ...] = ()
    deb_lists: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for image in self.images:
            _require(parse(image).digest is not None, image, "an image needs name@sha256:<64 hex>")
        for download in self.downloads:
            _require(bool(re.fullmatch(r"[0-9a-f]{64}", download.sha256)), download.url, "a download needs its sha256")
            _require(download.url.startswith(("http://", "https://")), download.url, "a download is fetched by HTTP")
            # Source policies know no escape for their wildcard.
            _require("*" not in download.url, download.url, "a URL with * cannot stand in a source policy; write %2A")
        for git in self.commits:
            _require(bool(COMMIT.fullmatch(git.commit)), git.url, "a git source needs a commit of 40 hex digits")
        for deb in self.debs:
            _require(
                bool(
                    re.fullmatch(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?=[^\s=]+", deb),
                ),
                deb,
                "a package needs name=version",
            )

    def image_names(self) -> frozenset[str]:
        """Every allowed image as `registry/repository@sha256:…`."""
        return frozenset(pinned(parse(image)) for image in self.images)

    def allows_commit(self, url: str, commit: str) -> bool:
        """Whether the lock names `commit` of the repository at `url`, whatever the protocol."""
        return any(one.commit == commit and git_place(one.url) == git_place(url) for one in self.commits)


def pinned(name: ImageName) -> str:
    """`registry/repository@sha256:…`: an image by what it is, whatever its tag."""
    return f"{name.place}@{name.digest}"


def git_place(url: str) -> str:
    """Host and path of a git URL, without protocol, user and `.git`: equal for every way to reach one repository."""
    scp = re.fullmatch(r"(?:[^@/:]+@)?(?P<host>[^/:]+):(?P<path>[^/].*)", url) if "://" not in url else None
    if scp:
        place = f"{scp['host']}/{scp['path']}"
    else:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        host = parts.netloc.rpartition("@")[2]
        place = f"{host}/{parts.path.strip('/')}"
    return place.split("#")[0].rstrip("/").removesuffix(".git")


def _require(holds: bool, place: str, why: str) -> None:
    if not holds:
        raise UsageError(place, "not a pinned input", why, "write the lock again with `invoke lock-image`")
