"""SGLang's spelling of answers.

Source: answers of SGLang 0.5.16, recorded 2026-11-30 through its router; the flat error object is the worker's own, read
in its source.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from slipway.reference.answers import Choice, Head, Piece, Usage
from slipway.reference.dress import Dress, Json, Prompt
from slipway.reference.metrics import EngineFacts, EngineStats, sglang_stats, sglang_text
from slipway.reference.parsers import Part
from slipway.reference.protocol import Refusal
from slipway.reference.scheduler import Finish


class SglangDress(Dress):
    """SGLang 0.5.16; `report_cached` is `--enable-cache-report`, `mode` that of a prefill/decode pair."""

    name = "sglang"
    block_size_tokens = 1
    """Its default page size; the recorded answers reuse all of a repeated prompt but the last token."""
    knows_models = False

    def __init__(self, *, report_cached: bool, mode: str = "unified") -> None:
        super().__init__(report_cached=report_cached)
        self._mode = mode

    def new_id(self, kind: str) -> str:
        return f"call_{secrets.token_hex(12)}" if kind == "tool" else secrets.token_hex(16)

    def chat(self, head: Head, choices: Sequence[Choice], usage: Usage) -> Json:
        told = [
            {
                "index": choice.index,
                "message": {
                    "role": "assistant",
                    "content": choice.content,
                    "reasoning_content": choice.reasoning or None,
                    "tool_calls": _calls(choice) or None,
                },
                "logprobs": choice.logprobs,
                **_ending(choice.finish),
            }
            for choice in choices
        ]
        return self._whole(head, "chat.completion", told, usage)

    def completion(self, head: Head, choices: Sequence[Choice], usage: Usage) -> Json:
        told = [
            {
                "index": choice.index,
                "text": choice.content,
                "logprobs": choice.logprobs,
                **_ending(choice.finish),
            }
            for choice in choices
        ]
        return self._whole(head, "text_completion", told, usage)

    def role_frame(self, head: Head, index: int, usage: Usage | None) -> Json:
        return _chat_frame(head, index, {"role": "assistant", "content": ""}, None)

    def chat_frames(self, head: Head, piece: Piece) -> list[Json]:
        frames = []
        logprobs = piece.logprobs
        for delta in [delta for part in piece.parts for delta in _deltas(part, piece)]:
            frames.append(_chat_frame(head, piece.index, delta, None, logprobs))
            logprobs = None
        if piece.finish:
            frames.append(_chat_frame(head, piece.index, {}, piece.finish, logprobs))
        return frames

    def completion_frame(self, head: Head, piece: Piece) -> Json:
        choice = {
            "index": piece.index,
            "text": "".join(part.text for part in piece.parts),
            "logprobs": piece.logprobs,
            **_ending(piece.finish),
        }
        return {**_frame(head, "text_completion", [choice]), "usage": None}

    def usage_frame(self, head: Head, kind: str, usage: Usage) -> Json:
        told = self._usage(usage)
        if told["prompt_tokens_details"] is None:
            del told["prompt_tokens_details"]
        return {**_frame(head, kind, []), "usage": told}

    def error(self, refusal: Refusal) -> Json:
        told = {"object": "error", "message": refusal.message, "type": refusal.kind}
        return {**told, "param": refusal.param, "code": refusal.status}

    def stream_error(self, refusal: Refusal) -> Json:
        return {"error": self.error(refusal)}

    def check_length(self, prompt: Prompt, asked_tokens: int | None, window_tokens: int) -> None:
        if prompt.tokens >= window_tokens:
            window = f"longer than the model's context length ({window_tokens} tokens)"
            raise Refusal(400, "BadRequestError", f"The input ({prompt.tokens} tokens) is {window}.")
        asked = asked_tokens or 1
        if prompt.tokens + asked > window_tokens:
            total = f"{prompt.tokens} input tokens and {asked} completion tokens"
            said = (
                f"Requested token count exceeds the model's maximum context length of {window_tokens} tokens: {total}."
            )
            raise Refusal(400, "BadRequestError", said)

    def stats(self) -> EngineStats:
        return sglang_stats()

    def metrics(self, stats: EngineStats, facts: EngineFacts) -> str:
        return sglang_text(stats, facts, self._mode)

    def _whole(self, head: Head, kind: str, choices: list[Json], usage: Usage) -> Json:
        return {
            **_frame(head, kind, choices),
            "usage": self._usage(usage),
            "metadata": {"weight_version": "default"},
        }

    def _usage(self, usage: Usage) -> Json:
        reported = self.report_cached and usage.cached_tokens > 0
        return {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "completion_tokens": usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens} if reported else None,
            "reasoning_tokens": usage.reasoning_tokens,
        }


def _frame(head: Head, kind: str, choices: list[Json]) -> Json:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": choices}


def _chat_frame(head: Head, index: int, delta: Json, finish: Finish | None, logprobs: object = None) -> Json:
    told = {"index": index, "delta": {"reasoning_content": None, **delta}, "logprobs": logprobs, **_ending(finish)}
    return _frame(head, "chat.completion.chunk", [told])


def _ending(finish: Finish | None) -> Json:
    if finish is None:
        return {"finish_reason": None, "matched_stop": None}
    return {"finish_reason": finish.reason, "matched_stop": finish.eos if finish.matched is None else finish.matched}


def _calls(choice: Choice) -> list[Json]:
    return [
        {
            "id": call.id,
            "index": number,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(choice.tool_calls)
    ]


def _deltas(part: Part, piece: Piece) -> list[Json]:
    if part.kind != "tool":
        return [{"reasoning_content" if part.kind == "reasoning" else "content": part.text}]
    call_id, number = piece.call_ids[part.call], {"index": part.call, "type": "function"}
    return [
        {"tool_calls": [{"id": call_id, **number, "function": {"name": part.name, "arguments": ""}}]},
        {"tool_calls": [{"id": None, **number, "function": {"name": None, "arguments": part.text}}]},
    ]
