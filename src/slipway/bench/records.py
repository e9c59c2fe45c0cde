"""What each exchange amounts to: completed or failed and why, and its times. Pure; runs after the load.

A request counts as completed only if HTTP 200 came, no error frame, `[DONE]`, a good finish reason, usage, at least one
token in it, and at least one frame that carried text. Tokens come from usage only; frames are never counted as tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipway import sse
from slipway.bench.client import Exchange
from slipway.bench.result import RequestRecord
from slipway.endpoint import FINISH_REASONS, Endpoint
from slipway.sse import Answer


def records(exchanges: Sequence[Exchange], endpoint: Endpoint) -> list[RequestRecord]:
    """One record per exchange, in the same order; `start_ms` counts from the first request sent."""
    zero_s = min((exchange.sent_s for exchange in exchanges), default=0.0)
    return [_record(exchange, zero_s, endpoint) for exchange in exchanges]


def gaps_ms(record: RequestRecord) -> list[float]:
    """The times between the record's token frames."""
    return [later - earlier for earlier, later in zip(record.frames_ms, record.frames_ms[1:], strict=False)]


def _record(exchange: Exchange, zero_s: float, endpoint: Endpoint) -> RequestRecord:
    answer = sse.read(sse.frames(exchange.response.pieces)) if exchange.response.status == 200 else Answer()
    reason, detail = _failure(exchange, answer)
    end_s = answer.end_s if not reason and answer.end_s else exchange.end_s
    times: dict[str, Any] = {
        "e2e_ms": _ms(end_s - exchange.sent_s),
        "frames_ms": tuple(_ms(frame.arrival_s - exchange.sent_s) for frame in answer.token_frames),
    }
    return RequestRecord(
        index=exchange.index,
        stream=exchange.stream,
        completed=not reason,
        reason=reason,
        detail=endpoint.shown(detail),
        start_ms=_ms(exchange.sent_s - zero_s),
        connect_ms=None if exchange.connect_s is None else _ms(exchange.connect_s),
        finish_reason=endpoint.shown(answer.finish_reason) if answer.finish_reason else None,
        **_usage(answer),
        **times,
        **({} if reason else _timing(answer, exchange.sent_s, end_s)),
    )


def _failure(exchange: Exchange, answer: Answer) -> tuple[str, str]:
    """Why the exchange does not count, as (reason, detail); two empty texts when it does."""
    if exchange.failure and exchange.failure != "cut":
        return exchange.failure, exchange.detail
    status = exchange.response.status
    if status not in {0, 200}:
        return f"http {status}", sse.words_of(exchange.response.body())
    if answer.error is not None:
        return "error frame", answer.error
    if exchange.failure:
        return exchange.failure, exchange.detail
    if not answer.done:
        return "no [DONE]", "the stream ended early, though cleanly"
    if answer.finish_reason is None:
        return "no finish_reason", ""
    if answer.finish_reason not in FINISH_REASONS:
        return "bad finish_reason", answer.finish_reason
    if answer.usage is None:
        return "no usage", "tokens are never counted from frames"
    if answer.usage.completion_tokens < 1:
        return "zero tokens", ""
    if not answer.token_frames:
        return "no text", f"usage says {answer.usage.completion_tokens} tokens, and every frame was empty"
    return "", ""


def _usage(answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    if usage is None:
        return {}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def _timing(answer: Answer, sent_s: float, end_s: float) -> dict[str, Any]:
    """The derived times of a completed answer."""
    tokens = answer.usage.completion_tokens if answer.usage else 0
    first, last = answer.token_frames[0], answer.token_frames[-1]
    visible = next((frame for frame in answer.token_frames if frame.visible), None)
    first_frame_tokens, known_by = _first_frame(answer, tokens)
    later = tokens - first_frame_tokens
    decodes = later > 0 and len(answer.token_frames) > 1
    return {
        "ttft_any_ms": _ms(first.arrival_s - sent_s),
        "ttft_visible_ms": None if visible is None else _ms(visible.arrival_s - sent_s),
        "decode_ms_per_token": _ms((last.arrival_s - first.arrival_s) / later) if decodes else None,
        "client_wall_tok_s": round(tokens / (end_s - sent_s), 3) if end_s > sent_s else None,
        "first_frame_tokens": first_frame_tokens,
        "first_frame_known_by": known_by,
    }


def _first_frame(answer: Answer, tokens: int) -> tuple[int, str]:
    """How many of the `tokens` came in the first token frame, and how that is known.

    Without a running count it lies between 1 and tokens − (frames − 1), since each later frame has at least one; the
    share of the characters is the estimate in between. At 100 tokens a token more or less moves the decode time by 1 %.
    """
    frames = answer.token_frames
    if frames[0].tokens_so_far is not None and 0 < frames[0].tokens_so_far <= tokens:
        return frames[0].tokens_so_far, "frame usage"
    most = tokens - (len(frames) - 1)
    if most <= 1:
        return 1, "one token per frame"
    share = frames[0].characters / sum(frame.characters for frame in frames)
    return min(max(round(tokens * share), 1), most), "share of text"


def _ms(seconds: float) -> float:
    """Milliseconds to the microsecond; a clock that stands still gives zero, never less."""
    return round(max(seconds, 0.0) * 1000, 3)
