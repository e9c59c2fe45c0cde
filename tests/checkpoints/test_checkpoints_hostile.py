"""Hubs and folders that mean harm: wrong shards, headers without end, odd numbers, links planted in the models folder."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from slipway.checkpoints import asking, gc
from slipway.checkpoints import lock as locks
from slipway.checkpoints.early import LONGEST_BYTES, Shards
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.plain_lock import PlainFile, PlainLock
from slipway.checkpoints.publish import MANIFEST
from slipway.checkpoints.transfer import Patience
from slipway.checkpoints.transport import Failed, Transport
from slipway.checkpoints.verify import verify
from slipway.errors import AuthFailure, DiskFailure, IntegrityMismatch, MissingFile, NetworkFailure, SlipwayError
from slipway.reference.hub import Hub, serve
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample, write_shard

SHARD = "model-00001-of-00003.safetensors"
INDEX = "model.safetensors.index.json"
ROWS = 48_000
"""6 MB in the first shard: many times what is received at once."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Path]]:
    served = tmp_path_factory.mktemp("served")
    with serve(served) as hub:
        yield hub, served


@pytest.fixture
def repo(running: tuple[Hub, Path], tmp_path: Path) -> tuple[Hub, Path, str]:
    """The hub, a fresh sample repository's folder in it, and its name."""
    hub, served = running
    name = f"owner/{tmp_path.name}"
    write_sample(served / name, rows=ROWS)
    hub.faults.clear()
    hub.requests.clear()
    return hub, served / name, name


class Counted:
    """Counts the bytes that the bar was told of."""

    most = 0
    last = 0

    def note(self, text: str) -> None:
        pass

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Callable[[int], None]]:
        here = [0]

        def advance(amount: int) -> None:
            here[0] += amount
            self.most = max(self.most, here[0])

        yield advance


def get(repo: tuple[Hub, Path, str], root: Path) -> int:
    """The most bytes of the checkpoint that were here at any time of a fetch."""
    hub, _, name = repo
    lock = locks.resolve(name, "main", endpoint=hub.url, token=None)
    progress = Counted()
    hub.requests.clear()
    try:
        fetch(lock, root, hub=HubAddress(hub.url), workers=1, patience=Patience(wait=lambda _: None), progress=progress)
    finally:
        Counted.last = progress.most
    return progress.most


def rewritten(folder: Path, change: Callable[[dict[str, str]], None]) -> None:
    """The index with another weight_map."""
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_a_sound_checkpoint_passes(repo: tuple[Hub, Path, str], tmp_path: Path) -> None:
    assert get(repo, tmp_path) > ROWS * 128


def test_a_shard_unlike_its_index_costs_its_header_and_not_its_weights(
    repo: tuple[Hub, Path, str], tmp_path: Path
) -> None:
    rewritten(repo[1], lambda placed: placed.update({"model.layers.9.weight": SHARD}))
    with pytest.raises(IntegrityMismatch, match=r"lacks model\.layers\.9\.weight, unlike the index.*published so"):
        get(repo, tmp_path)
    assert Counted.last < 4_000_000
    asked = [seen.path.rpartition("/")[2] for seen in repo[0].requests]
    # The other shard may have been asked for before its neighbour was given up.
    assert (asked[0], asked.count(SHARD)) == (INDEX, 2)
    assert not (tmp_path / repo[2].partition("/")[2]).exists()


def test_a_shard_with_a_tensor_that_no_index_names_is_refused_early(
    repo: tuple[Hub, Path, str], tmp_path: Path
) -> None:
    rewritten(repo[1], lambda placed: placed.pop("model.embed_tokens.weight") and None)
    with pytest.raises(IntegrityMismatch, match=r"has model\.embed_tokens\.weight, unlike the index"):
        get(repo, tmp_path)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
        (bytes(16), "zero bytes"),
    ],
)
def test_what_is_no_shard_is_told_by_its_first_bytes(
    start: bytes, said: str, repo: tuple[Hub, Path, str], tmp_path: Path
) -> None:
    path = repo[1] / SHARD
    path.write_bytes(start + path.read_bytes()[len(start) :])
    with pytest.raises(IntegrityMismatch, match=f"(?i){said}"):
        get(repo, tmp_path)
    assert Counted.last < 4_000_000


def test_a_header_spoiled_on_the_way_comes_again(repo: tuple[Hub, Path, str], tmp_path: Path) -> None:
    repo[0].faults.add(Fault(f"GET .*{SHARD}", "flip", at=12, times=1))
    get(repo, tmp_path)
    assert [seen.range for seen in repo[0].requests if seen.path.endswith(SHARD)] == ["", ""]


def test_an_index_that_names_an_absent_shard_ends_before_the_first_shard(
    repo: tuple[Hub, Path, str], tmp_path: Path
) -> None:
    (repo[1] / SHARD).unlink()
    with pytest.raises(MissingFile, match=r"is absent, but model.safetensors.index.json places"):
        get(repo, tmp_path)
    assert [seen.path.rpartition("/")[2] for seen in repo[0].requests] == [INDEX]


def test_a_shard_that_no_index_names_ends_before_the_first_shard(repo: tuple[Hub, Path, str], tmp_path: Path) -> None:
    write_shard(repo[1] / "model-00004-of-00003.safetensors", {"x": (4,)})
    with pytest.raises(IntegrityMismatch, match="is a stale shard"):
        get(repo, tmp_path)
    assert [seen.path.rpartition("/")[2] for seen in repo[0].requests] == [INDEX]


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b'{"weight_map": {}}', b'{"weight_map": {"a": 1}}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_index_is_refused(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(IntegrityMismatch, match="has no weight_map that names files"):
        Shards(tmp_path, (), {INDEX: text})


@pytest.mark.parametrize("piece_bytes", [1, 7, 8, 9, 1000])
def test_a_header_is_seen_however_its_bytes_are_cut(piece_bytes: int, tmp_path: Path) -> None:
    write_shard(tmp_path / SHARD, {"a": (4,), "b": (8, 2)})
    data = (tmp_path / SHARD).read_bytes()
    file = PlainFile(SHARD, len(data), sha256="0" * 64)
    for placed, problem in (({"a", "b"}, ""), ({"a"}, "has b, unlike"), ({"a", "b", "c"}, "lacks c, unlike")):
        index = json.dumps({"weight_map": dict.fromkeys(placed, SHARD)}).encode()
        look = Shards(tmp_path, (file,), {INDEX: index}).look(file)
        assert look is not None
        for begin in range(0, len(data), piece_bytes):
            look.take(memoryview(data)[begin : begin + piece_bytes])
        assert problem in look.problem
        assert bool(problem) == bool(look.problem)


def test_a_header_too_long_to_keep_is_left_to_the_end(tmp_path: Path) -> None:
    file = PlainFile(SHARD, 1 << 40, sha256="0" * 64)
    look = Shards(tmp_path, (file,), {}).look(file)
    assert look is not None
    look.take(memoryview((LONGEST_BYTES + 1).to_bytes(8, "little") + b"{" * 500))
    assert look.problem == ""


@contextmanager
def answering(*pieces: bytes, pause_s: float = 0.05) -> Iterator[str]:
    """A server that sends these pieces one after another, the last one for ever."""
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)

    def talk(client: socket.socket) -> None:
        with client:
            client.recv(65536)
            rest = list(pieces)
            while not ended.is_set():
                try:
                    client.sendall(rest.pop(0) if len(rest) > 1 else rest[0])
                except OSError:
                    return
                ended.wait(pause_s)

    def listen() -> None:
        while not ended.is_set():
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            threads.append(threading.Thread(target=talk, args=(client,)))
            threads[-1].start()

    threads = [threading.Thread(target=listen)]
    threads[0].start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        listener.close()


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Slow: "])
def test_a_source_that_drips_headers_is_given_up_in_time(start: bytes) -> None:
    with answering(start or b"H", b"a") as url:
        began_s = time.monotonic()
        with pytest.raises(Failed, match="no whole answer came before the time limit") as failed:
            Transport(HubAddress(url), stall_s=0.4).get(f"{url}/x")
        assert failed.value.again
        assert time.monotonic() - began_s < 3


def test_a_hub_that_drips_its_answer_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipway.checkpoints.upstream.TIMEOUT_S", 0.4)
    with answering(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a") as url:
        began_s = time.monotonic()
        with pytest.raises(NetworkFailure, match=r"does not answer \(no whole answer in 0.4 s\)"):
            locks.resolve("owner/name", "main", endpoint=url, token=None)
        assert time.monotonic() - began_s < 3


@pytest.mark.parametrize("body", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_answer_without_end_is_cut(body: bytes) -> None:
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n" if b"chunked" in body else b" " * 0x10000
    with (
        answering(body, piece, pause_s=0) as url,
        pytest.raises(httpx2.ReadError, match="more than 1000000 bytes"),
        asking.bounded(20, max_bytes=1_000_000) as client,
    ):
        client.get(url)


def test_an_answer_that_unpacks_to_more_is_refused() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    with (
        answering(head, b"x") as url,
        pytest.raises(httpx2.DecodingError, match="packed"),
        asking.bounded(20) as client,
    ):
        client.get(url)


BODY = b'{"a": 1}'


def answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    lines = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers, "Connection: close", ""))
    return lines.encode("latin-1") + body


@contextmanager
def saying(reply: bytes | Callable[[bytes], bytes]) -> Iterator[str]:
    """A server that answers every request with `reply` and closes."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    ended = threading.Event()

    def listen() -> None:
        while not ended.is_set():
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            with client:
                asked = client.recv(65536)
                client.sendall(reply(asked) if callable(reply) else reply)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        thread.join()
        listener.close()


def pinned() -> PlainLock:
    digest = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY, usedforsecurity=False).hexdigest()
    return PlainLock("owner/name", "a" * 40, (PlainFile("config.json", len(BODY), git_sha1=digest),))


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (answer("200 OK", "Content-Length: \xb2", body=BODY), None, ""),
        (answer("200 OK", "Content-Length: " + "9" * 5000, body=BODY), None, ""),
        (answer("200 OK", "Content-Length: -5", body=BODY), None, ""),
        (answer("200 OK", "Transfer-Encoding: chunked", body=b"8\r\n" + BODY + b"\r\n0\r\n\r\n"), None, ""),
        (answer("206 Partial", "Content-Range: bytes 0-7/" + "9" * 5000, body=BODY), NetworkFailure, "another range"),
        (answer("206 Partial", "Content-Range: bytes 3-7/8", body=BODY[3:]), NetworkFailure, "another range"),
        (answer("206 Partial", "Content-Range: bytes 0-7/9", body=BODY), IntegrityMismatch, "got 9 bytes"),
        (answer("503 Busy", "Retry-After: \xb2"), NetworkFailure, "HTTP 503 after 2 attempts; check"),
        (answer("503 Busy", "Retry-After: " + "9" * 5000), NetworkFailure, "HTTP 503 after 2 attempts; check"),
        (answer("503 Busy", "Retry-After: Fri, 31 Dec 9999 23:59:59 -2300"), NetworkFailure, "after 1 attempt"),
        (answer("302 Found", "Location: http://["), NetworkFailure, r"leads to http://\[, which is not followed"),
        (answer("302 Found", "Location: http://a:99999/"), NetworkFailure, "is not followed"),
        (
            answer("302 Found", "Location: file:///etc/passwd"),
            NetworkFailure,
            "leads to file:///etc/passwd, which is not",
        ),
        (answer("302 Found", "Location: //h/a b\x01"), NetworkFailure, "is not followed"),
        (answer("302 Found", "Location: http://h/\x1b[31m"), NetworkFailure, r"leads to http://h/\\x1b\[31m, which"),
        (answer("302 Found"), NetworkFailure, "more than 5 redirects"),
        (answer("200 OK", "X: " + "a" * 100_000), NetworkFailure, "more than 65536 bytes"),
        (answer("200 OK", *["X: 1"] * 500, body=BODY), NetworkFailure, "more than 100 headers"),
        (answer("200 OK", "Content-Encoding: gzip", body=BODY[:7] + b"!"), IntegrityMismatch, "expected git-sha1"),
        (answer("200 OK", body=BODY * 2), IntegrityMismatch, "more than 8 bytes"),
        (answer("200 OK", "Transfer-Encoding: chunked", body=b"-5\r\nabc"), NetworkFailure, "incompleteread"),
        (answer("403 No", "X-Error-Code: \x1b[31m" + "z" * 999), AuthFailure, r"HTTP 403 \\x1b\[31mz{195}\)"),
        (b"\x1b[2J\x00\r\n\r\n", NetworkFailure, r"\\x1b\[2j\\x00"),
        (b"HTTP/1.1 99999999999 X\r\n\r\n", NetworkFailure, "after 2 attempts"),
        (b"", NetworkFailure, "closed connection without response"),
    ],
)
def test_whatever_a_source_answers_ends_in_our_words(
    reply: bytes, error: type[SlipwayError] | None, said: str, tmp_path: Path
) -> None:
    patience = Patience(attempts=2, stall_s=5, wait=lambda _: None)
    with saying(reply) as url:
        if error is None:
            fetch(pinned(), tmp_path, hub=HubAddress(url), patience=patience)
            assert (tmp_path / "name" / "config.json").read_bytes() == BODY
            return
        with pytest.raises(error, match=said) as refused:
            fetch(pinned(), tmp_path, hub=HubAddress(url), patience=patience)
    assert str(refused.value).isprintable()
    assert not (tmp_path / "name").exists()


SIBLING = {"rfilename": "a.txt", "size": 3, "blobId": "b" * 40}


@pytest.mark.parametrize(
    "more",
    [
        "[" * 200_000,
        "null",
        {"siblings": [1]},
        {"siblings": [{**SIBLING, "rfilename": 5}, SIBLING]},
        {"siblings": [{**SIBLING, "rfilename": "../x"}]},
        {"siblings": [{**SIBLING, "rfilename": "a\ud800"}]},
        {"siblings": [{**SIBLING, "size": -1}]},
        {"siblings": [{**SIBLING, "size": 10**30}]},
        {"siblings": [{**SIBLING, "lfs": "x"}]},
        {"siblings": [{**SIBLING, "lfs": {"sha256": 5, "size": "x", "pointerSize": 1}}]},
        {"siblings": [SIBLING, SIBLING]},
        {"sha": 5},
        {"sha": None},
        {"safetensors": 5},
    ],
)
def test_whatever_a_hub_says_of_a_repository_ends_in_our_words(more: str | dict[str, object]) -> None:
    said = {"id": "o/n", "sha": "a" * 40, "private": False, "tags": [], "siblings": [SIBLING]}
    text = more if isinstance(more, str) else json.dumps({**said, **more})
    reply = answer("200 OK", f"Content-Length: {len(text)}", body=text.encode())
    with (
        saying(reply) as url,
        pytest.raises(NetworkFailure, match=r"what no hub answers|what cannot be locked") as refused,
    ):
        locks.resolve("o/n", "main", endpoint=url, token=None)
    assert "type=" not in str(refused.value)
    assert "Hub(" not in str(refused.value)


@pytest.mark.parametrize("card", [5, [], {"license": ["x"]}, {"license": "a\x1b[31m"}])
def test_an_odd_card_is_no_licence(card: object) -> None:
    text = json.dumps({"id": "o/n", "sha": "a" * 40, "siblings": [SIBLING], "cardData": card})
    with saying(answer("200 OK", f"Content-Length: {len(text)}", body=text.encode())) as url:
        assert locks.resolve("o/n", "main", endpoint=url, token=None).licence is None


@pytest.mark.parametrize("inside", [".store", ".store/.staging", ".store/.records"])
def test_a_link_planted_in_the_store_costs_nobody_a_file(inside: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious" / "a" / "b" / "c"
    precious.mkdir(parents=True)
    (precious / "gold").write_text("gold")
    for path in (precious / "gold", precious, *precious.parents[:2], tmp_path / "precious"):
        os.utime(path, (0, 0))
    link = tmp_path / "models" / inside
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "precious")
    with saying(answer("200 OK", body=BODY)) as url, pytest.raises(DiskFailure, match="is a link or a file where"):
        fetch(pinned(), tmp_path / "models", hub=HubAddress(url))
    with pytest.raises(DiskFailure, match="is a link or a file where"):
        gc.plan(tmp_path / "models", keep_revisions=0, older_s=0)
    with pytest.raises(DiskFailure, match="is a link or a file where"):
        gc.remove(tmp_path / "models", [gc.Removal(link / "a", 0, "")])
    assert (precious / "gold").read_text() == "gold"


def test_a_pipe_in_place_of_a_manifest_blocks_nothing(tmp_path: Path) -> None:
    with saying(answer("200 OK", body=BODY)) as url:
        folder = fetch(pinned(), tmp_path, hub=HubAddress(url)).folder
        folder.chmod(0o755)
        (folder / MANIFEST).unlink()
        os.mkfifo(folder / MANIFEST)
        assert not fetch(pinned(), tmp_path, hub=HubAddress(url)).skipped or (folder / MANIFEST).is_file()
    assert verify(pinned(), tmp_path / "name").files == 1
