"""Repositories of the local hub: what a folder holds at one commit, in the words of git and Git LFS."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slipway.errors import MissingFile
from slipway.reference.hub_xet import ChunkStore

REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
"""One half of `owner/name`: no leading dot, so `..` and hidden folders can never be named."""

LFS_FROM_BYTES = 10_000_000
"""Size from which a file is kept in LFS. Source: huggingface.co upload rules, 2026-11 (10 MB)."""

_HIDDEN = {".cache", ".git"}


@dataclass(frozen=True)
class Blob:
    """One file at one commit; `sha256` is set for LFS files only, `git_sha1` is then the oid of the LFS pointer."""

    path: str
    source: Path
    size_bytes: int
    git_sha1: str
    sha256: str | None
    xet_hash: str | None = None

    @property
    def etag(self) -> str:
        """What the hub answers as ETag: the digest of the content as the hub stores it."""
        return self.sha256 or self.git_sha1

    def as_json(self) -> dict[str, Any]:
        """The file's entry in the answers of `tree` and `paths-info`."""
        entry: dict[str, Any] = {"type": "file", "path": self.path, "size": self.size_bytes, "oid": self.git_sha1}
        if self.sha256:
            entry["lfs"] = {"oid": self.sha256, "size": self.size_bytes, "pointerSize": len(_pointer(self))}
        if self.xet_hash:
            entry["xetHash"] = self.xet_hash
        return entry

    def as_sibling(self, *, blobs: bool) -> dict[str, Any]:
        """The file's entry in `siblings` of a model; with `blobs`, its size and digests too."""
        if not blobs:
            return {"rfilename": self.path}
        entry: dict[str, Any] = {"rfilename": self.path, "size": self.size_bytes, "blobId": self.git_sha1}
        if self.sha256:
            entry["lfs"] = {"sha256": self.sha256, "size": self.size_bytes, "pointerSize": len(_pointer(self))}
        return entry


@dataclass(frozen=True)
class Commit:
    """All files of a repository at one moment, by path; `revision` is 40 hex, computed from paths and digests."""

    revision: str
    blobs: dict[str, Blob]

    def card(self) -> dict[str, Any]:
        """What the front matter of README.md says, as the hub's `cardData`; empty when there is none."""
        readme = self.blobs.get("README.md")
        parts = readme.source.read_text("utf-8", "replace").split("---\n", 2) if readme else []
        if len(parts) < 3 or parts[0]:
            return {}
        try:
            card = yaml.safe_load(parts[1])
        except yaml.YAMLError:
            return {}
        return card if isinstance(card, dict) else {}

    def entries(self, below: str, *, recursive: bool) -> list[dict[str, Any]]:
        """What `tree` answers: files and folders under `below` ("" is the root), sorted by path."""
        prefix = f"{below}/" if below else ""
        found: dict[str, dict[str, Any]] = {}
        for path, blob in self.blobs.items():
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix) :].split("/")
            for depth in range(1, len(parts) if recursive else min(len(parts), 2)):
                folder = prefix + "/".join(parts[:depth])
                found[folder] = {"type": "directory", "path": folder, "size": 0, "oid": _sha1(folder.encode())}
            if recursive or len(parts) == 1:
                found[path] = blob.as_json()
        return [found[path] for path in sorted(found)]


class Repositories:
    """Every repository under a root folder; digests are remembered per file identity, so a repeat costs a stat."""

    def __init__(self, root: Path, lfs_from_bytes: int = LFS_FROM_BYTES, store: ChunkStore | None = None) -> None:
        self.root = root
        self._store = store
        self._stored: dict[str, str] = {}
        self._lfs_from_bytes = lfs_from_bytes
        self._lock = threading.Lock()
        self._digests: dict[tuple[int, int, int, int], tuple[str, str]] = {}
        self._seen: dict[tuple[str, str], Commit] = {}

    def folder(self, repo: str) -> Path | None:
        """The folder of `owner/name`, or None where there is no such repository."""
        parts = repo.split("/")
        if len(parts) != 2 or not all(REPO_PART.fullmatch(part) and ".." not in part for part in parts):
            return None
        folder = self.root / repo
        return folder if folder.is_dir() else None

    def head(self, repo: str, folder: Path) -> Commit:
        """The commit that `folder` amounts to now; from then on it is found by its revision too.

        Raises: MissingFile when a file vanishes while it is read.
        """
        blobs = {path: self._blob(path, source) for path, source in sorted(_walk(folder))}
        lines = "".join(f"{path}\0{blob.git_sha1}\0{blob.sha256 or ''}\n" for path, blob in blobs.items())
        commit = Commit(_sha1(f"commit {len(lines)}\0{lines}".encode()), blobs)
        with self._lock:
            self._seen[repo, commit.revision] = commit
        return commit

    def at(self, repo: str, revision: str) -> Commit | None:
        """The commit `revision` of `repo` if it was served before and its files are still what they were."""
        commit = self._seen.get((repo, revision))
        if commit is None:
            return None
        try:
            fresh = all(self._blob(blob.path, blob.source) == blob for blob in commit.blobs.values())
        except MissingFile:
            return None
        return commit if fresh else None

    def _blob(self, path: str, source: Path) -> Blob:
        try:
            status = source.stat()
            key = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            with self._lock:
                digests = self._digests.get(key)
            if digests is None:
                digests = _digests(source, status.st_size)
                with self._lock:
                    self._digests[key] = digests
        except FileNotFoundError:
            raise MissingFile(source, "vanished while the hub read it", "", "ask again") from None
        sha1, sha256 = digests
        if path.endswith(".safetensors") or status.st_size >= self._lfs_from_bytes:
            blob = Blob(path, source, status.st_size, "", sha256)
            pointer = _pointer(blob)
            pointer_sha1 = _sha1(b"blob %d\0" % len(pointer) + pointer)
            return Blob(path, source, status.st_size, pointer_sha1, sha256, self._xet_hash(source, sha256))
        return Blob(path, source, status.st_size, sha1, None)

    def _xet_hash(self, source: Path, sha256: str) -> str | None:
        """How the chunk store names the bytes of `source`, put there at the first question; None without a store."""
        if self._store is None:
            return None
        with self._lock:
            if sha256 not in self._stored:
                self._stored[sha256] = self._store.put(source)
            return self._stored[sha256]


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Path and place of every file of a repository; a link that leads out of the folder is not part of it."""
    inside = folder.resolve()
    for parent, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in _HIDDEN]
        for name in files:
            source = Path(parent, name)
            if source.is_file() and (not source.is_symlink() or inside in source.resolve().parents):
                yield source.relative_to(folder).as_posix(), source


def _digests(source: Path, size_bytes: int) -> tuple[str, str]:
    """Git's sha1 of the file as a blob, and the SHA-256 of its bytes, both hex."""
    sha1, sha256 = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False), hashlib.sha256()
    with source.open("rb") as stream:
        while piece := stream.read(1 << 20):
            sha1.update(piece)
            sha256.update(piece)
    return sha1.hexdigest(), sha256.hexdigest()


def _pointer(blob: Blob) -> bytes:
    """The text that git itself keeps for an LFS file. Source: git-lfs spec v1."""
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{blob.sha256}\nsize {blob.size_bytes}\n"
    return text.encode()


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
