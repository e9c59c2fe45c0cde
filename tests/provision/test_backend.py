"""Where the state is kept: folders of any name, passphrases that are whole, URLs whose secrets nobody reads."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slipway.errors import AuthFailure, DiskFailure
from slipway.provision import backend


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
