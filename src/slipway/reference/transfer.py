"""Prefill and decode as two processes: the KV of a prompt is computed by one, sent over HTTP, and generated from by the other.

As SGLang's router does, a front door sends one request to both halves with `bootstrap_host`, `bootstrap_port` and
`bootstrap_room`. The prefill half computes the prompt and keeps its KV under the room's number; the decode half fetches it from
there. With the KV travel the logits after the last token, so that the decode half chooses every token, the first included, from
the numbers that a single engine would have had.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import httpx
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipway.reference.metrics import EngineStats
from slipway.reference.model import KVCache, Laguna
from slipway.reference.protocol import Generate, Refusal
from slipway.reference.scheduler import Prefilled, SequenceJob

log = logging.getLogger("slipway.reference")

KV_TYPE = "application/vnd.safetensors"


class Side(Protocol):
    """What an answer asks of the half that it runs on."""

    mode: Literal["prefill", "decode"]

    async def prepare(self, asked: Generate, jobs: Sequence[SequenceJob], stats: EngineStats) -> None:
        """Make `jobs` ready for the scheduler. Raises: Refusal."""

    async def settle(self, asked: Generate) -> None:
        """After the last token: wait for what the other half still has to do. Raises: Refusal."""

    def forget(self, asked: Generate) -> None:
        """However it ended: keep nothing for it."""


@dataclass(frozen=True)
class Room:
    """Where one request's KV is handed over."""

    host: str
    port: int
    number: int

    @property
    def url(self) -> str:
        """Where the decode half fetches from."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/kv/{self.number}"


class PrefillSide:
    """The half that computes prompts, and hands their KV out on a port of its own."""

    mode: Literal["prefill", "decode"] = "prefill"

    def __init__(self, model: Laguna, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._made: dict[int, asyncio.Future[bytes | None]] = {}
        self._taken: dict[int, asyncio.Event] = {}

    def app(self) -> Starlette:
        """What the bootstrap port serves."""
        return Starlette(routes=[Route("/kv/{room:int}", self._hand_out), Route("/health", _healthy)])

    async def prepare(self, asked: Generate, jobs: Sequence[SequenceJob], stats: EngineStats) -> None:
        number, (job,) = _room(asked, jobs).number, jobs
        if number in self._taken:
            raise Refusal(400, "BadRequestError", f"room {number} is in use", "bootstrap_room")
        self._taken[number] = asyncio.Event()
        made, loop = self._future(number), asyncio.get_running_loop()
        # What is generated here is thrown away; one token ends the sequence.
        job.params = replace(job.params, max_tokens=1, min_tokens=min(job.params.min_tokens, 1))

        def hand_over(cache: KVCache, logits: NDArray[np.float32]) -> None:
            payload = packed(job.prompt_ids, cache, logits, job.cached_tokens)
            stats.transferred_mb.observe(len(payload) / 1e6)
            loop.call_soon_threadsafe(_resolve, made, payload)

        job.hand_over = hand_over

    async def settle(self, asked: Generate) -> None:
        number = asked.bootstrap_room
        assert isinstance(number, int)
        try:
            await asyncio.wait_for(self._taken[number].wait(), self._timeout_s)
        except TimeoutError:
            said = f"no decode server fetched the KV of room {number} within {self._timeout_s:g} s"
            raise Refusal(500, "InternalServerError", said) from None

    def forget(self, asked: Generate) -> None:
        number = asked.bootstrap_room
        if isinstance(number, int):
            self._taken.pop(number, None)
            made = self._made.pop(number, None)
            if made is not None:
                _resolve(made, None)

    async def _hand_out(self, request: Request) -> Response:
        number = int(request.path_params["room"])
        made = self._future(number)
        try:
            payload = await asyncio.wait_for(asyncio.shield(made), self._timeout_s)
        except TimeoutError:
            self._made.pop(number, None)
            payload = None
        if payload is None:
            return Response(f"the prompt of room {number} was not computed here", 404, media_type="text/plain")
        taken = self._taken.get(number)
        if taken is not None:
            taken.set()
        return Response(payload, media_type=KV_TYPE)

    def _future(self, number: int) -> asyncio.Future[bytes | None]:
        """The KV of a room, whichever half names it first."""
        if number not in self._made:
            self._made[number] = asyncio.get_running_loop().create_future()
        return self._made[number]


class DecodeSide:
    """The half that generates, from KV that it fetches."""

    mode: Literal["prefill", "decode"] = "decode"

    def __init__(self, model: Laguna, *, timeout_s: float) -> None:
        self._model = model
        self._timeout_s = timeout_s

    async def prepare(self, asked: Generate, jobs: Sequence[SequenceJob], stats: EngineStats) -> None:
        room, (job,) = _room(asked, jobs), jobs
        begin_s = time.monotonic()
        payload = await self._fetched(room)
        job.prefilled = unpacked(payload, self._model, job.prompt_ids)
        took_s = time.monotonic() - begin_s
        log.info(
            "KV of %d tokens: %s bytes in %.3f s from %s", job.prompt_ids.size, f"{len(payload):,}", took_s, room.url
        )

    async def settle(self, asked: Generate) -> None:
        pass

    def forget(self, asked: Generate) -> None:
        pass

    async def _fetched(self, room: Room) -> bytes:
        # A little more patience than the other half has, whose words say more than a time-out here.
        timeout = httpx.Timeout(self._timeout_s + 1, connect=min(self._timeout_s, 5))
        # Plain HTTP to a host beside this one: no proxy of the environment, no certificates to load.
        transport = httpx.AsyncHTTPTransport(verify=False, trust_env=False)
        try:
            async with httpx.AsyncClient(timeout=timeout, trust_env=False, transport=transport) as client:
                answer = await client.get(room.url)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _not_come(room, str(error) or type(error).__name__) from None
        if answer.status_code != 200:
            raise _not_come(room, answer.text[:200])
        return answer.content


def packed(prompt_ids: NDArray[np.int32], cache: KVCache, logits: NDArray[np.float32], cached_tokens: int) -> bytes:
    """A prompt's ids, its KV and the logits after it, as safetensors: `keys.N` and `values.N` are [kv_heads, tokens, head_dim]."""
    tensors: dict[str, Any] = {
        "prompt": prompt_ids,
        "cached_tokens": np.asarray([cached_tokens], np.int32),
        "logits": np.ascontiguousarray(logits),
    }
    for number, layer in enumerate(cache.layers):
        for name, values in zip(("keys", "values"), layer.read(0, prompt_ids.size), strict=True):
            tensors[f"{name}.{number}"] = np.ascontiguousarray(values)
    return save(tensors)


def unpacked(payload: bytes, model: Laguna, prompt_ids: NDArray[np.int32]) -> Prefilled:
    """What `packed` packed, as the cache that `model` goes on from.

    Raises: Refusal when it is of another prompt or of another model.
    """
    try:
        tensors = load(payload)
        complaint = _complaint(tensors, model, prompt_ids)
    except (SafetensorError, KeyError) as error:
        complaint = f"{type(error).__name__}: {error}"
    if complaint:
        raise Refusal(500, "InternalServerError", f"the KV that came cannot be used: {complaint}")
    cache = model.cache()
    for number, layer in enumerate(cache.layers):
        keys, values = (tensors[f"{name}.{number}"].transpose(1, 0, 2) for name in ("keys", "values"))
        layer.write(0, keys, values)
    cache.length = prompt_ids.size
    return Prefilled(cache, tensors["logits"], int(tensors["cached_tokens"][0]))


def _complaint(tensors: Mapping[str, NDArray[Any]], model: Laguna, prompt_ids: NDArray[np.int32]) -> str:
    """Why `tensors` are not the KV of `prompt_ids` in `model`; empty when they are. Raises: KeyError when one is missing."""
    if not np.array_equal(tensors["prompt"], prompt_ids):
        return "it is of another prompt; do both halves have the same checkpoint and template?"
    config = model.config
    shape = (config.key_value_heads, prompt_ids.size, config.head_dim)
    wanted = {f"{name}.{number}": shape for number in range(len(config.layers)) for name in ("keys", "values")}
    for name, one in {**wanted, "logits": (config.vocab_size,), "cached_tokens": (1,)}.items():
        if tensors[name].shape != one:
            return f"{name} has the shape {tensors[name].shape}, not {one}"
    return ""


def _room(asked: Generate, jobs: Sequence[SequenceJob]) -> Room:
    host, port, number = asked.bootstrap_host, asked.bootstrap_port, asked.bootstrap_room
    if not (isinstance(host, str) and isinstance(port, int) and isinstance(number, int)):
        said = "this server is one half of a pair; ask the router, which names bootstrap_host, bootstrap_port and bootstrap_room"
        raise Refusal(400, "BadRequestError", said, "bootstrap_room")
    if len(jobs) != 1:
        raise Refusal(400, "BadRequestError", "prefill and decode serve one prompt and n = 1 a request", "n")
    return Room(host, port, number)


def _resolve(made: asyncio.Future[bytes | None], payload: bytes | None) -> None:
    if not made.done():
        made.set_result(payload)


def _not_come(room: Room, why: str) -> Refusal:
    return Refusal(
        500, "InternalServerError", f"the KV of room {room.number} did not come from {room.host}:{room.port}: {why}"
    )


async def _healthy(_: Request) -> Response:
    return Response()
