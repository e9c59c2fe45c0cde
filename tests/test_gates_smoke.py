"""Each check of the smoke gate fails on the server that it is there for, and only then."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slipway.endpoint import Endpoint
from slipway.errors import CheckFailed, NetworkFailure
from slipway.gates import Check, GateResult, refuse_failed, smoke
from slipway.progress import Lines

USAGE = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}
SERVED = [
    "good", "good-thinking", "good-cached", "good-stripped", "first-pair-differs", "leak", "leak-in-stream",
    "no-usage", "no-stream-usage", "error-frame", "cut", "no-done", "empty", "other-text", "other-count",
    "other-finish", "zero-tokens", "too-many", "aborted", "http-500", "stream-500", "dies-after", "tool-call", "page",
]  # fmt: skip
SEEN: dict[str, int] = {}


def message(name: str, stream: bool) -> dict:
    """The parts of one answer, with the fault that `name` stands for."""
    turn = SEEN[name] = SEEN.get(name, 0) + 1
    answer = {"content": "42, and 7.", "reasoning": "", "finish": "stop", "usage": USAGE}
    faults: dict[str, dict] = {
        "good-thinking": {"content": None, "reasoning": "hm"},
        "good-cached": {"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 16 * (turn - 1)}}},
        "good-stripped": {"content": "\n\n42, and 7." if stream else "42, and 7."},
        "first-pair-differs": {"content": "42, or so." if turn == 2 else "42, and 7."},
        "leak": {"content": "hm</think>42"},
        "leak-in-stream": {"content": "<think>hm" if stream else "42"},
        "no-usage": {"usage": None},
        "no-stream-usage": {"usage": None if stream else USAGE},
        "empty": {"content": ""},
        "other-text": {"content": "43" if stream else "42"},
        "other-count": {"usage": {**USAGE, "completion_tokens": 4 if stream else 3}},
        "other-finish": {"finish": "length" if stream else "stop"},
        "zero-tokens": {"usage": {**USAGE, "completion_tokens": 0}},
        "too-many": {"usage": {**USAGE, "completion_tokens": 65}},
        "aborted": {"finish": "abort"},
        "tool-call": {"finish": "tool_calls"},
    }
    return {**answer, **faults.get(name, {})}


async def chat(request: Request) -> Response:
    asked = await request.json()
    name, streaming = asked["model"], bool(asked.get("stream"))
    if name == "http-500" or (name == "stream-500" and streaming):
        return JSONResponse({"error": {"message": "engine dead"}}, status_code=500)
    if name == "page":
        return Response("<!doctype html><html><head><title>502 Bad Gateway</title></head><body>...", status_code=502)
    if name == "dies-after" and "hello" in asked["messages"][0]["content"]:
        return JSONResponse({"error": {"message": "EngineCore died"}}, status_code=500)
    parts = message(name, streaming)
    if streaming:
        return StreamingResponse(stream(name, parts), media_type="text/event-stream")
    body = {
        "choices": [
            {
                "message": {"content": parts["content"], "reasoning": parts["reasoning"]},
                "finish_reason": parts["finish"],
            }
        ],
        "usage": parts["usage"],
    }
    return JSONResponse(body)


async def stream(name: str, parts: dict) -> AsyncIterator[str]:
    def event(value: dict) -> str:
        return f"data: {json.dumps(value)}\n\n"

    yield event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for key in ("reasoning", "content"):
        for character in parts[key] or "":
            yield event({"choices": [{"delta": {key: character}, "finish_reason": None}]})
    if name == "error-frame":
        yield event({"error": {"message": "device-side assert", "code": 500}})
        yield "data: [DONE]\n\n"
        return
    if name == "cut":
        await asyncio.sleep(0)
        raise asyncio.CancelledError
    yield event({"choices": [{"delta": {}, "finish_reason": parts["finish"]}]})
    if parts["usage"]:
        yield event({"choices": [], "usage": parts["usage"]})
    if name != "no-done":
        yield "data: [DONE]\n\n"


APP = Starlette(
    routes=[
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/models", lambda _: JSONResponse({"data": [{"id": name} for name in SERVED]})),
    ]
)


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """The URL of `app`, served by uvicorn on loopback while the block runs."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        threading.Event().wait(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(APP) as address:
        yield address


def failed(url: str, model: str) -> set[str]:
    SEEN.clear()
    return {check.id for check in smoke.run(Endpoint(url, model, timeout_s=10)).failures}


@pytest.mark.parametrize("model", ["good", "good-thinking", "good-cached", "good-stripped", "first-pair-differs"])
def test_a_good_server_passes(url: str, model: str) -> None:
    SEEN.clear()
    result = smoke.run(Endpoint(url, model, timeout_s=10))
    assert not result.failures
    assert result.passed
    assert len(result.checks) == 10


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("accepts-any-name", {"model-served"}),
        ("leak", {"no-think-tags"}),
        ("leak-in-stream", {"no-think-tags", "stream-agrees"}),
        ("no-usage", {"usage", "alive-after"}),
        ("no-stream-usage", {"usage"}),
        ("error-frame", {"no-error-frame", "finish-reason", "usage", "stream-agrees"}),
        ("no-done", {"stream-done"}),
        ("empty", {"text", "alive-after"}),
        ("other-text", {"stream-agrees"}),
        ("other-count", {"stream-agrees"}),
        ("other-finish", {"finish-reason", "stream-agrees"}),
        ("zero-tokens", {"usage", "alive-after"}),
        ("too-many", {"usage", "alive-after"}),
        ("aborted", {"finish-reason", "alive-after"}),
        ("tool-call", {"finish-reason"}),
        ("dies-after", {"alive-after"}),
    ],
)
def test_each_fault_fails_the_check_that_is_there_for_it(url: str, model: str, expected: set[str]) -> None:
    assert failed(url, model) == expected


@pytest.mark.parametrize("model", ["cut", "stream-500"])
def test_a_stream_that_breaks_decides_nothing_and_so_passes_nothing(url: str, model: str) -> None:
    undecided = {"no-error-frame", "stream-done", "finish-reason", "usage", "text", "no-think-tags", "stream-agrees"}
    assert failed(url, model) == undecided


def test_a_server_that_only_refuses_passes_nothing_but_its_name(url: str) -> None:
    assert len(failed(url, "http-500")) == 9


def test_one_cause_of_many_failures_is_told_once(url: str) -> None:
    log = io.StringIO()
    result = smoke.run(Endpoint(url, "page", timeout_s=10), progress=Lines(log))
    said = "HTTP 502: a web page (502 Bad Gateway)"
    assert log.getvalue().count(said) == 1
    assert f"whole-answer, alive-after failed: {url}/v1/chat/completions: {said}" in log.getvalue()
    with pytest.raises(CheckFailed) as caught:
        refuse_failed([result])
    assert str(caught.value).count(said) == 1
    assert "no-error-frame, stream-done: not decided: no streamed answer" in str(caught.value)


def test_where_only_streaming_fails_its_reason_is_shown(url: str) -> None:
    result = smoke.run(Endpoint(url, "stream-500", timeout_s=10))
    assert "HTTP 500: engine dead" in result.failures[0].detail
    assert result.failures[1].detail == "not decided: no streamed answer"


def test_an_endpoint_that_cannot_be_asked_is_not_judged(unused_port: int) -> None:
    with pytest.raises(NetworkFailure, match="nobody listens there"):
        smoke.run(Endpoint(f"http://127.0.0.1:{unused_port}", "good", timeout_s=5))


def page(status: int) -> Starlette:
    """A web server that has nothing to do with models, and answers everything with one page."""

    def answer(_: Request) -> Response:
        return Response("<!doctype html><title>It works!</title>", status_code=status, media_type="text/html")

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])


@pytest.mark.parametrize(
    ("status", "found"), [(200, "the answer is not JSON"), (404, "HTTP 404: "), (501, "HTTP 501: ")]
)
def test_a_server_of_another_kind_is_told_in_one_check(status: int, found: str) -> None:
    log = io.StringIO()
    with serving(page(status)) as url:
        result = smoke.run(Endpoint(url, "good", timeout_s=10), progress=Lines(log))
    assert [check.id for check in result.failures] == ["model-served"] == [check.id for check in result.checks]
    detail = result.failures[0].detail
    assert detail.startswith(f"no OpenAI-compatible server answers at {url} (/v1/models: {found}")
    assert f"/v1/chat/completions: {found}" in detail
    assert len(log.getvalue().splitlines()) == 3


def test_an_engine_without_a_list_of_models_is_still_judged_by_its_answers() -> None:
    async def other(_: Request) -> Response:
        return JSONResponse({"error": "no"}, status_code=404)

    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", other)]
    with serving(Starlette(routes=routes)) as url:
        assert len(smoke.run(Endpoint(url, "good", timeout_s=10)).checks) == 10


def test_what_failed_and_why_is_reported_while_it_runs(url: str) -> None:
    log = io.StringIO()
    smoke.run(Endpoint(url, "leak", timeout_s=10), progress=Lines(log))
    assert "no-think-tags failed: whole: </think> in the text" in log.getvalue()
    assert "gate smoke: failed (10 checks)" in log.getvalue()


def test_a_difference_is_shown_where_it_begins(url: str) -> None:
    result = smoke.run(Endpoint(url, "other-text", timeout_s=10))
    assert [check.detail for check in result.failures] == ["text from character 1: whole '2', streamed '3'"]


def test_a_result_survives_json_and_a_forged_verdict_does_not(url: str) -> None:
    result = smoke.run(Endpoint(url, "leak", timeout_s=10))
    text = result.model_dump_json()
    assert GateResult.model_validate_json(text) == result
    with pytest.raises(ValidationError, match="does not follow"):
        GateResult.model_validate_json(text.replace('"passed":false', '"passed":true', 1))


def test_a_gate_without_checks_is_no_gate() -> None:
    with pytest.raises(ValidationError):
        GateResult.of("smoke", [], 0.0)
    assert GateResult.of("smoke", [Check(id="a", passed=True, detail="")], 0.0).passed
