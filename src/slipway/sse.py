"""One streamed answer, from bytes to facts: pure, shared by the endpoint client, the gates and the bench.

`frames` cuts the body into server-sent events and keeps the arrival time of the chunk that completed each one.
`read` folds the events into an `Answer`: text, reasoning, tool calls, finish reason, usage, and the two signs that
a stream is whole (`[DONE]`) or broken (an error frame inside HTTP 200, as vLLM and SGLang send it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_EVENT_BYTES = 4_000_000
"""Largest event kept; a chunk of an answer has hundreds of bytes, so more is not an answer."""


@dataclass(frozen=True)
class Usage:
    """Tokens as the server counts them; None where it does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True)
class ToolCall:
    """One call the model asks for; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Frame:
    """One server-sent event: when it was complete, its name and its data."""

    arrival_s: float
    event: str
    data: str


@dataclass(frozen=True)
class TokenFrame:
    """One frame that carried tokens; `tokens_so_far` only where the server reports usage with every frame."""

    arrival_s: float
    characters: int
    visible: bool
    tokens_so_far: int | None


@dataclass(frozen=True)
class Answer:
    """What one stream said. `error` holds the server's words (or what cannot be read) and is None in a clean stream."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    done: bool = False
    end_s: float | None = None
    model: str = ""
    token_frames: tuple[TokenFrame, ...] = field(default=())


def frames(chunks: Iterable[tuple[float, bytes]]) -> Iterator[Frame]:
    """The events in `chunks` (arrival in seconds, bytes), the same however the bytes were cut.

    An event whose last line never ended is not an event: the stream was cut there.
    Raises: ValueError when one event is larger than MAX_EVENT_BYTES.
    """
    rest = b""
    event, at = "", 0.0
    data: list[str] = []
    for arrival_s, chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is larger than {MAX_EVENT_BYTES} bytes")
        for raw in lines:
            line = raw.removesuffix(b"\r").decode("utf-8", "replace")
            if not line:
                if data:
                    yield Frame(arrival_s, event, "\n".join(data))
                event, data = "", []
                continue
            name, _, value = line.partition(":")
            if name == "data":
                data.append(value.removeprefix(" "))
                at = arrival_s
            elif name == "event":
                event = value.strip()
    if data:
        # Some servers end the body right after the last line; the line itself is whole.
        yield Frame(at, event, "\n".join(data))


def read(stream: Iterable[Frame]) -> Answer:
    """Everything `stream` says, as one `Answer`; never raises for what a server may send."""
    reader = _AnswerReader()
    try:
        for frame in stream:
            reader.take(frame)
    except ValueError as error:
        reader.fail(str(error))
    return reader.answer()


def usage_from(value: Any) -> Usage | None:
    """The `usage` object of an answer, or None when it is absent or not two whole numbers."""
    if not isinstance(value, dict):
        return None
    prompt, completion = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    inner = value.get("completion_tokens_details")
    reasoning = _count(value.get("reasoning_tokens"))
    if reasoning is None and isinstance(inner, dict):
        reasoning = _count(inner.get("reasoning_tokens"))
    return Usage(prompt, completion, cached, reasoning)


def error_from(value: Any) -> str | None:
    """The server's words when `value` is an error object (`{"error": …}` or `{"object": "error"}`), else None."""
    if not isinstance(value, dict):
        return None
    said = value.get("error")
    if said in (None, False):
        if value.get("object") != "error":
            return None
        said = value
    if isinstance(said, dict):
        said = said.get("message") or said
    return clean(said if isinstance(said, str) else json.dumps(said))[:500] or "an error without words"


def words_of(body: bytes) -> str:
    """What a refusal says: its error message, else the name of a web page, else its text; the key is still in it if it was."""
    text = body[:4000].decode("utf-8", "replace")
    try:
        return error_from(json.loads(text)) or text
    except (ValueError, RecursionError):
        return _page(text) or text


def _page(text: str) -> str | None:
    """What a web page is called, which a proxy or another kind of server answers with; None for anything else."""
    if not text.lstrip().startswith("<"):
        return None
    title = re.search(r"<title[^>]*>([^<]*)", text, re.IGNORECASE)
    return f"a web page ({title[1].strip()})" if title and title[1].strip() else "a web page"


def reasoning_of(message: dict[str, Any]) -> str:
    """The thinking in a message or delta: vLLM calls it `reasoning`, SGLang `reasoning_content`."""
    return text_of(message.get("reasoning")) or text_of(message.get("reasoning_content"))


def text_of(value: Any) -> str:
    """`value` as text; the null that servers send for "nothing" is the empty text."""
    return clean(value) if isinstance(value, str) else ""


def clean(text: str) -> str:
    """`text` without lone surrogates, which JSON can carry and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


class _AnswerReader:
    """Folds frames, one at a time."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._token_frames: list[TokenFrame] = []
        self._finish: str | None = None
        self._usage: Usage | None = None
        self._error: str | None = None
        self._done = False
        self._end_s: float | None = None
        self._model = ""

    def take(self, frame: Frame) -> None:
        self._end_s = frame.arrival_s
        if frame.data.strip() == "[DONE]":
            self._done = True
            return
        try:
            value = json.loads(frame.data)
        except (ValueError, RecursionError):
            self.fail(clean(frame.data)[:500] if frame.event == "error" else "a frame is not JSON")
            return
        if error := error_from(value):
            self.fail(error)
        elif frame.event == "error":
            self.fail(clean(frame.data)[:500])
        elif not isinstance(value, dict):
            self.fail("a frame is not a JSON object")
        else:
            self._take_chunk(frame.arrival_s, value)

    def fail(self, text: str) -> None:
        """Remember the first failure; later ones follow from it."""
        if self._error is None:
            self._error = text

    def answer(self) -> Answer:
        calls = tuple(ToolCall(*parts) for _, parts in sorted(self._calls.items()))
        return Answer(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            finish_reason=self._finish,
            usage=self._usage,
            error=self._error,
            done=self._done,
            end_s=self._end_s,
            model=self._model,
            token_frames=tuple(self._token_frames),
        )

    def _take_chunk(self, arrival_s: float, value: dict[str, Any]) -> None:
        self._model = text_of(value.get("model")) or self._model
        usage = usage_from(value.get("usage"))
        choices = value.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        self._take_choice(arrival_s, choice, usage)
        if isinstance(choice.get("finish_reason"), str):
            self._finish = clean(choice["finish_reason"])
        # Usage that comes with every frame is a running count; only what stands at or after the finish is the total.
        if usage is not None and (self._finish is not None or not choice):
            self._usage = usage

    def _take_choice(self, arrival_s: float, choice: dict[str, Any], usage: Usage | None) -> None:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        text = text_of(delta.get("content")) or text_of(choice.get("text"))
        reasoning = reasoning_of(delta)
        calls = self._take_calls(delta.get("tool_calls"))
        characters = len(text) + len(reasoning) + calls
        if not characters:
            return
        self._text.append(text)
        self._reasoning.append(reasoning)
        so_far = usage.completion_tokens if usage else None
        self._token_frames.append(TokenFrame(arrival_s, characters, bool(text or calls), so_far))

    def _take_calls(self, deltas: Any) -> int:
        """Merge tool-call deltas; how many characters they carried."""
        characters = 0
        for delta in deltas if isinstance(deltas, list) else ():
            if not isinstance(delta, dict):
                continue
            index = _count(delta.get("index")) or 0
            function = delta.get("function")
            function = function if isinstance(function, dict) else {}
            parts = self._calls.setdefault(index, ["", "", ""])
            name, arguments = text_of(function.get("name")), text_of(function.get("arguments"))
            parts[0] = parts[0] or text_of(delta.get("id"))
            parts[1] += name
            parts[2] += arguments
            characters += len(name) + len(arguments)
        return characters


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**12 else None
