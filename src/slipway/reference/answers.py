"""What an answer is made of, before an engine's dress spells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slipway.reference.parsers import Part
from slipway.reference.scheduler import Finish


@dataclass(frozen=True)
class Head:
    """What every frame of one answer repeats; `created` in seconds since the epoch."""

    id: str
    model: str
    created: int
    fingerprint: str
    usage_wanted: bool = False
    """The client asked for a last frame with the usage."""


@dataclass(frozen=True)
class Usage:
    """Tokens of one answer; `cached` are those of the prompt that the prefix cache had."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True)
class ToolCall:
    """One call of an offered function; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Choice:
    """One whole answer out of `n`."""

    index: int
    finish: Finish
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    called_for: bool = False
    """A tool was asked for by name or as required."""
    thinking: bool = False
    logprobs: Any = None


@dataclass(frozen=True)
class Piece:
    """News of one choice in a stream."""

    index: int
    parts: tuple[Part, ...]
    finish: Finish | None = None
    usage: Usage | None = None
    """Set where the client asked for usage in every frame."""
    logprobs: Any = None
    call_ids: dict[int, str] = field(default_factory=dict)
