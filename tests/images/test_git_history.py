"""Reverts read from commit messages: the pure part, for every chain of reverts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.images.git_history import Commit, merge_of, standing_revert

MERGE = Commit("a" * 40, "Gate per element (#10)")


def sha(index: int) -> str:
    return f"{index:040x}"


@given(st.lists(st.sampled_from(["by sha", "by short sha", "by number"]), max_size=8))
def test_an_odd_number_of_reverts_of_reverts_leaves_the_change_out(kinds: list[str]) -> None:
    later: list[Commit] = []
    last = MERGE
    for index, kind in enumerate(kinds):
        body = {
            "by sha": f"This reverts commit {last.sha}.",
            "by short sha": f"Some words.\n\nThis reverts commit {last.sha[:10]}\nand more",
            "by number": f"Reverts sgl-project/sglang#{last.number}",
        }[kind]
        # A SHA that no short form confuses with another.
        last = Commit(f"{index + 1:x}" * 40, f"Change of mind (#{100 + index})", body)
        later += [Commit(sha(index), f"Unrelated (#{200 + index})"), last]
    found = standing_revert(MERGE, 10, later)
    assert found == (last if len(kinds) % 2 else None)


@given(st.lists(st.sampled_from(["Revert", "Reapply"]), min_size=1, max_size=6))
def test_nested_subjects_are_counted(layers: list[str]) -> None:
    subject = MERGE.subject
    reverts = 0
    for layer in layers:
        subject = f'{layer} "{subject}"'
        reverts += layer == "Revert"
    found = standing_revert(MERGE, 10, [Commit(sha(1), subject)])
    assert (found is not None) == (reverts % 2 == 1)


@given(st.text(), st.text(), st.integers(1, 99999))
def test_any_message_can_be_read(subject: str, body: str, number: int) -> None:
    commit = Commit(sha(1), subject, body)
    standing_revert(MERGE, number, [commit])
    assert merge_of(number, [commit]) in {None, commit}


@pytest.mark.parametrize(
    ("subject", "number"),
    [
        ("Gate per element (#10)", 10),
        ("Gate (#9) again (#10) ", 10),
        ("Merge pull request #10 from ada/gate", 10),
        ("Gate per element #10", None),
        ("(#10) gate", None),
        ('Revert "Gate per element (#10)"', None),
        ("Gate per element (#10).", None),
    ],
)
def test_the_number_of_a_merged_pull_request_ends_the_subject(subject: str, number: int | None) -> None:
    assert Commit(sha(1), subject).number == number


def test_the_newest_merge_of_a_number_is_the_one_that_counts() -> None:
    again = Commit("b" * 40, "Gate per element, second try (#10)")
    assert merge_of(10, [again, MERGE]) == again
    assert merge_of(11, [again, MERGE]) is None


def test_one_commit_may_revert_several() -> None:
    body = f"This reverts commits {'c' * 40}\nand {MERGE.sha}.\n\nThey broke things."
    assert standing_revert(MERGE, 10, [Commit("d" * 40, "Back out (#77)", body)])
