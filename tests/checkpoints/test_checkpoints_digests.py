"""Large files are hashed by processes that map them: same digests as by reading, and nothing is lost with such a process."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slipway.checkpoints import bundle, digests, mapped
from slipway.checkpoints.digests import Found, OnDisk, digests_on_disk
from slipway.checkpoints.pins import plain_bytes, silent
from slipway.checkpoints.plain_lock import PlainFile
from slipway.errors import DiskFailure

MIB = 1 << 20
SIZE = 160 * MIB + 12345
CHUNK = 64 * MIB


class Watched:
    """Progress that does `then` when the first bytes are counted."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.then, self.total, self.counted = then, 0, 0

    def note(self, text: str) -> None:
        raise AssertionError(text)

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Callable[[int], None]]:
        self.total = total or 0

        def advance(amount: int) -> None:
            first, self.counted = not self.counted, self.counted + amount
            if first:
                self.then()

        yield advance


def make(path: Path, seed: int = 0, size: int = SIZE) -> PlainFile:
    """A sparse file with some bytes at random places, so that it takes neither disk nor time."""
    chance = random.Random(seed)
    with path.open("wb") as stream:
        stream.truncate(size)
        for _ in range(50):
            stream.seek(chance.randrange(size - 100))
            stream.write(chance.randbytes(100))
    with path.open("rb") as stream:
        return PlainFile(path.name, size, sha256=hashlib.file_digest(stream, "sha256").hexdigest())


def chunk_digests(path: Path) -> tuple[str, ...]:
    data = path.read_bytes()
    return tuple(hashlib.sha256(data[start : start + CHUNK]).hexdigest() for start in range(0, len(data), CHUNK))


def children() -> list[int]:
    """The processes that this one has started and that still are there, zombies too."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    threads = [Path(f"/proc/self/task/{task}/children").read_text() for task in os.listdir("/proc/self/task")]
    return [int(pid) for pid in " ".join([text, *threads]).split()]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The helper processes that were started, in their order."""
    found: list[subprocess.Popen[bytes]] = []
    start = digests._start

    def start_and_tell() -> subprocess.Popen[bytes]:
        found.append(start())
        return found[-1]

    monkeypatch.setattr(digests, "_start", start_and_tell)
    return found


def test_mapped_files_have_the_digests_of_their_bytes(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    files = [make(tmp_path / f"{number}", number) for number in range(3)]
    seen = Watched()
    found = digests_on_disk([OnDisk(tmp_path / file.path, file) for file in files], 2, seen, "hashing")
    assert found == [Found(f"sha256:{file.sha256}") for file in files]
    assert seen.counted == seen.total == 3 * SIZE
    assert 1 <= len(started) <= 2
    assert all(process.returncode is not None for process in started)


def test_names_that_are_no_text_are_mapped(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    path = tmp_path / os.fsdecode(b"m\xfc\n\xf0")
    file = make(path)
    assert digests_on_disk([OnDisk(path, file)], 1, silent, "")[0].digest == f"sha256:{file.sha256}"
    assert len(started) == 1
    assert started[0].returncode is not None


def test_chunks_are_hashed_of_the_same_copy_as_the_file(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    file = make(tmp_path / "file")
    seen = Watched()
    found = digests_on_disk([OnDisk(tmp_path / "file", file, CHUNK)], 2, seen, "hashing")
    assert found == [Found(f"sha256:{file.sha256}", chunk_digests(tmp_path / "file"))]
    assert seen.counted == SIZE
    assert not started, "mapped pages may change between the two digests"


def test_git_digests_and_small_files_come_out_too(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    make(tmp_path / "large")
    (tmp_path / "small").write_bytes(b"hello\n")
    data = (tmp_path / "large").read_bytes()
    large = PlainFile("large", SIZE, git_sha1=hashlib.sha1(b"blob %d\0" % SIZE + data).hexdigest())
    small = PlainFile("small", 6, git_sha1="ce013625030ba8dba906f756967f9e9ca394464a")
    found = digests_on_disk([OnDisk(tmp_path / file.path, file) for file in (large, small)], 1, silent, "")
    assert [one.digest for one in found] == [f"git-sha1:{file.git_sha1}" for file in (large, small)]
    assert len(started) == 1


CUTTING = """
import mmap, os, sys
sys.path.insert(0, sys.argv[1])
from slipway.checkpoints import mapped

class Cut(mmap.mmap):
    def __new__(cls, descriptor, *rest, **options):
        pages = super().__new__(cls, descriptor, *rest, **options)
        pages.path = f"/proc/self/fd/{descriptor}"
        return pages

    def madvise(self, *advice):
        super().madvise(*advice)
        if os.path.basename(os.readlink(self.path)) == "cut":
            os.truncate(self.path, 100)

mapped.mmap.mmap = Cut
mapped.main()
"""


def test_a_file_cut_short_while_it_is_mapped_is_a_wrong_file(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_PROGRAM", CUTTING)
    cut, right = make(tmp_path / "cut", 1), make(tmp_path / "right", 2)
    wanted = [OnDisk(tmp_path / file.path, file) for file in (cut, right)]
    found = digests_on_disk(wanted, 1, silent, "")
    assert [one.digest for one in found] == ["was changed or replaced while it was hashed", f"sha256:{right.sha256}"]
    assert started[0].returncode == -signal.SIGBUS
    assert len(started) == 2, "the next file was not mapped again"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS])
def test_a_helper_that_is_killed_costs_time_only(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    file = make(tmp_path / "file")
    seen = Watched(lambda: started[0].send_signal(number))
    (found,) = digests_on_disk([OnDisk(tmp_path / "file", file)], 1, seen, "")
    assert found == Found(f"sha256:{file.sha256}")
    assert seen.counted == SIZE, "bytes were counted twice or not at all"


@pytest.mark.parametrize(
    "program", ["import sys; sys.exit(1)", "print('nonsense')", "print('[]')", "print('[1')", "print(1.5)"]
)
def test_a_helper_that_does_not_work_is_not_asked_for_more(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(digests, "_PROGRAM", program)
    files = [make(tmp_path / f"{number}", number) for number in range(2)]
    found = digests_on_disk([OnDisk(tmp_path / file.path, file) for file in files], 1, silent, "")
    assert [one.digest for one in found] == [f"sha256:{file.sha256}" for file in files]
    assert len(started) <= 2


def test_without_an_interpreter_to_start_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make(tmp_path / "file")
    for executable in ("", str(tmp_path / "none")):
        monkeypatch.setattr(sys, "executable", executable)
        (found,) = digests_on_disk([OnDisk(tmp_path / "file", file)], 1, silent, "")
        assert found.digest == f"sha256:{file.sha256}"


def test_a_filesystem_that_is_not_known_is_read(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert digests._filesystem("/proc") == "proc"
    file = make(tmp_path / "file")
    monkeypatch.setattr(digests, "_MAPPED_WELL", frozenset({"nfs"}))
    assert digests_on_disk([OnDisk(tmp_path / "file", file)], 1, silent, "")[0].digest == f"sha256:{file.sha256}"
    assert not started


def test_another_size_or_no_file_is_said_as_when_reading(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    file = make(tmp_path / "file")
    longer = PlainFile("file", SIZE + 1, sha256="0" * 64)
    gone = PlainFile("gone", SIZE, sha256="0" * 64)
    found = digests_on_disk([OnDisk(tmp_path / one.path, one) for one in (longer, gone)], 1, silent, "")
    assert [one.digest for one in found] == [f"sha256:{file.sha256}", "cannot be read: No such file or directory"]
    assert len(started) == 1


def test_ctrl_c_waits_for_no_shard(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    with (tmp_path / "file").open("wb") as stream:
        stream.truncate(8 << 30)
    wanted = [OnDisk(tmp_path / "file", PlainFile("file", 8 << 30, sha256="0" * 64))] * 4
    before = children()
    seen = Watched(lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        digests_on_disk(wanted, 2, seen, "")
    assert seen.counted < 8 << 30
    assert all(process.returncode is not None for process in started)
    assert children() == before


def test_the_zipapp_has_the_helper(tmp_path: Path) -> None:
    bundle.write(tmp_path / "fetch.pyz")
    file = make(tmp_path / "file")
    asked = json.dumps([os.fsencode(tmp_path / "file").hex(), SIZE, file.sha256, None])
    command = [sys.executable, "-I", "-S", "-c", digests._PROGRAM, str(tmp_path / "fetch.pyz")]
    said = subprocess.run(command, input=asked + "\n", capture_output=True, text=True, check=True)
    *counts, last = (json.loads(line) for line in said.stdout.splitlines())
    assert sum(counts) == SIZE
    assert max(counts) <= mapped.TOLD_BYTES
    assert last == f"sha256:{file.sha256}"


def test_progress_that_cannot_be_written_is_no_verdict(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    files = [make(tmp_path / f"{number}", number) for number in range(3)]

    def fail() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    for chunk_bytes in (0, CHUNK):
        with pytest.raises(BrokenPipeError):
            digests_on_disk([OnDisk(tmp_path / file.path, file, chunk_bytes) for file in files], 2, Watched(fail), "")
    assert all(process.returncode is not None for process in started)


@pytest.mark.parametrize("how", ["append", "replace", "fifo", "touch"])
def test_a_file_that_changes_while_it_is_hashed_has_no_digest(tmp_path: Path, how: str) -> None:
    path = tmp_path / "file"
    file = make(path)

    def change() -> None:
        if how == "append":
            with path.open("ab") as stream:
                stream.write(b"x")
        elif how == "touch":
            os.utime(path, (1, 1))
        else:
            path.unlink()
            os.mkfifo(path) if how == "fifo" else make(path, 1)

    for chunk_bytes in (0, CHUNK):
        (found,) = digests_on_disk([OnDisk(path, file, chunk_bytes)], 1, Watched(change), "")
        assert found.digest == "was changed or replaced while it was hashed"
        path.unlink()
        make(path)


def test_a_hard_link_more_changes_nothing(tmp_path: Path) -> None:
    file = make(tmp_path / "file")
    seen = Watched(lambda: os.link(tmp_path / "file", tmp_path / "twin"))
    assert digests_on_disk([OnDisk(tmp_path / "file", file)], 1, seen, "")[0].digest == f"sha256:{file.sha256}"


def test_too_many_open_files_is_not_the_file_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x")
    file = PlainFile("file", 1, sha256=hashlib.sha256(b"x").hexdigest())

    def no_more(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", no_more)
    with pytest.raises(DiskFailure, match=r"too many files are open; .*ulimit -n.*; .*--workers"):
        digests_on_disk([OnDisk(tmp_path / "file", file)], 1, silent, "")


def test_what_stands_in_a_file_s_place_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        (found,) = digests_on_disk(
            [OnDisk(tmp_path / "folder", PlainFile("folder", 1, sha256="0" * 64))], 1, silent, ""
        )
        assert found.digest == "not a regular file"
        with pytest.raises(OSError, match="not a regular file"):
            plain_bytes(tmp_path / "folder")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system is mounted, which needs root")
def test_a_disk_that_fails_is_said_at_once(tmp_path: Path, started: list[subprocess.Popen[bytes]]) -> None:
    image, place = tmp_path / "image", tmp_path / "mounted"
    with image.open("wb") as stream:
        stream.truncate(300 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", image], check=True)
    place.mkdir()
    if subprocess.run(["mount", "-o", "loop", image, place], check=False).returncode:
        pytest.skip("file system images cannot be mounted here")
    try:
        file = make(place / "file")
        with (place / "file").open("r+b") as stream:  # not sparse: every block lies on the device
            for start in range(0, SIZE, MIB):
                stream.seek(start)
                stream.write(os.urandom(4096) * (MIB // 4096))
    finally:
        subprocess.run(["umount", place], check=True)
    subprocess.run(["mount", "-o", "loop,ro", image, place], check=True)
    try:
        os.truncate(image, 120 * MIB)
        (found,) = digests_on_disk(
            [OnDisk(place / "file", PlainFile("file", file_size(place), sha256="0" * 64))], 1, silent, ""
        )
        assert found.digest == "cannot be read: Input/output error"
        assert len(started) == 1
    finally:
        subprocess.run(["umount", place], check=True)
    assert file.size_bytes == SIZE


def file_size(place: Path) -> int:
    return (place / "file").stat().st_size
