"""Tar archives whose bytes depend on names, modes and contents only: no owner, no user name, one time for all members."""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO


@dataclass(frozen=True)
class Member:
    """One file or symlink of an archive: exactly one of `read` (gives the bytes) and `link` (the target) is set."""

    name: str
    executable: bool = False
    link: str = ""
    read: Callable[[], bytes] = bytes


class TarWriter:
    """Writes members to `stream` as GNU tar: uid and gid 0, mode 0644 or 0755, mtime `epoch`; parent folders are written too.

    Add members in the order of `sort_key`; then equal members give equal bytes.
    """

    def __init__(self, stream: BinaryIO, epoch: int) -> None:
        # GNU, not pax: pax headers would carry fields that differ between versions of the writer. `close` ends it.
        self._tar = tarfile.TarFile(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8")
        self._epoch = epoch
        self._folders: set[str] = set()

    def add(self, member: Member) -> None:
        """Write one member, after the folders that lead to it."""
        for folder in reversed(PurePosixPath(member.name).parents):
            self.add_folder(str(folder))
        info = self._info(member.name, 0o755 if member.executable else 0o644)
        if member.link:
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, member.link, 0o777
            self._tar.addfile(info)
            return
        data = member.read()
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))

    def add_folder(self, name: str) -> None:
        """Write an empty folder, unless it is written already."""
        if name in {".", ""} or name in self._folders:
            return
        self._folders.add(name)
        info = self._info(name, 0o755)
        info.type = tarfile.DIRTYPE
        self._tar.addfile(info)

    def close(self) -> None:
        """Write the end of the archive; the stream stays open."""
        self._tar.close()

    def _info(self, name: str, mode: int) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name)
        info.mode, info.mtime, info.uid, info.gid, info.uname, info.gname = mode, self._epoch, 0, 0, "", ""
        return info


def sort_key(name: str) -> tuple[str, ...]:
    """Sorts names folder by folder, by code point: the same order on every machine and in every locale."""
    return tuple(name.split("/"))


def leaves(name: str, link: str) -> bool:
    """Whether the symlink `name` → `link` points out of the archive it stands in, by an absolute path or by `..`."""
    if link.startswith("/"):
        return True
    landed = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
    return landed == ".." or landed.startswith("../")


def stays_inside(name: str) -> bool:
    """Whether `name` is a relative path that cannot leave the folder where it is unpacked, nor touch a `.git` there."""
    parts = name.split("/")
    return all(part not in {"", ".", ".."} and part.lower() != ".git" for part in parts) and "\\" not in name
