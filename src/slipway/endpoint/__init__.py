"""An OpenAI-compatible endpoint and what it answers: one client for readiness, gates and bench set-up.

Ready means: a real generation came back through the front door, with tokens, a finish reason and usage
(`Client.generate_once`). A health route proves less: it stays green on a dead scheduler, and a PD router answers it
while its decode worker is gone.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from slipway import sse
from slipway.endpoint.wire import Wire
from slipway.errors import AuthFailure, CheckFailed, EngineFailed, NetworkFailure, SlipwayError, UsageError
from slipway.network import meaning
from slipway.sse import Answer, ToolCall, Usage

API_KEY_VARIABLE = "SLIPWAY_API_KEY"
"""Where the key comes from; a variable of our own, so that a key for another service is never sent by accident."""

MAX_BODY_BYTES = 64_000_000
"""Largest answer read; more is not an answer to a chat."""

MAX_TIMEOUT_S = 86_400

FINISH_REASONS = frozenset({"stop", "length", "tool_calls"})
"""The ends of a generation that went well; engines also send `abort`, `error` and `content_filter`."""

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """Where a model is served, and under which name. The key is never shown.

    `url` may or may not end in `/v1` or a path of the API below it; `timeout_s` bounds a whole answer, not one read.
    Raises: UsageError when the URL, the key or the timeout cannot be used.
    """

    url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _checked_url(self.url))
        object.__setattr__(self, "api_key", _checked_key(self.api_key))
        if not self.model or not self.model.isprintable():
            why = "the name that /v1/models lists, in printable characters"
            raise UsageError("--model", f"is no model name (got {self.model!a})", why, "correct it")
        if not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise UsageError(
                "timeout_s", f"got {self.timeout_s:g}", f"more than 0 and at most {MAX_TIMEOUT_S} seconds are allowed"
            )

    @classmethod
    def from_environment(cls, url: str, model: str, timeout_s: float = 120.0) -> Endpoint:
        """The endpoint at `url`, with the key from SLIPWAY_API_KEY where it is set."""
        return cls(url, model, os.environ.get(API_KEY_VARIABLE), timeout_s)

    @property
    def loopback(self) -> bool:
        """True for this machine; then no proxy from the environment is used."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")

    def headers(self) -> dict[str, str]:
        """What every request carries; `identity`, because a compressing proxy would hold frames back."""
        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"accept-encoding": "identity", "user-agent": "slipway", **key}

    def shown(self, text: str) -> str:
        """`text` from outside, fit to print: one line, no control characters, without the key if it echoes it."""
        text = text.replace(self.api_key, "***") if self.api_key else text
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:500]


@dataclass(frozen=True)
class Generation:
    """One answer: what was said, why it ended, and what the server counted (None: it did not say)."""

    text: str
    reasoning: str
    finish_reason: str | None
    usage: Usage | None
    tool_calls: tuple[ToolCall, ...]
    seconds: float
    done: bool = True

    def complaints(self, max_tokens: int) -> list[str]:
        """What keeps this from being a real generation of at most `max_tokens`; empty when nothing does."""
        found = []
        if self.finish_reason not in FINISH_REASONS:
            found.append(f"finish_reason is {self.finish_reason!r}")
        if self.usage is None:
            found.append("no usage")
        elif self.usage.completion_tokens < 1 or self.usage.prompt_tokens < 1:
            found.append(f"usage says {self.usage.prompt_tokens} prompt, {self.usage.completion_tokens} new tokens")
        elif self.usage.completion_tokens > max_tokens:
            found.append(f"{self.usage.completion_tokens} tokens where at most {max_tokens} were asked for")
        if not (self.text.strip() or self.reasoning.strip() or self.tool_calls):
            found.append("no text")
        if not self.done:
            found.append("the stream ended without [DONE]")
        return found


class Client:
    """A connection to one endpoint; use it in a `with` block. Every method raises SlipwayErrors only.

    Raises (all methods): NetworkFailure unreachable, cut or late; AuthFailure 401 or 403; CheckFailed another refusal;
    EngineFailed 5xx, an error inside HTTP 200, or an answer that is not one.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._wire = Wire()
        # SSL_CERT_FILE is honoured by the default context; httpx itself ignores it without trust_env.
        secure = endpoint.url.startswith("https:")
        self._http = httpx.Client(
            headers=endpoint.headers(),
            timeout=httpx.Timeout(endpoint.timeout_s),
            trust_env=not endpoint.loopback,
            verify=ssl.create_default_context() if secure else False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def models(self) -> tuple[str, ...]:
        """The names that the endpoint serves, in its order."""
        body = self._json("GET", "/v1/models")
        listed = body.get("data")
        if not isinstance(listed, list):
            raise self._engine("/v1/models", "the answer has no list of models", "is this an OpenAI-compatible server?")
        return tuple(sse.text_of(entry.get("id")) for entry in listed if isinstance(entry, dict))

    def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        stream: bool = False,
        **extra: Any,
    ) -> Generation:
        """The answer to `messages`; `extra` goes into the request as it is (`chat_template_kwargs`, `tools`, `stop`)."""
        body = {"messages": list(messages), "max_tokens": max_tokens, "temperature": temperature, **extra}
        return self._generation("/v1/chat/completions", body, stream=stream)

    def completion(
        self, prompt: str, *, max_tokens: int, temperature: float = 0.0, stream: bool = False, **extra: Any
    ) -> Generation:
        """The continuation of `prompt`, without a chat template."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": temperature, **extra}
        return self._generation("/v1/completions", body, stream=stream)

    def observe_chat(self, messages: Sequence[Message], *, max_tokens: int, **extra: Any) -> Answer:
        """What a streamed chat really sent, broken or whole: an error frame or a missing end is in the answer, not raised."""
        body = {"messages": list(messages), "max_tokens": max_tokens, "temperature": 0.0, **extra}
        return self._observe("/v1/chat/completions", body)

    def tokens_in(self, **what: Any) -> int | None:
        """How many tokens `prompt=…` or `messages=…` has, or None where the endpoint has no `/tokenize`."""
        try:
            body = self._json("POST", "/tokenize", {"model": self.endpoint.model, **what})
        except (CheckFailed, EngineFailed):
            return None
        count = body.get("count")
        return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else None

    def metrics(self) -> str | None:
        """The Prometheus text of the server, or None where it has none."""
        try:
            return b"".join(self._body("GET", "/metrics", None)).decode("utf-8", "replace")
        except SlipwayError:
            return None

    def generate_once(self, max_tokens: int = 16) -> Generation:
        """The readiness proof: a real generation under the served name.

        Raises: CheckFailed when the name is not served, EngineFailed when tokens, finish reason, usage or text are missing.
        """
        self.refuse_unserved(self.models())
        generation = self.chat([{"role": "user", "content": "Say hello."}], max_tokens=max_tokens)
        if complaints := generation.complaints(max_tokens):
            said = self.endpoint.shown(", ".join(complaints))
            raise self._engine("/v1/chat/completions", f"not a real generation: {said}")
        return generation

    def refuse_unserved(self, served: Sequence[str]) -> None:
        """Raises: CheckFailed when the model's name is not among `served`."""
        if self.endpoint.model not in served:
            raise CheckFailed(
                f"{self.endpoint.url}/v1/models",
                f"the model {self.endpoint.model!r} is not served",
                f"served: {', '.join(map(self.endpoint.shown, served)) or 'nothing'}; "
                "some engines answer to any name, so the list is compared",
                "use a served name, or launch the right recipe",
            )

    def _generation(self, path: str, body: dict[str, Any], *, stream: bool) -> Generation:
        start_s = time.monotonic()
        if stream:
            answer = self._observe(path, body)
            if answer.error is not None:
                raise self._engine(path, f"an error inside HTTP 200: {self.endpoint.shown(answer.error)}")
        else:
            answer = _answer_from(self._json("POST", path, {"model": self.endpoint.model, **body}))
        return Generation(
            answer.text,
            answer.reasoning,
            answer.finish_reason,
            answer.usage,
            answer.tool_calls,
            time.monotonic() - start_s,
            answer.done,
        )

    def _observe(self, path: str, body: dict[str, Any]) -> Answer:
        asked = {"model": self.endpoint.model, **body, "stream": True, "stream_options": {"include_usage": True}}
        chunks = self._body("POST", path, asked)
        return sse.read(sse.frames((time.monotonic(), chunk) for chunk in chunks))

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        raw = b"".join(self._body(method, path, body))
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            raise self._engine(
                path,
                "the answer is not JSON",
                f"it begins {self.endpoint.shown(raw[:200].decode('utf-8', 'replace'))[:60]!r}",
            ) from None
        if (said := sse.error_from(value)) is not None:
            raise self._engine(path, f"an error inside HTTP 200: {self.endpoint.shown(said)}")
        if not isinstance(value, dict):
            raise self._engine(path, "the answer is not a JSON object")
        return value

    def _body(self, method: str, path: str, body: dict[str, Any] | None) -> Iterator[bytes]:
        """The body in pieces as they arrive, within the time and size that an answer may have."""
        place = f"{self.endpoint.url}{path}"
        deadline_s = time.monotonic() + self.endpoint.timeout_s
        size_bytes = 0
        with (
            self._network_errors(place),
            self._wire.cut_at(deadline_s),
            self._http.stream(method, place, json=body, extensions={"trace": self._wire.watch}) as response,
        ):
            if response.status_code != 200:
                raise self._refusal(place, response.status_code, _beginning(response))
            for chunk in response.iter_raw():
                size_bytes += len(chunk)
                if time.monotonic() > deadline_s:
                    raise self._late(place)
                if size_bytes > MAX_BODY_BYTES:
                    raise EngineFailed(place, f"the answer is larger than {MAX_BODY_BYTES} bytes")
                yield chunk

    @contextmanager
    def _network_errors(self, place: str) -> Iterator[None]:
        start_s = time.monotonic()
        try:
            yield
        except httpx.TimeoutException:
            raise self._late(place) from None
        except httpx.HTTPError as error:
            if time.monotonic() - start_s >= self.endpoint.timeout_s:
                raise self._late(place) from None
            if plain := meaning(error):
                raise NetworkFailure(place, plain.problem, "", plain.remedy) from error
            said = self.endpoint.shown(str(error)) or type(error).__name__
            raise NetworkFailure(
                place, f"no whole answer: {said}", "", "check the address, the server's log, and any firewall"
            ) from error

    def _late(self, place: str) -> NetworkFailure:
        return NetworkFailure(
            place,
            f"no whole answer within {self.endpoint.timeout_s:g} s",
            "a PD router with a dead decode worker hangs like this",
            "look at the engine's log, or raise the timeout",
        )

    def _refusal(self, place: str, status: int, raw: bytes) -> SlipwayError:
        said = self.endpoint.shown(sse.words_of(raw)) or "no words"
        if status in {401, 403}:
            return AuthFailure(
                place, f"HTTP {status}: {said}", "", f"set {API_KEY_VARIABLE} to a key this server takes"
            )
        if status >= 500:
            return EngineFailed(place, f"HTTP {status}: {said}", "the engine does not generate", "look at its log")
        return CheckFailed(
            place,
            f"HTTP {status}: {said}",
            "an OpenAI-compatible server answers it with 200",
            "correct the request or the URL",
        )

    def _engine(self, path: str, problem: str, why: str = "") -> EngineFailed:
        return EngineFailed(
            f"{self.endpoint.url}{path}", problem, why, "look at the engine's log; then run the command again"
        )


def _answer_from(body: dict[str, Any]) -> Answer:
    """A whole (not streamed) answer in the same shape as a streamed one."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    finish = choice.get("finish_reason")
    calls = message.get("tool_calls")
    return Answer(
        text=sse.text_of(message.get("content")) or sse.text_of(choice.get("text")),
        reasoning=sse.reasoning_of(message),
        tool_calls=tuple(_call(call) for call in calls if isinstance(call, dict)) if isinstance(calls, list) else (),
        finish_reason=sse.clean(finish) if isinstance(finish, str) else None,
        usage=sse.usage_from(body.get("usage")),
        done=True,
        model=sse.text_of(body.get("model")),
    )


def _call(value: dict[str, Any]) -> ToolCall:
    function = value.get("function")
    function = function if isinstance(function, dict) else {}
    return ToolCall(*(sse.text_of(part) for part in (value.get("id"), function.get("name"), function.get("arguments"))))


def _beginning(response: httpx.Response) -> bytes:
    """The first bytes of a refusal; a server's error page is not read to its end."""
    raw = b""
    for chunk in response.iter_raw():
        raw += chunk
        if len(raw) > 4_000:
            break
    return raw[:4_000]


def _checked_url(url: str) -> str:
    place, url = "--endpoint", url.strip()
    try:
        parts = urlsplit(url)
        # What the socket layer and httpx will ask of the name; they would end in a traceback.
        valid = bool((parts.hostname or "").encode("idna")) and parts.port != 0 and bool(httpx.URL(url))
    except (ValueError, httpx.InvalidURL):
        parts, valid = urlsplit(""), False
    if "@" in parts.netloc:
        raise UsageError(
            place, "the URL holds a user or password", "it would be shown in logs", f"use {API_KEY_VARIABLE} instead"
        )
    if not valid or parts.scheme not in {"http", "https"} or parts.query or parts.fragment or " " in url:
        raise UsageError(
            place, f"cannot be used (got {url!r})", "a URL like http://127.0.0.1:8000 is needed", "correct the URL"
        )
    return re.sub(r"/+v1(/+((chat/+)?completions|models))?/*$", "", url).rstrip("/")


def _checked_key(key: str | None) -> str | None:
    key = (key or "").strip()
    if not all("!" <= character <= "~" for character in key):
        raise UsageError(
            API_KEY_VARIABLE,
            "the key has characters that a header cannot carry",
            "printable ASCII without spaces is allowed",
            "set it again, perhaps without a line break",
        )
    return key or None
