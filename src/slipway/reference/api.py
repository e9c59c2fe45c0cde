"""The HTTP side of the reference engine: routes, authorization and errors, in the dress of the engine it stands in for."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from slipway.reference.answering import Answer, Served, check, encode, render
from slipway.reference.metrics import EngineFacts
from slipway.reference.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Refusal,
    TokenizeRequest,
    read_body,
)

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]
Answered = TypeVar("Answered")


@dataclass(frozen=True)
class AppSettings:
    """What the HTTP side needs besides the engine."""

    model_path: str
    version: str
    metrics: bool
    api_key: str | None = None
    server_args: dict[str, Any] = field(default_factory=dict)
    """What `/server_info` tells in the SGLang dress."""


def build_app(served: Served, settings: AppSettings) -> Starlette:
    """The ASGI application for `served`."""
    api = _Api(served, settings)
    routes = [
        Route("/health", api.health),
        Route("/v1/models", api.models),
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/completions", api.completions, methods=["POST"]),
        Route("/tokenize", api.tokenize, methods=["POST"]),
        Route("/detokenize", api.detokenize, methods=["POST"]),
    ]
    if served.dress.name == "vllm":
        routes += [Route("/ping", api.health, methods=["GET", "POST"]), Route("/load", api.vllm_load)]
    else:
        routes += [
            Route("/health_generate", api.health_generate),
            Route("/server_info", api.server_info),
            Route("/get_server_info", api.server_info),
            Route("/model_info", api.model_info),
            Route("/get_model_info", api.model_info),
            Route("/get_load", api.sglang_load),
        ]
    routes.append(Route("/version", api.version))
    if settings.metrics:
        routes.append(Route("/metrics", api.metrics))
    return Starlette(
        routes=routes,
        exception_handlers={Refusal: api.refused, HTTPException: _not_served},
        middleware=[Middleware(_Authorization, api_key=settings.api_key, dress=served.dress.name)],
    )


async def unless_gone(request: Request, work: Awaitable[Answered]) -> Answered | None:
    """What `work` gives; None when the client went away first, and then the work is cancelled."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


class _Api:
    def __init__(self, served: Served, settings: AppSettings) -> None:
        self._served = served
        self._settings = settings
        self._started = int(time.time())

    async def health(self, _: Request) -> Response:
        return Response(status_code=200 if self._served.scheduler.alive else 503)

    async def health_generate(self, _: Request) -> Response:
        """One token, really generated."""
        asked = CompletionRequest(prompt=[0], max_tokens=1, temperature=0, ignore_eos=True)
        alone = replace(self._served, transfer=None)  # half of a pair answers this one by itself
        try:
            await Answer.to_completion(alone, asked).whole()
        except Refusal:
            return Response(status_code=503)
        return Response()

    async def version(self, _: Request) -> Response:
        return _json({"version": self._settings.version})

    async def models(self, _: Request) -> Response:
        served = self._served
        card: dict[str, Any] = {
            "id": served.name,
            "object": "model",
            "created": self._started,
            "owned_by": served.dress.name,
            "root": self._settings.model_path,
            "parent": None,
            "max_model_len": served.window_tokens,
        }
        if served.dress.name == "vllm":
            card["permission"] = [_permission(self._started)]
        return _json({"object": "list", "data": [card]})

    async def chat(self, request: Request) -> Response:
        asked = read_body(await request.body(), ChatRequest)
        check(self._served, asked)
        return await self._answer(request, Answer.to_chat(self._served, asked), stream=asked.stream)

    async def completions(self, request: Request) -> Response:
        asked = read_body(await request.body(), CompletionRequest)
        check(self._served, asked)
        return await self._answer(request, Answer.to_completion(self._served, asked), stream=asked.stream)

    async def tokenize(self, request: Request) -> Response:
        served = self._served
        asked = read_body(await request.body(), TokenizeRequest)
        if asked.messages is not None:
            given = {"add_generation_prompt": asked.add_generation_prompt, **(asked.chat_template_kwargs or {})}
            text = render(served, asked.messages, asked.tools, {**served.template_kwargs, **given})
            special = bool(asked.add_special_tokens)
        elif asked.prompt is not None:
            text, special = asked.prompt, asked.add_special_tokens is not False
        else:
            raise Refusal(400, "BadRequestError", "prompt or messages is needed", "prompt")
        ids = served.text.encode(text, special=special)
        told: dict[str, Any] = {"count": len(ids), "max_model_len": served.window_tokens, "tokens": ids}
        if served.dress.name == "vllm":
            told["token_strs"] = [served.text.decode([one]) for one in ids] if asked.return_token_strs else None
        return _json(told)

    async def detokenize(self, request: Request) -> Response:
        asked = read_body(await request.body(), DetokenizeRequest)
        outside = [token_id for token_id in asked.tokens if not 0 <= token_id < self._served.vocab_size]
        if outside:
            raise Refusal(400, "BadRequestError", f"token id {outside[0]} is out of vocabulary", "tokens")
        text = self._served.text.decode(asked.tokens)
        return _json({"prompt" if self._served.dress.name == "vllm" else "text": text})

    async def metrics(self, _: Request) -> Response:
        served, limits = self._served, self._served.scheduler.limits
        facts = EngineFacts(
            served.name, limits.block_size_tokens, limits.kv_pool_tokens, served.window_tokens, limits.prefix_caching
        )
        text = served.dress.metrics(served.scheduler.stats, facts)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def vllm_load(self, _: Request) -> Response:
        # The real engine counts only with a flag that this one has not, and tells 0 without it.
        return _json({"server_load": 0})

    async def sglang_load(self, _: Request) -> Response:
        stats = self._served.scheduler.stats
        load = {"dp_rank": 0, "num_reqs": stats.running + stats.waiting, "num_waiting_reqs": stats.waiting}
        return _json(
            [{**load, "num_tokens": stats.kv_used_tokens, "num_pending_tokens": 0, "ts_tic": time.monotonic()}]
        )

    async def server_info(self, _: Request) -> Response:
        limits = self._served.scheduler.limits
        state = {
            "effective_max_running_requests_per_dp": limits.max_num_seqs,
            "memory_usage": {"token_capacity": limits.kv_pool_tokens},
        }
        told = {"internal_states": [state], "version": self._settings.version}
        return _json({**self._settings.server_args, **told})

    async def model_info(self, _: Request) -> Response:
        path = self._settings.model_path
        return _json(
            {
                "model_path": path,
                "tokenizer_path": path,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": "laguna",
                "architectures": ["LagunaForCausalLM"],
            }
        )

    async def refused(self, _: Request, error: Exception) -> Response:
        if not isinstance(error, Refusal):
            raise error
        return _json(self._served.dress.error(error), error.status)

    async def _answer(self, request: Request, answer: Answer, *, stream: bool) -> Response:
        if stream:
            charset = "; charset=utf-8" if self._served.dress.name == "vllm" else ""
            return StreamingResponse(answer.stream(), headers={"content-type": f"text/event-stream{charset}"})
        told = await unless_gone(request, answer.whole())
        return Response(status_code=499) if told is None else _json(told)


class _Authorization:
    """Refuses what does not carry the key: /v1 in vLLM, all but health and metrics in SGLang."""

    def __init__(self, app: ASGIApp, api_key: str | None, dress: str) -> None:
        self._app = app
        self._wanted = f"Bearer {api_key}".encode() if api_key else None
        self._dress = dress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._wanted is not None and self._guards(scope["path"]):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not secrets.compare_digest(given, self._wanted):
                await _json({"error": "Unauthorized"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _guards(self, path: str) -> bool:
        if self._dress == "vllm":
            return path.startswith("/v1")
        return not path.startswith(("/health", "/metrics"))


async def _not_served(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "Internal Server Error"
    return _json({"detail": detail}, status)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _permission(created_s: int) -> dict[str, Any]:
    return {
        "id": f"modelperm-{secrets.token_hex(8)}",
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")
