"""The text side of a checkpoint: the template's sandbox, what messages become, and the tokenizer's edges."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from slipway.reference import checkpoint
from slipway.reference.chat import ChatText, TemplateRefusal, generation_defaults


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint.generate(tmp_path_factory.mktemp("laguna")).folder


@pytest.fixture(scope="module")
def text(folder):
    return ChatText.load(folder)


@pytest.fixture(scope="module")
def templated(folder):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda template: ChatText(tokenizer, template, {"bos_token": "<s>"})


def user(content):
    return [{"role": "user", "content": content}]


SHOW = "{{ messages[0] | tojson }}"


def shown(templated, message):
    return json.loads(templated(SHOW).render([message], None, {}))


def test_text_parts_are_joined(templated):
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    assert shown(templated, {"role": "user", "content": parts})["content"] == "abc"


def test_reasoning_of_earlier_turns_is_there_under_both_names(templated):
    for name in ("reasoning", "reasoning_content"):
        told = shown(templated, {"role": "assistant", "content": "a", name: "because"})
        assert (told["reasoning"], told["reasoning_content"]) == ("because", "because")


@pytest.mark.parametrize(
    ("given_arguments", "told"),
    [('{"a": 1}', {"a": 1}), ("", {}), ("{", "{"), ({"a": 1}, {"a": 1})],
)
def test_arguments_of_earlier_calls_become_objects_where_they_are_json(templated, given_arguments, told):
    call = {"function": {"name": "f", "arguments": given_arguments}}
    message = shown(templated, {"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == told


def test_odd_calls_are_left_to_the_template(templated):
    assert shown(templated, {"role": "assistant", "tool_calls": ["f"]})["tool_calls"] == ["f"]


def test_prompts_are_not_escaped_for_html(templated):
    assert templated("{{ messages[0].content | tojson }}").render(user("<a> & 'é'"), None, {}) == "\"<a> & 'é'\""


def test_special_tokens_and_kwargs_reach_the_template_but_cannot_replace_the_messages(templated):
    template = "{{ bos_token }}{{ mood }}{{ messages[0].content }}{{ add_generation_prompt }}"
    kwargs = {"mood": "!", "messages": [], "add_generation_prompt": False}
    assert templated(template).render(user("x"), None, kwargs) == "<s>!xFalse"


def test_templates_know_the_date(templated):
    assert len(templated("{{ strftime_now('%Y') }}").render(user("x"), None, {})) == 4


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ 1 / 0 }}", "refuses these messages"),
    ],
)
def test_a_template_that_fails_or_reaches_out_of_its_sandbox_refuses_the_request(templated, template, why):
    with pytest.raises(TemplateRefusal, match=why):
        templated(template).render(user("x"), None, {})


def test_without_a_template_there_is_no_chat(templated):
    with pytest.raises(TemplateRefusal, match="no chat template"):
        templated(None).render(user("x"), None, {})


def test_a_template_may_stand_in_the_tokenizers_configuration(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    config = {"chat_template": "{{ bos_token }}hello", "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatText.load(tmp_path).render(user("x"), None, {}) == "<s>hello"


def test_thinking_changes_only_how_the_prompt_ends(text):
    on, off = (text.render(user("Hi"), None, {"enable_thinking": on}) for on in (True, False))
    assert on.removesuffix("<think>") == off.removesuffix("</think>")


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_a_stream_of_tokens_is_the_text_that_they_decode_to(text, written):
    ids = text.encode(written, special=False)
    detokenizer = text.detokenizer(shown=(), eos=frozenset(), skip_special=False)
    pieces = [detokenizer.add(token_id) for token_id in ids] + [detokenizer.flush()]
    assert "".join(pieces) == text.decode(ids)
    assert len(text.decode(ids)) <= text.most_characters(len(ids))


def test_ends_and_special_tokens_are_hidden_but_marks_that_a_parser_needs_are_not(text):
    ids = text.encode("〈|EOS|〉a</assistant><think>b", special=False)
    eos = frozenset(text.encode("</assistant>", special=False))

    def read(*, skip):
        detokenizer = text.detokenizer(shown=("<think>",), eos=eos, skip_special=skip)
        return "".join([*map(detokenizer.add, ids), detokenizer.flush()])

    assert read(skip=True) == "a<think>b"
    assert read(skip=False) == "〈|EOS|〉a</assistant><think>b"


@pytest.mark.parametrize(
    ("config", "sampling", "ends"),
    [
        ({}, {}, set()),
        ({"eos_token_id": 2, "top_k": 20}, {"top_k": 20}, {2}),
        ({"eos_token_id": [2, 24], "temperature": 0.7, "top_p": None}, {"temperature": 0.7}, {2, 24}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0}, set()),
    ],
)
def test_generation_defaults_are_those_of_the_checkpoint(tmp_path, config, sampling, ends):
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    defaults = generation_defaults(tmp_path)
    assert (defaults.sampling, defaults.eos_token_ids) == (sampling, ends)


def test_a_checkpoint_without_generation_defaults_samples_plainly(tmp_path):
    assert generation_defaults(tmp_path).sampling == {}
