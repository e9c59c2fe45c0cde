"""The build context as one tar whose sha256 can stand in a lock: the listed files, and nothing that a checkout adds to them.

Timestamps, owners, umask and place of the checkout leave no trace, so two machines send the same bytes to the builder.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from slipway.durable import NotRegular, open_regular
from slipway.errors import MissingFile, UsageError, from_os_error
from slipway.images.tarball import Member, TarWriter, leaves, sort_key, stays_inside

SECRET_NAMES = (
    ".env",
    ".env.*",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".git-credentials",
    "credentials",
    "credentials.json",
    "id_rsa*",
    "id_ed25519*",
    "id_ecdsa*",
    "*.key",
    "*.pem",
    "*.p12",
    "*.pfx",
    "*.kdbx",
)
"""File names that hold secrets by custom; a context never carries them, not even where a pattern names one."""


MAX_FILE_BYTES = 64 << 20
"""Largest file that is packed: a Dockerfile and what it copies are texts, so more is a checkpoint, a log, or a sparse file."""
MAX_BYTES = 256 << 20
"""The same for all files of a folder together; the tar is made in memory."""


@dataclass(frozen=True)
class Context:
    """A packed context: the tar, the sha256 of its bytes (64 hex digits), and how many files and symlinks it holds."""

    tar: bytes
    sha256: str
    file_count: int


def pack(folder: Path, files: Sequence[str], extra: Mapping[str, bytes], epoch: int) -> Context:
    """The files under `folder` that match a pattern in `files`, and the made ones in `extra` (name → bytes), as one tar.

    Patterns are relative, with `/` between folders: `*` and `?` within a name, `**` for any number of folders. A member's
    mode is 0755 where the owner may execute the file, else 0644; its mtime is `epoch` seconds.

    Raises: MissingFile when a pattern matches nothing; UsageError for a symlink that leaves the folder, a file that is
    neither regular nor a symlink, or too large, a name that holds secrets by custom, or an extra file that is also on disk.
    """
    members = {member.name: member for member in _listed(folder, files)}
    for name, data in extra.items():
        if name in members:
            raise UsageError(
                folder / name, "is made by the build and stands in the folder too", "", "remove one of the two"
            )
        if not stays_inside(name):
            raise UsageError(name, "is no name for a file of the context", "a relative path without ..", "rename it")
        members[name] = Member(name, read=partial(bytes, data))
    stream = io.BytesIO()
    writer = TarWriter(stream, epoch)
    for name in sorted(members, key=sort_key):
        writer.add(members[name])
    writer.close()
    tar = stream.getvalue()
    return Context(tar, hashlib.sha256(tar).hexdigest(), len(members))


def _listed(folder: Path, patterns: Sequence[str]) -> Iterator[Member]:
    """The members that the patterns pick; every pattern must pick something, or a renamed file would silently be left out."""
    if not folder.is_dir():
        raise MissingFile(folder, "no such folder", "the build context is packed from it", "check the path")
    compiled = {pattern: _Pattern(pattern) for pattern in patterns}
    unused, left = set(patterns), MAX_BYTES
    for name, entry in _walk(folder, ""):
        matching = {pattern for pattern, read in compiled.items() if read.matches(name)}
        if matching:
            unused -= matching
            member, size_bytes = _member(folder, name, entry, left)
            left -= size_bytes
            yield member
    if unused:
        pattern = sorted(unused)[0]
        raise MissingFile(folder / pattern, "matches no file", "every listed pattern must pick one", "correct the list")


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every entry below `folder` that is no folder itself; symlinks to folders are entries, `.git` is none."""
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise from_os_error(error, folder, "reading the build context") from error
    for entry in found:
        if entry.name.lower() == ".git":
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry


def _member(folder: Path, name: str, entry: os.DirEntry[str], left: int) -> tuple[Member, int]:
    """The member, and how many bytes it takes of the `left` ones."""
    path = folder / name
    if any(secret.matches(entry.name.lower()) for secret in _SECRETS):
        why = "files of this name hold secrets by custom, and every layer can be read"
        raise UsageError(
            path, "must not enter a build context", why, "pass it as a build secret, or narrow the pattern"
        )
    if not stays_inside(name):
        raise UsageError(path, "is no name for a file of the context", "no backslash in it", "rename it")
    try:
        if entry.is_symlink():
            return _symlink(folder, name), 0
        mode = entry.stat(follow_symlinks=False).st_mode
        data = _content(path, left)
        return Member(name, bool(mode & stat.S_IXUSR), read=partial(bytes, data)), len(data)
    except NotRegular:
        why = "only those can be packed"
        raise UsageError(path, "is neither a file nor a symlink", why, "narrow the pattern") from None
    except OSError as error:
        raise from_os_error(error, path, "reading the build context") from error


def _content(path: Path, left: int) -> bytes:
    """The file's bytes. Raises: UsageError when they are too many for one file, or more than the `left` ones; OSError."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size  # said before anything of a large one is read
        data = b"" if size_bytes > min(MAX_FILE_BYTES, left) else file.read(MAX_FILE_BYTES + 1)
    size_bytes = max(size_bytes, len(data))
    if size_bytes > MAX_FILE_BYTES:
        why = f"a file of a build context has at most {MAX_FILE_BYTES} bytes"
        raise UsageError(path, f"is too large (got {size_bytes} bytes)", why, "narrow the pattern")
    if size_bytes > left:
        why = f"all its files together have at most {MAX_BYTES} bytes"
        raise UsageError(path, "makes the build context too large", why, "narrow the patterns")
    return data


def _symlink(folder: Path, name: str) -> Member:
    path = folder / name
    link = str(path.readlink())
    # The text must stay inside, and so must where it lands: a chain of links could step out in between.
    if leaves(name, link) or not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            path,
            f"is a symlink that leaves the folder (to {link})",
            "what lies outside is not locked",
            "copy the file in",
        )
    if not path.exists():
        raise MissingFile(path, f"is a symlink to nothing (to {link})", "", "correct or remove it")
    return Member(name, link=link)


class _Pattern:
    """A pattern for whole names, matched in one pass: time grows with name times pattern, never with their powers.

    A regular expression would try `**/**/**/…` in as many ways as there are folders, to the power of how often it stands there.
    """

    def __init__(self, pattern: str) -> None:
        self._prefix = re.split(r"[*?]", pattern, maxsplit=1)[0]
        self._pieces = re.findall(r"\*\*/|\*\*|.", pattern, re.DOTALL)

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` is what the pattern describes."""
        if not name.startswith(self._prefix):
            return False
        # A state is how many pieces are done, and whether the next one is half done: a folder's name, a `**`.
        states = self._with_skipped({(0, False)})
        for char in name:
            states = self._with_skipped({after for state in states for after in self._after(state, char)})
            if not states:
                return False
        return any(done == len(self._pieces) and not half for done, half in states)

    def _with_skipped(self, states: set[tuple[int, bool]]) -> set[tuple[int, bool]]:
        """`states`, and those reached by letting wildcards stand for nothing more."""
        found, rest = set(states), list(states)
        while rest:
            done, half = rest.pop()
            piece = self._pieces[done] if done < len(self._pieces) else ""
            skippable = piece == "*" or (piece == "**/" and not half) or (piece == "**" and half)
            if skippable and (done + 1, False) not in found:
                found.add((done + 1, False))
                rest.append((done + 1, False))
        return found

    def _after(self, state: tuple[int, bool], char: str) -> Iterator[tuple[int, bool]]:
        done, half = state
        piece = self._pieces[done] if done < len(self._pieces) else ""
        if piece == "**":
            yield done, True
        elif piece == "**/" and (char != "/" or half):
            yield done, char != "/"
        elif piece == "*" and char != "/":
            yield done, False
        elif (piece == "?" and char != "/") or (piece == char and piece != "*"):
            yield done + 1, False


_SECRETS = tuple(_Pattern(name) for name in SECRET_NAMES)
