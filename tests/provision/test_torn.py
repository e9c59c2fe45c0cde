"""Files of the state that a killed run left half-written are mended, and whole ones are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.progress import silent
from slipway.provision import torn


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
    written(tmp_path, "stacks/slipway/m1-pd.json.bak", '{"version": 3}')
    assert torn.mend(tmp_path, "m1-pd", silent) == 1
    assert state.read_text() == '{"version": 3}'


def test_a_backend_without_files_needs_nothing(tmp_path: Path) -> None:
    assert torn.mend(tmp_path / "absent", "m1-pd", silent) == 0
