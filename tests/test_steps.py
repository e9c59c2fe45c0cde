"""Steps: done once, skipped while their evidence holds, resumed after a failure."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from slipway import steps
from slipway.errors import CheckFailed, DiskFailure
from slipway.progress import Lines, silent
from slipway.steps import Done, Step


class Counter:
    """A step's body that counts how often it ran."""

    def __init__(self, fails: int = 0) -> None:
        self.runs = 0
        self.fails = fails

    def __call__(self) -> Done:
        self.runs += 1
        if self.runs <= self.fails:
            raise CheckFailed("step", "not yet")
        return Done(proved=f"run {self.runs}", evidence={"size": 3})


def holds(evidence: dict[str, Any]) -> str | None:
    return "still there" if evidence == {"size": 3} else None


def names(results: list[steps.StepResult]) -> list[tuple[str, str]]:
    return [(result.name, result.status) for result in results]


def test_a_step_whose_evidence_holds_is_skipped_and_says_why(tmp_path: Path) -> None:
    body = Counter()
    step = Step("fetch", {"lock": "a"}, body, holds)
    assert names(list(steps.run([step], tmp_path, silent))) == [("fetch", "done")]
    (again,) = steps.run([step], tmp_path, silent)
    assert (again.status, again.proved, body.runs) == ("skipped", "still there", 1)


@pytest.mark.parametrize("change", ["inputs", "evidence", "damaged"])
def test_a_step_runs_again_when_anything_it_rests_on_changed(tmp_path: Path, change: str) -> None:
    body = Counter()
    list(steps.run([Step("fetch", {"lock": "a"}, body, holds)], tmp_path, silent))
    if change == "damaged":
        (tmp_path / "fetch.json").write_text("{")
    inputs = {"lock": "b" if change == "inputs" else "a"}
    check = (lambda _: None) if change == "evidence" else holds
    (result,) = steps.run([Step("fetch", inputs, body, check)], tmp_path, silent)
    assert (result.status, body.runs) == ("done", 2)


def test_a_step_about_now_always_runs(tmp_path: Path) -> None:
    body = Counter()
    for _ in range(2):
        list(steps.run([Step("gate", {}, body)], tmp_path, silent))
    assert body.runs == 2


def test_a_run_goes_on_where_the_last_one_failed(tmp_path: Path) -> None:
    first, second = Counter(), Counter(fails=1)
    plan = [Step("one", {}, first, holds), Step("two", {}, second, holds)]
    with pytest.raises(CheckFailed):
        list(steps.run(plan, tmp_path, silent))
    assert names(list(steps.run(plan, tmp_path, silent))) == [("one", "skipped"), ("two", "done")]


def test_evidence_that_cannot_be_kept_is_a_disk_failure(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where a folder must be")
    with pytest.raises(DiskFailure, match=r"state/one\.json"):
        list(steps.run([Step("one", {}, Counter(), holds)], tmp_path / "state", silent))
    (tmp_path / "one.tmp").mkdir()
    with pytest.raises(DiskFailure, match="recording the evidence of one"):
        list(steps.run([Step("one", {}, Counter(), holds)], tmp_path, silent))


def test_each_step_is_told_with_its_number(tmp_path: Path) -> None:
    stream = io.StringIO()
    list(steps.run([Step("one", {}, Counter()), Step("two", {}, Counter())], tmp_path, Lines(stream)))
    assert [line.rpartition(" (")[0] for line in stream.getvalue().splitlines()] == [
        "[1/2] one: run 1",
        "[2/2] two: run 1",
    ]
