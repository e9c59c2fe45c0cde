"""Whose lock a stack has, and whether its holder lives."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slipway.errors import CheckFailed
from slipway.provision import locks
from slipway.provision.locks import Holder


def lock(folder: Path, pid: int, host: str | None = None, since: datetime | None = None) -> Path:
    """A lock as Pulumi writes it."""
    file = folder / ".pulumi" / "locks" / "organization" / "slipway" / "m1-pd" / f"{pid}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    when = (since or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%S.%f123Z")
    said = {"pid": pid, "username": "me", "hostname": host or socket.gethostname(), "timestamp": when}
    file.write_text(json.dumps(said))
    return file


def dead_pid() -> int:
    ran = subprocess.Popen([sys.executable, "-c", ""])
    ran.wait()
    return ran.pid


def test_a_dead_holder_is_seen_and_only_its_own_lock_is_removed(tmp_path: Path) -> None:
    file = lock(tmp_path, dead_pid())
    other = file.with_name("other.json")
    dead = locks.refuse_living("m1-pd", locks.in_folder(tmp_path, "m1-pd"))
    assert [holder.file for holder in dead] == [file]
    other.write_text("{}")
    locks.release(dead[0])
    assert not file.exists()
    assert other.exists()


def test_a_living_holder_is_named_and_stops_the_run(tmp_path: Path) -> None:
    lock(tmp_path, os.getpid())
    with pytest.raises(CheckFailed, match=rf"another run holds its lock \(me@.*, pid {os.getpid()}, since .*wait"):
        locks.refuse_living("m1-pd", locks.in_folder(tmp_path, "m1-pd"))


def test_a_holder_on_another_host_is_named_and_never_judged_from_here(tmp_path: Path) -> None:
    lock(tmp_path, dead_pid(), host="elsewhere")
    with pytest.raises(CheckFailed, match="pulumi cancel --stack m1-pd"):
        locks.refuse_living("m1-pd", locks.in_folder(tmp_path, "m1-pd"))


@pytest.mark.skipif(sys.platform != "linux", reason="process start times are read from /proc")
def test_a_pid_that_was_given_out_again_is_not_the_holder(tmp_path: Path) -> None:
    lock(tmp_path, os.getpid(), since=datetime.now(UTC) - timedelta(days=1))
    assert len(locks.refuse_living("m1-pd", locks.in_folder(tmp_path, "m1-pd"))) == 1


@pytest.mark.parametrize("torn", ['{"pid": 1, "user', "[]", '{"pid": "x"}', "null"])
def test_a_torn_lock_belongs_to_a_dead_run(tmp_path: Path, torn: str) -> None:
    lock(tmp_path, 1).write_text(torn)
    assert len(locks.refuse_living("m1-pd", locks.in_folder(tmp_path, "m1-pd"))) == 1


def test_holders_are_read_from_the_words_of_pulumis_refusal() -> None:
    said = (
        "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete the lock "
        "file with `pulumi cancel`.\n  s3://b/.pulumi/locks/organization/slipway/m1-pd/x.json: created by me@host-1 (pid 42) "
        "at 2026-11-30T10:00:00Z"
    )
    assert locks.in_message(said) == (Holder("me", "host-1", 42, "2026-11-30T10:00:00Z"),)
    assert locks.in_message("error: something else") == ()
    assert locks.state_of(Holder("me", "host-1", 42, "x")) == "elsewhere"


def test_no_folder_and_no_lock_is_no_holder(tmp_path: Path) -> None:
    assert locks.in_folder(tmp_path / "absent", "m1-pd") == ()
    lock(tmp_path, 1)
    assert locks.in_folder(tmp_path, "other") == ()
