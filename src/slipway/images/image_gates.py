"""What must be true of an image before it is shipped: no stale .pyc, no secret in it, not run as root. One pass over its files."""

from __future__ import annotations

import json
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
from slipway.images.verify_image import runs_as_root

_CHUNK_BYTES = 1 << 20
_SHORTEST = 8
"""Bytes of a secret's line that is searched for; a shorter one would be found anywhere."""
_LIMIT = 20


@dataclass(frozen=True)
class PycState:
    """How many compiled files the image has, by what Python does with them.

    `hashed` are checked against their source's hash or not at all, `timed` against its time and size, and fit; `stale`
    do not fit, so that each start compiles them again; `orphaned` have no source. Stale ones are named, the first 20.
    """

    hashed: int
    timed: int
    stale: int
    orphaned: int
    stale_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leak:
    """A secret that was found: its name, and where: a file of a layer, or the config, the history, the manifest."""

    secret: str
    where: str


@dataclass(frozen=True)
class ImageState:
    """What the gates look at."""

    pyc: PycState
    leaks: tuple[Leak, ...]
    root: bool


def inspect(archive: Archive, secrets: Mapping[str, bytes], base_layers: int = 0) -> ImageState:
    """The state of an image; `secrets` maps names to what must not be in it.

    Each layer is searched by itself: a file that a later layer deletes can still be read by whoever pulls the image. The
    first `base_layers` are not: they were public before this build, and may well say which mirror they came from.

    Raises: as `layers.entries`.
    """
    patterns = {name: secret_patterns(value) for name, value in secrets.items()}
    leaks = list(_told(archive, patterns))
    tree = _Tree()
    for index in range(len(archive.layers)):
        tree.next_layer()
        for entry, content in layers.entries(archive, index):
            sought = patterns if index >= base_layers else {}
            found = set(_named(entry.name.encode() + b"\0" + entry.link.encode(), sought))
            if content is not None:
                found |= set(_searched(content, sought, tree.watch(entry)))
            tree.add(entry)
            leaks += [Leak(name, f"layer {index}: {entry.name}") for name in sorted(found)]
    return ImageState(tree.state(), tuple(leaks), runs_as_root(archive.config))


def pyc_state(archive: Archive) -> PycState:
    """The compiled files of the image as a container sees it.

    Raises: as `layers.entries`.
    """
    return inspect(archive, {}).pyc


def leaks(archive: Archive, secrets: Mapping[str, bytes]) -> tuple[Leak, ...]:
    """Where in layers, config, history or manifest a secret stands, in order.

    Raises: as `layers.entries`.
    """
    return inspect(archive, secrets).leaks


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
        why = f"Python would compile them again at every start\n{listed}"
        remedy = "write `ARG SOURCE_DATE_EPOCH` before the step that installs, then .pyc are checked by hash"
        raise CheckFailed(place, f"has {state.pyc.stale} stale .pyc files", why, remedy)
    if state.root:
        raise CheckFailed(
            place, "runs as root", "an engine needs no rights in its container", "end it with `USER 65532`"
        )


def secret_patterns(secret: bytes) -> tuple[bytes, ...]:
    """The bytes whose presence means that `secret` leaked: all of it, each line of some length, each value after a `=`.

    Of certificates only the whole file and private keys count: single public certificates are in every CA bundle.
    """
    whole = secret.strip()
    found = {whole} if len(whole) >= _SHORTEST else set()
    if b"-----BEGIN" in whole:
        keys = whole.split(b"PRIVATE KEY-----")[1::2]
        lines = [line for key in keys for line in key.splitlines()]
    else:
        lines = [part for line in whole.splitlines() for part in (line, line.partition(b"=")[2])]
    found |= {line.strip() for line in lines if len(line.strip()) >= _SHORTEST and b"-----" not in line}
    return tuple(sorted(found))


def _told(archive: Archive, patterns: Mapping[str, tuple[bytes, ...]]) -> Iterator[Leak]:
    config = {name: value for name, value in archive.config.items() if name != "history"}
    # JSON escapes quotes and newlines, so the strings are searched as they are meant.
    documents = {"config": config, "history": archive.config.get("history"), "manifest": archive.manifest_text}
    for where, document in documents.items():
        text = "\0".join(_strings(document)).encode() + json.dumps(document, ensure_ascii=False).encode()
        yield from (Leak(name, where) for name in sorted(set(_named(text, patterns))))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _named(text: bytes, patterns: Mapping[str, tuple[bytes, ...]]) -> Iterator[str]:
    for name, searched in patterns.items():
        if any(pattern in text for pattern in searched):
            yield name


def _searched(content: IO[bytes], patterns: Mapping[str, tuple[bytes, ...]], watched: list[bytes]) -> Iterator[str]:
    """The names of the secrets in `content`; its first bytes go to `watched`."""
    overlap = max((len(pattern) for searched in patterns.values() for pattern in searched), default=1) - 1
    rest = b""
    while chunk := content.read(_CHUNK_BYTES):
        if not watched:
            watched.append(chunk[:16])
        if not patterns:
            continue
        text = rest + chunk
        yield from _named(text, patterns)
        rest = text[-overlap:] if overlap else b""


@dataclass
class _Tree:
    """The Python files of the image as the layers add up: what a later layer writes or deletes counts."""

    sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    compiled: dict[str, bytes] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=set)
    _new: set[str] = field(default_factory=set)
    _heads: list[bytes] = field(default_factory=list)

    def next_layer(self) -> None:
        """A whiteout deletes what older layers hold, not what its own layer does."""
        self._new = set()

    def watch(self, entry: Entry) -> list[bytes]:
        """Where to put the first bytes of the entry's content."""
        self._heads = []
        return self._heads

    def add(self, entry: Entry) -> None:
        path = PurePosixPath(entry.name)
        if path.name == ".wh..wh..opq":
            self._delete_below(str(path.parent))
        elif path.name.startswith(".wh."):
            gone = str(path.with_name(path.name.removeprefix(".wh.")))
            self._delete(gone)
            self._delete_below(gone)
        else:
            self._write(entry)

    def _write(self, entry: Entry) -> None:
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
            self.sources[entry.name] = (entry.mtime_s, entry.size_bytes)
        elif entry.kind == "file" and entry.name.endswith(".pyc"):
            self.compiled[entry.name] = b"".join(self._heads)

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
        names = tuple(stale[:_LIMIT])
        return PycState(counted["hashed"], counted["timed"], counted["stale"], counted["orphaned"], names)

    def _verdict(self, name: str, head: bytes) -> str:
        source = self.sources.get(_source_of(name))
        if source is None:
            return "orphaned"
        if len(head) < 16:
            return "stale"
        # Source: PEP 552: magic, flags, then either a hash (flag bit 0) or the source's time and size.
        flags, mtime, size = struct.unpack("<4xIII", head)
        if flags & 1:
            return "hashed"
        return "timed" if (mtime, size) == (source[0] & 0xFFFFFFFF, source[1] & 0xFFFFFFFF) else "stale"


def _source_of(name: str) -> str:
    path = PurePosixPath(name)
    if path.parent.name == "__pycache__":
        return str(path.parent.parent / f"{path.name.split('.')[0]}.py")
    return str(path.with_suffix(".py"))
