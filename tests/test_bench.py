"""The bench tells the truth on a server whose truth is known, and classifies every failing stream as what it is."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import shutil
import signal
import ssl
import statistics
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from slipway import bench
from slipway.bench import crosschecks
from slipway.bench.http1 import Malformed, Response
from slipway.bench.statistics import MINIMUM_N, percentile, summarize
from slipway.endpoint import Endpoint
from slipway.errors import AuthFailure, CheckFailed, NetworkFailure, UsageError
from slipway.progress import Advance

TTFT_S, TOKEN_S, TOKENS = 0.05, 0.004, 20
"""What the server keeps to where times are compared; fewer tokens come at once."""

SPAN_SLACK_MS = 5.0
"""How far two clocks on this busy machine may differ about the time from the first token to the last."""

QUICK = 8
STOPS_AT = 5
TEMPLATE_TOKENS = 7


@dataclass
class Truth:
    """What the server really did for one request, on its own clock."""

    received_s: float
    sent: list[tuple[float, int]] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return (self.sent[0][0] - self.received_s) * 1000

    @property
    def decode_ms(self) -> float:
        first, last = self.sent[0], self.sent[-1]
        return (last[0] - first[0]) * 1000 / (sum(n for _, n in self.sent) - first[1])


class FakeServer:
    """An OpenAI-like SSE server; the model's name says how it behaves. Tokens leave at absolute deadlines."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.truths: list[Truth] = []
        self.bodies: list[dict] = []
        self.open = self.peak = self.connections = self.requests = self.generated = 0
        self.served = ["plain"]
        self.ended = threading.Event()
        self._tls = tls
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def forget(self) -> None:
        self.__dict__.update(truths=[], bodies=[], open=0, peak=0, connections=0, requests=0, ended=threading.Event())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        tasks: set[asyncio.Task] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._connection(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        for task in tasks:
            task.cancel()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *headers = head.decode().split("\r\n")
                length = next((int(h.split(":")[1]) for h in headers if h.lower().startswith("content-length")), 0)
                body = json.loads(await reader.readexactly(length)) if length else {}
                self.open += 1
                self.peak = max(self.peak, self.open)
                try:
                    keep = await self._answer(line.split()[1], body, headers, writer)
                finally:
                    self.open -= 1
                if not keep:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.ended.set()
            writer.close()

    async def _answer(self, path: str, body: dict, headers: list[str], writer: asyncio.StreamWriter) -> bool:
        if path == "/v1/models":
            if not self.served:
                return self._plain(writer, "nothing here", 404)
            refused = any("Bearer wrong" in header for header in headers)
            return self._plain(writer, {"data": [{"id": name} for name in self.served]}, 401 if refused else 200)
        if path == "/tokenize":
            return self._tokenize(writer, body)
        if path == "/metrics":
            text = f'# TYPE x counter\nvllm:generation_tokens_total{{engine="0"}} {float(self.generated)}\n'
            return self._plain(writer, text, 404 if "no-metrics" in self.served else 200)
        return await self._generate(body, writer)

    def _tokenize(self, writer: asyncio.StreamWriter, body: dict) -> bool:
        text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        if "byte-tokens" in body["model"]:
            return self._plain(writer, {"count": len(text) + TEMPLATE_TOKENS})
        if "no-tokenize" in body["model"]:
            return self._plain(writer, {"error": "no"}, 404)
        return self._plain(writer, {"count": len(text.split()) + TEMPLATE_TOKENS})

    def _plain(self, writer: asyncio.StreamWriter, value: object, status: int = 200) -> bool:
        raw = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
        return True

    async def _generate(self, body: dict, writer: asyncio.StreamWriter) -> bool:
        self.requests += 1
        self.bodies.append(body)
        name = body["model"]
        if name == "every-4th-429" and self.requests % 4 == 0:
            return self._plain(writer, {"error": {"message": "slow down"}}, 429)
        if name == "plain-refusal":
            return self._plain(writer, "upstream\x1b[31m gone", 502)
        if name == "not-http":
            writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")
            return False
        close = "Connection: close\r\n" if name == "connection-close" else ""
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{close}Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        async for event in self._events(name, body):
            if event is None:
                await writer.drain()
                writer.transport.abort()
                return False
            text = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            writer.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
        # In one piece with the end: a separate one could be taken for the answer to the next request.
        writer.write(b"0\r\n\r\n" + b"HTTP/1.1 408 Request Timeout\r\n\r\n" * (name == "talks-on"))
        return name not in {"connection-close", "closes-silently"}

    async def _events(self, name: str, body: dict) -> AsyncIterator[dict | str | None]:
        truth = Truth(time.perf_counter())
        self.truths.append(truth)
        if name == "hangs":
            await asyncio.sleep(30)
        if name == "early-role-frame":
            yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        step = 4 if name.startswith("four-per-frame") else 1
        wanted = STOPS_AT if name == "stops-early" else body["max_tokens"]
        for done in range(0, wanted, step):
            due = truth.received_s + (TTFT_S + done * TOKEN_S) * (body["max_tokens"] >= TOKENS)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if done == wanted // 2 and name in {"error-frame", "cut", "clean-end"}:
                if name == "error-frame":
                    yield {"error": {"message": "EngineCore died", "code": 500}}
                    yield "[DONE]"
                elif name == "cut":
                    yield None
                return
            now = time.perf_counter()
            truth.sent.append((now, step))
            self.generated += 0 if name == "counter-stands-still" else step
            chunk = {"choices": [{"delta": self._delta(name, done, wanted, step), "finish_reason": None}]}
            if body["stream_options"].get("continuous_usage_stats"):
                chunk["usage"] = {"prompt_tokens": 3, "completion_tokens": done + step}
            yield chunk
        for event in self._ending(name, body, wanted):
            yield event

    def _delta(self, name: str, done: int, wanted: int, step: int) -> dict:
        half = done < wanted // 2
        if name == "half-reasoning-content":
            return {"reasoning_content" if half else "content": "ab "}
        if name in {"half-reasoning", "all-reasoning"}:
            return {"reasoning" if half or name == "all-reasoning" else "content": "ab "}
        if name == "only-tool-calls":
            return {
                "tool_calls": [{"index": 0, "function": {"name": "" if done else "f", "arguments": "1" * bool(done)}}]
            }
        return {"content": "" if name == "empty-text" else "ab " * step}

    def _ending(self, name: str, body: dict, wanted: int) -> Iterator[dict | str]:
        finish = {"no-finish": None, "aborted": "abort"}.get(name, "length" if wanted == body["max_tokens"] else "stop")
        yield {"choices": [{"delta": {}, "finish_reason": finish}]}
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        usage = {
            "prompt_tokens": len(prompt) + TEMPLATE_TOKENS
            if name == "byte-tokens"
            else len(prompt.split()) + TEMPLATE_TOKENS,
            "completion_tokens": 0 if name == "zero-tokens" else wanted,
            "prompt_tokens_details": {"cached_tokens": 30 if name == "cached" else TEMPLATE_TOKENS},
        }
        if name == "cache-not-told":
            del usage["prompt_tokens_details"]
        if body["stream_options"]["include_usage"] and not name.endswith("no-usage"):
            yield {"choices": [], "usage": usage}
        if name != "no-done":
            yield "[DONE]"


@pytest.fixture(scope="module")
def running() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture
def server(running: FakeServer) -> FakeServer:
    running.forget()
    running.served = ["plain"]
    return running


def load(**changes: object) -> bench.Load:
    values = {
        "concurrency": 2, "requests": 4, "input_tokens": 40, "output_tokens": QUICK,
        "warmup_requests": 0, "warmup_wave": False, **changes,
    }  # fmt: skip
    return bench.Load(**values)  # type: ignore[arg-type]


def run(server: FakeServer, model: str, timeout_s: float = 10.0, **changes: object) -> bench.BenchResult:
    if server.served and model not in server.served:
        server.served = [*server.served, model]
    return bench.run(Endpoint(f"http://127.0.0.1:{server.port}", model, timeout_s=timeout_s), load(**changes))


def verdicts(result: bench.BenchResult) -> dict[str, bool | None]:
    return {check.id: check.ok for check in result.cross_checks}


def near(measured: float, truth: float, slack_ms: float) -> bool:
    return abs(measured - truth) <= 0.05 * truth + slack_ms


def in_one_of_three(attempt: Callable[[], bool]) -> bool:
    """True when a comparison of times holds once: a busy machine disturbs one run, wrong code disturbs all."""
    return any(attempt() for _ in range(3))


MATRIX = {
    "plain": None,
    "early-role-frame": None,
    "four-per-frame": None,
    "four-per-frame-no-usage": "no usage",
    "half-reasoning-content": None,
    "half-reasoning": None,
    "all-reasoning": None,
    "only-tool-calls": None,
    "error-frame": "error frame",
    "cut": "cut",
    "clean-end": "no [DONE]",
    "stops-early": None,
    "empty-text": "no text",
}
"""The scenarios on which the existing clients were compared, and why each request fails (None: it completes)."""


class TestMatrix:
    @pytest.mark.parametrize(("scenario", "reason"), MATRIX.items())
    def test_each_scenario_is_classified_and_timed_as_it_was(
        self, server: FakeServer, scenario: str, reason: str | None
    ) -> None:
        if reason:
            result = run(server, scenario)
            assert (result.completed, result.failures) == (0, {reason: 4})
            assert (result.completion_tokens, result.output_throughput, result.ttft_any_ms) == (0, 0.0, None)
            assert verdicts(result)["all-completed"] is False
            return
        tokens = STOPS_AT if scenario == "stops-early" else TOKENS

        def times_are_true() -> bool:
            server.forget()
            result = run(server, scenario, output_tokens=TOKENS)
            assert (result.completed, result.failed) == (4, 0)
            assert result.completion_tokens == 4 * tokens
            assert result.output_throughput == pytest.approx(4 * tokens / result.wall_s, rel=1e-3)
            assert result.ttft_any_ms is not None
            assert result.decode_ms_per_token is not None
            truth_ttft = statistics.median(truth.ttft_ms for truth in server.truths)
            truth_decode = statistics.median(truth.decode_ms for truth in server.truths)
            return near(result.ttft_any_ms.median, truth_ttft, slack_ms=15) and near(
                result.decode_ms_per_token.median, truth_decode, slack_ms=SPAN_SLACK_MS / (tokens - 1)
            )

        assert in_one_of_three(times_are_true)

    def test_every_fourth_request_refused_is_a_failure_of_those_only(self, server: FakeServer) -> None:
        result = run(server, "every-4th-429", requests=8)
        assert (result.completed, result.failures) == (6, {"http 429": 2})
        assert {record.detail for record in result.requests if not record.completed} == {"slow down"}
        assert result.completion_tokens == 6 * QUICK

    def test_a_refusal_that_is_not_json_is_shown_without_control_characters(self, server: FakeServer) -> None:
        result = run(server, "plain-refusal")
        assert result.failures == {"http 502": 4}
        assert result.requests[0].detail == "upstream [31m gone"
        with pytest.raises(CheckFailed, match=r"4 x http 502 \(upstream \[31m gone\)"):
            bench.refuse_failed(result)

    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            ("no-done", "no [DONE]"),
            ("no-finish", "no finish_reason"),
            ("aborted", "bad finish_reason"),
            ("zero-tokens", "zero tokens"),
            ("not-http", "malformed http"),
        ],
    )
    def test_every_other_way_to_be_incomplete_has_its_reason(self, server: FakeServer, model: str, reason: str) -> None:
        assert run(server, model).failures == {reason: 4}

    def test_a_server_that_hangs_runs_into_the_timeout(self, server: FakeServer) -> None:
        assert run(server, "hangs", timeout_s=0.3, requests=2).failures == {"timeout": 2}


class TestTimes:
    def test_visible_text_begins_after_the_reasoning(self, server: FakeServer) -> None:
        def gap_is_true() -> bool:
            result = run(server, "half-reasoning", output_tokens=TOKENS)
            assert result.ttft_any_ms is not None
            assert result.ttft_visible_ms is not None
            gap_ms = result.ttft_visible_ms.median - result.ttft_any_ms.median
            return near(gap_ms, TOKENS / 2 * TOKEN_S * 1000, slack_ms=15)

        assert in_one_of_three(gap_is_true)

    def test_reasoning_alone_has_no_visible_time(self, server: FakeServer) -> None:
        assert run(server, "all-reasoning").ttft_visible_ms is None

    def test_four_tokens_a_frame_are_told_from_the_gap_between_frames(self, server: FakeServer) -> None:
        result = run(server, "four-per-frame", output_tokens=TOKENS)
        assert {record.first_frame_tokens for record in result.requests} == {4}
        assert {record.first_frame_known_by for record in result.requests} == {"share of text"}
        assert result.frame_gap_ms is not None
        assert result.decode_ms_per_token is not None
        # Of means, since both then share out the same time, however a busy machine cuts it.
        assert result.frame_gap_ms.mean == pytest.approx(4 * result.decode_ms_per_token.mean, rel=0.01)

    def test_a_running_count_says_exactly_what_the_first_frame_held(self, server: FakeServer) -> None:
        result = run(server, "four-per-frame", frame_usage=True)
        assert {(record.first_frame_tokens, record.first_frame_known_by) for record in result.requests} == {
            (4, "frame usage")
        }
        assert result.completion_tokens == 4 * QUICK

    def test_one_token_per_frame_needs_no_estimate(self, server: FakeServer) -> None:
        assert {record.first_frame_known_by for record in run(server, "plain").requests} == {"one token per frame"}

    def test_frame_arrivals_are_kept_for_the_timeline(self, server: FakeServer) -> None:
        record = run(server, "plain").requests[0]
        assert len(record.frames_ms) == QUICK
        assert list(record.frames_ms) == sorted(record.frames_ms)


class TestLoop:
    def test_exactly_the_asked_number_of_streams_is_open(self, server: FakeServer) -> None:
        def streams_stay_open() -> bool:
            result = run(server, "plain", concurrency=8, requests=24, output_tokens=TOKENS)
            assert server.peak == 8
            assert sorted(record.index for record in result.requests) == list(range(24))
            assert result.mean_concurrency <= 8.01
            assert verdicts(result)["little"] is (result.mean_concurrency >= 7.2)
            return result.mean_concurrency >= 7.2

        assert in_one_of_three(streams_stay_open)

    def test_connections_are_used_again(self, server: FakeServer) -> None:
        run(server, "plain", requests=8)
        assert server.connections == 3  # two streams, and the client for models, tokenize and metrics

    @pytest.mark.parametrize("model", ["connection-close", "closes-silently"])
    def test_a_server_that_closes_after_each_answer_costs_no_request(self, server: FakeServer, model: str) -> None:
        assert run(server, model).completed == 4

    def test_warm_up_is_sent_and_not_counted(self, server: FakeServer) -> None:
        result = run(server, "plain", warmup_requests=1, warmup_wave=True)
        assert server.requests == 1 + 2 + 4
        assert (result.warmup_requests, result.warmup_failed, len(result.requests)) == (3, 0, 4)
        assert verdicts(result)["server-tokens"] is True

    def test_ctrl_c_closes_every_connection(self, server: FakeServer) -> None:
        interrupted = threading.Event()

        def interrupt_once(_: int) -> None:
            if not interrupted.is_set():
                interrupted.set()
                signal.raise_signal(signal.SIGINT)

        class Interrupting:
            def note(self, text: str) -> None: ...

            @contextmanager
            def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Advance]:
                yield interrupt_once if total == 100 and unit == "requests" else lambda _: None

        endpoint = Endpoint(f"http://127.0.0.1:{server.port}", "plain", timeout_s=10)
        with pytest.raises(KeyboardInterrupt):
            bench.run(endpoint, load(requests=100, output_tokens=TOKENS), progress=Interrupting())
        assert server.ended.wait(5)
        deadline = time.monotonic() + 5
        while server.open and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert server.open == 0
        assert server.requests < 10

    def test_a_server_that_stops_listening_in_the_middle_fails_the_rest(self, server: FakeServer) -> None:
        own = FakeServer()

        class StopsAfterPrompts:
            def note(self, text: str) -> None: ...

            @contextmanager
            def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Advance]:
                yield lambda _: None
                if unit == "prompts":
                    own.stop()

        endpoint = Endpoint(f"http://127.0.0.1:{own.port}", "plain", timeout_s=5)
        result = bench.run(endpoint, load(), progress=StopsAfterPrompts())
        assert result.failures == {"connect": 4}
        assert result.output_throughput == 0.0
        assert verdicts(result)["output-length"] is None

    def test_bytes_that_nobody_asked_for_end_the_connection_and_cost_no_request(self, server: FakeServer) -> None:
        assert run(server, "talks-on", requests=6).completed == 6
        assert server.connections == 6 + 1  # one for each, and the client's

    def test_an_endpoint_that_lists_no_models_leaves_that_undecided(self, server: FakeServer) -> None:
        server.served = []
        assert verdicts(run(server, "plain"))["model-served"] is None

    def test_a_name_that_is_not_listed_is_refused_before_anything_is_sent(self, server: FakeServer) -> None:
        with pytest.raises(CheckFailed, match=r"the model 'wrong' is not served; served: plain;"):
            bench.run(Endpoint(f"http://127.0.0.1:{server.port}", "wrong"), load())
        assert server.requests == 0

    def test_a_server_that_is_not_there_is_a_network_failure(self, unused_port: int) -> None:
        with pytest.raises(NetworkFailure):
            bench.run(Endpoint(f"http://127.0.0.1:{unused_port}", "plain"), load())

    def test_a_key_that_is_refused_is_an_auth_failure(self, server: FakeServer) -> None:
        with pytest.raises(AuthFailure):
            bench.run(Endpoint(f"http://127.0.0.1:{server.port}", "plain", "wrong"), load())

    def test_a_load_goes_over_tls_with_the_certificate_checked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not shutil.which("openssl"):
            pytest.skip("needs openssl")
        make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout k.pem -out c.pem"
        subprocess.run(
            [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1"], cwd=tmp_path, check=True, capture_output=True
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(tmp_path / "c.pem", tmp_path / "k.pem")
        server = FakeServer(tls)
        endpoint = Endpoint(f"https://127.0.0.1:{server.port}", "plain", timeout_s=10)
        try:
            with pytest.raises(NetworkFailure, match="certificate"):
                bench.run(endpoint, load())
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "c.pem"))
            assert bench.run(endpoint, load()).completed == 4
        finally:
            server.stop()


class TestPrompts:
    def test_prompts_have_exactly_the_tokens_asked_for(self, server: FakeServer) -> None:
        result = run(server, "plain", input_tokens=200)
        assert {record.prompt_tokens for record in result.requests} == {200}
        assert result.prompt_length_by == "tokenize"
        assert verdicts(result)["prompt-length"] is True

    def test_a_vocabulary_of_bytes_is_met_exactly_too(self, server: FakeServer) -> None:
        result = run(server, "byte-tokens", input_tokens=301)
        assert {record.prompt_tokens for record in result.requests} == {301}

    def test_without_tokenize_words_are_counted_and_the_result_says_so(self, server: FakeServer) -> None:
        result = run(server, "no-tokenize", input_tokens=40)
        assert result.prompt_length_by == "words"
        assert all(record.prompt_tokens for record in result.requests)

    def test_no_two_prompts_begin_alike_even_with_one_seed(self, server: FakeServer) -> None:
        for _ in range(2):
            run(server, "plain", seed=7)
        starts = [body["messages"][0]["content"].split()[0] for body in server.bodies]
        assert len(set(starts)) == len(starts) == 8

    def test_the_seed_fixes_the_words_after_the_nonce(self, server: FakeServer) -> None:
        for seed in (7, 7, 8):
            run(server, "plain", seed=seed, requests=2)
        tails = [" ".join(body["messages"][0]["content"].split()[1:]) for body in server.bodies]
        assert set(tails[0:2]) == set(tails[2:4]) != set(tails[4:6])

    def test_a_prompt_shorter_than_template_and_nonce_is_refused(self, server: FakeServer) -> None:
        with pytest.raises(UsageError, match="ask for at least 8"):
            run(server, "plain", input_tokens=3)

    def test_requests_carry_what_makes_them_comparable(self, server: FakeServer) -> None:
        run(server, "plain", api="completions", request={"top_p": 0.9}, requests=2)
        body = server.bodies[0]
        assert body["prompt"]
        assert (body["ignore_eos"], body["max_tokens"], body["top_p"]) == (True, QUICK, 0.9)
        assert body["stream_options"] == {"include_usage": True}


class TestCrossChecks:
    def test_a_good_run_passes_all_that_can_be_decided(self, server: FakeServer) -> None:
        found = verdicts(run(server, "plain", requests=12, output_tokens=TOKENS))
        for busy in ("client-kept-up", "little"):  # they say how busy this machine is, too
            del found[busy]
        assert set(found.values()) == {True}
        assert len(found) == 7

    @pytest.mark.parametrize(
        ("model", "check", "ok"),
        [
            ("cut", "all-completed", False),
            ("stops-early", "output-length", False),
            ("cached", "fresh-prompts", False),
            ("cache-not-told", "fresh-prompts", None),
            ("counter-stands-still", "server-tokens", False),
            ("no-tokenize", "prompt-length", True),
        ],
    )
    def test_each_wrong_number_is_seen(
        self, server: FakeServer, model: str, check: str, ok: bool | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bench, "COUNTER_WAIT_S", 0.2)
        assert verdicts(run(server, model))[check] is ok

    def test_too_few_waves_do_not_make_the_claimed_concurrency(self) -> None:
        around = crosschecks.Circumstances("m", None, None, None, None, False, mean_concurrency=13.3, lag_ms=80)
        found = {check.id: check.ok for check in crosschecks.cross_checks(load(concurrency=4), [], around)}
        assert found["little"] is False
        assert found["client-kept-up"] is False
        assert found["model-served"] is None
        assert found["server-tokens"] is None

    def test_more_frames_than_tokens_means_that_usage_is_false(self) -> None:
        record = bench.RequestRecord(
            index=0, stream=0, completed=True, start_ms=0.0, completion_tokens=2, frames_ms=(1.0, 2.0, 3.0, 4.0, 5.0)
        )
        around = crosschecks.Circumstances("m", (), None, None, None, False, 4.0, 0.0)
        found = {check.id: check.ok for check in crosschecks.cross_checks(load(), [record], around)}
        assert found["frames-within-usage"] is False
        assert found["prompt-length"] is False

    @pytest.mark.parametrize(
        ("metrics", "count"),
        [
            ('vllm:generation_tokens_total{engine="0"} 3.0\nvllm:generation_tokens_total{engine="1"} 4.0\n', 7.0),
            (
                'sglang:generation_tokens_total{model_name="M"} 1.9e+01\nsglang:generation_tokens_histogram_sum{} 5\n',
                19.0,
            ),
            ("# HELP vllm:generation_tokens_total x\n", None),
            (None, None),
        ],
    )
    def test_the_servers_counter_is_summed_over_its_engines(self, metrics: str | None, count: float | None) -> None:
        assert crosschecks.generated_tokens(metrics) == count


class TestStatistics:
    def test_a_percentile_is_null_until_the_sample_can_bound_it(self) -> None:
        summary = summarize(float(n) for n in range(64))
        assert summary is not None
        assert (summary.p50, summary.p90, summary.p95, summary.p99) == (31.0, 57.0, None, None)
        assert summary.too_small["p99"] == "n too small (64 of 662)"

    def test_one_value_has_a_mean_and_no_spread(self) -> None:
        summary = summarize([3.0, None])
        assert summary is not None
        assert (summary.n, summary.mean, summary.median, summary.sd) == (1, 3.0, 3.0, None)
        assert summarize([None]) is None

    @pytest.mark.parametrize(("name", "least"), MINIMUM_N.items())
    def test_the_minimum_sizes_are_where_the_second_largest_value_bounds_the_percentile(
        self, name: str, least: int
    ) -> None:
        share = int(name[1:]) / 100

        def chance_of_at_most_one_above(n: int) -> float:
            return sum(math.comb(n, k) * (1 - share) ** k * share ** (n - k) for k in (0, 1))

        assert chance_of_at_most_one_above(least) <= 0.01 < chance_of_at_most_one_above(least - 1)

    @given(st.lists(st.floats(0, 1e9), min_size=1), st.integers(1, 100))
    def test_a_percentile_is_a_value_of_the_sample_with_enough_below(self, values: list[float], percent: int) -> None:
        found = percentile(sorted(values), percent)
        assert found in values
        assert sum(value <= found for value in values) >= len(values) * percent / 100


class TestLoadAndResult:
    @pytest.mark.parametrize(
        "changes",
        [{"concurrency": 0}, {"requests": 1}, {"output_tokens": -1}, {"input_tokens": 0}, {"warmup_requests": -1}],
    )
    def test_numbers_that_cannot_be_meant_are_usage_errors(self, changes: dict) -> None:
        with pytest.raises(UsageError):
            load(**changes)

    def test_a_result_survives_json_and_a_forged_count_does_not(self, server: FakeServer) -> None:
        result = run(server, "plain")
        text = result.model_dump_json()
        assert json.loads(text)["schema"] == "slipway/bench-result/v1"
        assert bench.BenchResult.model_validate_json(text) == result
        with pytest.raises(ValidationError, match="do not follow"):
            bench.BenchResult.model_validate_json(text.replace('"completed":4', '"completed":5'))


CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5;ext=1\r\nhello\r\n0006\r\n world\r\n0\r\nTrailer: x\r\n\r\n"
)


class TestHttp:
    @given(st.lists(st.integers(0, len(CHUNKED)), max_size=12))
    def test_the_body_does_not_depend_on_how_the_bytes_were_cut(self, cuts: list[int]) -> None:
        response = Response()
        edges = sorted({0, len(CHUNKED), *cuts})
        for start, end in itertools.pairwise(edges):
            assert not response.complete
            response.feed(float(start), CHUNKED[start:end])
        assert (response.status, response.body()) == (200, b"hello world")
        assert response.complete
        assert response.reusable

    @given(st.binary(max_size=200))
    def test_any_bytes_are_taken_or_refused_as_malformed(self, raw: bytes) -> None:
        for head in (b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
            response = Response()
            try:
                response.feed(0.0, head + raw)
            except Malformed:
                continue
            assert response.body() == raw or not head.endswith(b"OK\r\n\r\n")

    def test_a_body_of_stated_length_ends_there_and_more_is_not_reusable(self) -> None:
        response = Response()
        response.feed(0.0, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef")
        assert response.body() == b"abc"
        assert response.complete
        assert not response.reusable

    def test_a_body_without_length_ends_with_the_connection(self) -> None:
        response = Response()
        response.feed(0.0, b"HTTP/1.0 200 OK\r\n\r\nabc")
        assert not response.complete
        assert response.end()
        assert not response.reusable

    def test_a_chunked_body_does_not_end_with_the_connection(self) -> None:
        response = Response()
        response.feed(0.0, CHUNKED[:-2])
        assert not response.end()

    def test_a_body_of_no_bytes_is_complete_at_once(self) -> None:
        response = Response()
        response.feed(0.0, b"HTTP/1.1 204 No Content\r\n\r\n")
        assert response.complete

    @pytest.mark.parametrize(
        "raw",
        [
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000,
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"x" * 70_000,
        ],
    )
    def test_what_is_not_http_is_refused(self, raw: bytes) -> None:
        with pytest.raises(Malformed):
            Response().feed(0.0, raw)
