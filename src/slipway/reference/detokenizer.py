"""Token ids to text, one token at a time: whole characters only, and nothing after a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipway.reference.parsers import held_back

_BROKEN = "\ufffd"
_LONGEST_CHARACTER_TOKENS = 4
"""A UTF-8 character has at most four bytes, so at most this many byte tokens."""


class Detokenizer:
    """Text of a growing list of tokens; a character cut between two tokens is held until it is whole."""

    def __init__(self, decode: Callable[[Sequence[int]], str], hidden: frozenset[int]) -> None:
        """`decode` gives the text of some ids; ids in `hidden` (special tokens) have no text."""
        self._decode = decode
        self._hidden = hidden
        self._ids: list[int] = []
        self._read = 0

    def add(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while a character is unfinished."""
        if token_id in self._hidden:
            return ""
        self._ids.append(token_id)
        before, text = self._decode(self._ids[: self._read]), self._decode(self._ids)
        if text == before:
            # A token without text would only make the window grow.
            self._ids.pop()
            return ""
        pending = len(self._ids) - self._read
        if text.endswith(_BROKEN):
            if pending <= 2 * _LONGEST_CHARACTER_TOKENS:
                return ""
            # No character is that long: all but the last bytes are broken for good.
            return self._release(before, len(self._ids) - (_LONGEST_CHARACTER_TOKENS - 1))
        return self._release(before, len(self._ids))

    def flush(self) -> str:
        """The text still held, with a replacement character for what never became whole."""
        return self._release(self._decode(self._ids[: self._read]), len(self._ids))

    def _release(self, before: str, upto: int) -> str:
        """The text of the tokens up to `upto` that was not given out; those given out last stay as left context."""
        text = self._decode(self._ids[:upto])[len(before) :]
        self._ids = self._ids[self._read :]
        self._read = upto - self._read
        return text


class StopFilter:
    """Cuts the text at the first stop string; text that may be the beginning of one is held back."""

    def __init__(self, stops: tuple[str, ...], *, include: bool) -> None:
        self._stops = stops
        self._include = include
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """What of `text` may be shown, and the stop string if one was reached."""
        if not self._stops:
            return text, None
        self._held += text
        # The stop string that ends first is the one that a token-by-token reader meets first.
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            end, at, stop = min(found)
            shown, self._held = self._held[: end if self._include else at], ""
            return shown, stop
        free = len(self._held) - held_back(self._held, self._stops)
        shown, self._held = self._held[:free], self._held[free:]
        return shown, None

    def flush(self) -> str:
        """The text still held."""
        held, self._held = self._held, ""
        return held
