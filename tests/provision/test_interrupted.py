"""Runs that are killed halfway: the next command leaves the account with exactly what is wanted, no more and no fewer."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.needs("pulumi")

PHASES = ("before", "after", "middle")
"""Of the provider call that the run dies in; benchmarks/interrupted.py tries more moments."""


def test_after_a_kill_in_up_the_next_up_makes_exactly_what_is_missing(project: Any, account: Any) -> None:
    assert project.invoke("up", "--stack", "m1-pd", "--yes").returncode == 0
    wanted, calls = account.kinds(), project.provider_calls()
    assert project.invoke("down", "--stack", "m1-pd", "--yes").returncode == 0
    for share, phase in zip((0.3, 0.6, 1.0), PHASES, strict=True):
        project.calls.unlink()
        moment = f"{max(1, round(calls * share))}:{phase}"
        killed = project.invoke("up", "--stack", "m1-pd", "--yes", SLIPWAY_STANDIN_KILL=moment)
        assert killed.returncode != 0, moment
        again = project.invoke("up", "--stack", "m1-pd", "--yes")
        assert again.returncode == 0, (moment, again.stderr)
        assert account.kinds() == wanted, moment
        assert project.invoke("down", "--stack", "m1-pd", "--yes").returncode == 0
        assert account.things() == set(), moment


def test_after_a_kill_in_down_the_next_down_leaves_nothing(project: Any, account: Any) -> None:
    for share, phase in zip((0.2, 0.5, 0.9), PHASES, strict=True):
        assert project.invoke("up", "--stack", "m1-pd", "--yes").returncode == 0
        calls = project.provider_calls()
        project.calls.unlink()
        moment = f"{max(1, round(calls * share))}:{phase}"
        killed = project.invoke("down", "--stack", "m1-pd", "--yes", SLIPWAY_STANDIN_KILL=moment)
        assert killed.returncode != 0, moment
        again = project.invoke("down", "--stack", "m1-pd", "--yes")
        assert again.returncode == 0, (moment, again.stderr)
        assert account.things() == set(), moment
        project.calls.unlink()
