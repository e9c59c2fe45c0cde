"""What of a build secret could be found in an image, and the search for it: as it stands, in base64, and packed by gzip."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote_to_bytes

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
_BUNDLE = 10
"""A file with more certificates than this is a system's bundle, not somebody's own."""

MOST_UNPACKED_BYTES = 64 << 20
"""Of one file in gzip: a build writes small ones, and a bomb unpacks for ever."""
_PIECE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b\x08"
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_ONE_ALPHABET = bytes.maketrans(b"-_", b"+/")
_NO_LETTERS = bytes(set(range(256)) - set(_LETTERS) - set(b"-_"))


class Secrets:
    """Secrets by name, and for each the bytes whose presence means that it leaked."""

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        plain = {name: _smallest(patterns(secret)) for name, secret in secrets.items()}
        self._plain = _Sought(plain)
        self._coded = _Sought({name: tuple(base64_forms(parts)) for name, parts in plain.items()})

    def __bool__(self) -> bool:
        return self._plain.longest > 0

    def within(self, text: bytes) -> set[str]:
        """The names of those that stand in `text`."""
        return self._plain.within(text) | self._coded.within(_letters(text))

    def among(self, pieces: Iterable[bytes]) -> set[str]:
        """The names of those that stand in `pieces`, which are one file: as it is, and unpacked where it is in gzip."""
        found, plain, coded = set[str](), _Pieces(self._plain), _Pieces(self._coded)
        packed, unpacked = _Gunzip(), (_Pieces(self._plain), _Pieces(self._coded))
        for piece in pieces:
            found |= plain.next(piece) | coded.next(_letters(piece))
            for inner in packed.feed(piece):
                found |= unpacked[0].next(inner) | unpacked[1].next(_letters(inner))
        return found


def _letters(text: bytes) -> bytes:
    """The letters of base64 in `text`, in one of its two alphabets: its lines are broken at any width."""
    return text.translate(_ONE_ALPHABET, _NO_LETTERS)


class _Sought:
    """Names, and for each the patterns of which one is enough."""

    def __init__(self, by_name: Mapping[str, tuple[bytes, ...]]) -> None:
        self._by_name = by_name
        self.longest = max((len(pattern) for patterns in by_name.values() for pattern in patterns), default=0)

    def within(self, text: bytes) -> set[str]:
        return {name for name, patterns in self._by_name.items() if any(pattern in text for pattern in patterns)}


class _Pieces:
    """A search in bytes that come in pieces: what is sought may lie across two of them."""

    def __init__(self, sought: _Sought) -> None:
        self._sought = sought
        self._rest = b""

    def next(self, piece: bytes) -> set[str]:
        """The names of what is in `piece`, or begins before it."""
        text = self._rest + piece
        self._rest = text[max(0, len(text) - max(0, self._sought.longest - 1)) :]
        return self._sought.within(text)


class _Gunzip:
    """Unpacks a file in gzip, if it is one, up to a limit; what follows its members is left."""

    def __init__(self) -> None:
        self._begun = False
        self._stream: zlib._Decompress | None = None
        self._left = MOST_UNPACKED_BYTES

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What the next bytes of the file give."""
        if not self._begun and data.startswith(_GZIP):
            self._stream = zlib.decompressobj(wbits=31)
        self._begun = True
        more = True
        while more and self._stream is not None and self._left > 0:
            try:
                piece = self._stream.decompress(data, _PIECE_BYTES)
            except zlib.error:
                self._stream = None  # no gzip, or damaged: as it is, it was searched already
                return
            yield piece
            self._left -= len(piece)
            data = self._stream.unconsumed_tail
            if self._stream.eof:
                data, self._stream = self._stream.unused_data, zlib.decompressobj(wbits=31)
            more = bool(data) or len(piece) == _PIECE_BYTES


def patterns(secret: bytes) -> tuple[bytes, ...]:
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


def base64_forms(parts: Iterable[bytes]) -> Iterator[bytes]:
    """How each part looks in base64, wherever it begins in what was encoded: the letters that its neighbours leave alone.

    Three bytes make four letters, so there are three places where it may begin.
    """
    for part in parts:
        for before, first in enumerate((0, 2, 3)):
            yield base64.b64encode(bytes(before) + part)[first : (before + len(part)) * 8 // 6]


def _smallest(found: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """`found` without those that have another of them in them: where they stand, that one stands too."""
    return tuple(one for one in found if not any(other in one for other in found if other != one))


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
