"""Which token comes next: the sampling parameters of the OpenAI dialect and their arithmetic in numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class SamplingParams:
    """How one sequence is generated; the defaults sample from the model's own distribution."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    logprobs: int | None = None
    """How many alternatives to report beside the chosen token; None for no log probabilities at all."""


@dataclass(frozen=True, slots=True)
class Picked:
    """A chosen token; `logprob` is that of the model before any sampling parameter, `top` its best alternatives."""

    token_id: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Picks the tokens of one sequence; two samplers with the same seed pick alike."""

    def __init__(self, params: SamplingParams, prompt_ids: NDArray[np.int32], ends: frozenset[int]) -> None:
        """`ends` are the tokens that must not come before `min_tokens` were generated."""
        self._params = params
        self._random = np.random.default_rng(params.seed)
        self._prompt = np.unique(prompt_ids) if params.repetition_penalty != 1.0 else prompt_ids[:0]
        self._counts: dict[int, int] = {}
        self._made = 0
        self._ends = np.array(sorted(ends | params.stop_token_ids), dtype=np.intp)

    def pick(self, logits: Logits) -> Picked:
        """The next token from `logits` [vocabulary], which are not changed."""
        shaped = self._shape(logits)
        token_id = int(shaped.argmax()) if self._params.temperature == 0 else self._draw(shaped)
        self._counts[token_id] = self._counts.get(token_id, 0) + 1
        self._made += 1
        if self._params.logprobs is None:
            return Picked(token_id)
        logprobs = logits - np.logaddexp.reduce(logits)
        best = np.argsort(-logprobs, kind="stable")[: self._params.logprobs]
        return Picked(token_id, float(logprobs[token_id]), tuple((int(i), float(logprobs[i])) for i in best))

    def _shape(self, logits: Logits) -> Logits:
        """Bias, penalties and the ban on early ends."""
        params = self._params
        penalised = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0
        early = self._made < params.min_tokens and self._ends.size
        if not (params.logit_bias or penalised or early):
            return logits
        shaped = logits.copy()
        if penalised:
            self._penalise(shaped)
        for token_id, bias in params.logit_bias.items():
            shaped[token_id] += bias
        if early:
            shaped[self._ends] = -np.inf
        return shaped

    def _penalise(self, shaped: Logits) -> None:
        params = self._params
        made = np.fromiter(self._counts, dtype=np.intp, count=len(self._counts))
        counts = np.fromiter(self._counts.values(), dtype=np.float32, count=len(self._counts))
        if params.repetition_penalty != 1.0:
            seen = np.union1d(self._prompt.astype(np.intp), made)
            held = shaped[seen]
            shaped[seen] = np.where(held > 0, held / params.repetition_penalty, held * params.repetition_penalty)
        shaped[made] -= params.presence_penalty + params.frequency_penalty * counts

    def _draw(self, logits: Logits) -> int:
        """A token from what temperature, top-k, top-p and min-p leave."""
        params = self._params
        ids = np.arange(logits.size)
        if 0 < params.top_k < logits.size:
            ids = np.argpartition(-logits, params.top_k - 1)[: params.top_k]
        scaled = logits[ids].astype(np.float64)
        # The largest exponent becomes 0 before the division, so that a tiny temperature cannot overflow.
        chances = np.exp((scaled - scaled.max()) / params.temperature)
        chances /= chances.sum()
        if params.min_p > 0:
            chances[chances < params.min_p * chances.max()] = 0
        if params.top_p < 1:
            order = np.argsort(-chances, kind="stable")
            before = np.cumsum(chances[order]) - chances[order]
            chances[order[before >= params.top_p * chances.sum()]] = 0
        edges = np.cumsum(chances)
        return int(ids[np.searchsorted(edges, self._random.random() * edges[-1], side="right")])
