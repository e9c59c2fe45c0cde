"""The poolside_v1 parsers: what is reasoning, content and tool call, however the text is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.reference.parsers import OutputParser

SCHEMA = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {},
}
CALL = (
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value> Lisbon </arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)


def read(pieces, thinking=None, tools=None):
    """(reasoning, content, [(name, arguments)]) of a text that comes in `pieces`."""
    parser = OutputParser(thinking, tools)
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    assert all(part.text for part in parts), "an empty part would be an empty frame"
    said = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in ("reasoning", "content")}
    calls = [part for part in parts if part.kind == "tool"]
    assert [call.call for call in calls] == list(range(len(calls)))
    return said["reasoning"], said["content"], [(call.name, call.text) for call in calls]


def test_without_parsers_the_raw_text_comes_through():
    text = f"<think>a</think>b{CALL}"
    assert read([text]) == ("", text, [])


def test_an_answer_that_begins_in_the_reasoning_is_cut_at_the_closing_tag():
    assert read(["I weigh it.</think>\n42"], thinking=True) == ("I weigh it.", "\n42", [])


def test_reasoning_that_was_cut_off_is_no_content():
    assert read(["I weigh"], thinking=True) == ("I weigh", "", [])


def test_an_opening_tag_that_the_model_repeats_is_not_shown():
    assert read(["<think>I weigh</think>42"], thinking=True) == ("I weigh", "42", [])


@pytest.mark.parametrize("text", ["</think>42", "<think>4</think>2", "4<think>2", "42</think></think>"])
def test_with_thinking_off_stray_tags_vanish_and_all_text_is_content(text):
    assert read([text], thinking=False) == ("", "42", [])


def test_an_unfinished_tag_at_the_end_is_text():
    assert read(["a </thi"], thinking=True) == ("a </thi", "", [])
    assert read(["a <tool_c"], tools=SCHEMA) == ("", "a <tool_c", [])


def test_a_tool_call_has_its_arguments_typed_by_the_schema():
    reasoning, content, calls = read([f"Look it up.</think>Sure.\n\n{CALL}\n"], thinking=True, tools=SCHEMA)
    assert (reasoning, content) == ("Look it up.", "Sure.")
    assert [(name, json.loads(text)) for name, text in calls] == [("get_weather", {"city": " Lisbon ", "days": 3})]


def test_two_calls_in_one_turn_are_numbered_and_the_text_between_them_kept():
    _, content, calls = read([f"{CALL}\n and \n<tool_call>now</tool_call>"], tools=SCHEMA)
    assert content == "and"
    assert calls[1] == ("now", "{}")


def test_a_tag_inside_an_argument_is_part_of_the_argument():
    text = "<tool_call>now<arg_key>s</arg_key><arg_value>a</tool_call>b <tool_call></arg_value></tool_call>"
    assert read([text], tools=SCHEMA)[2] == [("now", json.dumps({"s": "a</tool_call>b <tool_call>"}))]


@pytest.mark.parametrize(
    "value",
    ["NaN", "1e999", '"\\ud800"', "[" * 50_000, "{'a': 1}", " two words "],
    ids=["nan", "infinity", "half-surrogate", "too-deep", "python", "words"],
)
def test_a_value_that_is_no_strict_json_stays_a_string(value):
    [(_, arguments)] = read(
        [f"<tool_call>now<arg_key>x</arg_key><arg_value>{value}</arg_value></tool_call>"], tools={"now": {}}
    )[2]
    arguments.encode()
    assert json.loads(arguments, parse_constant=pytest.fail) == {"x": value}


def test_values_without_a_schema_are_read_as_json_where_they_are_json():
    text = "<tool_call>now<arg_key>x</arg_key><arg_value>[1, true]</arg_value></tool_call>"
    assert json.loads(read([text], tools={})[2][0][1]) == {"x": [1, True]}


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call></tool_call>",
        "<tool_call>two words</tool_call>",
        "<tool_call>now<arg_key>k</arg_key></tool_call>",
        "<tool_call>now<arg_value>v</arg_value></tool_call>",
        "<tool_call>now<arg_key>k<arg_key></arg_key><arg_value>v</arg_value></tool_call>",
        "<tool_call>now <b>",
        "<tool_call>now<arg_key>k</arg_key><arg_value>v",
        "<tool_call>now",
        "<tool_call>",
    ],
)
def test_a_malformed_call_stays_in_the_content(text):
    assert read([f"a {text}"], tools=SCHEMA) == ("", f"a {text}", [])


def test_a_whole_call_after_a_malformed_one_is_found():
    _, content, calls = read([f"<tool_call>oh no {CALL}"], tools=SCHEMA)
    assert content == "<tool_call>oh no"
    assert [name for name, _ in calls] == ["get_weather"]


def test_text_flows_before_the_end_of_the_answer():
    parser = OutputParser(True, SCHEMA)
    assert [part.text for part in parser.feed("word")] == ["word"]
    assert [part.kind for part in parser.feed("</think>so")] == ["content"]
    assert [part.kind for part in parser.feed(CALL)] == ["tool"]


TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
TEXTS = st.lists(st.sampled_from([*TAGS, CALL, "<", "<t", "now", "x ", "\n", "é", " 3"]), max_size=12).map("".join)
CUTS = st.lists(st.integers(0, 300), max_size=8)


def cut(text, cuts):
    edges = [0, *sorted(min(at, len(text)) for at in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


@given(TEXTS, CUTS, st.sampled_from([None, False, True]), st.booleans())
def test_how_a_stream_is_cut_never_changes_the_answer(text, cuts, thinking, with_tools):
    tools = SCHEMA if with_tools else None
    whole = read([text], thinking, tools)
    assert read(cut(text, cuts), thinking, tools) == whole
    assert read(list(text), thinking, tools) == whole


@given(TEXTS, st.booleans())
def test_no_thinking_tag_reaches_content_or_reasoning(text, thinking):
    reasoning, content, _ = read([text], thinking)
    assert not any(tag in reasoning + content for tag in ("<think>", "</think>"))


@given(TEXTS)
def test_without_calls_every_character_is_kept(text):
    reasoning, content, calls = read([text], None, SCHEMA)
    if not calls:
        assert reasoning + content == text
