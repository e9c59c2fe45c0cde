"""The failure table: every way in which downloads are reported to go wrong, what tests it, and the exit code it ends in."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import pytest

from slipway.checkpoints import header_scan, host_command, safetensors_header
from slipway.checkpoints import lock as locks
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.transfer import Patience
from slipway.checkpoints.verify import verify
from slipway.errors import DiskFailure, IntegrityMismatch, MissingFile, NetworkFailure, SlipwayError
from slipway.reference.hub import Hub, Options, serve
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

REPO = "poolside/Laguna-tiny"
SHARD = "model-00001-of-00003.safetensors"
SECOND = "model-00002-of-00003.safetensors"
INDEX = "model.safetensors.index.json"

TABLE = {
    "flipped byte": "failures::test_what_the_hub_does_ends_in_this_code",
    "zero tail": "failures::test_what_the_hub_does_ends_in_this_code",
    "short Content-Length": "failures::test_what_the_hub_does_ends_in_this_code",
    "stall at byte N, for ever": "failures::test_what_the_hub_does_ends_in_this_code",
    "stall at byte N, once": "fetch::test_a_stalled_connection_is_given_up_and_continued",
    "trickle": "fetch::test_a_connection_that_trickles_is_as_good_as_stalled",
    "FIN at byte N, for ever": "failures::test_what_the_hub_does_ends_in_this_code",
    "FIN at byte N, once": "fetch::test_a_connection_that_ends_early_is_continued_where_it_ended",
    "RST at byte N": "failures::test_a_reset_connection_is_tried_again_and_named",
    "Range ignored, 200 for 206": "fetch::test_a_server_that_ignores_ranges_is_read_from_the_start",
    "429 storm": "failures::test_what_the_hub_does_ends_in_this_code",
    "429 with RateLimit or a date": "failures::test_a_limit_is_waited_out_however_it_is_said",
    "503 storm": "failures::test_what_the_hub_does_ends_in_this_code",
    "expired signed URL": "failures::test_an_expired_signed_address_is_asked_for_anew_in_the_middle_of_a_file",
    "main moves": "fetch::test_main_that_moves_during_a_fetch_changes_nothing",
    "gated, token refused": "fetch::test_a_refused_token_says_how_to_set_one",
    "concurrent fetchers, lock works": "fetch::test_concurrent_fetchers_in_processes_download_once",
    "concurrent fetchers, lock is a no-op": "fetch::test_without_working_locks_concurrent_fetchers_still_publish_right",
    "lockf fails": "publish::test_a_file_system_without_locks_is_worked_with",
    "ENOSPC, seen before": "fetch::test_a_disk_that_is_too_small_is_refused_before_the_first_byte",
    "ENOSPC, half-way": "fetch::test_a_disk_that_fills_up_half_way_publishes_nothing",
    "read-only target": "fetch::test_a_folder_that_cannot_be_written_is_a_disk_failure",
    "target without symbolic links": "failures::test_a_target_without_links_is_refused_before_the_first_byte",
    "truncated after it was done, old mtime": "failures::test_what_is_done_to_a_folder_ends_in_this_code",
    "flipped after it was done, old mtime": "failures::test_what_is_done_to_a_folder_ends_in_this_code",
    "LFS pointer": "failures::test_what_is_done_to_a_folder_ends_in_this_code",
    "zero header": "failures::test_what_is_done_to_a_folder_ends_in_this_code",
    "missing shard": "failures::test_what_is_done_to_a_folder_ends_in_this_code",
    "stale shard": "failures::test_what_is_done_to_a_folder_ends_in_this_code",
    "stale index": "failures::test_a_stale_index_upstream_ends_in_a_mismatch",
    "bad shard deletes everything": "publish::test_only_the_damaged_file_is_fetched_again",
    "bad chunk fetches everything": "resume::test_only_the_wrong_chunks_of_a_published_shard_are_fetched",
    "killed": "resume::test_a_killed_fetch_is_continued_at_the_last_proved_chunk",
    "mismatch twice": "resume::test_bytes_that_are_wrong_twice_leave_nothing_to_continue",
    "holes on disk": "structure::test_a_hole_on_disk_is_refused_unless_digests_are_checked_too",
    "overwritten through the link": "publish::test_a_link_as_long_as_the_file_it_replaces_is_not_taken_for_it",
}
"""What goes wrong, and the test of it (`test_checkpoints_<file>.py::<test>`). Source: shared facts on checkpoints, section 2."""


@pytest.mark.parametrize("row", TABLE)
def test_every_row_of_the_failure_table_has_a_test(row: str) -> None:
    file, _, name = TABLE[row].partition("::")
    tree = ast.parse((Path(__file__).parent / f"test_checkpoints_{file}.py").read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    served = tmp_path_factory.mktemp("served")
    write_sample(served / REPO, rows=20_000)
    return served


def quick(waits: list[float] | None = None, **changes: object) -> Patience:
    wait = waits.append if waits is not None else lambda _: None
    return Patience(**{"attempts": 3, "stall_s": 0.4, "wait": wait, **changes})  # type: ignore[arg-type]


def one_line(error: SlipwayError) -> bool:
    return "\n" not in str(error) and len(str(error)) < 1000


@pytest.mark.parametrize(
    ("faults", "kind", "cause"),
    [
        ([Fault(f"GET .*{SHARD}", "flip", at=2_000_000)], IntegrityMismatch, "expected sha256:"),
        ([Fault(f"GET .*{SHARD}", "zero-tail", at=2_000_000)], IntegrityMismatch, "upstream serves other bytes"),
        ([Fault(f"GET .*{SHARD}", "short-length", at=2_000_000)], IntegrityMismatch, "got 2000000 bytes"),
        ([Fault(f"GET .*{SHARD}", "stall", at=0)], NetworkFailure, "nothing came before the time limit after 3"),
        (
            [Fault(f"GET .*{SHARD}", "close", at=1_000_000), Fault(".", "ignore-range")],
            NetworkFailure,
            "connection ended after 1000000 of",
        ),
        ([Fault("GET .*resolve", "status", status=429, retry_after_s=1)], NetworkFailure, "Retry-After is 1 s"),
        ([Fault("GET .*resolve", "status", status=503)], NetworkFailure, "HTTP 503 after 3 attempts"),
    ],
    ids=["flip", "zero tail", "short length", "stall", "fin", "429", "503"],
)
def test_what_the_hub_does_ends_in_this_code(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, faults: list[Fault], kind: type[SlipwayError], cause: str
) -> None:
    hub.faults.add(*faults)
    with pytest.raises(kind) as refused:
        fetch(lock, tmp_path / "models", hub=HubAddress(hub.url), patience=quick())
    assert cause in str(refused.value)
    assert one_line(refused.value)
    assert not (tmp_path / "models" / "Laguna-tiny").exists()


def truncate(path: Path) -> None:
    os.truncate(path, 1000)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def point(path: Path) -> None:
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 5\n")


def leave_stale(path: Path) -> None:
    shutil.copy(path, path.with_name("model-00004-of-00004.safetensors"))


def zero(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(bytes(8))


@pytest.mark.parametrize(
    ("spoil", "level", "kind", "cause"),
    [
        (truncate, "stat", IntegrityMismatch, "got 1000"),
        (flip, "stat", IntegrityMismatch, "was touched"),
        (flip, "full", IntegrityMismatch, "expected sha256:"),
        (point, "stat", IntegrityMismatch, "expected "),
        (zero, "full", IntegrityMismatch, "expected sha256:"),
        (Path.unlink, "stat", MissingFile, "is missing"),
        (leave_stale, "stat", IntegrityMismatch, "a stale shard"),
    ],
    ids=["truncate", "flip", "flip full", "pointer", "zero header", "missing", "stale shard"],
)  # fmt: skip
def test_what_is_done_to_a_folder_ends_in_this_code(
    lock: CheckpointLock,
    tmp_path: Path,
    hub: Hub,
    spoil: Callable[[Path], object],
    level: str,
    kind: type[SlipwayError],
    cause: str,
) -> None:
    """Also with the mtime put back, as rsync and a power loss do; and the next fetch mends it."""
    folder = fetch(lock, tmp_path / "models", hub=HubAddress(hub.url)).folder
    path, before = folder / SECOND, (folder / SECOND).stat()
    folder.chmod(0o755)
    if spoil is not leave_stale:
        path.chmod(0o644)
    spoil(path)
    if path.exists() and spoil is not leave_stale:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(kind) as refused:
        verify(lock, folder, level=level)
    assert cause in str(refused.value)
    assert one_line(refused.value)
    mended = fetch(lock, tmp_path / "models", hub=HubAddress(hub.url))
    assert verify(lock, mended.folder).files == 8


def test_a_stale_index_upstream_ends_in_a_mismatch(served: Path, hub: Hub, tmp_path: Path) -> None:
    write_sample(served / "poolside" / "Laguna-stale")
    index = served / "poolside" / "Laguna-stale" / INDEX
    index.write_text(index.read_text().replace("-of-00003", "-of-00030"))
    stale = locks.resolve("poolside/Laguna-stale", "main", endpoint=hub.url, token=None)
    with pytest.raises(IntegrityMismatch, match=r"is stale: it names .*-of-00030") as refused:
        fetch(stale, tmp_path / "models", hub=HubAddress(hub.url))
    assert one_line(refused.value)


def test_a_reset_connection_is_tried_again_and_named(lock: CheckpointLock, answering: Any, tmp_path: Path) -> None:
    one = lock.model_copy(update={"files": tuple(file for file in lock.files if file.path == SHARD)})
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {one.files[0].size_bytes}\r\n\r\n".encode() + b"x" * 100
    waits: list[float] = []
    with answering(head, reset=True) as url, pytest.raises(NetworkFailure) as refused:
        fetch(one, tmp_path / "models", hub=HubAddress(url), patience=quick(waits))
    assert "after 3 attempts" in str(refused.value)
    assert len(waits) == 2


@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [
        ('RateLimit: "resolvers";r=0;t=41', 41, 41),
        ("Retry-After: 17", 17, 17),
        (f"Retry-After: {formatdate(time() + 250, usegmt=True)}", 30, 250),
        (f"Retry-After: {formatdate(time() - 900, usegmt=True)}", 0, 1),
        ("Retry-After: soon", 0, 1),
    ],
    ids=["RateLimit", "seconds", "date", "past date", "words"],
)
def test_a_limit_is_waited_out_however_it_is_said(
    lock: CheckpointLock, answering: Any, tmp_path: Path, header: str, least_s: float, most_s: float
) -> None:
    waits: list[float] = []
    answer = f"HTTP/1.1 429 Too Many Requests\r\n{header}\r\nContent-Length: 0\r\n\r\n".encode()
    with answering(answer) as url, pytest.raises(NetworkFailure, match="HTTP 429 after 2 attempts"):
        fetch(lock, tmp_path / "models", hub=HubAddress(url), workers=1, patience=quick(waits, attempts=2))
    assert least_s <= waits[0] <= most_s


def test_an_expired_signed_address_is_asked_for_anew_in_the_middle_of_a_file(
    lock: CheckpointLock, served: Path, tmp_path: Path
) -> None:
    with serve(served, options=Options(redirect=True)) as hub:
        locks.resolve(REPO, "main", endpoint=hub.url, token=None)
        hub.faults.add(
            Fault(f"GET /cdn/.*{SHARD}", "close", at=1_000_000, times=1),
            Fault(f"GET /cdn/.*{SHARD}", "status", status=403, times=1, after=1),
        )
        folder = fetch(lock, tmp_path / "models", hub=HubAddress(hub.url, token="hf_good"), patience=quick()).folder
        asked = [(seen.path.split("/")[1], seen.range) for seen in hub.requests if seen.path.endswith(SHARD)]
    assert asked == [
        ("poolside", ""), ("cdn", ""),
        ("poolside", "bytes=1000000-"), ("cdn", "bytes=1000000-"),
        ("poolside", "bytes=1000000-"), ("cdn", "bytes=1000000-"),
    ]  # fmt: skip
    assert verify(lock, folder).files == 8


def test_a_target_without_links_is_refused_before_the_first_byte(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    with pytest.raises(DiskFailure, match="cannot hold symbolic links") as refused:
        fetch(lock, tmp_path / "models", hub=HubAddress(hub.url))
    assert one_line(refused.value)
    assert hub.requests == []


def test_the_command_ends_with_the_code_of_what_went_wrong(
    lock: CheckpointLock, tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    locks.write(lock, tmp_path / "a.lock.json")
    os.environ["HF_ENDPOINT"] = hub.url
    argv = ["--lock", str(tmp_path / "a.lock.json"), "--dest", str(tmp_path / "models"), "--quiet"]
    for fault, code in [("flip", 4), ("gated", 7)]:
        hub.faults.clear()
        hub.faults.add(Fault("GET .*resolve", fault, at=1))  # type: ignore[arg-type]
        assert host_command.main(argv) == code
        said = capsys.readouterr()
        assert json.loads(said.out)["exit_code"] == code
        assert said.err.count("\n") == 1


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("metadata", [{}, {"__metadata__": {"format": "pt"}}])
def test_headers_in_usual_writing_are_scanned_and_agree_with_the_parser(
    separators: tuple[str, str], metadata: dict[str, object]
) -> None:
    tensors = {
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "é g_proj.weight": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
        "empty": {"dtype": "F8_E4M3", "shape": [0, 5], "data_offsets": [16, 16]},
    }
    text = json.dumps({**metadata, **tensors}, separators=separators, ensure_ascii=False).encode() + b"   "
    found = header_scan.scan(text, 16, safetensors_header.BITS, "g_proj.weight")
    assert found == (set(tensors), {"é g_proj.weight": []})
    assert safetensors_header.parse(text, 16).keys() == set(tensors)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[0, 12]", "[1, 12]"),
        ("[12, 16]", "[11, 16]"),
        ("[2, 3]", "[2, 4]"),
        ("[2, 3]", "[2,, 3]"),
        ("[2, 3]", "[02, 3]"),
        ("BF16", "BF17"),
        ('"b"', '"a"'),
        ('"b"', '"__metadata__"'),
        ('"b"', r'"\u0062"'),
        ("]}, ", "]}}, "),
        ("]}, ", "]} "),
        ("]}, ", "]}, x"),
        ("[12, 16]", "[12, 17]"),
    ],
)
def test_a_header_that_is_not_surely_sound_is_left_to_the_parser(before: str, after: str) -> None:
    tensors = {
        "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]},
    }
    text = json.dumps(tensors)
    assert header_scan.scan(text.encode(), 16, safetensors_header.BITS, "")
    assert before in text
    assert header_scan.scan(text.replace(before, after, 1).encode(), 16, safetensors_header.BITS, "") is None
