"""Kills the Pulumi CLI at moments spread over `invoke up` and `invoke down`, and counts what the account then holds.

    PATH=$(tools/pulumi/build):$PATH python benchmarks/interrupted.py [--moments 15] [--out FILE]

Each round: `up` is killed at a provider call, `up` is run again, the account must hold exactly what an undisturbed `up` makes;
`down` is killed at a call, `down` is run again, the account must be empty. The calls are counted, no moment is a time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STACK = "m1-pd"
PHASES = ("before", "middle", "after")


def tests_own() -> Any:
    """The module that sets up account and project for the tests."""
    spec = importlib.util.spec_from_file_location("provision_set_up", ROOT / "tests" / "provision" / "conftest.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(project: Any, command: str, moment: str = "") -> dict[str, Any]:
    """One command; what it came to, and how long it took."""
    project.calls.unlink(missing_ok=True)
    begin = time.monotonic()
    ran = project.invoke(command, "--stack", STACK, "--yes", SLIPWAY_STANDIN_KILL=moment)
    if moment and ran.returncode == 0:
        return {"error": "the run was not killed", "s": time.monotonic() - begin}
    if not moment and ran.returncode != 0:
        return {"error": ran.stderr[-2000:], "s": time.monotonic() - begin}
    mended = next((line for line in ran.stderr.splitlines() if "interrupted runs" in line), "")
    return {"killed": bool(moment), "s": time.monotonic() - begin, "mended": mended.partition(": ")[2]}


def moments(calls: int, count: int) -> list[str]:
    """`count` moments spread over `calls` provider calls, the phases in turn."""
    return [f"{1 + round(n * (calls - 1) / max(1, count - 1))}:{PHASES[n % 3]}" for n in range(count)]


def main() -> None:
    """Run all rounds; exit 1 when one of them left anything but what was wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=15)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    set_up = tests_own()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, set_up.served() as account:
        account.reset()
        project = set_up.made_project(Path(folder), account)
        assert "error" not in run(project, "up")
        wanted, up_calls = account.kinds(), project.provider_calls()
        assert "error" not in run(project, "down")
        assert account.things() == set()
        down_calls = project.provider_calls()
        for up_moment, down_moment in zip(
            moments(up_calls, arguments.moments), moments(down_calls, arguments.moments), strict=True
        ):
            for command, moment, want in (("up", up_moment, wanted), ("down", down_moment, {})):
                killed, again = run(project, command, moment), run(project, command)
                held = account.kinds()
                row = {"command": command, "moment": moment, "killed": killed, "again": again, "exact": held == want}
                if held != want:
                    row["held"] = held
                rows.append(row)
                print(json.dumps(row), flush=True)
    exact = sum(row["exact"] for row in rows)
    died = sum(row["killed"].get("killed", False) for row in rows)
    print(f"{exact} of {len(rows)} exact; {died} runs were killed; {up_calls} calls in up, {down_calls} in down")
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"stack": STACK, "calls": [up_calls, down_calls], "rows": rows}, indent=1) + "\n"
        )
    raise SystemExit(exact != len(rows))


if __name__ == "__main__":
    main()
