"""Files of the state that a killed run left half-written are mended, and whole ones are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.errors import DiskFailure
from slipway.progress import silent
from slipway.provision import interrupted, torn
from slipway.provision.backend import Backend

FULL = '{"version": 3, "checkpoint": {"stack": "m1-pd", "latest": {"resources": [{"type": "x"}]}}}'
BARE = '{"version": 3, "checkpoint": {"stack": "m1-pd"}}'
ENDED = '{"version": 3, "checkpoint": {"stack": "m1-pd", "latest": {"manifest": {}}}}'
RUN = "history/slipway/m1-pd/m1-pd-{}.checkpoint.json"


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / ".pulumi" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize("text", ["", '{"user.cac', "\x00\x00"])
def test_cut_off_attributes_are_removed_because_they_hide_the_state(tmp_path: Path, text: str) -> None:
    state = written(tmp_path, "stacks/slipway/m1-pd.json", '{"version": 3}')
    attributes = written(tmp_path, "stacks/slipway/m1-pd.json.attrs", text)
    lock = written(tmp_path, "locks/organization/slipway/m1-pd/1.json.attrs", text)
    whole = written(tmp_path, "stacks/slipway/m1-pd.json.bak.attrs", "{}")
    other = written(tmp_path, "stacks/slipway/laptop.json.attrs", text)
    assert torn.mend(tmp_path, "m1-pd", silent) == 2
    assert [file.exists() for file in (state, attributes, lock, whole, other)] == [True, False, False, True, True]
    assert torn.mend(tmp_path, "m1-pd", silent) == 0


def test_a_cut_off_state_goes_back_to_the_one_before_it(tmp_path: Path) -> None:
    state = written(tmp_path, "stacks/slipway/m1-pd.json", '{"vers')
    assert torn.mend(tmp_path, "m1-pd", silent) == 0  # nothing to go back to: Pulumi's own error is the better one
    before = written(tmp_path, "stacks/slipway/m1-pd.json.bak", '{"version": 3}')
    assert torn.mend(tmp_path, "m1-pd", silent) == 0  # nor to one that knows nothing
    before.write_text(FULL)
    assert torn.mend(tmp_path, "m1-pd", silent) == 1
    assert state.read_text() == FULL
    torn.refuse_damaged(tmp_path, "m1-pd")


def test_a_backend_without_files_needs_nothing(tmp_path: Path) -> None:
    assert torn.mend(tmp_path / "absent", "m1-pd", silent) == 0


@pytest.mark.parametrize("text", ["", "{}", "null", "[]", "garbage", '{"version":3,"checkpoint":{}}', '{"version":3}'])
def test_a_state_that_is_no_checkpoint_is_damage_with_or_without_a_copy(tmp_path: Path, text: str) -> None:
    state = written(tmp_path, "stacks/slipway/m1-pd.json", text)
    with pytest.raises(DiskFailure, match="damaged") as caught:
        torn.refuse_damaged(tmp_path, "m1-pd")
    assert caught.value.place == str(state)
    copy = written(tmp_path, "stacks/slipway/m1-pd.json.bak", FULL)
    with pytest.raises(DiskFailure, match="damaged") as caught:
        torn.refuse_damaged(tmp_path, "m1-pd")
    assert str(copy) in caught.value.remedy
    torn.refuse_damaged(tmp_path, "laptop")


@pytest.mark.parametrize("text", [BARE, None])
def test_a_state_that_lost_its_resources_is_damage_only_beside_a_copy_that_has_them(
    tmp_path: Path, text: str | None
) -> None:
    if text:
        written(tmp_path, "stacks/slipway/m1-pd.json", text)
    torn.refuse_damaged(tmp_path, "m1-pd")  # a new stack
    written(tmp_path, "stacks/slipway/m1-pd.json.bak", ENDED)
    written(tmp_path, RUN.format(1), FULL)
    newest = written(tmp_path, RUN.format(2), ENDED)
    torn.refuse_damaged(tmp_path, "m1-pd")  # its hosts were removed before
    newest.write_text(FULL)
    with pytest.raises(DiskFailure, match="lost its resources" if text else "is missing") as caught:
        torn.refuse_damaged(tmp_path, "m1-pd")
    assert str(newest) in caught.value.remedy
    written(tmp_path, "stacks/slipway/m1-pd.json", ENDED)
    torn.refuse_damaged(tmp_path, "m1-pd")


def test_a_damaged_state_stops_the_run_before_pulumi_reads_it(tmp_path: Path) -> None:
    written(tmp_path, "stacks/slipway/m1-pd.json", "null")
    with pytest.raises(DiskFailure, match="damaged"):
        interrupted.release(Backend(tmp_path.as_uri(), {}), "m1-pd", silent)
