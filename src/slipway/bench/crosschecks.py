"""Ways in which a wrong number would show, computed for every result. Pure.

Each has its origin in a published result that was wrong and looked right: tokens credited that were never sent, a
prefix cache that answered, a claimed concurrency that was not reached.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slipway.bench.result import CrossCheck, Load, RequestRecord

LAG_LIMIT_MS = 50.0
"""A loop later than this adds to the times it measures."""

_GENERATED = re.compile(r"^[a-z_]+:generation_tokens(?:_total)?(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE)
_PREFIX_HITS = re.compile(r"^vllm:prefix_cache_hits(?:_total)?(?:\{[^}]*\})? ([0-9.eE+]+)", re.MULTILINE)


@dataclass(frozen=True)
class Circumstances:
    """What the run was done under: the served names (None: not told), the server's metrics around it, and the rest."""

    model: str
    served: tuple[str, ...] | None
    metrics_before: str | None
    metrics_after: str | None
    overhead_tokens: int | None
    counted_prompts: bool
    mean_concurrency: float
    lag_ms: float


def cross_checks(load: Load, records: Sequence[RequestRecord], around: Circumstances) -> tuple[CrossCheck, ...]:
    """Every cross-check's verdict on the measured `records`."""
    completed = [record for record in records if record.completed]
    return (
        _model_served(around),
        _all_completed(records),
        _output_length(load, completed),
        _prompt_length(load, completed, around),
        _frames_within_usage(completed),
        _server_tokens(completed, around),
        _fresh_prompts(load, completed, around),
        _little(load, around),
        _client_kept_up(around),
    )


def generated_tokens(metrics: str | None) -> float | None:
    """The server's own count of generated tokens, summed over engines; None where it is not told."""
    return _sum(_GENERATED, metrics)


def _sum(pattern: re.Pattern[str], metrics: str | None) -> float | None:
    found = pattern.findall(metrics or "")
    return sum(map(float, found)) if found else None


def _model_served(around: Circumstances) -> CrossCheck:
    if around.served is None:
        return CrossCheck(id="model-served", ok=None, detail="the endpoint does not list its models")
    ok = around.model in around.served
    return CrossCheck(
        id="model-served",
        ok=ok,
        detail=f"{around.model} is {'' if ok else 'not '}in /v1/models"
        + ("" if ok else "; some engines answer to any name"),
    )


def _all_completed(records: Sequence[RequestRecord]) -> CrossCheck:
    completed = sum(record.completed for record in records)
    return CrossCheck(
        id="all-completed", ok=completed == len(records), detail=f"{completed} of {len(records)} requests completed"
    )


def _output_length(load: Load, completed: Sequence[RequestRecord]) -> CrossCheck:
    """Early stops and silently clipped lengths make a run look cheaper than what was asked for."""
    if not completed:
        return CrossCheck(id="output-length", ok=None, detail="nothing completed")
    exact = sum(record.completion_tokens == load.output_tokens for record in completed)
    return CrossCheck(
        id="output-length",
        ok=exact == len(completed),
        detail=f"{exact} of {len(completed)} answers have the {load.output_tokens} tokens asked for",
    )


def _prompt_length(load: Load, completed: Sequence[RequestRecord], around: Circumstances) -> CrossCheck:
    lengths = [record.prompt_tokens or 0 for record in completed]
    if not lengths:
        return CrossCheck(id="prompt-length", ok=None, detail="nothing completed")
    share = 0.0 if around.counted_prompts else 0.2
    ok = all(abs(length - load.input_tokens) <= share * load.input_tokens for length in lengths)
    told = "counted by /tokenize" if around.counted_prompts else "guessed from words, 20 % allowed"
    return CrossCheck(
        id="prompt-length",
        ok=ok,
        detail=f"prompts have {min(lengths)} to {max(lengths)} tokens, {load.input_tokens} asked for ({told})",
    )


def _frames_within_usage(completed: Sequence[RequestRecord]) -> CrossCheck:
    """A frame of text holds at least a token, so usage below the frames is false; a tool parser may add one or two."""
    if not completed:
        return CrossCheck(id="frames-within-usage", ok=None, detail="nothing completed")
    worst = max(len(record.frames_ms) - (record.completion_tokens or 0) for record in completed)
    return CrossCheck(
        id="frames-within-usage",
        ok=worst <= 2,
        detail="no answer has more token frames than tokens" if worst <= 0 else f"{worst} frames more than tokens",
    )


def _server_tokens(completed: Sequence[RequestRecord], around: Circumstances) -> CrossCheck:
    before, after = generated_tokens(around.metrics_before), generated_tokens(around.metrics_after)
    if before is None or after is None:
        return CrossCheck(id="server-tokens", ok=None, detail="the endpoint has no generation_tokens counter")
    client = sum(record.completion_tokens or 0 for record in completed)
    server = round(after - before)
    extra = f"; {server - client} more than ours: failed requests or other traffic" if server > client else ""
    return CrossCheck(
        id="server-tokens",
        ok=server >= client,
        detail=f"usage adds up to {client}, the server's counter rose by {server}{extra}",
    )


def _fresh_prompts(load: Load, completed: Sequence[RequestRecord], around: Circumstances) -> CrossCheck:
    """Only the template's fixed beginning may come from the prefix cache."""
    if not completed:
        return CrossCheck(id="fresh-prompts", ok=None, detail="nothing completed")
    told = [record.cached_tokens for record in completed if record.cached_tokens is not None]
    by = "usage"
    cached: float | None = sum(told) if len(told) == len(completed) else None
    if cached is None:
        before, after = _sum(_PREFIX_HITS, around.metrics_before), _sum(_PREFIX_HITS, around.metrics_after)
        cached, by = (
            (after - before, "vllm:prefix_cache_hits") if before is not None and after is not None else (None, "")
        )
    if cached is None:
        return CrossCheck(
            id="fresh-prompts",
            ok=None,
            detail="cached tokens are not reported (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report)",
        )
    each = load.input_tokens // 10 if around.overhead_tokens is None else around.overhead_tokens
    allowed = each * len(completed)
    return CrossCheck(
        id="fresh-prompts",
        ok=cached <= allowed,
        detail=f"{cached:.0f} prompt tokens came from the prefix cache by {by}, at most {allowed} are the template's",
    )


def _little(load: Load, around: Circumstances) -> CrossCheck:
    mean, cap = around.mean_concurrency, load.concurrency
    return CrossCheck(
        id="little",
        ok=0.9 * cap <= mean <= 1.001 * cap,
        detail=f"on average {mean:.2f} of {cap} streams were open (90 % are needed to speak of {cap}; "
        "more requests per stream shorten the ramp and tail)",
    )


def _client_kept_up(around: Circumstances) -> CrossCheck:
    return CrossCheck(
        id="client-kept-up",
        ok=around.lag_ms <= LAG_LIMIT_MS,
        detail=f"the client's loop was at most {around.lag_ms:.1f} ms late (limit {LAG_LIMIT_MS:.0f} ms)",
    )
