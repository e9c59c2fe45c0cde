"""The engine's loop: one worker thread that interleaves all running sequences token by token.

Requests come in from any thread by `submit` and `abort`; results leave on the worker thread through each sequence's
`sink`. All arithmetic and the prefix cache stay on the worker, so nothing there needs a lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.reference.detokenizer import Detokenizer, StopFilter
from slipway.reference.metrics import EngineStats
from slipway.reference.prefix_cache import PrefixCache
from slipway.reference.sampling import Picked, Sampler, SamplingParams

log = logging.getLogger("slipway.reference")

PREFILL_CHUNK_TOKENS = 256
"""Prompt tokens computed before the other sequences get their next token; small, so that streams keep flowing."""

PREFIX_CACHE_TOKENS = 131_072
"""Tokens of earlier prompts kept at most, unless one prompt may be longer: a few hundred MB with a tiny model."""


class LanguageModel(Protocol):
    """What the scheduler needs of a model."""

    def cache(self) -> Any:
        """An empty KV cache: `length` tokens, and `prefix(length)` for an independent copy of its beginning."""

    def logits(self, token_ids: Sequence[int], cache: Any) -> NDArray[np.float32]:
        """The logits [vocabulary] after the last of `token_ids`, which are appended to `cache`."""


@dataclass(frozen=True)
class Limits:
    """What the engine holds at once."""

    max_model_len_tokens: int
    max_num_seqs: int
    block_size_tokens: int
    kv_pool_tokens: int
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended; `matched` is the stop string or stop token that was asked for and reached, `eos` the model's own."""

    reason: str
    matched: str | int | None = None
    eos: int | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one sequence: text that became whole, the tokens made so far, and at the end a finish or an error."""

    index: int
    text: str
    made_tokens: int
    cached_tokens: int
    picked: tuple[Picked, ...] = ()
    finish: Finish | None = None
    error: str | None = None


@dataclass(frozen=True)
class Prefilled:
    """A prompt that another engine has computed: its KV cache, the logits after it, and how much of it that engine had cached."""

    cache: Any
    logits: NDArray[np.float32]
    cached_tokens: int


class SequenceJob:
    """One sequence to generate: a prompt, how to sample, and where its deltas go (called on the worker thread).

    `prefilled` is set where the prompt was computed elsewhere; `hand_over` is called with the cache and the last logits where it
    is computed here for somebody else.
    """

    def __init__(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        detokenizer: Detokenizer,
        sink: Callable[[Delta], None],
        index: int = 0,
    ) -> None:
        self.index = index
        self.params = params
        self.prompt_ids = np.asarray(prompt_ids, dtype=np.int32)
        self.arrived_s = time.monotonic()
        self.aborted = False
        self._detokenizer = detokenizer
        self._stop = StopFilter(params.stop, include=params.include_stop)
        self._sink = sink
        self.made: list[int] = []
        self.cached_tokens = 0
        self.prefilled: Prefilled | None = None
        self.hand_over: Callable[[Any, NDArray[np.float32]], None] | None = None

    def accept(self, picked: Picked, *, end: Finish | None) -> Delta:
        """Take a chosen token; gives back the news, to be sent. `end` says that the token itself ends the sequence."""
        self.made.append(picked.token_id)
        text, finish = "", end
        if not end:
            text, matched = self._stop.feed(self._detokenizer.add(picked.token_id))
            if matched is not None:
                finish = Finish("stop", matched)
            elif len(self.made) >= self.params.max_tokens:
                finish = Finish("length")
        if finish and not isinstance(finish.matched, str):
            tail, matched = self._stop.feed(self._detokenizer.flush())
            text += tail
            if matched is None:
                text += self._stop.flush()
            else:
                finish = Finish("stop", matched)
        kept = () if self.params.logprobs is None else (picked,)
        return Delta(self.index, text, len(self.made), self.cached_tokens, kept, finish)

    def send(self, delta: Delta) -> None:
        """Hand `delta` to the reader, unless it says nothing yet or the reader has gone."""
        if not self.aborted and (delta.text or delta.finish or delta.picked or delta.error):
            self._sink(delta)

    def fail(self, error: str) -> None:
        """Tell the reader that no more will come, and why."""
        self.send(Delta(self.index, "", len(self.made), self.cached_tokens, error=error))


@dataclass(eq=False)
class _Running:
    job: SequenceJob
    sampler: Sampler
    cache: Any
    fed_tokens: int
    last_token_s: float = 0.0


class Scheduler:
    """Runs sequences on its own thread from construction until `stop`."""

    def __init__(
        self, model: LanguageModel, limits: Limits, stats: EngineStats, eos_token_ids: frozenset[int] = frozenset()
    ) -> None:
        self.limits = limits
        self.stats = stats
        self._model = model
        self._eos = eos_token_ids
        kept_tokens = min(limits.kv_pool_tokens, max(limits.max_model_len_tokens, PREFIX_CACHE_TOKENS))
        self._prefixes: PrefixCache[Any] = PrefixCache(limits.block_size_tokens, kept_tokens)
        self._waiting: deque[SequenceJob] = deque()
        self._running: list[_Running] = []
        self._news = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def submit(self, jobs: Sequence[SequenceJob]) -> None:
        """Queue `jobs` in order; they start as soon as fewer than `max_num_seqs` sequences run."""
        with self._news:
            if not self._stopping:
                self._waiting.extend(jobs)
                self._news.notify()
                return
        for job in jobs:
            job.fail("the engine is shutting down")

    def abort(self, jobs: Sequence[SequenceJob]) -> None:
        """Stop generating `jobs` as soon as the token under way is done; nothing more is sent for them."""
        with self._news:
            for job in jobs:
                job.aborted = True
            self._news.notify()

    @property
    def alive(self) -> bool:
        """True while sequences are taken and generated."""
        return self._thread.is_alive() and not self._stopping

    def stop(self, timeout_s: float = 0.0) -> None:
        """End the loop; every unfinished sequence gets an error. Waits at most `timeout_s` for the token under way."""
        with self._news:
            self._stopping = True
            self._news.notify()
        self._thread.join(timeout_s)

    def _loop(self) -> None:
        while self._await_work():
            for running in list(self._running):
                self._advance(running)
                if self._stopping:
                    break
        for job in [*(running.job for running in self._running), *self._waiting]:
            job.fail("the engine is shutting down")
        self._running.clear()
        self._waiting.clear()
        self._count()

    def _await_work(self) -> bool:
        """Block until a sequence runs; False once the engine stops."""
        with self._news:
            while not self._stopping:
                self._drop_aborted()
                while self._waiting and len(self._running) < self.limits.max_num_seqs:
                    self._running.append(self._start(self._waiting.popleft()))
                self._count()
                if self._running:
                    return True
                self._news.wait()
        return False

    def _drop_aborted(self) -> None:
        for gone in [running for running in self._running if running.job.aborted]:
            self._running.remove(gone)
            self.stats.finished("abort", gone.job)
        for job in [job for job in self._waiting if job.aborted]:
            self._waiting.remove(job)
            self.stats.finished("abort", job)

    def _start(self, job: SequenceJob) -> _Running:
        if job.prefilled:
            job.cached_tokens = job.prefilled.cached_tokens
            self.stats.started(job)
            return _Running(job, Sampler(job.params, job.prompt_ids, self._eos), job.prefilled.cache, 0)
        found = self._prefixes.find(job.prompt_ids) if self.limits.prefix_caching else None
        job.cached_tokens = found[1] if found else 0
        cache = found[0].prefix(found[1]) if found else self._model.cache()
        self.stats.started(job)
        return _Running(job, Sampler(job.params, job.prompt_ids, self._eos), cache, job.cached_tokens)

    def _advance(self, running: _Running) -> None:
        """One chunk of the prompt, or one token."""
        try:
            delta = self._step(running)
        except Exception as error:
            # Whatever the model raises belongs to this sequence's reader; the others go on.
            log.exception("sequence failed after %d tokens", len(running.job.made))
            self._running.remove(running)
            self.stats.finished("error", running.job)
            self._count()
            running.job.fail(f"{type(error).__name__}: {error}")
            return
        if delta and delta.finish:
            self._running.remove(running)
            self.stats.finished(delta.finish.reason, running.job)
            self._remember(running)
            # Before the reader hears of it, so that who has an answer finds it in the metrics.
            self._count()
        if delta:
            running.job.send(delta)

    def _step(self, running: _Running) -> Delta | None:
        job, prompt_tokens = running.job, running.job.prompt_ids.size
        prefill = running.fed_tokens < prompt_tokens
        if prefill and job.prefilled:
            logits, running.fed_tokens = job.prefilled.logits, prompt_tokens
        else:
            unfed = job.prompt_ids[running.fed_tokens : running.fed_tokens + PREFILL_CHUNK_TOKENS].tolist()
            chunk = unfed if prefill else job.made[-1:]
            logits = self._model.logits(chunk, running.cache)
            running.fed_tokens += len(chunk)
        if running.fed_tokens < prompt_tokens:
            return None
        if prefill and job.hand_over:
            job.hand_over(running.cache, logits)
        picked = running.sampler.pick(logits)
        now = time.monotonic()
        if prefill:
            self.stats.first_token(job, now - job.arrived_s)
            self._remember(running)
        else:
            self.stats.next_token(now - running.last_token_s)
        running.last_token_s = now
        return job.accept(picked, end=self._end(job, picked.token_id))

    def _end(self, job: SequenceJob, token_id: int) -> Finish | None:
        if token_id in job.params.stop_token_ids:
            return Finish("stop", token_id)
        if token_id in self._eos and not job.params.ignore_eos:
            return Finish("stop", eos=token_id)
        return None

    def _remember(self, running: _Running) -> None:
        """Keep the cache for later prompts. It may still grow: only the tokens named here are ever copied from it."""
        if self.limits.prefix_caching:
            made = np.asarray(running.job.made, dtype=np.int32)
            tokens = np.concatenate([running.job.prompt_ids, made])[: running.fed_tokens]
            self._prefixes.keep(tokens, running.cache)

    def _count(self) -> None:
        self.stats.running, self.stats.waiting = len(self._running), len(self._waiting)
        self.stats.kv_used_tokens = sum(running.fed_tokens for running in self._running)
