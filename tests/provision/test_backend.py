"""Where the state is kept: folders of any name, passphrases that are whole, URLs whose secrets nobody reads."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from slipway.errors import AuthFailure, DiskFailure, UsageError
from slipway.provision import backend, failures


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_passphrase_is_refused_with_the_next_step(tmp_path: Path, text: str) -> None:
    file = tmp_path / ".slipway" / "pulumi" / "passphrase"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    with pytest.raises(AuthFailure, match="the passphrase is empty") as caught:
        backend.choose(tmp_path, tmp_path / ".slipway", "m1-pd")
    assert caught.value.place == str(file)
    assert "remove it and run the same command again" in caught.value.remedy


def test_a_disk_that_is_full_or_fills_up_leaves_no_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / ".slipway"
    with monkeypatch.context() as full:
        full.setattr(backend, "LEAST_FREE_BYTES", 1 << 62)
        with pytest.raises(DiskFailure, match="MB free"):
            backend.choose(tmp_path, state, "m1-pd")

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as fills:
        fills.setattr(os, "fsync", no_space)
        with pytest.raises(DiskFailure, match="no space left"):
            backend.choose(tmp_path, state, "m1-pd")
    assert list((state / "pulumi").iterdir()) == []
    chosen = backend.choose(tmp_path, state, "m1-pd")
    assert len(Path(chosen.env["PULUMI_CONFIG_PASSPHRASE_FILE"]).read_text()) > 40


def test_a_passphrase_that_another_command_made_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".slipway" / "pulumi" / "passphrase"
    # The other command comes between our look and our lock.
    monkeypatch.setattr("fcntl.flock", lambda *_: file.write_text("theirs"))
    backend.choose(tmp_path, tmp_path / ".slipway", "m1-pd")
    assert file.read_text() == "theirs"


@pytest.mark.parametrize("name", ["a #b", "50%", "what?", "caf\u00e9", "100%25", "plain"])
def test_a_folder_of_any_name_is_told_to_pulumi_as_it_reads_it(tmp_path: Path, name: str) -> None:
    state = tmp_path / name / ".slipway"
    chosen = backend.choose(tmp_path / name, state, "m1-pd")
    assert chosen.folder == state / "pulumi"
    # Source: gocloud.dev/blob/fileblob takes the path of the parsed URL; a real `stack select --create` was seen to do so.
    read = urlsplit(str(chosen.url))
    assert (unquote(read.path), read.query, read.fragment) == (str(state / "pulumi"), "", "")
    backend.remember(state, "m1-pd", chosen)
    assert (state / "pulumi" / "backends.json").stat().st_mode & 0o777 == 0o600
    assert backend.choose(tmp_path / name, state, "m1-pd") == chosen


def test_one_folder_is_one_backend_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.remember(tmp_path / ".slipway", "m1-pd", backend.Backend(f"file://{tmp_path}/a b", {}))
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/a%20b?no_tmp_dir=true")
    assert backend.choose(tmp_path, tmp_path / ".slipway", "m1-pd").folder == tmp_path / "a b"
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/other")
    with pytest.raises(UsageError, match="names another backend"):
        backend.choose(tmp_path, tmp_path / ".slipway", "m1-pd")
    assert backend.Backend("file://~/state", {}).folder == Path.home() / "state"


def test_no_message_shows_what_opens_a_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, asked = "postgres://me:s3cr@t@db/state?sslpassword=s3cr", "s3://state?region=x&key=s3cr"
    backend.remember(tmp_path / ".slipway", "m1-pd", backend.Backend(known, {}))
    assert str(backend.Backend(known, {})) == "postgres://me:***@db/state?***"
    monkeypatch.setenv("PULUMI_BACKEND_URL", asked)
    with pytest.raises(UsageError) as caught:
        backend.choose(tmp_path, tmp_path / ".slipway", "m1-pd")
    said = failures.explain("stack m1-pd", [f"error: unable to open bucket '{known}': no such host; {asked}"], "up")
    for text in (str(caught.value), str(said)):
        assert "s3cr" not in text
        assert "postgres://me:***@db/state?***" in text and "s3://state?***" in text
    assert failures.masked("created by me@host (pid 1) at 2026-12-01T00:00:00Z") == (
        "created by me@host (pid 1) at 2026-12-01T00:00:00Z"
    )
