"""A short run of `benchmarks/chaos_fetch.py`: kills and flips; its full length is for benchmarks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_wrong_is_published_under_kills_and_no_flip_goes_unseen(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/chaos_fetch.py", "--kills", "4", "--flips", "20", "--cuts", "0"]
    done = subprocess.run(
        [*command, "--rows", "20000", "--root", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["kills while it ran"] > 0
    assert (said["kills"], said["flips"], said["flips seen"], said["wrong"]) == (4, 20, 20, [])
