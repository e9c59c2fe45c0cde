"""The script that builds the Pulumi CLI: cold, warm, and broken off. Go is a stand-in here; CI builds with the real one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "pulumi" / "build"

GO = """#!/bin/sh
case $1 in
    env) echo go1.0 ;;
    list) echo "$SDK" ;;
    build)
        [ -z "${BROKEN:-}" ] || exit 1
        for word in "$@"; do case $word in */) echo '#!/bin/sh' >"$word/pulumi"; chmod 555 "$word/pulumi" ;; esac; done ;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    runner = tmp_path / "sdk" / "python" / "cmd"
    runner.mkdir(parents=True)
    (runner / "pulumi-language-python-exec").write_text("")
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    path = f"{go.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "SDK": str(tmp_path / "sdk"), "SLIPWAY_PULUMI_CACHE": str(tmp_path / "cache")}


def build(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)


def test_the_first_build_and_the_next_succeed_and_leave_nothing_else(
    environment: dict[str, str], tmp_path: Path
) -> None:
    first, second = build(environment), build(environment)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stdout == second.stdout
    assert [str(path) for path in (tmp_path / "cache").iterdir()] == [first.stdout.strip()]
    assert (Path(first.stdout.strip()) / "pulumi").exists()


def test_a_build_that_fails_says_so_and_leaves_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    ran = build({**environment, "BROKEN": "1"})
    assert ran.returncode == 8
    assert "not built" in ran.stderr
    assert list((tmp_path / "cache").iterdir()) == []
