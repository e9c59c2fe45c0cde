"""Prompts that no prefix cache has seen, as long as asked for.

Each begins with a fresh random nonce, so that already the first tokens differ from every other prompt's, in this run and
in all others; the words after it depend on the seed alone. A fixed seed without a nonce replays the same prompts against
a warm cache and reads twice too fast.
"""

from __future__ import annotations

import math
import random
import secrets
from typing import Any, Literal

from slipway.bench.result import Load
from slipway.endpoint import Client
from slipway.errors import UsageError

_COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand part place
case week company system program question work number night point home water room mother area money story fact month lot
right study book eye job word business issue side kind head house service friend father power
"""

WORDS = tuple(_COMMON.split())
"""Common words, one token each in most vocabularies."""

MAX_TRIES = 12
"""Counts asked for per prompt; two or three are enough where a word is a token."""


class PromptMaker:
    """Makes prompts for `load`; `by` says if their length is counted by the server or only guessed from words.

    Raises: UsageError when the template and the nonce alone are longer than what is asked for.
    """

    def __init__(self, client: Client, load: Load) -> None:
        self._client = client
        self._load = load
        # Reproducible on purpose; what must be unpredictable is the nonce.
        self._random = random.Random(load.seed)  # noqa: S311
        one = self._count("a")
        self.overhead_tokens = None if one is None else one - 1
        self.by: Literal["tokenize", "words"] = "words" if self.overhead_tokens is None else "tokenize"
        self._tokens_per_word = 1.0
        self._nonce_tokens = 8

    def prompt(self) -> str:
        """The next prompt: exactly `input_tokens` long where the server counts, else about as many words."""
        nonce = secrets.token_hex(6)
        target = self._load.input_tokens
        if self.overhead_tokens is None:
            return " ".join([nonce, *self._words(max(target - self._nonce_tokens, 1))])
        room = target - self.overhead_tokens - self._nonce_tokens
        words, tail, best = self._words(round(max(room, 0) / self._tokens_per_word)), "", ""
        nearest = target
        for _ in range(MAX_TRIES):
            text = " ".join([nonce, *words]) + tail
            count = self._count(text) or 0
            missing = target - count
            if abs(missing) < nearest or not best:
                best, nearest = text, abs(missing)
            if missing == 0:
                break
            if missing < 0 and not words:
                raise UsageError(
                    "--input-tokens",
                    f"{target} is too short: the template and a nonce alone have {count} tokens",
                    "every prompt begins with a nonce, so that no prefix cache is hit",
                    f"ask for at least {count}",
                )
            words, tail = self._adjusted(words, tail, missing)
        return best

    def _adjusted(self, words: list[str], tail: str, missing: int) -> tuple[list[str], str]:
        """Words and tail that come nearer to the length, given how many tokens the last try missed (or had too many)."""
        if len(words) >= 20 and not tail:
            overhead = (self.overhead_tokens or 0) + self._nonce_tokens
            self._tokens_per_word = max((self._load.input_tokens - missing - overhead) / len(words), 0.25)
        step = missing if self._tokens_per_word < 1.5 else math.trunc(missing / self._tokens_per_word)
        if missing > 0:
            # Less than a word is missing: letters without a space, one token each where tokens are bytes.
            return (words + self._words(step), tail) if step else (words, tail + "a" * missing)
        return words[: len(words) + min(step, -1)], ""

    def _words(self, count: int) -> list[str]:
        return self._random.choices(WORDS, k=count)

    def _count(self, text: str) -> int | None:
        if self._load.api == "completions":
            return self._client.tokens_in(prompt=text)
        kwargs: Any = self._load.request.get("chat_template_kwargs")
        extra = {"chat_template_kwargs": kwargs} if kwargs is not None else {}
        return self._client.tokens_in(messages=[{"role": "user", "content": text}], **extra)
