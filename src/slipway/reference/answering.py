"""One request from its prompt to its answer: jobs for the scheduler, parsers for its text, frames in the engine's dress."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slipway.reference.answers import Choice, Head, Piece, ToolCall, Usage
from slipway.reference.chat import ChatText, GenerationDefaults, TemplateRefusal
from slipway.reference.dress import Dress, Prompt
from slipway.reference.logprobs import chat_logprobs, completion_logprobs
from slipway.reference.parsers import REASONING_MARKS, TOOL_MARKS, OutputParser, Part
from slipway.reference.protocol import ChatRequest, CompletionRequest, Generate, Refusal, check_asked, sampling_params
from slipway.reference.sampling import Picked
from slipway.reference.scheduler import Delta, Finish, Scheduler, SequenceJob
from slipway.reference.transfer import Side


@dataclass(frozen=True)
class Served:
    """Everything that an answer depends on besides its request."""

    name: str
    window_tokens: int
    vocab_size: int
    fingerprint: str
    dress: Dress
    text: ChatText
    defaults: GenerationDefaults
    scheduler: Scheduler
    eos_token_ids: frozenset[int]
    reasoning_parser: bool = False
    tool_parser: bool = False
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    transfer: Side | None = None
    """Where this engine is one half of a prefill/decode pair."""


@dataclass
class _Open:
    """One choice while it is generated."""

    job: SequenceJob
    parser: OutputParser
    made_tokens: int = 0
    reasoning_tokens: int = 0
    begun: bool = False
    finish: Finish | None = None
    parts: list[Part] = field(default_factory=list)
    picked: list[Picked] = field(default_factory=list)
    text_offset: int = 0
    call_ids: dict[int, str] = field(default_factory=dict)


class Answer:
    """A prepared request; call `whole` or `stream`, once."""

    def __init__(self, served: Served, asked: Generate, *, chat: bool) -> None:
        self._served = served
        self._dress = served.dress
        self._asked = asked
        self._chat = chat
        self._stream_kind = "chat.completion.chunk" if chat else "text_completion"
        self._news: asyncio.Queue[Delta] = asyncio.Queue()
        self._open: list[_Open] = []
        self._called_for = False
        options = asked.stream_options
        self._continuous = bool(options and options.include_usage and options.continuous_usage_stats)
        self._head = Head(
            id=self._dress.new_id("chatcmpl" if chat else "cmpl"),
            model=asked.model or served.name,
            created=int(time.time()),
            fingerprint=served.fingerprint,
            usage_wanted=bool(options and options.include_usage),
        )

    @classmethod
    def to_chat(cls, served: Served, asked: ChatRequest) -> Answer:
        """The answer to a chat.

        Raises: Refusal.
        """
        answer = cls(served, asked, chat=True)
        tools = _tools(asked)
        kwargs = {**served.template_kwargs, **(asked.chat_template_kwargs or {})}
        prompt = render(served, asked.messages, asked.tools if tools else None, kwargs)
        # Both engines decide by the request, not by what the template did with it.
        thinking = bool(kwargs.get("enable_thinking") or kwargs.get("thinking")) if served.reasoning_parser else None
        calls = tools if served.tool_parser and tools else None
        answer._called_for = isinstance(asked.tool_choice, dict) or asked.tool_choice == "required"
        answer._add(prompt, special=False, parser=lambda: OutputParser(thinking, calls))
        return answer

    @classmethod
    def to_completion(cls, served: Served, asked: CompletionRequest) -> Answer:
        """The answer to one or several prompts.

        Raises: Refusal.
        """
        answer = cls(served, asked, chat=False)
        prompts = asked.prompts()
        if not prompts:
            raise Refusal(400, "BadRequestError", "prompt must not be empty", "prompt")
        for prompt in prompts:
            answer._add(prompt, special=True, parser=lambda: OutputParser(None, None))
        return answer

    async def whole(self) -> dict[str, Any]:
        """The whole answer as one JSON object.

        Raises: Refusal when the engine fails on it.
        """
        async with contextlib.aclosing(self._deltas()) as news:
            async for deltas in news:
                for delta in deltas:
                    self._take(delta)
        choices = [self._choice(opened) for opened in self._open]
        spell = self._dress.chat if self._chat else self._dress.completion
        return spell(self._head, choices, self._usage())

    async def stream(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events, one frame a token; an error becomes a frame, and `[DONE]` always comes."""
        try:
            async with contextlib.aclosing(self._deltas()) as news:
                async for deltas in news:
                    yield b"".join(event(frame) for delta in deltas for frame in self._frames(delta))
            if self._head.usage_wanted:
                yield event(self._dress.usage_frame(self._head, self._stream_kind, self._usage()))
        except Refusal as refusal:
            yield event(self._dress.stream_error(refusal))
        yield b"data: [DONE]\n\n"

    async def _deltas(self) -> AsyncGenerator[list[Delta]]:
        """All news until every choice has ended; whoever stops listening ends the generation."""
        jobs = [opened.job for opened in self._open]
        scheduler, transfer = self._served.scheduler, self._served.transfer
        try:
            if transfer:
                await transfer.prepare(self._asked, jobs, scheduler.stats)
            scheduler.submit(jobs)
            left = len(jobs)
            while left:
                deltas = [await self._news.get()]
                while not self._news.empty():
                    deltas.append(self._news.get_nowait())
                failed = next((delta.error for delta in deltas if delta.error), None)
                if failed is not None:
                    raise Refusal(500, "InternalServerError", failed)
                left -= sum(delta.finish is not None for delta in deltas)
                if transfer and not left:
                    await transfer.settle(self._asked)
                yield deltas
        finally:
            scheduler.abort(jobs)
            if transfer:
                transfer.forget(self._asked)

    def _add(self, prompt: str | list[int], *, special: bool, parser: Callable[[], OutputParser]) -> None:
        """Put `n` choices for `prompt` on the list."""
        served, asked = self._served, self._asked
        ids = _prompt_ids(served, prompt, special=special)
        most = served.text.most_characters(1)
        size = Prompt(len(ids), len(prompt) if isinstance(prompt, str) else None, most)
        served.dress.check_length(size, asked.asked_tokens(), served.window_tokens)
        max_tokens = asked.asked_tokens() or served.window_tokens - len(ids)
        params = sampling_params(asked, max_tokens, served.defaults.sampling, served.vocab_size)
        shown = (*(REASONING_MARKS if served.reasoning_parser else ()), *(TOOL_MARKS if served.tool_parser else ()))
        loop = asyncio.get_running_loop()

        def sink(delta: Delta) -> None:
            # Once the loop has ended, nobody is left to read.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._news.put_nowait, delta)

        for number in range(asked.n):
            own = params if params.seed is None else replace(params, seed=params.seed + number)
            text = served.text.detokenizer(
                shown=shown, skip_special=asked.skip_special_tokens, eos=served.eos_token_ids
            )
            job = SequenceJob(ids, own, text, sink, index=len(self._open))
            self._open.append(_Open(job, parser()))

    def _take(self, delta: Delta) -> list[Part]:
        """Parse the news of one choice; gives back the parts that are complete with it."""
        opened = self._open[delta.index]
        parts = opened.parser.feed(delta.text)
        if opened.parser.thinking:
            opened.reasoning_tokens += delta.made_tokens - opened.made_tokens
        opened.made_tokens = delta.made_tokens
        opened.picked += delta.picked
        if delta.finish:
            parts += opened.parser.finish()
        for part in parts:
            if part.kind == "tool":
                opened.call_ids[part.call] = self._dress.new_id("tool")
        if delta.finish:
            called = opened.call_ids and delta.finish.reason == "stop"
            opened.finish = replace(delta.finish, reason="tool_calls") if called else delta.finish
        if not self._asked.stream:
            opened.parts += parts
        return parts

    def _frames(self, delta: Delta) -> list[dict[str, Any]]:
        parts, opened = self._take(delta), self._open[delta.index]
        frames = []
        tokens = opened.job.prompt_ids.size
        if self._chat and not opened.begun:
            usage = Usage(tokens, 0) if self._continuous else None
            frames.append(self._dress.role_frame(self._head, delta.index, usage))
            opened.begun = True
        if not parts and not delta.finish:
            return frames
        piece = Piece(
            index=delta.index,
            parts=tuple(parts),
            finish=opened.finish,
            usage=Usage(tokens, delta.made_tokens) if self._continuous else None,
            logprobs=self._logprobs(opened),
            call_ids=opened.call_ids,
        )
        if self._chat:
            return frames + self._dress.chat_frames(self._head, piece)
        return [*frames, self._dress.completion_frame(self._head, piece)]

    def _choice(self, opened: _Open) -> Choice:
        def said(kind: str) -> str:
            return "".join(part.text for part in opened.parts if part.kind == kind)

        calls = [part for part in opened.parts if part.kind == "tool"]
        return Choice(
            index=opened.job.index,
            finish=opened.finish or Finish("stop"),
            content=said("content"),
            reasoning=said("reasoning"),
            tool_calls=tuple(ToolCall(opened.call_ids[part.call], part.name, part.text) for part in calls),
            called_for=self._called_for,
            thinking=opened.parser.thinking,
            logprobs=self._logprobs(opened),
        )

    def _logprobs(self, opened: _Open) -> dict[str, Any] | None:
        """The log probabilities not yet told; None where none were asked for."""
        if opened.job.params.logprobs is None:
            return None
        picked, opened.picked = opened.picked, []
        if self._chat:
            return chat_logprobs(picked, self._served.text.decode)
        told, opened.text_offset = completion_logprobs(picked, self._served.text.decode, opened.text_offset)
        return told

    def _usage(self) -> Usage:
        firsts = [opened.job for opened in self._open[:: self._asked.n]]
        return Usage(
            prompt_tokens=sum(job.prompt_ids.size for job in firsts),
            completion_tokens=sum(opened.made_tokens for opened in self._open),
            cached_tokens=sum(job.cached_tokens for job in firsts),
            reasoning_tokens=sum(opened.reasoning_tokens for opened in self._open),
        )


def check(served: Served, asked: Generate) -> None:
    """Refuse a request before its prompt is looked at.

    Raises: Refusal.
    """
    if served.dress.knows_models and asked.model not in {None, served.name}:
        raise Refusal(404, "NotFoundError", f"The model `{asked.model}` does not exist.", "model")
    check_asked(asked)


def render(
    served: Served, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, kwargs: Mapping[str, Any]
) -> str:
    """The prompt text for `messages`.

    Raises: Refusal 400 when the template refuses them.
    """
    if not messages:
        raise Refusal(400, "BadRequestError", "messages must not be empty", "messages")
    try:
        return served.text.render(messages, tools, kwargs)
    except TemplateRefusal as refusal:
        raise Refusal(400, "BadRequestError", str(refusal), "messages") from None


def event(frame: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(frame) + b"\n\n"


def encode(value: Any) -> bytes:
    """`value` as compact JSON in UTF-8; half a surrogate pair, which UTF-8 cannot carry, stays an escape."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _prompt_ids(served: Served, prompt: str | list[int], *, special: bool) -> list[int]:
    ids = served.text.encode(prompt, special=special) if isinstance(prompt, str) else prompt
    if not ids:
        raise Refusal(400, "BadRequestError", "the prompt has no tokens", "prompt")
    outside = [token_id for token_id in ids if not 0 <= token_id < served.vocab_size]
    if outside:
        raise Refusal(400, "BadRequestError", f"token id {outside[0]} is out of vocabulary", "prompt")
    return ids


def _tools(asked: ChatRequest) -> dict[str, Mapping[str, Any]]:
    """The offered functions and their schemas; none with `tool_choice` none.

    Raises: Refusal 400.
    """
    offered: dict[str, Mapping[str, Any]] = {}
    for tool in asked.tools or []:
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Refusal(400, "BadRequestError", "every tool needs a function with a name", "tools")
        schema = function.get("parameters")
        offered[function["name"]] = schema if isinstance(schema, Mapping) else {}
    choice = asked.tool_choice
    if choice == "none":
        return {}
    wanted = choice.get("function", {}).get("name") if isinstance(choice, dict) else None
    if (choice == "required" and not offered) or (isinstance(choice, dict) and wanted not in offered):
        raise Refusal(400, "BadRequestError", "tool_choice names no offered tool", "tool_choice")
    if isinstance(choice, str) and choice not in {"auto", "required"}:
        said = "tool_choice must be none, auto, required, or name a function"
        raise Refusal(400, "BadRequestError", said, "tool_choice")
    return offered
