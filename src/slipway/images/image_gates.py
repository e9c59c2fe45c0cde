"""What must be true of an image before it is shipped: no stale .pyc, no secret in it, not run as root. One pass over its files."""

from __future__ import annotations

import _imp
import importlib.util
import io
import itertools
import json
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO

from slipway.errors import CheckFailed
from slipway.images import layers
from slipway.images.layers import Entry
from slipway.images.oci_archive import Archive
from slipway.images.secret_search import Secrets

_CHUNK_BYTES = 1 << 20
_LIMIT = 20
_HEADER_BYTES = 16
_MAGICS = tuple(
    {*(number.to_bytes(2, "little") + b"\r\n" for number in (3495, 3531, 3571)), importlib.util.MAGIC_NUMBER}
)
"""Of Python 3.11, 3.12, 3.13 and the one that runs this: what a .pyc of theirs begins with, and the key of its source's hash.

Source: measured with 3.11.7, 3.12.1 and 3.13.0, 2026-12-01; before 3.11 the hash is another one.
"""
_ACCOUNTS = "etc/passwd"
_USER = re.compile(r"(?P<user>[1-9][0-9]*|[A-Za-z_][A-Za-z0-9_.-]*)(?::(?:0|[1-9][0-9]{0,9}))?")


@dataclass(frozen=True)
class PycState:
    """How many compiled files the image has, by what Python does with them.

    `hashed` are checked against their source's hash when they are imported, `compared` of them were so here; `timed` are
    against its time and size, and fit; `stale` do not fit, so that each start compiles them again, or are never compared with
    their source, so that old code may run; `orphaned` have no source. Stale ones are named, the first 20.
    """

    hashed: int
    timed: int
    stale: int
    orphaned: int
    stale_names: tuple[str, ...] = ()
    compared: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.hashed + self.timed + self.stale + self.orphaned


@dataclass(frozen=True)
class Leak:
    """A secret that was found: its name, and where: `layer N: file`, or the config, the history, the manifest."""

    secret: str
    where: str


@dataclass(frozen=True)
class ImageState:
    """What the gates look at; `root` is whether it runs as root."""

    pyc: PycState
    leaks: tuple[Leak, ...]
    root: bool


def inspect(image: Archive, secrets: Mapping[str, bytes], base_layers: int = 0) -> ImageState:
    """The state of an image, in one pass over its files; `secrets` maps names to the bytes of what must not be in it.

    Each layer is searched by itself: a file that a later layer deletes can still be read by whoever pulls the image. The
    first `base_layers` are not: they were public before this build, and may well say which mirror they came from.

    Raises: as `layers.entries`.
    """
    all_of_them, none = Secrets(secrets), Secrets({})
    found = list(_told(image, all_of_them))
    tree, accounts = _Tree(), _Accounts()
    for index in range(len(image.layers)):
        tree.next_layer()
        sought = all_of_them if index >= base_layers else none
        for entry, content in layers.entries(image, index):
            read = accounts.add(entry, content)
            first, names = _searched(read, sought) if read is not None else (b"", set())
            tree.add(entry, first)
            if sought:
                names |= sought.within(f"{entry.name}\0{entry.link}".encode(errors="surrogateescape"))
            found += [Leak(name, f"layer {index}: {entry.name}") for name in sorted(names)]
    return ImageState(tree.state(), tuple(found), runs_as_root(image, accounts.text))


def refuse(place: str, state: ImageState) -> None:
    """Nothing when the image may be shipped.

    Raises: CheckFailed for the first gate that says no: a leaked secret, stale .pyc, root.
    """
    if state.leaks:
        listed = "".join(f"  {leak.secret} in {leak.where}\n" for leak in state.leaks[:_LIMIT])
        problem = f"holds a build secret in {len(state.leaks)} place{'s' if len(state.leaks) > 1 else ''}"
        remedy = "mount it (`RUN --mount=type=secret`) instead of copying it, change the secret, and build again"
        raise CheckFailed(place, problem, f"whoever pulls the image could read it\n{listed}", remedy)
    if state.pyc.stale:
        listed = "".join(f"  {name}\n" for name in state.pyc.stale_names)
        why = f"Python would compile them again at every start, or run old code\n{listed}"
        remedy = (
            "write `ARG SOURCE_DATE_EPOCH` before the step that installs, then .pyc are checked by hash; "
            "or compile with `python3 -m compileall --invalidation-mode checked-hash`"
        )
        raise CheckFailed(place, f"has {state.pyc.stale} stale .pyc files", why, remedy)
    if state.root:
        raise CheckFailed(
            place, "runs as root", "an engine needs no rights in its container", "end it with `USER 65532`"
        )


def runs_as_root(image: Archive, accounts: bytes | None = None) -> bool:
    """Whether a container of the image may run as root; `accounts` is the image's /etc/passwd, None without one.

    Only a plain decimal uid above 0, or a name that /etc/passwd gives such a uid and nothing else, does not: runtimes read
    `+0`, `00` and numbers past 32 bits as 0, and any name may be one more for uid 0. A group is a plain number.
    """
    user = image.process.get("User")
    match = _USER.fullmatch(user) if isinstance(user, str) else None
    if match is None:
        return True
    uids = [match["user"]] if match["user"].isdigit() else _uids(match["user"], accounts or b"")
    return not uids or not all(plain_uid(uid) for uid in uids)


def plain_uid(text: str) -> bool:
    """Whether `text` is a uid above 0 that every runtime reads alike: decimal, no sign, no leading 0, at most 31 bits."""
    return bool(re.fullmatch(r"[1-9][0-9]{0,9}", text)) and int(text) < 1 << 31


def _uids(name: str, accounts: bytes) -> list[str]:
    """Every uid that /etc/passwd gives `name`; runtimes differ in which of two lines they take."""
    lines = [line.split(":") for line in accounts.decode(errors="replace").splitlines()]
    return [(fields[2] if len(fields) > 2 else "") for fields in lines if fields[0].strip() == name]


def _told(image: Archive, secrets: Secrets) -> Iterator[Leak]:
    config = {name: value for name, value in image.config.items() if name != "history"}
    documents = {"config": config, "history": image.config.get("history"), "manifest": json.loads(image.manifest_text)}
    for where, document in documents.items():
        # JSON escapes quotes and newlines, so the strings are searched as they are meant.
        text = "\0".join(_strings(document)).encode(errors="surrogateescape")
        yield from (Leak(name, where) for name in sorted(secrets.within(text)))


def _strings(value: object) -> Iterator[str]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for key, item in value.items():
                yield f"{key}={item}" if isinstance(item, str) else str(key)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _searched(content: IO[bytes], secrets: Secrets) -> tuple[bytes, set[str]]:
    """The first piece of `content`, and the names of the secrets in it."""
    first = content.read(_CHUNK_BYTES)
    rest = iter(lambda: content.read(_CHUNK_BYTES), b"")
    return first, secrets.among(itertools.chain((first,), rest)) if secrets else set()


@dataclass
class _Accounts:
    """The image's /etc/passwd as the layers add up: its bytes, None where there is none that can be read here."""

    text: bytes | None = None

    def add(self, entry: Entry, content: IO[bytes] | None) -> IO[bytes] | None:
        """Take the file in, or forget it where `entry` deletes or replaces it or its folder; the content, to be read on."""
        if entry.name == _ACCOUNTS and content is not None and entry.size_bytes <= _CHUNK_BYTES:
            self.text = content.read()
            return io.BytesIO(self.text)
        gone = entry.name in {_ACCOUNTS, "etc/.wh.passwd", ".wh.etc", "etc/.wh..wh..opq", ".wh..wh..opq"}
        if gone or (entry.name == "etc" and entry.kind != "folder"):
            self.text = None
        return content


@dataclass(frozen=True)
class _Source:
    """A .py file: its time and size, and its hash for each of _MAGICS where it was read whole."""

    mtime_s: int
    size_bytes: int
    hashes: tuple[bytes, ...]


@dataclass
class _Tree:
    """The Python files of the image as the layers add up: what a later layer writes or deletes counts."""

    sources: dict[str, _Source] = field(default_factory=dict)
    compiled: dict[str, bytes] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=set)
    _new: set[str] = field(default_factory=set)

    def next_layer(self) -> None:
        """A whiteout deletes what older layers hold, not what its own layer does."""
        self._new = set()

    def add(self, entry: Entry, first: bytes) -> None:
        path = PurePosixPath(entry.name)
        if path.name == ".wh..wh..opq":
            self._delete_below(str(path.parent))
        elif path.name.startswith(".wh."):
            gone = str(path.with_name(path.name.removeprefix(".wh.")))
            if gone not in self._new:
                self._delete(gone)
            self._delete_below(gone)
        else:
            self._write(entry, first)

    def _write(self, entry: Entry, first: bytes) -> None:
        self._new.add(entry.name)
        if entry.kind == "folder":
            self._folders.add(entry.name)
            return
        # Whatever stood here is replaced: a file, or a folder with all below it.
        self._delete(entry.name)
        if entry.name in self._folders:
            self._folders.discard(entry.name)
            self._delete_below(entry.name)
        if entry.kind == "file" and entry.name.endswith(".py"):
            whole = len(first) == entry.size_bytes
            hashes = tuple(_imp.source_hash(int.from_bytes(magic, "little"), first) for magic in _MAGICS if whole)
            self.sources[entry.name] = _Source(entry.mtime_s, entry.size_bytes, hashes)
        elif entry.kind == "file" and entry.name.endswith(".pyc"):
            self.compiled[entry.name] = first[:_HEADER_BYTES]

    def _delete(self, name: str) -> None:
        self.sources.pop(name, None)
        self.compiled.pop(name, None)

    def _delete_below(self, folder: str) -> None:
        for known in (self.sources, self.compiled):
            gone = [name for name in known if name.startswith(f"{folder}/") and name not in self._new]
            for name in gone:
                del known[name]

    def state(self) -> PycState:
        counted: Counter[str] = Counter()
        stale = []
        for name, head in sorted(self.compiled.items()):
            verdict = self._verdict(name, head)
            counted[verdict] += 1
            if verdict == "stale":
                stale.append(name)
            elif verdict == "unchecked":
                stale.append(f"{name} (is never compared with its source)")
        return PycState(
            hashed=counted["hashed"] + counted["compared"],
            timed=counted["timed"],
            stale=len(stale),
            orphaned=counted["orphaned"],
            stale_names=tuple(stale[:_LIMIT]),
            compared=counted["compared"],
        )

    def _verdict(self, name: str, head: bytes) -> str:
        source = self.sources.get(_source_of(name))
        if source is None:
            return "orphaned"
        if len(head) < _HEADER_BYTES:
            return "stale"
        # Source: PEP 552: magic, flags, then either a hash (flag bit 0; bit 1: compare it) or the source's time and size.
        magic, flags, mtime, size = struct.unpack("<4sIII", head)
        if flags == 1:
            return "unchecked"
        if flags == 3:
            hashes = dict(zip(_MAGICS, source.hashes, strict=False))
            return "hashed" if magic not in hashes else "compared" if hashes[magic] == head[8:] else "stale"
        fits = (mtime, size) == (source.mtime_s & 0xFFFFFFFF, source.size_bytes & 0xFFFFFFFF)
        return "timed" if fits and flags in {0, 2} else "stale"


def _source_of(name: str) -> str:
    path = PurePosixPath(name)
    if path.parent.name == "__pycache__":
        return str(path.parent.parent / f"{path.name.split('.')[0]}.py")
    return str(path.with_suffix(".py"))
