"""The engine's loop: interleaving, limits, prefix reuse, cancelling, failing and stopping."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from slipway.reference.detokenizer import Detokenizer
from slipway.reference.metrics import vllm_stats
from slipway.reference.sampling import SamplingParams
from slipway.reference.scheduler import PREFILL_CHUNK_TOKENS, Finish, Limits, Scheduler, SequenceJob

VOCABULARY, EOS, POISON = 32, 31, -1


class Cache:
    def __init__(self, tokens=()):
        self.tokens = list(tokens)

    @property
    def length(self):
        return len(self.tokens)

    def prefix(self, length):
        return Cache(self.tokens[:length])


@dataclass
class CountingModel:
    """After token t comes t + 1; it notes each call, and waits for `turn` where the test holds it."""

    calls: list = field(default_factory=list)
    hold: bool = False
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def cache(self):
        return Cache()

    def logits(self, token_ids, cache):
        if self.hold:
            assert self.turn.acquire(timeout=10)
        if POISON in token_ids:
            raise FloatingPointError("poisoned")
        self.calls.append((list(token_ids), cache.length))
        cache.tokens += token_ids
        logits = np.zeros(VOCABULARY, dtype=np.float32)
        logits[(token_ids[-1] + 1) % VOCABULARY] = 9
        return logits


class Job:
    """A sequence with its deltas collected."""

    def __init__(self, prompt, max_tokens=3, **params):
        self.news = queue.Queue()
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)
        detokenizer = Detokenizer(lambda ids: "".join(chr(97 + i) for i in ids), frozenset({EOS}))
        self.job = SequenceJob(prompt, params, detokenizer, self.news.put)

    def deltas(self):
        found = []
        while not found or not (found[-1].finish or found[-1].error):
            found.append(self.news.get(timeout=10))
        return found

    def text(self):
        return "".join(delta.text for delta in self.deltas())


@pytest.fixture
def engine():
    """Makes schedulers and stops them."""
    made = []

    def make(model=None, seqs=4, block=4, **limits):
        limits = Limits(1000, seqs, block, 1000, **limits)
        made.append(Scheduler(model or CountingModel(), limits, vllm_stats(), frozenset({EOS})))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.stop(5)
        assert not scheduler.alive


def test_a_sequence_ends_at_its_length(engine):
    job = Job([1, 2])
    engine().submit([job.job])
    deltas = job.deltas()
    assert [delta.text for delta in deltas] == ["d", "e", "f"]
    assert deltas[-1].finish == Finish("length")
    assert deltas[-1].made_tokens == 3


def test_the_end_token_ends_it_and_is_counted_but_not_shown(engine):
    job = Job([28], max_tokens=9)
    engine().submit([job.job])
    last = job.deltas()[-1]
    assert (last.finish, last.made_tokens, last.text) == (Finish("stop", eos=EOS), 3, "")


def test_the_end_token_is_passed_over_on_request(engine):
    job = Job([28], max_tokens=4, ignore_eos=True, stop_token_ids=frozenset({0}))
    engine().submit([job.job])
    assert job.deltas()[-1].finish == Finish("stop", 0)


def test_a_stop_string_ends_it_and_is_cut_off(engine):
    job = Job([1], max_tokens=9, stop=("ef",))
    engine().submit([job.job])
    deltas = job.deltas()
    assert "".join(delta.text for delta in deltas) == "cd"
    assert deltas[-1].finish == Finish("stop", "ef")


def test_text_held_for_a_stop_string_that_never_came_is_given_at_the_end(engine):
    job = Job([1], max_tokens=3, stop=("eX",))
    engine().submit([job.job])
    assert job.text() == "cde"


def test_running_sequences_take_turns_token_by_token(engine):
    model = CountingModel(hold=True)
    scheduler = engine(model)
    first, second = Job([1], max_tokens=4), Job([11], max_tokens=4)
    scheduler.submit([first.job, second.job])
    model.turn.release(100)
    assert (first.text(), second.text()) == ("cdef", "mnop")
    owners = ["first" if ids[0] < 10 else "second" for ids, _ in model.calls]
    assert owners == ["first", "second"] * 4


def test_no_more_than_the_allowed_sequences_run_and_the_others_wait(engine):
    model = CountingModel(hold=True)
    scheduler = engine(model, seqs=2)
    jobs = [Job([10 * number + 1], max_tokens=2) for number in range(3)]
    scheduler.submit([job.job for job in jobs])
    model.turn.release(2)
    jobs[1].news.get(timeout=10)
    assert (scheduler.stats.running, scheduler.stats.waiting) == (2, 1)
    assert jobs[2].news.empty()
    model.turn.release(100)
    assert jobs[2].text() == "wx"


def test_a_long_prompt_is_read_in_chunks_between_the_tokens_of_others(engine):
    model = CountingModel(hold=True)
    scheduler = engine(model)
    short, long = Job([1], max_tokens=4), Job([20] * (2 * PREFILL_CHUNK_TOKENS + 1), max_tokens=1)
    scheduler.submit([short.job, long.job])
    model.turn.release(100)
    assert (short.text(), long.text()) == ("cdef", "v")
    assert [len(ids) for ids, _ in model.calls] == [1, PREFILL_CHUNK_TOKENS, 1, PREFILL_CHUNK_TOKENS, 1, 1, 1]


def test_a_repeated_prompt_is_computed_from_its_last_block_on(engine):
    model = CountingModel()
    scheduler = engine(model)
    prompt = list(range(10))
    for cached in (0, 8):
        job = Job(prompt)
        scheduler.submit([job.job])
        assert job.deltas()[-1].cached_tokens == cached
    assert [ids for ids, _ in model.calls if len(ids) > 1] == [prompt, [8, 9]]
    assert (scheduler.stats.prompt_tokens, scheduler.stats.cached_tokens) == (20, 8)


def test_an_answer_is_a_prefix_of_the_next_turn(engine):
    scheduler = engine(block=1)
    first = Job([1, 2], max_tokens=3)
    scheduler.submit([first.job])
    first.deltas()
    second = Job([1, 2, 3, 4, 5, 9])
    scheduler.submit([second.job])
    # The last token of an answer is never fed, so its keys and values are not there.
    assert second.deltas()[-1].cached_tokens == 4


def test_without_prefix_caching_everything_is_computed_again(engine):
    scheduler = engine(prefix_caching=False)
    for _ in range(2):
        job = Job(list(range(10)))
        scheduler.submit([job.job])
        assert job.deltas()[-1].cached_tokens == 0


def test_an_aborted_sequence_makes_room_and_is_counted(engine):
    model = CountingModel(hold=True)
    scheduler = engine(model, seqs=1)
    endless, waiting, next_one = Job([1], max_tokens=10**6), Job([2]), Job([11])
    scheduler.submit([endless.job, waiting.job, next_one.job])
    model.turn.release(1)
    endless.news.get(timeout=10)
    scheduler.abort([endless.job, waiting.job])
    model.turn.release(100)
    assert next_one.text() == "mno"
    assert endless.news.empty(), "an answer that nobody reads was sent"
    assert waiting.news.empty()
    assert scheduler.stats.finishes["abort"] == 2


def test_a_model_that_fails_ends_only_the_sequence_it_failed_on(engine, caplog):
    scheduler = engine()
    bad, good = Job([POISON]), Job([1])
    scheduler.submit([bad.job, good.job])
    assert bad.deltas()[-1].error == "FloatingPointError: poisoned"
    assert good.text() == "cde"
    assert scheduler.stats.finishes["error"] == 1
    assert scheduler.alive


def test_stopping_ends_what_runs_and_what_waits_with_an_error(engine):
    model = CountingModel(hold=True)
    scheduler = engine(model, seqs=1)
    running, waiting, late = Job([1], max_tokens=10**6), Job([2]), Job([3])
    scheduler.submit([running.job, waiting.job])
    model.turn.release(1)
    running.news.get(timeout=10)
    stopper = threading.Thread(target=scheduler.stop, args=(5,))
    stopper.start()
    model.turn.release(100)
    stopper.join()
    scheduler.submit([late.job])
    for job in (running, waiting, late):
        assert job.deltas()[-1].error == "the engine is shutting down"


def test_counters_follow_what_was_generated(engine):
    scheduler = engine()
    for job in (Job([1], max_tokens=5), Job([28], max_tokens=9)):
        scheduler.submit([job.job])
        job.deltas()
    assert scheduler.stats.generation_tokens == 8
    scheduler.stop(5)
    assert scheduler.stats.finishes == {"stop": 1, "length": 1, "abort": 0, "error": 0, "repetition": 0}
    assert (scheduler.stats.running, scheduler.stats.waiting) == (0, 0)
