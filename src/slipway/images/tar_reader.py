"""What lies in an archive of images that anybody may have written: found by name, bounded, and nothing is unpacked.

What the checks read and what is sent on are found here in one way, so that both are the same bytes.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from slipway.durable import NotRegular, open_regular
from slipway.errors import IntegrityMismatch, MissingFile, from_os_error

BROKEN = (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError)
"""What tarfile raises for a hostile tar: numbers that are none, or too large, and headers that lead to headers without end."""

_MOST_MEMBERS = 20_000
"""Members of an archive (blobs), not files of an image; the largest images have some hundred layers."""
_MOST_EXTENSION_BYTES = 1 << 20
_EXTENSIONS = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}


class Header(tarfile.TarInfo):
    """A tar header whose extensions (long names, pax records) are bounded: tarfile reads them whole into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENSIONS and not 0 <= header.size <= _MOST_EXTENSION_BYTES:
            raise tarfile.ReadError(f"a header extension of {header.size} bytes")
        return header


@dataclass(frozen=True)
class Members:
    """The files in the archive at `path` by their names; `others` are the names of what is no file there."""

    path: Path
    files: Mapping[str, tarfile.TarInfo]
    others: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name in self.files or name in self.others

    def get(self, name: str, what: str = "") -> tarfile.TarInfo:
        """The file `name`, which messages call `what`.

        Raises: MissingFile when there is none; IntegrityMismatch when something else has its name.
        """
        if name in self.others:
            raise malformed(self.path, f"{what}{name} is no file in it, nor a link to one")
        if name not in self.files:
            raise MissingFile(self.path, f"lacks {what}{name}", "", _AGAIN)
        return self.files[name]


@contextmanager
def opened(path: Path) -> Iterator[tarfile.TarFile]:
    """The archive, for reading.

    Raises: MissingFile, DiskFailure; IntegrityMismatch when it is no tar, also for what the block meets while it reads.
    """
    try:
        with open_regular(path) as file:
            try:
                tar = tarfile.open(fileobj=file, mode="r:", tarinfo=Header)  # noqa: SIM115 -- closed with its file
            except BROKEN as error:
                raise malformed(path, f"it is no uncompressed tar ({error})", f"unpack it, or {_AGAIN}") from None
            yield tar
    except NotRegular:
        raise malformed(path, "it is not a regular file") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise malformed(path, f"it is damaged ({error})") from error
    except OSError as error:
        raise from_os_error(error, path, "reading the image") from error


def members(tar: tarfile.TarFile, path: Path) -> Members:
    """What is in the archive. A link, as Docker's older form has them, is the file that it leads to in one step.

    Raises: IntegrityMismatch for a name that stands in it twice, a member past its end, too many of them.
    """
    assert tar.fileobj is not None
    end = os.fstat(tar.fileobj.fileno()).st_size  # type: ignore[attr-defined]  # `opened` gave it a file
    found, links, others = dict[str, tarfile.TarInfo](), dict[str, str](), set[str]()
    try:
        for count, member in enumerate(tar):
            name = _clean(member.name)
            if name in found or name in others:
                raise malformed(path, f"{name} stands in it twice")
            if count >= _MOST_MEMBERS:
                raise malformed(path, f"it has more than {_MOST_MEMBERS} members")
            # Said before the reader goes there; it would also go backwards.
            if member.size < 0 or member.offset_data + member.size > end:
                raise malformed(path, f"{name} ends after the archive does (it is said to have {member.size} bytes)")
            if member.isreg() and not member.issparse():
                found[name] = member
            elif not member.isdir():
                others.add(name)
                up = PurePosixPath(name).parent if member.issym() else PurePosixPath()
                links[name] = _clean(str(up / member.linkname)) if member.issym() or member.islnk() else ""
    except BROKEN as error:
        raise malformed(path, f"it is damaged ({error})") from None
    led = {name: found[target] for name, target in links.items() if target in found}
    return Members(path, {**found, **led}, frozenset(others - led.keys()))


def malformed(path: object, problem: str, remedy: str = "") -> IntegrityMismatch:
    """The error for an archive that is not what it should be."""
    return IntegrityMismatch(path, f"is not an image archive that can be read: {problem}", "", remedy or _AGAIN)


def _clean(name: str) -> str:
    parts = list[str]()
    for part in PurePosixPath(name).parts:
        if part == "..":
            parts = parts[:-1]
        elif part not in {"/", "."}:
            parts.append(part)
    return "/".join(parts)


_AGAIN = "build or save the image again"
