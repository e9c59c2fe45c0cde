"""The client tells a real generation from everything that only looks like one."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from slipway import sse
from slipway.endpoint import Client, Endpoint
from slipway.errors import AuthFailure, CheckFailed, EngineFailed, NetworkFailure, UsageError

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 2}}
KEY = "sk-very-secret"
HELLO = [{"role": "user", "content": "hi"}]


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """The URL of `app`, served by uvicorn on loopback while the block runs."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none")
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


def whole(message: dict | None = None, finish: str | None = "stop", usage: dict | None = USAGE) -> dict:
    message = {"role": "assistant", "content": "Hello there"} if message is None else message
    body = {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    return body if usage is None else {**body, "usage": usage}


WHOLE: dict[str, dict] = {
    "good": whole(),
    "thinking": whole({"content": None, "reasoning": "hm"}),
    "sglang": whole({"content": "", "reasoning_content": "hm"}),
    "tools": whole(
        {"content": None, "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": "{}"}}]}, "tool_calls"
    ),
    "no-usage": whole(usage=None),
    "zero-tokens": whole(usage={**USAGE, "completion_tokens": 0}),
    "too-many": whole(usage={**USAGE, "completion_tokens": 999}),
    "no-finish": whole(finish=None),
    "aborted": whole(finish="abort"),
    "empty": whole({"content": ""}),
    "error-in-200": {"error": {"message": "CUDA error: device-side assert", "code": 500}},
    "no-choices": {"object": "chat.completion", "usage": USAGE},
    "junk-shapes": {"choices": ["x"], "usage": [1]},
    "a-list": ["x"],  # type: ignore[dict-item]
}
REFUSED = {
    "refused": (401, f"bad key {KEY}"),
    "forbidden": (403, ""),
    "unknown": (404, "no such model"),
    "long": (400, "x" * 9000),
    "broken": (500, "boom \x1b[31mred"),
}


async def chat(request: Request) -> Response:
    asked = await request.json()
    name = asked["model"]
    if name in REFUSED:
        status, text = REFUSED[name]
        return JSONResponse({"error": {"message": text}}, status_code=status)
    if name == "html":
        return PlainTextResponse("<html>It works!</html>")
    if name == "moved":
        return Response(status_code=307, headers={"location": "/elsewhere"})
    if name == "slow":
        return StreamingResponse(trickle(), media_type="application/json")
    if asked.get("stream"):
        return StreamingResponse(stream(name, asked), media_type="text/event-stream")
    return JSONResponse(WHOLE[name])


async def trickle() -> AsyncIterator[bytes]:
    for _ in range(1000):
        yield b" "
        await __import__("asyncio").sleep(0.02)


async def stream(name: str, asked: dict) -> AsyncIterator[str]:
    def chunk(delta: dict, finish: str | None = None) -> str:
        return f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]})}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    yield chunk({"content": "Hello"})
    if name == "error-in-200":
        yield 'data: {"error": {"message": "engine died", "code": 500}}\n\n'
        yield "data: [DONE]\n\n"
        return
    yield chunk({"content": " there"})
    if name == "no-finish":
        return
    yield chunk({}, "stop")
    if asked["stream_options"]["include_usage"] and name != "no-usage":
        yield f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\n"
    yield "data: [DONE]\n\n"


async def models(request: Request) -> Response:
    if request.headers.get("authorization") not in {None, f"Bearer {KEY}"}:
        return JSONResponse({"error": "who are you"}, status_code=401)
    return JSONResponse({"data": [{"id": name} for name in [*WHOLE, *REFUSED, "html", "moved"]]})


async def tokenize(request: Request) -> Response:
    return JSONResponse({"count": len((await request.json())["prompt"].split())})


APP = Starlette(
    routes=[
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", chat, methods=["POST"]),
        Route("/v1/models", models),
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/metrics", lambda _: PlainTextResponse("vllm:generation_tokens_total 3\n")),
    ]
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(APP) as address:
        yield address


def client(url: str, model: str, timeout_s: float = 10.0) -> Client:
    return Client(Endpoint(url, model, KEY, timeout_s))


class TestReadiness:
    def test_a_real_generation_is_the_proof(self, url: str) -> None:
        with client(url, "good") as connection:
            generation = connection.generate_once()
        assert generation.text == "Hello there"
        assert generation.finish_reason == "stop"
        assert generation.usage == sse.Usage(5, 3, 2)
        assert generation.seconds > 0

    @pytest.mark.parametrize(
        "model", ["no-usage", "zero-tokens", "too-many", "no-finish", "aborted", "empty", "error-in-200", "no-choices"]
    )
    def test_an_answer_without_what_makes_it_one_is_an_engine_failure(self, url: str, model: str) -> None:
        with client(url, model) as connection, pytest.raises(EngineFailed):
            connection.generate_once()

    @pytest.mark.parametrize("model", ["html", "junk-shapes", "a-list"])
    def test_an_answer_of_the_wrong_shape_is_an_engine_failure(self, url: str, model: str) -> None:
        with client(url, model) as connection, pytest.raises(EngineFailed):
            connection.chat(HELLO, max_tokens=4).complaints(4) or pytest.fail("no complaint")
            connection.generate_once()

    def test_a_name_that_is_not_served_is_refused_although_the_engine_would_answer(self, url: str) -> None:
        with client(url, "nope") as connection, pytest.raises(CheckFailed, match="not served"):
            connection.generate_once()

    @pytest.mark.parametrize("model", ["thinking", "sglang"])
    def test_thinking_alone_is_a_generation_under_either_field_name(self, url: str, model: str) -> None:
        with client(url, model) as connection:
            assert connection.generate_once().reasoning == "hm"

    def test_tool_calls_are_read(self, url: str) -> None:
        with client(url, "tools") as connection:
            generation = connection.chat(HELLO, max_tokens=8)
        assert generation.tool_calls == (sse.ToolCall("c1", "add", "{}"),)
        assert not generation.complaints(8)


class TestFailures:
    @pytest.mark.parametrize(
        ("model", "kind"),
        [
            ("refused", AuthFailure),
            ("forbidden", AuthFailure),
            ("unknown", CheckFailed),
            ("long", CheckFailed),
            ("moved", CheckFailed),
            ("broken", EngineFailed),
        ],
    )
    def test_each_refusal_has_its_kind(self, url: str, model: str, kind: type[Exception]) -> None:
        with client(url, model) as connection, pytest.raises(kind) as caught:
            connection.chat(HELLO, max_tokens=4)
        assert KEY not in str(caught.value)
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 1000

    def test_nothing_listening_is_a_network_failure(self, unused_port: int) -> None:
        place = f"http://127.0.0.1:{unused_port}"
        with client(place, "good") as connection, pytest.raises(NetworkFailure) as caught:
            connection.models()
        assert str(caught.value).startswith(f"{place}/v1/models: nobody listens there; ")

    def test_a_name_without_address_is_no_such_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with client("http://nowhere.test", "good") as connection, pytest.raises(NetworkFailure) as caught:
            connection.models()
        assert caught.value.problem == "no such host (name or service not known)"

    def test_a_connection_that_is_cut_is_not_called_unreachable(self) -> None:
        def cut(listener: socket.socket) -> None:
            connection, _ = listener.accept()
            connection.recv(1)  # the rest stays unread, so that the kernel answers with a reset
            connection.close()

        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=cut, args=(listener,), daemon=True)
            thread.start()
            place = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with client(place, "good") as connection, pytest.raises(NetworkFailure) as caught:
                connection.models()
            thread.join()
        assert caught.value.problem == "cut the connection"

    def test_tls_to_a_plain_port_is_told_as_that(self, url: str) -> None:
        with client(url.replace("http:", "https:"), "good") as connection, pytest.raises(NetworkFailure) as caught:
            connection.models()
        assert caught.value.problem == "does not speak TLS"

    def test_an_answer_that_trickles_past_the_timeout_is_a_network_failure(self, url: str) -> None:
        with client(url, "slow", timeout_s=0.3) as connection, pytest.raises(NetworkFailure, match=r"0\.3 s"):
            connection.chat(HELLO, max_tokens=4)

    def test_an_error_frame_inside_http_200_is_a_failure(self, url: str) -> None:
        with client(url, "error-in-200") as connection, pytest.raises(EngineFailed, match="engine died"):
            connection.chat(HELLO, max_tokens=4, stream=True)

    def test_a_stream_that_ends_early_is_complained_about(self, url: str) -> None:
        with client(url, "no-finish") as connection:
            complaints = connection.chat(HELLO, max_tokens=4, stream=True).complaints(4)
        assert complaints == ["finish_reason is None", "no usage", "the stream ended without [DONE]"]


class TestRequests:
    def test_the_stream_says_the_same_as_the_whole_answer(self, url: str) -> None:
        with client(url, "good") as connection:
            streamed = connection.chat(HELLO, max_tokens=4, stream=True, chat_template_kwargs={"x": 1})
            assert streamed.text == connection.chat(HELLO, max_tokens=4).text
            assert streamed.usage == sse.Usage(5, 3, 2)

    def test_completions_are_read_too(self, url: str) -> None:
        with client(url, "good") as connection:
            assert connection.completion("2+2=", max_tokens=4).text == "Hello there"

    def test_tokens_and_metrics_are_none_where_the_server_has_none(self, url: str) -> None:
        with client(url, "good") as connection:
            assert connection.tokens_in(prompt="a b c") == 3
            assert "generation_tokens" in (connection.metrics() or "")
        with client(f"{url}/elsewhere", "good") as connection:
            assert connection.tokens_in(prompt="a b c") is None
            assert connection.metrics() is None

    def test_a_proxy_from_the_environment_is_not_used_for_loopback(
        self, url: str, unused_port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{unused_port}")
        with client(url, "good") as connection:
            assert "good" in connection.models()


class TestEndpoint:
    @pytest.mark.parametrize(
        "path", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/"]
    )
    def test_the_url_may_end_in_a_path_of_the_api(self, path: str) -> None:
        assert Endpoint(f" http://h:1{path}", "m").url == "http://h:1"
        assert Endpoint(f"http://h:1/models/x{path}", "m").url == "http://h:1/models/x"

    @pytest.mark.parametrize(
        "bad",
        [
            "",
            "h:1",
            "ftp://h",
            "http://",
            "http://h:x",
            "http://u:p@h",
            "http://h?x=1",
            "http://[::1",
            "http://a..b",
            "http://h:0",
            "http://a b",
            "http://h\n/x",
            "http://\x00",
        ],
    )
    def test_a_url_that_cannot_be_used_is_a_usage_error(self, bad: str) -> None:
        with pytest.raises(UsageError):
            Endpoint(bad, "m")

    @pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
    def test_a_timeout_that_cannot_be_waited_for_is_a_usage_error(self, timeout_s: float) -> None:
        with pytest.raises(UsageError, match="timeout_s"):
            Endpoint("http://h", "m", timeout_s=timeout_s)

    def test_the_key_comes_from_the_environment_and_is_never_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SLIPWAY_API_KEY", f" {KEY}\n")
        endpoint = Endpoint.from_environment("http://h", "m")
        assert endpoint.headers()["authorization"] == f"Bearer {KEY}"
        assert KEY not in repr(endpoint)

    def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(self) -> None:
        with pytest.raises(UsageError) as caught:
            Endpoint("http://h", "m", "sé cret")
        assert "cret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("address", "loopback"),
        [
            ("127.0.0.1", True),
            ("[::1]", True),
            ("localhost", True),
            ("10.0.0.1", False),
            ("localhost.evil.example", False),
        ],
    )
    def test_loopback_is_told_by_the_address(self, address: str, loopback: bool) -> None:
        assert Endpoint(f"http://{address}:8000", "m").loopback is loopback


CAPTURES = Path(__file__).parent / "data" / "streams"


def captured() -> list[Path]:
    return sorted(CAPTURES.glob("*.sse"))


class TestStreams:
    @pytest.mark.parametrize("path", captured(), ids=lambda path: path.stem)
    def test_streams_captured_from_real_engines_read_as_they_were(self, path: Path) -> None:
        expected = json.loads(path.with_suffix(".json").read_text())
        answer = sse.read(sse.frames([(0.0, path.read_bytes())]))
        assert answer.done
        assert answer.error is None
        assert {
            "text": answer.text,
            "reasoning": answer.reasoning,
            "finish_reason": answer.finish_reason,
            "completion_tokens": answer.usage and answer.usage.completion_tokens,
            "cached_tokens": answer.usage and answer.usage.cached_tokens,
            "token_frames": len(answer.token_frames),
            "tokens_so_far": [frame.tokens_so_far for frame in answer.token_frames],
        } == expected

    @given(
        st.lists(st.text(), max_size=6),
        st.sampled_from([b"\n", b"\r\n"]),
        st.lists(st.integers(0, 400), max_size=8),
    )
    def test_frames_do_not_depend_on_how_the_bytes_were_cut(
        self, texts: list[str], ending: bytes, cuts: list[int]
    ) -> None:
        body = b"".join(
            b": comment" + ending + b"data: " + json.dumps(text).encode() + ending + ending for text in texts
        )
        edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
        chunks = [(float(a), body[a:b]) for a, b in itertools.pairwise(edges)]
        assert [json.loads(frame.data) for frame in sse.frames(chunks)] == texts

    @given(st.binary(max_size=300))
    def test_any_bytes_are_read_without_an_exception(self, body: bytes) -> None:
        answer = sse.read(sse.frames([(0.0, body), (1.0, b"\n\ndata: {}\n\n")]))
        assert answer.finish_reason is None

    @settings(max_examples=40, deadline=None)
    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(
        st.sampled_from(["choices", "delta", "content", "tool_calls", "function", "usage", "error", "index", "text"]), x)))  # fmt: skip
    def test_any_json_is_read_without_an_exception(self, value: object) -> None:
        sse.read([sse.Frame(0.0, "", json.dumps(value)), sse.Frame(0.0, "", json.dumps({"choices": [value]}))])

    def test_a_line_that_never_ended_is_no_frame(self) -> None:
        answer = sse.read(sse.frames([(0.0, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DO')]))
        assert answer.text == "a"
        assert not answer.done

    def test_an_event_without_end_is_refused_before_memory_is_gone(self) -> None:
        answer = sse.read(sse.frames((0.0, b"x" * 1_000_000) for _ in range(9)))
        assert "larger" in (answer.error or "")

    def test_tool_call_deltas_are_joined_by_their_index(self) -> None:
        deltas = [
            {"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}},
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}},
            {"index": 0, "function": {"arguments": ":1}"}},
        ]
        frames = [
            sse.Frame(0.0, "", json.dumps({"choices": [{"delta": {"tool_calls": [delta, "junk"]}}]}))
            for delta in deltas
        ]
        assert sse.read(frames).tool_calls == (sse.ToolCall("a", "f", '{"x":1}'), sse.ToolCall("b", "g", ""))

    @pytest.mark.parametrize(
        ("frame", "said"),
        [
            (sse.Frame(0.0, "error", "boom"), "boom"),
            (sse.Frame(0.0, "error", "{}"), "{}"),
            (sse.Frame(0.0, "", "not json"), "a frame is not JSON"),
            (sse.Frame(0.0, "", "[1]"), "a frame is not a JSON object"),
            (sse.Frame(0.0, "", '{"error": {"message": "\\ud800"}}'), "?"),
            (sse.Frame(0.0, "", '{"error": ""}'), "an error without words"),
            (sse.Frame(0.0, "", '{"object": "error", "message": "old form"}'), "old form"),
        ],
    )
    def test_every_form_of_error_frame_is_seen(self, frame: sse.Frame, said: str) -> None:
        assert sse.read([frame]).error == said


def test_headers_that_drip_for_ever_end_at_the_deadline() -> None:
    """httpx bounds each read; only the whole answer's deadline ends this one."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            for number in range(200):
                if stop.wait(0.05):
                    return
                try:
                    connection.sendall(b"x-%d: y\r\n" % number)
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        begin = time.monotonic()
        with (
            pytest.raises(NetworkFailure, match=r"no whole answer within 0\.5 s"),
            Client(Endpoint(url, "m", timeout_s=0.5)) as client,
        ):
            client.models()
        assert time.monotonic() - begin < 5
        stop.set()
        thread.join()
