"""How an engine spells its answers: what both engines share, and vLLM's spelling.

Keys, their order, their types and what is null follow the recorded answers of vLLM 0.25.1 (here) and SGLang 0.5.16
(`dress_sglang`), not the OpenAI documents; values that would claim to be another program's are Slipway's own.

Source: answers of both engines on one H200, recorded 2026-11-30; trimmed copies stand in the tests' data.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from slipway.reference.answers import Choice, Head, Piece, Usage
from slipway.reference.metrics import EngineFacts, EngineStats, vllm_stats, vllm_text
from slipway.reference.parsers import Part
from slipway.reference.protocol import Refusal

Json = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """What the length check looks at; `characters` is None for a prompt given as token ids."""

    tokens: int
    characters: int | None
    most_characters_per_token: int


class Dress(ABC):
    """One engine's spelling; `report_cached` is its flag for cached tokens in the usage."""

    name: ClassVar[str]
    block_size_tokens: ClassVar[int]
    knows_models: ClassVar[bool]
    """Answers 404 for a model name that it does not serve."""

    def __init__(self, *, report_cached: bool) -> None:
        self.report_cached = report_cached

    @abstractmethod
    def new_id(self, kind: str) -> str:
        """A fresh id for an answer of `kind` chatcmpl or cmpl, or for a tool call (`tool`)."""

    @abstractmethod
    def chat(self, head: Head, choices: Sequence[Choice], usage: Usage) -> Json:
        """A whole chat answer."""

    @abstractmethod
    def completion(self, head: Head, choices: Sequence[Choice], usage: Usage) -> Json:
        """A whole completion."""

    @abstractmethod
    def role_frame(self, head: Head, index: int, usage: Usage | None) -> Json:
        """The first frame of a choice in a chat stream."""

    @abstractmethod
    def chat_frames(self, head: Head, piece: Piece) -> list[Json]:
        """The frames for news of a choice in a chat stream."""

    @abstractmethod
    def completion_frame(self, head: Head, piece: Piece) -> Json:
        """The frame for news of a choice in a completion stream."""

    @abstractmethod
    def usage_frame(self, head: Head, kind: str, usage: Usage) -> Json:
        """The last frame of a stream whose client asked for usage."""

    @abstractmethod
    def error(self, refusal: Refusal) -> Json:
        """The body of an error answer."""

    @abstractmethod
    def check_length(self, prompt: Prompt, asked_tokens: int | None, window_tokens: int) -> None:
        """Refuse a prompt that does not fit together with what was asked for; raises Refusal 400."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """Empty counters."""

    @abstractmethod
    def metrics(self, stats: EngineStats, facts: EngineFacts) -> str:
        """The counters as Prometheus text."""

    def stream_error(self, refusal: Refusal) -> Json:
        """The frame that ends a stream in which something went wrong."""
        return {
            "error": {"message": refusal.message, "type": refusal.kind, "param": refusal.param, "code": refusal.status}
        }


class VllmDress(Dress):
    """vLLM 0.25.1; `report_cached` is `--enable-prompt-tokens-details`."""

    name = "vllm"
    block_size_tokens = 16
    knows_models = True

    def new_id(self, kind: str) -> str:
        return f"{'chatcmpl-tool' if kind == 'tool' else kind}-{secrets.token_hex(8)}"

    def chat(self, head: Head, choices: Sequence[Choice], usage: Usage) -> Json:
        told = [
            {
                "index": choice.index,
                "message": _vllm_message(choice),
                "logprobs": choice.logprobs,
                **_vllm_finish(choice),
                "token_ids": None,
                "routed_experts": None,
            }
            for choice in choices
        ]
        nothing = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "metrics"))
        return {**self._whole(head, "chat.completion", told, usage), **nothing}

    def completion(self, head: Head, choices: Sequence[Choice], usage: Usage) -> Json:
        nothing = dict.fromkeys(("token_ids", "prompt_logprobs", "prompt_token_ids", "routed_experts"))
        told = [
            {
                "index": choice.index,
                "text": choice.content,
                "logprobs": choice.logprobs,
                **_vllm_finish(choice),
                **nothing,
            }
            for choice in choices
        ]
        whole = self._whole(head, "text_completion", told, usage)
        return {**whole, "kv_transfer_params": None, "metrics": None}

    def role_frame(self, head: Head, index: int, usage: Usage | None) -> Json:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        frame = _frame(head, "chat.completion.chunk", [choice])
        if usage:
            frame["usage"] = self._usage_so_far(usage)
        return {**frame, "prompt_token_ids": None, "prompt_text": None}

    def chat_frames(self, head: Head, piece: Piece) -> list[Json]:
        deltas = [delta for part in piece.parts for delta in _vllm_deltas(part, piece)]
        if piece.finish and not deltas:
            deltas = [{}]
        frames = []
        for number, delta in enumerate(deltas):
            last = number == len(deltas) - 1
            choice = {"index": piece.index, "delta": delta, "logprobs": piece.logprobs if not number else None}
            finish = piece.finish if last else None
            choice["finish_reason"] = finish.reason if finish else None
            if finish:
                choice["stop_reason"] = finish.matched
            frames.append(self._piece_frame(head, "chat.completion.chunk", {**choice, "token_ids": None}, piece))
        return frames

    def completion_frame(self, head: Head, piece: Piece) -> Json:
        finish = piece.finish
        choice = {
            "index": piece.index,
            "text": "".join(part.text for part in piece.parts),
            "logprobs": piece.logprobs,
            "finish_reason": finish.reason if finish else None,
            "stop_reason": finish.matched if finish else None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        return self._piece_frame(head, "text_completion", choice, piece)

    def usage_frame(self, head: Head, kind: str, usage: Usage) -> Json:
        told = self._usage_so_far(usage)
        if self.report_cached:
            told["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
        return {**_frame(head, kind, []), "usage": told, "system_fingerprint": head.fingerprint}

    def error(self, refusal: Refusal) -> Json:
        return self.stream_error(refusal)

    def check_length(self, prompt: Prompt, asked_tokens: int | None, window_tokens: int) -> None:
        asked = asked_tokens or 1
        most = max(window_tokens - asked, 0)
        start = (
            f"This model's maximum context length is {window_tokens} tokens. "
            f"However, you requested {asked} output tokens and your prompt contains "
        )
        end = "Please reduce the length of the input prompt or the number of requested output tokens. "
        most_characters = most * prompt.most_characters_per_token
        if prompt.characters is not None and prompt.characters > most_characters:
            bound = f"more than {most_characters} characters, which is the upper bound for {most} input tokens"
            where = f"(parameter=input_text, value={prompt.characters})"
            said = f"{start}{prompt.characters} characters ({bound}). {end}{where}"
            raise Refusal(400, "BadRequestError", said, "input_text")
        if prompt.tokens <= most:
            return
        # A text is read only until it is one token too long, and one token too many looks like such a text.
        tokens = prompt.tokens if prompt.characters is None else most + 1
        least = "at least " if tokens == most + 1 else ""
        count = f"{least}{tokens} input tokens, for a total of {least}{tokens + asked} tokens"
        where = f"(parameter=input_tokens, value={tokens})"
        raise Refusal(400, "BadRequestError", f"{start}{count}. {end}{where}", "input_tokens")

    def stats(self) -> EngineStats:
        return vllm_stats()

    def metrics(self, stats: EngineStats, facts: EngineFacts) -> str:
        return vllm_text(stats, facts)

    def _whole(self, head: Head, kind: str, choices: list[Json], usage: Usage) -> Json:
        details = {"cached_tokens": usage.cached_tokens, "multimodal_tokens": None} if self.report_cached else None
        return {
            **_frame(head, kind, choices),
            "service_tier": None,
            "system_fingerprint": head.fingerprint,
            "usage": {**self._usage_so_far(usage), "prompt_tokens_details": details},
        }

    def _piece_frame(self, head: Head, kind: str, choice: Json, piece: Piece) -> Json:
        frame = _frame(head, kind, [choice])
        if piece.usage:
            frame["usage"] = self._usage_so_far(piece.usage)
        if choice["finish_reason"] and not head.usage_wanted:
            frame["system_fingerprint"] = head.fingerprint
        return frame

    def _usage_so_far(self, usage: Usage) -> Json:
        return {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "completion_tokens": usage.completion_tokens,
        }


def _frame(head: Head, kind: str, choices: list[Json]) -> Json:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": choices}


def _vllm_message(choice: Choice) -> Json:
    # Content is null when all of the answer is reasoning or calls, but "" when a call was demanded and none came.
    nothing = choice.reasoning or choice.thinking or choice.tool_calls
    content = choice.content or (None if nothing and not choice.called_for else "")
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.tool_calls
    ]
    return {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": calls} if calls else {}),
        "reasoning": choice.reasoning or None,
    }


def _vllm_finish(choice: Choice) -> Json:
    return {"finish_reason": choice.finish.reason, "stop_reason": choice.finish.matched}


def _vllm_deltas(part: Part, piece: Piece) -> list[Json]:
    if part.kind != "tool":
        return [{part.kind: part.text}]
    named = {"id": piece.call_ids[part.call], "type": "function", "index": part.call}
    return [
        {"tool_calls": [{**named, "function": {"name": part.name, "arguments": ""}}]},
        {"tool_calls": [{"index": part.call, "function": {"arguments": part.text}}]},
    ]
