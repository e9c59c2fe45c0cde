"""What every task shares: exit codes, one JSON document, and a sentence where something unforeseen happened."""

from __future__ import annotations

import errno
import io
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from slipway import cli
from slipway.checkpoints.hub import Hub
from slipway.errors import (
    AuthFailure,
    CheckFailed,
    DiskFailure,
    DocumentError,
    EngineFailed,
    IntegrityMismatch,
    LockDrift,
    MissingFile,
    NetworkFailure,
    PlanRefused,
    Problem,
    SlipwayError,
    UsageError,
)

CODES = {
    CheckFailed: 1,
    UsageError: 2,
    LockDrift: 3,
    IntegrityMismatch: 4,
    MissingFile: 5,
    DiskFailure: 6,
    AuthFailure: 7,
    NetworkFailure: 8,
    EngineFailed: 9,
}


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """`command` sets handlers for the whole process; tests give them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ended(error: BaseException, *, as_json: bool = False) -> int:
    with pytest.raises(SystemExit) as caught, cli.command(as_json):
        raise error
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(("kind", "code"), CODES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_each_error_ends_with_its_code_and_its_sentence(
    kind: type[SlipwayError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(kind("place", "is wrong (got x)", "y is allowed", "do z")) == code
    captured = capsys.readouterr()
    assert captured.err == "place: is wrong (got x); y is allowed; do z\n"
    assert captured.out == ""


def test_under_json_the_error_is_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(PlanRefused("some-rule", "place", "is wrong"), as_json=True) == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["error"], said["rule"], said["exit_code"]) == ("PlanRefused", "some-rule", 2)
    problems = [Problem("f.yaml", 1, 2, "a.b", "is wrong"), Problem("f.yaml", 3, 4, "", "too")]
    assert ended(DocumentError(problems), as_json=True) == 2
    captured = capsys.readouterr()
    assert [problem["line"] for problem in json.loads(captured.out)["problems"]] == [1, 3]
    assert captured.err.splitlines()[0] == "f.yaml:1:2: a.b: is wrong"


def test_an_unforeseen_error_is_one_line_and_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert ended(KeyError("surprise")) == 1
    said = capsys.readouterr().err
    assert "unexpected error (KeyError: 'surprise')" in said
    (report,) = tmp_path.iterdir()
    assert str(report) in said
    assert "Traceback" in report.read_text()


def test_an_os_error_that_nobody_translated_is_still_a_disk_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(OSError(errno.ENOSPC, "No space left on device", "/x/y")) == 6
    assert "/x/y: writing: no space left on device" in capsys.readouterr().err


def test_an_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(KeyboardInterrupt()) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_under_json_a_command_that_was_told_to_end_prints_one_document(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), cli.command(True):
        signal.raise_signal(number)
    told = json.loads(capsys.readouterr().out)
    assert (told["error"], told["exit_code"]) == ("Interrupted", 128 + number)
    with pytest.raises(SystemExit), cli.command(True) as output:
        output.result({"a": 1}, "")
        signal.raise_signal(number)
    assert json.loads(capsys.readouterr().out) == {"a": 1}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_whatever_the_encoding_of_stdout(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"place": "\xe9 \u0416 \U0001f600"}
    for ends_well in (True, False):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
        if ends_well:
            with cli.command(True) as output:
                output.result(value, "")
        else:
            assert ended(UsageError(value["place"], "wrong"), as_json=True) == 2
        assert json.loads(written.getvalue().decode(encoding))["place"] == value["place"]


def test_secrets_are_masked_whatever_letters_and_blanks_they_come_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", " hf_Variable1 \n")
    Hub(token="hf_FromFile1")
    text = "hf_variable1 HF_FROMFILE1 http://me:s3cret@h/"
    for as_json in (False, True):
        ended(UsageError(text, "wrong"), as_json=as_json)
        said = capsys.readouterr()
        assert "*** *** http://***@h/" in said.err
        assert not any(secret in (said.out + said.err).lower() for secret in ("variable1", "fromfile1", "s3cret"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_like_an_interrupt(number: signal.Signals) -> None:
    cleaned = []
    with pytest.raises(SystemExit) as caught, cli.command(False):
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append(True)
    assert (caught.value.code, cleaned) == (128 + number, [True])


def test_what_is_shown_is_drawn_or_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    def draw(console: Console) -> None:
        console.print("drawn")

    with cli.command(False) as output:
        output.shown({"a": 1}, draw)
    assert capsys.readouterr().out == "drawn\n"
    with cli.command(True) as output:
        output.shown({"a": 1}, draw)
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_a_long_line_is_not_broken_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = "fetch: into " + "/long/path" * 30
    with cli.command(False) as output:
        output.shown(None, lambda console: console.print(line))
    assert capsys.readouterr().out == f"{line}\n"
