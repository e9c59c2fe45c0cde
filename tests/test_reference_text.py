"""Detokenizing, stop strings, sampling and the prefix cache: the engine's parts that need no model."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.reference.detokenizer import Detokenizer, StopFilter
from slipway.reference.prefix_cache import PrefixCache
from slipway.reference.sampling import Sampler, SamplingParams


def decode_bytes(ids):
    """A byte tokenizer; 256 and up are special tokens."""
    return b"".join(bytes([i]) if i < 256 else f"<{i}>".encode() for i in ids).decode("utf-8", "replace")


def feed(ids, hidden=()):
    detokenizer = Detokenizer(decode_bytes, frozenset(hidden))
    pieces = [detokenizer.add(token_id) for token_id in ids]
    return [*pieces, detokenizer.flush()]


@given(st.text(max_size=40))
def test_text_comes_out_whole_and_never_half_a_character(text):
    pieces = feed(text.encode("utf-8", "replace"))
    assert "".join(pieces) == text.encode("utf-8", "replace").decode()
    assert all("\ufffd" not in piece for piece in pieces if "\ufffd" not in text)


@given(st.lists(st.integers(0, 255), max_size=60))
def test_broken_bytes_are_shown_as_such_and_hold_back_nothing_for_long(ids):
    detokenizer = Detokenizer(decode_bytes, frozenset())
    shown = 0
    for count, token_id in enumerate(ids, 1):
        shown += len(detokenizer.add(token_id).encode("utf-8", "replace"))
        assert count - shown <= 16, "text is stuck"
    assert detokenizer.flush() or shown or not ids


def test_a_character_after_broken_bytes_is_still_whole():
    ids = [0x80] * 20 + list("é".encode())
    assert "".join(feed(ids)).endswith("é")


def test_a_character_cut_off_at_the_end_is_flushed_as_broken():
    assert feed([0xC3])[-1] == "\ufffd"


def test_special_tokens_have_no_text_unless_shown():
    assert "".join(feed([65, 300, 66], hidden=[300])) == "AB"
    assert "".join(feed([65, 300, 66])) == "A<300>B"


@given(
    st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.booleans()
)
def test_a_stop_string_ends_the_text_however_it_arrives(text, stops, include):
    def run(pieces):
        stop = StopFilter(tuple(stops), include=include)
        shown = ""
        for piece in pieces:
            part, matched = stop.feed(piece)
            shown += part
            if matched is not None:
                return shown, matched
        return shown + stop.flush(), None

    shown, matched = run(list(text))
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (shown, matched) == (text, None)
    else:
        assert text[: min(ends)] == shown + ("" if include else matched)
    assert run([text[i : i + 3] for i in range(0, len(text), 3)]) == (shown, matched)


LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], dtype=np.float32))


def sampler(prompt=(), ends=(), **params):
    return Sampler(SamplingParams(max_tokens=9, **params), np.array(prompt, dtype=np.int32), frozenset(ends))


def drawn(count=400, **params):
    picker = sampler(seed=1, **params)
    return [picker.pick(LOGITS).token_id for _ in range(count)]


def test_temperature_zero_takes_the_best_token():
    assert sampler(temperature=0.0).pick(LOGITS).token_id == 0


def test_a_tiny_temperature_does_not_overflow():
    assert set(drawn(20, temperature=1e-9)) == {0}


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others():
    assert drawn() == drawn()
    assert drawn() != [sampler(seed=2).pick(LOGITS).token_id for _ in range(400)]


def test_draws_follow_the_probabilities():
    counts = np.bincount(drawn(4000), minlength=4) / 4000
    assert np.allclose(counts, [0.5, 0.25, 0.15, 0.1], atol=0.04)


@pytest.mark.parametrize(
    ("params", "left"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_k": -1}, {0, 1, 2, 3}),
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.29}, {0, 1, 2}),
        ({"logit_bias": {0: -100.0}}, {1, 2, 3}),
        ({"top_k": 3, "top_p": 0.8}, {0, 1}),
    ],
    ids=str,
)
def test_filters_leave_only_the_likely_tokens(params, left):
    assert set(drawn(**params)) == left


def test_penalties_push_repeated_tokens_down():
    presence = sampler(temperature=0.0, presence_penalty=2.0)
    assert [presence.pick(LOGITS).token_id for _ in range(2)] == [0, 1]
    frequency = sampler(temperature=0.0, frequency_penalty=0.5)
    assert [frequency.pick(LOGITS).token_id for _ in range(3)] == [0, 0, 1]
    repetition = sampler(prompt=[0], temperature=0.0, repetition_penalty=2.0)
    assert repetition.pick(LOGITS + 3).token_id == 1


def test_an_end_is_not_picked_before_the_least_length():
    picker = sampler(temperature=0.0, min_tokens=1, ends=[0])
    assert [picker.pick(LOGITS).token_id for _ in range(2)] == [1, 0]


def test_log_probabilities_are_the_models_own_whatever_the_sampling():
    picked = sampler(temperature=0.0, logit_bias={3: 100.0}, logprobs=2).pick(LOGITS)
    assert picked.token_id == 3
    assert picked.logprob == pytest.approx(np.log(0.1), abs=1e-5)
    assert [token_id for token_id, _ in picked.top] == [0, 1]


def ids(*values):
    return np.array(values, dtype=np.int32)


def test_a_prompt_reuses_whole_blocks_and_computes_at_least_one_token():
    cache = PrefixCache(4, 100)
    cache.keep(ids(*range(10)), "kv")
    assert cache.find(ids(*range(10))) == ("kv", 8)
    assert cache.find(ids(*range(8))) == ("kv", 4), "the last token must be computed"
    assert cache.find(ids(0, 1, 2, 3, 9, 9)) == ("kv", 4)
    assert cache.find(ids(0, 1, 2, 9)) is None
    assert cache.find(ids(5)) is None


def test_with_one_token_blocks_all_but_the_last_token_is_reused():
    cache = PrefixCache(1, 100)
    cache.keep(ids(1, 2, 3), "kv")
    assert cache.find(ids(1, 2, 3)) == ("kv", 2)


def test_the_prompt_used_longest_ago_is_dropped_first():
    cache = PrefixCache(1, 6)
    cache.keep(ids(1, 1, 1), "one")
    cache.keep(ids(2, 2, 2), "two")
    assert cache.find(ids(1, 1, 9)) == ("one", 2)
    cache.keep(ids(3, 3, 3), "three")
    assert cache.find(ids(2, 2, 9)) is None
    assert cache.find(ids(1, 1, 9)) == ("one", 2)


def test_a_longer_conversation_replaces_its_own_beginning():
    cache = PrefixCache(1, 100)
    cache.keep(ids(1, 2), "turn 1")
    cache.keep(ids(1, 2, 3, 4), "turn 2")
    cache.keep(ids(1, 2, 3), "contained")
    assert cache.used_tokens == 4
    assert cache.find(ids(1, 2, 3, 4, 5)) == ("turn 2", 4)


def test_a_prompt_larger_than_the_pool_is_not_kept():
    cache = PrefixCache(1, 3)
    cache.keep(ids(1, 2, 3, 4), SimpleNamespace())
    assert cache.used_tokens == 0


def test_tokens_without_text_do_not_make_the_window_grow():
    widest = 0

    def decode(token_ids):
        nonlocal widest
        widest = max(widest, len(token_ids))
        return decode_bytes([token_id for token_id in token_ids if token_id < 256])

    detokenizer = Detokenizer(decode, frozenset())
    shown = [detokenizer.add(token_id) for token_id in [65, *[999] * 50, 66]]
    assert ("".join(shown), widest) == ("AB", 2)
