"""Log probabilities as the two OpenAI endpoints spell them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slipway.reference.sampling import Picked

Decode = Callable[[Sequence[int]], str]

_LEAST = -9999.0
"""Stands for minus infinity, which JSON has not."""


def chat_logprobs(picked: Sequence[Picked], decode: Decode) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    content = []
    for one in picked:
        top = [_entry(token_id, logprob, decode) for token_id, logprob in one.top]
        content.append({**_entry(one.token_id, one.logprob, decode), "top_logprobs": top})
    return {"content": content}


def completion_logprobs(picked: Sequence[Picked], decode: Decode, offset: int) -> tuple[dict[str, Any], int]:
    """The `logprobs` of a completion choice whose text before had `offset` characters, and the offset after it."""
    tokens = [decode([one.token_id]) for one in picked]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top = []
    for one, token in zip(picked, tokens, strict=True):
        best = {decode([token_id]): max(logprob, _LEAST) for token_id, logprob in one.top}
        top.append({**best, token: max(one.logprob, _LEAST)})
    chosen = [max(one.logprob, _LEAST) for one in picked]
    return {"text_offset": offsets, "token_logprobs": chosen, "tokens": tokens, "top_logprobs": top}, offset


def _entry(token_id: int, logprob: float, decode: Decode) -> dict[str, Any]:
    token = decode([token_id])
    return {"token": token, "logprob": max(logprob, _LEAST), "bytes": list(token.encode())}
