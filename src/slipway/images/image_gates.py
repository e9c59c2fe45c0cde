"""What must be true of an image before it is shipped: no stale .pyc, no secret in it, not run as root. One pass over its files."""

from __future__ import annotations

import io
import json
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import IO
from urllib.parse import unquote_to_bytes

from slipway.errors import CheckFailed
from slipway.images import layers
from slipway.images.layers import Entry
from slipway.images.oci_archive import Archive

_CHUNK_BYTES = 1 << 20
_SHORTEST = 16
"""Bytes of a secret's part that is searched for; a shorter one would be found anywhere by chance."""
_SHORTEST_PASSWORD = 6
"""The same for what is known to be a password."""
_URL_WITH_USER = re.compile(
    rb"""(?:[A-Za-z][A-Za-z0-9+.-]*:)?//(?P<told>[^\s"'<>/?#]+)@(?P<host>[^\s"'<>/?#@]+)[^\s"'<>]*"""
)
_NAMED_PASSWORD = re.compile(
    rb"(?im)(?:\bpassword[ \t]+|^[ \t]*[\w.:/-]*(?:passw(?:or)?d|token|secret|api[_-]?key|_auth)[ \t]*[=:][ \t]*)(?P<value>\S+)"
)
_PUBLIC = {b"https://pypi.org/simple", b"https://pypi.org/simple/"}
"""What a pip.conf may say without telling anything, and what pip itself says."""
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LIMIT = 20
_BUNDLE = 10
"""A file with more certificates than this is a system's bundle, not somebody's own."""
_HEADER_BYTES = 16
_ACCOUNTS = "etc/passwd"
_USER = re.compile(r"(?P<user>[1-9][0-9]*|[A-Za-z_][A-Za-z0-9_.-]*)(?::(?:0|[1-9][0-9]{0,9}))?")


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
    patterns = {name: secret_patterns(value) for name, value in secrets.items()}
    found = list(_told(image, patterns))
    tree, accounts = _Tree(), _Accounts()
    for index in range(len(image.layers)):
        tree.next_layer()
        sought = patterns if index >= base_layers else {}
        for entry, content in layers.entries(image, index):
            read = accounts.add(entry, content)
            head, names = _searched(read, sought) if read is not None else (b"", set())
            tree.add(entry, head)
            names |= _holding(f"{entry.name}\0{entry.link}".encode(errors="surrogateescape"), sought)
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
        why = f"Python would compile them again at every start\n{listed}"
        remedy = "write `ARG SOURCE_DATE_EPOCH` before the step that installs, then .pyc are checked by hash"
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


def secret_patterns(secret: bytes) -> tuple[bytes, ...]:
    """The bytes whose presence means that the file `secret` leaked: all of it, and each part that is secret by itself.

    Those are URLs with a user, what they say before the host, and their password; other passwords that are stated as such; the
    lines of private keys; certificates unless the file is a bundle (the public ones of a system's bundle rightly stand in many
    images); and otherwise values of some length after a `=`, or lines without one.
    """
    whole = secret.strip()
    found = {whole}
    blocks = [(label, body.strip()) for label, body in _PEM.findall(whole)]
    certificates = [body for label, body in blocks if label.endswith(b"CERTIFICATE")]
    found |= set(certificates) if len(certificates) <= _BUNDLE else set()
    found |= {line.strip() for label, body in blocks if label.endswith(b"PRIVATE KEY") for line in body.splitlines()}
    if not blocks:
        lines = [line.strip() for line in whole.splitlines()]
        values = {line.partition(b"=")[2].strip() or line for line in lines if not line.startswith((b"#", b";", b"["))}
        found |= values - _PUBLIC
    long = {pattern for pattern in found if len(pattern) >= _SHORTEST}
    return tuple(sorted(long | set(_credentials(whole))))


def _credentials(text: bytes) -> Iterator[bytes]:
    """What in `text` lets somebody in: URLs that name a user, each part of them, and passwords as .netrc and pip.conf state them."""
    for url in _URL_WITH_USER.finditer(text):
        told, host = url["told"], url["host"]
        name, _, password = told.partition(b":")
        # A bare user name is a token, or public: with its host it is not found by chance.
        yield from _long_enough(url[0], _SHORTEST_PASSWORD)
        yield from _long_enough(told + b"@" + host, _SHORTEST_PASSWORD)
        yield from _long_enough(told, _SHORTEST if not password else _SHORTEST_PASSWORD)
        yield from _long_enough(password, _SHORTEST_PASSWORD)
        yield from _long_enough(name, _SHORTEST)
    for named in _NAMED_PASSWORD.finditer(text):
        yield from _long_enough(named["value"].strip(b"\"'"), _SHORTEST_PASSWORD)


def _long_enough(part: bytes, shortest: int) -> Iterator[bytes]:
    """`part` as it stands and with its %xx read, where that is `shortest` bytes or more."""
    yield from {found for found in (part, unquote_to_bytes(part)) if len(found) >= shortest}


def _told(image: Archive, patterns: Mapping[str, tuple[bytes, ...]]) -> Iterator[Leak]:
    config = {name: value for name, value in image.config.items() if name != "history"}
    documents = {"config": config, "history": image.config.get("history"), "manifest": json.loads(image.manifest_text)}
    for where, document in documents.items():
        # JSON escapes quotes and newlines, so the strings are searched as they are meant.
        text = "\0".join(_strings(document)).encode(errors="surrogateescape")
        yield from (Leak(name, where) for name in sorted(_holding(text, patterns)))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield f"{key}={item}" if isinstance(item, str) else str(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _holding(text: bytes, patterns: Mapping[str, tuple[bytes, ...]]) -> set[str]:
    return {name for name, sought in patterns.items() if any(pattern in text for pattern in sought)}


def _searched(content: IO[bytes], patterns: Mapping[str, tuple[bytes, ...]]) -> tuple[bytes, set[str]]:
    """The first bytes of `content`, and the names of the secrets in it; one may lie across two chunks."""
    overlap = max((len(pattern) for sought in patterns.values() for pattern in sought), default=1) - 1
    head = rest = content.read(_CHUNK_BYTES)
    found = _holding(rest, patterns)
    while patterns and (chunk := content.read(_CHUNK_BYTES)):
        rest = rest[-overlap:] + chunk if overlap else chunk
        found |= _holding(rest, patterns)
    return head[:_HEADER_BYTES], found


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


@dataclass
class _Tree:
    """The Python files of the image as the layers add up: what a later layer writes or deletes counts."""

    sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    compiled: dict[str, bytes] = field(default_factory=dict)
    _folders: set[str] = field(default_factory=set)
    _new: set[str] = field(default_factory=set)

    def next_layer(self) -> None:
        """A whiteout deletes what older layers hold, not what its own layer does."""
        self._new = set()

    def add(self, entry: Entry, head: bytes) -> None:
        path = PurePosixPath(entry.name)
        if path.name == ".wh..wh..opq":
            self._delete_below(str(path.parent))
        elif path.name.startswith(".wh."):
            gone = str(path.with_name(path.name.removeprefix(".wh.")))
            if gone not in self._new:
                self._delete(gone)
            self._delete_below(gone)
        else:
            self._write(entry, head)

    def _write(self, entry: Entry, head: bytes) -> None:
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
            self.compiled[entry.name] = head

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
        if len(head) < _HEADER_BYTES:
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
