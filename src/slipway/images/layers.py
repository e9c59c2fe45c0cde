"""The files of an image's layers, streamed from its archive: gzip, zstd or plain, checked against the diff ids."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
import tarfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, cast

from slipway.errors import IntegrityMismatch, MissingFile
from slipway.images.oci_archive import Archive
from slipway.images.tar_reader import BROKEN, Header, malformed, members, opened

_CHUNK_BYTES = 1 << 20
_MOST_ENTRIES = 3_000_000
"""Members of a layer; an engine image has some 200,000."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Entry:
    """One member of a layer. `sha256` is that of a regular file's content, `""` for everything else.

    `kind` is file, folder, symlink, hardlink, device or fifo; `name` has no leading `./` or `/`.
    """

    name: str
    kind: str
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_s: int
    link: str = ""
    sha256: str = ""


@contextmanager
def layer_stream(archive: Archive, index: int) -> Iterator[IO[bytes]]:
    """The uncompressed bytes of one layer, which are a tar.

    Raises: IntegrityMismatch at the end of the block when they were read to their end and are not what `diff_ids` says.
    """
    with opened(archive.path) as tar:
        source = tar.extractfile(members(tar, archive.path).get(archive.members[index], "the layer "))
        assert source is not None
        with source, _uncompressed(source, archive.path) as plain:
            checked = _Hashed(plain)
            yield cast("IO[bytes]", checked)
            got = checked.digest()
            if got is not None and got != archive.diff_ids[index]:
                raise IntegrityMismatch(
                    archive.path, f"layer {index} has the diff id {got}", f"the config says {archive.diff_ids[index]}"
                )


def entries(archive: Archive, index: int) -> Iterator[tuple[Entry, IO[bytes] | None]]:
    """The members of one layer in their order, each with its content where it is a regular file.

    Read the content before taking the next member. `sha256` is `""` here: who reads the content hashes it.

    Raises: IntegrityMismatch for a layer that is damaged, and as `oci_archive.read`.
    """
    with layer_stream(archive, index) as stream:
        try:
            # `r|` reads forward only: a member's header cannot send the reader elsewhere.
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK_BYTES, tarinfo=Header) as tar:
                while (member := tar.next()) is not None:
                    content = tar.extractfile(member) if member.isreg() else None
                    yield _entry(member), content
                    tar.members = []  # type: ignore[attr-defined]  # the reader would otherwise keep every header of the layer
            while stream.read(_CHUNK_BYTES):  # the padding belongs to the diff id
                pass
        except (*BROKEN, zlib.error, gzip.BadGzipFile) as error:
            raise malformed(archive.path, f"layer {index} cannot be read ({error})") from error


def listing(archive: Archive, index: int) -> dict[str, Entry]:
    """The members of one layer by name, regular files with the sha256 of their content.

    Raises: as `entries`.
    """
    found: dict[str, Entry] = {}
    for entry, content in entries(archive, index):
        sha256 = ""
        if content is not None:
            hasher = hashlib.sha256()
            while chunk := content.read(_CHUNK_BYTES):
                hasher.update(chunk)
            sha256 = hasher.hexdigest()
        found[entry.name] = replace(entry, sha256=sha256)
        if len(found) > _MOST_ENTRIES:
            raise malformed(archive.path, f"layer {index} has more than {_MOST_ENTRIES} members")
    return found


def diff_id(source: IO[bytes], place: object) -> str:
    """The sha256 of the layer in `source` (which can be sought in), uncompressed.

    Raises: IntegrityMismatch for one that is damaged, MissingFile without the program that reads it.
    """
    state = hashlib.sha256()
    try:
        with _uncompressed(source, place) as plain:
            while chunk := plain.read(_CHUNK_BYTES):
                state.update(chunk)
    except (zlib.error, EOFError, gzip.BadGzipFile, IntegrityMismatch) as error:
        problem = f"has a layer that cannot be unpacked ({error})"
        raise IntegrityMismatch(place, problem, "", "do not run it; build and push it again") from None
    return f"sha256:{state.hexdigest()}"


def _entry(member: tarfile.TarInfo) -> Entry:
    kinds = {
        tarfile.DIRTYPE: "folder",
        tarfile.SYMTYPE: "symlink",
        tarfile.LNKTYPE: "hardlink",
        tarfile.FIFOTYPE: "fifo",
        tarfile.CHRTYPE: "device",
        tarfile.BLKTYPE: "device",
    }
    kind = "file" if member.isreg() else kinds.get(member.type, "other")
    name = member.name.removeprefix("./").strip("/") or "."
    # Some writers put the type's bits into the mode as well.
    return Entry(
        name, kind, member.mode & 0o7777, member.uid, member.gid, member.size, int(member.mtime), member.linkname
    )


class _Hashed:
    """A stream that is hashed as it is read; `digest` is None until its end was seen."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self._ended = False

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        self._ended = self._ended or (not data and size != 0)
        return data

    def digest(self) -> str | None:
        return f"sha256:{self._hash.hexdigest()}" if self._ended else None


@contextmanager
def _uncompressed(source: IO[bytes], path: object) -> Iterator[IO[bytes]]:
    magic = source.read(4)
    source.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        with gzip.open(source, "rb") as plain:
            yield cast("IO[bytes]", plain)
    elif magic == _ZSTD_MAGIC:
        with _unzstd(source, path) as plain:
            yield plain
    else:
        yield source


@contextmanager
def _unzstd(source: IO[bytes], path: object) -> Iterator[IO[bytes]]:
    """Through the `zstd` program: Python reads zstd by itself only from 3.14 on."""
    program = shutil.which("zstd")
    if program is None:
        raise MissingFile("zstd", "not found on PATH", f"the layers of {path} are compressed with it", "install zstd")
    with subprocess.Popen(
        [program, "-dc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        feeder = threading.Thread(target=_feed, args=(source, process.stdin), daemon=True)
        feeder.start()
        ended = False
        try:
            yield process.stdout
            ended = True
        finally:
            if not ended:
                process.kill()
            process.stdout.close()
            feeder.join()
        said = process.stderr.read().decode(errors="replace").strip()
    # A reader that stops early closes the pipe, and zstd ends by that.
    if process.returncode > 0 and "Broken pipe" not in said and "Write error" not in said:
        raise malformed(path, f"a layer cannot be read ({said[-200:]})")


def _feed(source: IO[bytes], sink: IO[bytes]) -> None:
    try:
        with sink:
            shutil.copyfileobj(source, sink, _CHUNK_BYTES)
    except (OSError, ValueError):
        return  # zstd has ended; its own message says why
