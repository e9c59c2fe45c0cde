"""The requests of the OpenAI dialect that the engine reads, and what it refuses.

Unknown fields are ignored, as the real engines do. Fields that would change the answer but that this engine cannot
honour are refused: silence would be a wrong answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from slipway.reference.sampling import SamplingParams


class Refusal(Exception):
    """A request that gets an error: HTTP status, error type, the parameter at fault, and a text."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


class StreamOptions(BaseModel):
    """What a stream adds."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Generate(BaseModel):
    """What chats and completions have in common."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: Any = None
    prompt_logprobs: int | None = None
    # Written by a router in front of prefill and decode servers; lists go with a list of prompts.
    bootstrap_host: str | list[str] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int] | None = None

    def asked_tokens(self) -> int | None:
        """How many tokens the client wants at most; None when it does not say."""
        return self.max_tokens

    def alternatives(self) -> int | None:
        """How many alternatives with log probabilities it wants; None for no log probabilities."""
        return None


class ChatRequest(Generate):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def asked_tokens(self) -> int | None:
        """The newer name wins where both are given."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def alternatives(self) -> int | None:
        """`top_logprobs` counts only with `logprobs`."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Generate):
    """POST /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None

    def asked_tokens(self) -> int | None:
        """16 unless the client says otherwise, as in the OpenAI API."""
        return 16 if self.max_tokens is None else self.max_tokens

    def alternatives(self) -> int | None:
        """`logprobs` is the number of alternatives."""
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each a text or token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [token_id for token_id in self.prompt if isinstance(token_id, int)]
        if ids:
            return [ids]
        return [prompt for prompt in self.prompt if not isinstance(prompt, int)]


class TokenizeRequest(BaseModel):
    """POST /tokenize: a prompt, or messages to render first."""

    model_config = ConfigDict(extra="ignore")

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="ignore")

    tokens: list[int]


Body = TypeVar("Body", bound=BaseModel)


def read_body(raw: bytes, model: type[Body]) -> Body:
    """The request in `raw`.

    Raises: Refusal 400 with each problem as the engines list it.
    """
    try:
        data = json.loads(raw)
    except ValueError as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else 0
        said = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        problem = {"type": "json_invalid", "loc": ("body", at), "msg": "JSON decode error", "input": {}}
        raise _invalid([{**problem, "ctx": {"error": said}}]) from None
    except RecursionError:
        raise _invalid([{"type": "json_invalid", "loc": ("body", 0), "msg": "nested too deeply"}]) from None
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise _invalid([{**detail, "loc": ("body", *detail["loc"])} for detail in found]) from None


def sampling_params(asked: Generate, max_tokens: int, defaults: Mapping[str, float], vocab_size: int) -> SamplingParams:
    """How to sample for `asked`; values it leaves out come from the checkpoint's `defaults`.

    Raises: Refusal 400 for values outside their range.
    """

    def value(name: str, otherwise: float) -> float:
        given = getattr(asked, name)
        return float(defaults.get(name, otherwise) if given is None else given)

    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=value("temperature", 1.0),
        top_p=value("top_p", 1.0),
        top_k=int(value("top_k", 0)),
        min_p=value("min_p", 0.0),
        seed=asked.seed,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=value("repetition_penalty", 1.0),
        logit_bias=dict(asked.logit_bias or {}),
        min_tokens=asked.min_tokens,
        ignore_eos=asked.ignore_eos,
        stop=tuple(stop for stop in stops if stop),
        stop_token_ids=frozenset(asked.stop_token_ids or ()),
        include_stop=asked.include_stop_str_in_output,
        logprobs=asked.alternatives(),
    )
    _check_ranges(params, vocab_size)
    return params


def check_asked(asked: Generate) -> None:
    """Refuse what no model state is needed to refuse.

    Raises: Refusal 400.
    """
    tokens = asked.asked_tokens()
    if tokens is not None and tokens < 1:
        raise out_of_range("max_tokens", f"must be at least 1, got {tokens}", tokens)
    if not 1 <= asked.n <= 128:
        raise out_of_range("n", f"must be from 1 to 128, got {asked.n}", asked.n)
    alternatives = asked.alternatives()
    if alternatives is not None and not 0 <= alternatives <= 20:
        raise out_of_range("top_logprobs", f"must be from 0 to 20, got {alternatives}", alternatives)
    kind = (asked.response_format or {}).get("type", "text")
    unable = {
        "response_format": kind != "text",
        "structured_outputs": asked.structured_outputs is not None,
        "prompt_logprobs": asked.prompt_logprobs is not None,
        "echo": getattr(asked, "echo", False),
        "suffix": getattr(asked, "suffix", None) is not None,
        "best_of": (getattr(asked, "best_of", None) or 1) > asked.n,
    }
    for name, wanted in unable.items():
        if wanted:
            raise Refusal(400, "BadRequestError", f"{name} is not supported by the reference engine", name)


def out_of_range(name: str, problem: str, value: object) -> Refusal:
    """The refusal of one sampling value.

    Source: answers of vLLM 0.25.1, recorded 2026-11-30.
    """
    return Refusal(400, "BadRequestError", f"{name} {problem}. (parameter={name}, value={value})", name)


def _check_ranges(params: SamplingParams, vocab_size: int) -> None:
    # `not <=` instead of `>`, so that NaN is refused too.
    if not 0 <= params.temperature < float("inf"):
        raise out_of_range("temperature", f"must be non-negative, got {params.temperature}", params.temperature)
    if not 0 < params.top_p <= 1:
        raise out_of_range("top_p", f"must be in (0, 1], got {params.top_p}", params.top_p)
    if params.top_k < -1:
        raise out_of_range("top_k", f"must be -1 or 0 (off) or at least 1, got {params.top_k}", params.top_k)
    if not 0 <= params.min_p <= 1:
        raise out_of_range("min_p", f"must be in [0, 1], got {params.min_p}", params.min_p)
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= getattr(params, name) <= 2:
            raise out_of_range(name, f"must be in [-2, 2], got {getattr(params, name)}", getattr(params, name))
    if not 0 < params.repetition_penalty <= 2:
        name = "repetition_penalty"
        raise out_of_range(name, f"must be in (0, 2], got {params.repetition_penalty}", params.repetition_penalty)
    if params.seed is not None and params.seed < 0:
        raise out_of_range("seed", f"must be non-negative, got {params.seed}", params.seed)
    if not 0 <= params.min_tokens <= params.max_tokens:
        raise out_of_range("min_tokens", f"must be from 0 to max_tokens, got {params.min_tokens}", params.min_tokens)
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise out_of_range(name, f"has a token id outside the vocabulary, got {token_id}", token_id)


def _invalid(problems: list[Mapping[str, Any]]) -> Refusal:
    listed = "\n".join(f"  {dict(problem)}" for problem in problems)
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}"
    param = ".".join(map(str, problems[0]["loc"]))
    return Refusal(400, "Bad Request", f"{count}:\n{listed}", param)
