"""Documents: every mistake is reported with its place, all at once, and nothing is converted silently."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from slipway import documents
from slipway.checkpoints.lock import CheckpointLock
from slipway.documents import Document
from slipway.documents.writer import write_text
from slipway.errors import DocumentError, MissingFile, SlipwayError
from slipway.inventory import Inventory


class Part(Document):
    name: str
    size: int = Field(default=1, gt=0)


class Whole(Document):
    kind: Literal["wheel", "frame"]
    label: str
    ratio: float = 1.0
    on_duty: bool = True
    note: str | None = None
    parts: list[Part] = Field(default_factory=list)
    extras: dict[str, str | int] = Field(default_factory=dict)
    nested: Part | None = None


class Sized(Document):
    nodes: list[int] = Field(default_factory=lambda: [1], min_length=1)
    pair: list[int] = Field(default_factory=lambda: [1, 2], min_length=2, max_length=3)
    map: dict[str, int] = Field(default_factory=lambda: {"a": 1}, min_length=1)
    text: str = Field(default="xx", min_length=2)
    word: str = Field(default="", max_length=1)


GOOD = "kind: wheel\nlabel: front\n"


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)
)
"""A few hundred bytes that stand for 387 million values."""


def problems_of(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        documents.parse(text, Whole, "x.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_a_good_document_is_read_with_its_types() -> None:
    text = (
        GOOD
        + 'ratio: 0.5\nparts:\n  - name: a\n    size: 3\n  - {name: "017"}\nextras: {a: "on", b: 5}\nnested: {name: x}\nnote: ~\n'
    )
    whole = documents.parse(text, Whole, "x.yaml")
    assert whole.parts == [Part(name="a", size=3), Part(name="017")]
    assert whole.extras == {"a": "on", "b": 5}
    assert (whole.ratio, whole.note) == (0.5, None)


def test_six_mistakes_are_six_errors_with_positions() -> None:
    text = "kind: whel\nlabel: 12:30:45\nratio: yes\nparts:\n  - name: a\n    sise: 3\n  - size: 0\nkind: frame\n"
    assert problems_of(text) == [
        'x.yaml:2:8: label: got 12:30:45, which YAML 1.1 readers turn into a base-60 number; quote it: "12:30:45"',
        'x.yaml:3:8: ratio: got yes, which some YAML readers turn into true; write true or false, or quote it: "yes"',
        "x.yaml:6:5: parts[0].sise: unknown key; did you mean size?",
        "x.yaml:7:5: parts[1].name: is missing and has no default; add it",
        "x.yaml:7:11: parts[1].size: should be greater than 0 (got 0)",
        "x.yaml:8:1: kind: stands twice in one mapping (first in line 1) and the last would silently win; remove one",
    ]


@pytest.mark.parametrize(
    "value",
    [
        "on",
        "No",
        "y",
        "True",
        "NULL",
        "017",
        "00",
        "1e5",
        "1.",
        ".5",
        "0x1F",
        "0o17",
        "1_000",
        "12:30:45",
        "1:30",
        ".inf",
        "2026-07-22",
        "+5",
    ],
)
def test_values_that_yaml_readers_convert_silently_are_refused(value: str) -> None:
    (problem,) = problems_of(f"{GOOD}note: {value}\n")
    assert problem.startswith(f"x.yaml:3:7: note: got {value}, ")
    assert documents.parse(f'{GOOD}note: "{value}"\n', Whole, "x.yaml").note == value


@pytest.mark.parametrize(
    "value", ["v1.2.3", "1.2.3", "a:b", "10GB", "e5", "0.25.1", "mlx5_0", "sha256:00", "1-2", "12:3x"]
)
def test_plain_words_stay_words(value: str) -> None:
    assert documents.parse(f"{GOOD}note: {value}\n", Whole, "x.yaml").note == value


def test_wrong_types_are_not_coerced() -> None:
    text = 'kind: wheel\nlabel: 5\nratio: "0.5"\non_duty: 1\nparts: {}\n'
    assert [problem.split(": ", 2)[1] for problem in problems_of(text)] == ["label", "ratio", "on_duty", "parts"]


def test_a_document_of_another_kind_is_named_and_no_more() -> None:
    text = "schema: slipway/checkpoint-lock-request/v1\nrepo: poolside/Laguna-M.1\nrevision: null\n"
    with pytest.raises(DocumentError) as caught:
        documents.parse(text, Inventory, "x.yaml")
    said = "schema: is a slipway/checkpoint-lock-request/v1; a slipway/inventory/v1 is read here"
    assert [problem.text for problem in caught.value.problems] == [said.removeprefix("schema: ")]
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (1, 9)


@pytest.mark.parametrize("kind", ["slipway/inventori/v1", "slipway/inventory/v2", "inventory"])
def test_a_kind_that_is_written_wrong_hides_no_other_mistake(kind: str) -> None:
    with pytest.raises(DocumentError) as caught:
        documents.parse(f"schema: {kind}\nnodez: []\n", Inventory, "x.yaml")
    assert len(caught.value.problems) > 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: []\n", "1:8: nodes: needs at least 1 entry (got none)"),
        ("nodes: 5\n", "1:8: nodes: must be a list (got 5)"),
        ("map: [1]\n", "1:6: map: must be a mapping, a `key: value` on each line"),
        ("pair: [1]\n", "1:7: pair: needs at least 2 entries (got 1)"),
        ("pair: [1, 2, 3, 4]\n", "1:7: pair: needs at most 3 entries (got 4)"),
        ("map: {}\n", "1:6: map: needs at least 1 entry (got none)"),
        ("text: ''\n", "1:7: text: needs at least 2 characters (got '')"),
        ("word: abcd\n", "1:7: word: needs at most 1 character (got 'abcd')"),
    ],
)
def test_what_has_the_wrong_shape_or_length_is_told_in_our_words(text: str, said: str) -> None:
    with pytest.raises(DocumentError) as caught:
        documents.parse(text, Sized, "x.yaml")
    assert [str(problem) for problem in caught.value.problems] == [f"x.yaml:{said}"]


def test_a_kind_of_document_is_named_with_its_article(tmp_path: Path) -> None:
    for model, named in ((Inventory, "an inventory"), (CheckpointLock, "a checkpoint lock")):
        with pytest.raises(MissingFile, match=f"; {named} document in YAML is read here;"):
            documents.read(tmp_path / "absent.yaml", model)
        with pytest.raises(DocumentError, match=f"is empty; {named} document is needed"):
            documents.parse("", model, "x.yaml")


def test_a_key_with_no_near_neighbour_lists_what_is_known() -> None:
    (problem,) = problems_of(f"{GOOD}zzz: 1\n")
    assert problem == (
        "x.yaml:3:1: zzz: unknown key; known here: extras, kind, label, nested, note, on_duty, parts, ratio"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("kind: [1\n", "is not valid YAML"),
        ("kind: !!python/name:os.system x\nlabel: a\n", "has the tag"),
        ("&a [*a]\n", "contains itself"),
        ("? [1, 2]\n: x\nkind: wheel\nlabel: a\n", "has a key that is not a plain word"),
        ("base: &b {kind: wheel}\n<<: *b\nlabel: a\n", "uses a merge key"),
        ("- 1\n- 2\n", "must be a mapping, a `key: value` on each line"),
        ("kind: wheel\n--- \nlabel: b\n", "is not valid YAML"),
        ("a: " + "[" * 5000, "nesting"),
        ("a: " + "[" * 500 + "]" * 500, "nested"),
        ("- " * 50000, "nest"),
        ("\x00", "is not valid YAML"),
        ('kind: wheel\nlabel: "a\\nb"\n', "control, line-break or invisible character"),
        ('kind: wheel\nlabel: "\\u202e"\n', "control, line-break or invisible character"),
        ("kind: wheel\nlabel: a\nratio: " + "9" * 400, "a number of 400 digits"),
        (BOMB, "stands for more than"),
    ],
)
def test_hostile_or_broken_text_is_a_document_error(text: str, said: str) -> None:
    assert any(said in problem for problem in problems_of(text)), problems_of(text)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="no such file"):
        documents.read(tmp_path / "absent.yaml", Whole)
    for special in (tmp_path, Path("/dev/zero")):
        with pytest.raises(DocumentError, match="is not a regular file"):
            documents.read(special, Whole)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DocumentError, match="is not a regular file"):
        documents.read(tmp_path / "pipe", Whole)
    (tmp_path / "latin.yaml").write_bytes(b"kind: wheel\nlabel: caf\xe9\n")
    with pytest.raises(DocumentError, match="is not UTF-8 text"):
        documents.read(tmp_path / "latin.yaml", Whole)
    (tmp_path / "huge.yaml").write_bytes(b"#" * (documents.MAX_BYTES + 1))
    with pytest.raises(DocumentError, match="a document has at most"):
        documents.read(tmp_path / "huge.yaml", Whole)


def test_machine_written_json_is_read_back_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(documents.canonical_json({"kind": "wheel", "label": "a"}))
    assert documents.read_json(path, Whole).label == "a"
    for damaged in (b"", b"{", b'{"kind": "wheel"}', b"[]", b"\xff"):
        path.write_bytes(damaged)
        with pytest.raises(DocumentError):
            documents.read_json(path, Whole)
    with pytest.raises(MissingFile):
        documents.read_json(tmp_path / "absent.json", Whole)
    with pytest.raises(DocumentError, match="is not a regular file"):
        documents.read_json(tmp_path, Whole)


def test_the_digest_does_not_depend_on_key_order() -> None:
    assert documents.digest({"a": 1, "b": [2, 3]}) == documents.digest({"b": [2, 3], "a": 1})
    assert documents.digest({"a": 1}) != documents.digest({"a": "1"})


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_raise_anything_but_its_own_error(text: str) -> None:
    try:
        documents.parse(text, Whole, "x.yaml")
    except SlipwayError as error:
        assert str(error)


@given(
    st.dictionaries(
        st.sampled_from(["kind", "label", "ratio", "parts", "nested", "on_duty", "unknown"]),
        st.sampled_from(
            ["wheel", "on", "1", "0.5", "{}", "[]", "{name: a}", "[{name: a}]", "~", "'x'", "017", "[1, 2]"]
        ),
    )
)
def test_every_mapping_is_read_or_refused_with_a_line_that_exists(values: dict[str, str]) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in values.items()) or "{}\n"
    try:
        documents.parse(text, Whole, "x.yaml")
    except DocumentError as error:
        assert all(1 <= problem.line <= max(len(values), 1) for problem in error.problems)


class Anything(Document):
    value: Any


WORDS = ("0b1f", "0o17", "0x1f", "1e5", "0badcf09", "12:30", "1_000", "017", "on", "Y", "True", "null", "~", "<<", "=", ".inf",
         "2026-12-01", "- a", "a: b", "#", "'", '"', "&a", "*a", "!t", "%", "@", " a ", "x" * 300, "a b " * 60)  # fmt: skip
TEXTS = st.one_of(
    st.sampled_from(WORDS),
    st.from_regex(r"0[box][0-9a-f]{1,62}", fullmatch=True),
    st.from_regex(r"[0-9a-f]{1,64}", fullmatch=True),
    st.from_regex(r"[-+0-9.eE:_]{1,20}", fullmatch=True),
    st.text().filter(lambda text: text.isprintable()),
)
VALUES = st.recursive(
    st.one_of(
        TEXTS,
        st.none(),
        st.booleans(),
        st.integers(-(10**17), 10**17),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_is_read_again_as_it_was(value: object) -> None:
    text = write_text({"value": value})
    assert documents.parse(text, Anything, "x.yaml").value == value
    assert yaml.safe_load(text) == {"value": value}


@pytest.mark.parametrize("word", WORDS)
def test_words_that_readers_disagree_on_are_quoted(word: str) -> None:
    assert documents.parse(write_text({"value": word}), Anything, "x.yaml").value == word


def test_one_object_in_two_places_is_written_twice() -> None:
    inner = ["x"]
    assert "&" not in write_text({"a": inner, "b": inner})
