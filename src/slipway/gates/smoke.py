"""The smoke gate: does this endpoint really generate, and say the same streamed and whole?

Two greedy answers to one short question, one whole and one streamed, judged check by check.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipway.endpoint import FINISH_REASONS, Client, Endpoint, Generation
from slipway.errors import AuthFailure, CheckFailed, EngineFailed, NetworkFailure, SlipwayError
from slipway.gates import Check, GateResult, Measured, told
from slipway.progress import Progress, silent
from slipway.sse import Answer, Usage

QUESTION = "What is 17 + 25? Reply with the number, then name one prime number below ten."
"""Short, with one likely answer, so that a greedy answer has few near ties to fall over."""

MAX_TOKENS = 64

MAX_PROMPT_TOKENS = 10_000
"""More than any chat template makes of the question."""

TAGS = ("<think>", "</think>")
"""Thinking that leaks into the answer when parser and template disagree about who opens the tag."""

ENDS = FINISH_REASONS - {"tool_calls"}
"""No tool is offered here, so an answer that ends with a tool call is wrong."""


def run(
    endpoint: Endpoint,
    *,
    progress: Progress = silent,
    max_tokens: int = MAX_TOKENS,
    request: Mapping[str, Any] | None = None,
) -> GateResult:
    """The smoke gate's verdict on `endpoint`; a request that fails later makes failed checks, it is not raised.

    `request` adds fields to each request, as `{"chat_template_kwargs": {"enable_thinking": False}}`.

    Raises: NetworkFailure, AuthFailure when the endpoint cannot be asked at all.
    """
    start_s = time.monotonic()
    with Client(endpoint) as client, progress.track("gate smoke", total=3, unit="steps") as advance:
        served, unlisted = _model_served(client)
        advance(1)
        if not served.passed and unlisted is None:
            # Every other answer would only say the same in the server's words.
            return _told(GateResult.of("smoke", [served], time.monotonic() - start_s), endpoint, progress)
        pair = _ask_both(client, max_tokens, request or {})
        if unlisted is not None and pair.nothing_came:
            # No server of this kind: its pages would only be quoted once for each check.
            alone = _no_such_server(endpoint, unlisted, pair)
            return _told(GateResult.of("smoke", [alone], time.monotonic() - start_s), endpoint, progress)
        checks = [served]
        if pair.comparable and _differences(pair):
            # The first pair may differ because only its second half found the prompt in the prefix cache, where other
            # kernels round differently. The next pair is alike in this; a real difference shows again.
            pair = _ask_both(client, max_tokens, request or {})
        checks += _judge(pair, max_tokens)
        advance(1)
        checks.append(_alive_after(client, max_tokens))
        advance(1)
    return _told(GateResult.of("smoke", checks, time.monotonic() - start_s), endpoint, progress)


def _told(result: GateResult, endpoint: Endpoint, progress: Progress) -> GateResult:
    """`result` without the key, should a server echo it, after its verdict went to `progress`."""
    checks = [
        check.model_copy(
            update={
                "detail": endpoint.shown(check.detail),
                "measured": {
                    name: endpoint.shown(value) if isinstance(value, str) else value
                    for name, value in check.measured.items()
                },
            }
        )
        for check in result.checks
    ]
    result = GateResult.of(result.gate, checks, result.seconds)
    for names, detail in told(result.failures):
        progress.note(f"gate smoke: {names} failed: {detail}")
    progress.note(f"gate smoke: {'passed' if result.passed else 'failed'} ({len(result.checks)} checks)")
    return result


@dataclass(frozen=True)
class _Pair:
    """The same question asked twice; where an answer is None, its `_failure` says why."""

    whole: Generation | None
    whole_failure: str
    streamed: Answer | None
    stream_failure: str
    whole_error: SlipwayError | None = None

    @property
    def nothing_came(self) -> bool:
        """Whether neither request was answered with anything that has to do with a chat."""
        empty = self.streamed is None or not (self.streamed.done or self.streamed.error or self.streamed.token_frames)
        return isinstance(self.whole_error, CheckFailed | EngineFailed) and empty

    @property
    def comparable(self) -> bool:
        return self.whole is not None and self.streamed is not None and self.streamed.error is None

    def halves(self) -> Iterator[tuple[str, Generation | Answer]]:
        """Each answer that there is, with its name."""
        if self.whole is not None:
            yield "whole", self.whole
        if self.streamed is not None:
            yield "streamed", self.streamed

    @property
    def missing(self) -> str:
        """Which answers are not there for a claim about both; empty when both are. Checks of their own say why."""
        return " and ".join(
            name
            for name, answer in (("no whole answer", self.whole), ("no streamed answer", self.streamed))
            if answer is None
        )


def _model_served(client: Client) -> tuple[Check, SlipwayError | None]:
    """The check, and why there is no list of models to decide it on (None: there is one)."""
    name = client.endpoint.model
    try:
        served = client.models()
    except (AuthFailure, NetworkFailure):
        raise  # whoever cannot be asked at all is not judged
    except SlipwayError as error:
        return _undecided("model-served", str(error)), error
    shown = ", ".join(map(client.endpoint.shown, served)) or "nothing"
    check = Check(
        id="model-served",
        passed=name in served,
        detail=f"{name} is served" if name in served else f"{name} is not served (served: {shown})",
        measured={"served": shown, "asked": name},
    )
    return check, None


def _no_such_server(endpoint: Endpoint, unlisted: SlipwayError, pair: _Pair) -> Check:
    """The one check that is told where nothing OpenAI-compatible answers at all."""
    chat = pair.whole_error.problem if pair.whole_error else ""
    found = f"/v1/models: {unlisted.problem}; /v1/chat/completions: {chat}"
    detail = f"no OpenAI-compatible server answers at {endpoint.url} ({found})"
    return Check(id="model-served", passed=False, detail=detail, measured={"asked": endpoint.model})


def _ask_both(client: Client, max_tokens: int, request: Mapping[str, Any]) -> _Pair:
    messages = [{"role": "user", "content": QUESTION}]
    whole = streamed = None
    whole_failure = stream_failure = ""
    whole_error = None
    try:
        whole = client.chat(messages, max_tokens=max_tokens, **request)
    except SlipwayError as error:
        whole_failure, whole_error = str(error), error
    try:
        streamed = client.observe_chat(messages, max_tokens=max_tokens, **request)
    except SlipwayError as error:
        stream_failure = str(error)
    return _Pair(whole, whole_failure, streamed, stream_failure, whole_error)


def _judge(pair: _Pair, max_tokens: int) -> list[Check]:
    """The checks on the two answers."""
    return [
        Check(id="whole-answer", passed=pair.whole is not None, detail=pair.whole_failure or "a whole answer came"),
        _no_error_frame(pair),
        _stream_done(pair),
        _of_both(pair, "finish-reason", lambda answer: _finish_complaint(answer, max_tokens)),
        _of_both(pair, "usage", lambda answer: _usage_complaint(answer.usage, max_tokens)),
        _of_both(pair, "text", _text_complaint),
        _of_both(pair, "no-think-tags", _tag_complaint),
        _stream_agrees(pair),
    ]


def _no_error_frame(pair: _Pair) -> Check:
    if pair.streamed is None:
        same = pair.stream_failure == pair.whole_failure
        return _undecided(
            "no-error-frame", "no streamed answer" if same else f"no streamed answer: {pair.stream_failure}"
        )
    error = pair.streamed.error
    detail = "no error frame in the stream" if error is None else f"an error inside HTTP 200: {error}"
    return Check(id="no-error-frame", passed=error is None, detail=detail)


def _stream_done(pair: _Pair) -> Check:
    if pair.streamed is None:
        return _undecided("stream-done", "no streamed answer")
    done = pair.streamed.done
    return Check(
        id="stream-done",
        passed=done,
        detail="[DONE] seen" if done else "the stream ended without [DONE]: it was cut, or the server broke off",
        measured={"token_frames": len(pair.streamed.token_frames)},
    )


def _of_both(pair: _Pair, name: str, complain: Callable[[Generation | Answer], str]) -> Check:
    """A check on each of the two answers; undecided unless both are there."""
    if pair.missing:
        return _undecided(name, pair.missing)
    complaints = [f"{half}: {said}" for half, answer in pair.halves() if (said := complain(answer))]
    return Check(
        id=name,
        passed=not complaints,
        detail="; ".join(complaints) or "holds for the whole and the streamed answer",
        measured={key: value for half, answer in pair.halves() for key, value in _facts(half, answer).items()}
        if name == "usage"
        else {},
    )


def _finish_complaint(answer: Generation | Answer, max_tokens: int) -> str:
    if answer.finish_reason == "length" and answer.usage and answer.usage.completion_tokens < max_tokens:
        return f"finish_reason is length after {answer.usage.completion_tokens} of {max_tokens} tokens"
    if answer.finish_reason in ENDS:
        return ""
    return f"finish_reason is {answer.finish_reason!r}; allowed here: {', '.join(sorted(ENDS))}"


def _usage_complaint(usage: Usage | None, max_tokens: int) -> str:
    if usage is None:
        return "no usage"
    if usage.prompt_tokens < 1 or usage.completion_tokens < 1:
        return f"usage says {usage.prompt_tokens} prompt and {usage.completion_tokens} new tokens"
    if usage.completion_tokens > max_tokens:
        return f"{usage.completion_tokens} new tokens where at most {max_tokens} were asked for"
    if usage.prompt_tokens > MAX_PROMPT_TOKENS:
        return f"usage says {usage.prompt_tokens:.3g} prompt tokens for a question of {len(QUESTION)} characters"
    return ""


def _text_complaint(answer: Generation | Answer) -> str:
    return "" if answer.text.strip() or answer.reasoning.strip() else "neither text nor reasoning"


def _tag_complaint(answer: Generation | Answer) -> str:
    leaked = [tag for tag in TAGS if tag in answer.text]
    return f"{' and '.join(leaked)} in the text" if leaked else ""


def _stream_agrees(pair: _Pair) -> Check:
    if pair.missing or pair.streamed is None or pair.streamed.error is not None:
        return _undecided("stream-agrees", pair.missing or "the stream holds an error frame")
    differences = _differences(pair)
    return Check(
        id="stream-agrees",
        passed=not differences,
        detail="; ".join(differences) or "text, reasoning, finish reason and token counts agree",
    )


def _differences(pair: _Pair) -> list[str]:
    """Where the two answers disagree. White space at the ends is not compared: reasoning parsers strip it from whole
    answers only. Cached tokens are not compared: the second request may find the first one's prompt."""
    whole, streamed = pair.whole, pair.streamed
    if whole is None or streamed is None:
        return []
    pairs: list[tuple[str, object, object]] = [
        ("text", whole.text.strip(), streamed.text.strip()),
        ("reasoning", whole.reasoning.strip(), streamed.reasoning.strip()),
        ("finish reason", whole.finish_reason, streamed.finish_reason),
    ]
    if whole.usage and streamed.usage:
        pairs.append(("prompt tokens", whole.usage.prompt_tokens, streamed.usage.prompt_tokens))
        pairs.append(("new tokens", whole.usage.completion_tokens, streamed.usage.completion_tokens))
    return [_difference(name, one, other) for name, one, other in pairs if one != other]


def _difference(name: str, one: object, other: object) -> str:
    if isinstance(one, str) and isinstance(other, str):
        common = next(
            (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
        )
        one, other = one[common : common + 30], other[common : common + 30]
        name = f"{name} from character {common}"
    return f"{name}: whole {one!r}, streamed {other!r}"


def _alive_after(client: Client, max_tokens: int) -> Check:
    """A second, different question: the engine must have survived the first."""
    try:
        generation = client.chat([{"role": "user", "content": "Say hello."}], max_tokens=min(16, max_tokens))
    except SlipwayError as error:
        return Check(id="alive-after", passed=False, detail=str(error))
    complaints = generation.complaints(min(16, max_tokens))
    return Check(
        id="alive-after",
        passed=not complaints,
        detail="; ".join(complaints) or "another question is answered",
        measured={"seconds": round(generation.seconds, 3)},
    )


def _facts(half: str, answer: Generation | Answer) -> dict[str, Measured]:
    usage = answer.usage
    return {
        f"{half}_prompt_tokens": usage.prompt_tokens if usage else None,
        f"{half}_completion_tokens": usage.completion_tokens if usage else None,
        f"{half}_cached_tokens": usage.cached_tokens if usage else None,
    }


def _undecided(name: str, reason: str) -> Check:
    return Check(id=name, passed=False, detail=f"not decided: {reason}")
