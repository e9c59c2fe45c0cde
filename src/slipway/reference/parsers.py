"""The `poolside_v1` parsers: reasoning apart from content, tool calls apart from both, whole or as a stream.

One parser serves both ways of answering, so that the pieces of a stream always add up to the whole answer: every
decision depends on the text seen so far and never on where a piece ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"

REASONING_MARKS = (THINK, THINK_END)
TOOL_MARKS = (CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END)
"""Tokens that a checkpoint's vocabulary needs before a parser can work.

Source: vLLM 0.25.1, which refuses to build the parsers without them.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer: some reasoning, some content, or one whole tool call (`name`, JSON `text`, `call` number)."""

    kind: Literal["reasoning", "content", "tool"]
    text: str
    name: str = ""
    call: int = 0


class OutputParser:
    """Splits what the model wrote; feed it pieces, then `finish` once.

    `thinking` says whether the answer begins inside the reasoning, `None` that no reasoning parser is set. `tools` maps
    each offered function to its JSON schema; `None` that tool calls are not looked for.
    """

    def __init__(self, thinking: bool | None, tools: Mapping[str, Mapping[str, Any]] | None) -> None:
        self._reasoning = None if thinking is None else _ReasoningSplitter(thinking)
        self._calls = None if tools is None else _CallSplitter(tools)

    @property
    def thinking(self) -> bool:
        """True while the text fed last belongs to the reasoning."""
        return self._reasoning is not None and self._reasoning.thinking

    def feed(self, text: str) -> list[Part]:
        """The parts that `text` completes; text that may still turn out to be a tag is held back."""
        parts = [Part("content", text)] if self._reasoning is None else self._reasoning.feed(text)
        return self._split_calls(parts)

    def finish(self) -> list[Part]:
        """The parts that were held back; an unfinished tag or tool call comes back as the text it is."""
        parts = self._split_calls([] if self._reasoning is None else self._reasoning.finish())
        return parts if self._calls is None else [*parts, *self._calls.finish()]

    def _split_calls(self, parts: list[Part]) -> list[Part]:
        if self._calls is None:
            return [part for part in parts if part.text]
        split: list[Part] = []
        for part in parts:
            split += self._calls.feed(part.text) if part.kind == "content" else [part]
        return [part for part in split if part.text]


class _ReasoningSplitter:
    """Text before the first closing tag is reasoning, if the answer began there; the tags themselves never show."""

    def __init__(self, thinking: bool) -> None:
        self.thinking = thinking
        self._held = ""

    def feed(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while found := _first(self._held, REASONING_MARKS):
            at, mark = found
            parts.append(self._part(self._held[:at]))
            self._held = self._held[at + len(mark) :]
            if mark == THINK_END:
                self.thinking = False
        free = len(self._held) - held_back(self._held, REASONING_MARKS)
        parts.append(self._part(self._held[:free]))
        self._held = self._held[free:]
        return [part for part in parts if part.text]

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        return [self._part(held)] if held else []

    def _part(self, text: str) -> Part:
        return Part("reasoning" if self.thinking else "content", text)


@dataclass(frozen=True)
class _Call:
    name: str
    arguments: dict[str, str]
    length: int


class _CallSplitter:
    """Whole tool calls and the content around them, without the white space that only separates the two."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self._held = ""
        self._space = ""
        self._after_call = False
        self._count = 0

    def feed(self, text: str) -> list[Part]:
        self._held += text
        return self._drain(final=False)

    def finish(self) -> list[Part]:
        parts = self._drain(final=True)
        if self._space and not self._after_call:
            parts.append(Part("content", self._space))
        return parts

    def _drain(self, *, final: bool) -> list[Part]:
        parts: list[Part] = []
        while (at := self._held.find(CALL)) >= 0:
            parts += self._content(self._held[:at])
            self._held = self._held[at:]
            call = _read_call(self._held)
            if call == "unfinished" and not final:
                return parts
            if isinstance(call, _Call):
                parts.append(self._call(call))
                self._held = self._held[call.length :]
            else:
                # Not a call after all: the tag is text, and what follows it is looked at afresh.
                parts += self._content(CALL)
                self._held = self._held[len(CALL) :]
        free = len(self._held) - (0 if final else held_back(self._held, (CALL,)))
        parts += self._content(self._held[:free])
        self._held = self._held[free:]
        return parts

    def _content(self, text: str) -> list[Part]:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        return [Part("content", shown)] if shown else []

    def _call(self, call: _Call) -> Part:
        self._space, self._after_call = "", True
        number, self._count = self._count, self._count + 1
        return Part("tool", _arguments_json(call, self._tools.get(call.name, {})), call.name, number)


_NAME = re.compile(r"\s*([^\s<]+)\s*(?=<)")
_NAME_SO_FAR = re.compile(r"\s*[^\s<]*\s*")


def _read_call(text: str) -> _Call | Literal["unfinished", "malformed"]:
    """The tool call that `text` begins with, read left to right so that more text never changes a verdict."""
    named = _NAME.match(text, len(CALL))
    if not named:
        return "unfinished" if _NAME_SO_FAR.fullmatch(text, len(CALL)) else "malformed"
    arguments: dict[str, str] = {}
    at = named.end()
    while True:
        if text.startswith(CALL_END, at):
            return _Call(named[1], arguments, at + len(CALL_END))
        key = _tagged(text, at, KEY, KEY_END)
        if isinstance(key, str):
            starts_close = CALL_END.startswith(text[at:])
            return "unfinished" if starts_close else key
        if "<" in key[0]:
            return "malformed"
        value = _tagged(text, key[1], VALUE, VALUE_END)
        if isinstance(value, str):
            return value
        arguments[key[0].strip()] = value[0]
        at = value[1]


def _tagged(text: str, at: int, start: str, end: str) -> tuple[str, int] | Literal["unfinished", "malformed"]:
    """What stands between `start` and `end` from `at` on, and where the next thing begins."""
    if not text.startswith(start, at):
        return "unfinished" if start.startswith(text[at:]) else "malformed"
    close = text.find(end, at + len(start))
    if close < 0:
        return "unfinished"
    after = close + len(end)
    while after < len(text) and text[after].isspace():
        after += 1
    return text[at + len(start) : close], after


def _arguments_json(call: _Call, schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    values = {key: _value(text, known.get(key)) for key, text in call.arguments.items()}
    return json.dumps(values, ensure_ascii=False)


def _value(text: str, schema: Any) -> Any:
    """`text` as the type that its schema asks for; text that is no such value stays a string, white space and all."""
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    if wanted == "string" or (isinstance(wanted, list) and "string" in wanted):
        return text
    try:
        value = json.loads(text)
        # What cannot be written back as strict JSON in UTF-8 (NaN, 1e999, half a surrogate pair) is no value.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return text
    return value


def _first(text: str, marks: tuple[str, ...]) -> tuple[int, str] | None:
    found = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(found) if found else None


def held_back(text: str, marks: tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `marks`."""
    longest = min(len(text), max((len(mark) for mark in marks), default=1) - 1)
    for length in range(longest, 0, -1):
        tail = text[-length:]
        if any(mark.startswith(tail) for mark in marks):
            return length
    return 0
