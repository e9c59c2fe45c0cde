"""Prefill and decode as two processes behind a router: the KV moves, and the answers are those of a single engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from slipway.reference import checkpoint, router, transfer
from slipway.reference.model import Laguna
from slipway.reference.protocol import Refusal

SOURCE = Path(__file__).resolve().parent.parent / "src"
LONG = "In the beginning there was a word, and then another one came along. " * 24
"""Longer than the sliding window and than one chunk of a prefill."""

CLIENT = httpx.Client(timeout=60, verify=False, trust_env=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint.generate(tmp_path_factory.mktemp("laguna")).folder


class Server:
    """A process of this package that has begun to listen; `log` is its stderr so far."""

    def __init__(self, module, port, *words):
        self.url, self.log = f"http://127.0.0.1:{port}", []
        command = [sys.executable, "-m", f"slipway.reference.{module}", "--port", str(port), *map(str, words)]
        env = {**os.environ, "PYTHONPATH": str(SOURCE)}
        self.process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        self._up = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ready(self):
        assert self._up.wait(30) and self.process.poll() is None, "".join(self.log)

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            if "Application startup complete." in line:
                self._up.set()
        self._up.set()

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(15)
        self._reader.join()
        self.process.stderr.close()
        return code

    def metric(self, name):
        lines = CLIENT.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


class Pair:
    """A single engine, and a prefill and a decode server behind a router."""

    def __init__(self, folder, ports, *, timeout_s=20, single=True):
        common = (
            folder,
            "--served-model-name",
            "laguna",
            "--dress",
            "sglang",
            "--enable-cache-report",
            "--enable-metrics",
        )
        half = (*common, "--disaggregation-timeout-s", timeout_s, "--disaggregation-mode")
        self.bootstrap = ports()
        self.prefill = Server("engine", ports(), *half, "prefill", "--disaggregation-bootstrap-port", self.bootstrap)
        self.decode = Server("engine", ports(), *half, "decode")
        self.single = Server("engine", ports(), *common) if single else None
        workers = ("--prefill", self.prefill.url, self.bootstrap, "--decode", self.decode.url)
        self.router = Server("router", ports(), "--pd-disaggregation", *workers, "--worker-startup-timeout-secs", 30)
        self.servers = tuple(filter(None, (self.router, self.single, self.decode, self.prefill)))
        for server in self.servers:
            server.ready()

    def end(self):
        codes = [server.end() for server in self.servers]
        assert not any("Traceback" in "".join(server.log) for server in self.servers), [s.log for s in self.servers]
        return codes


@pytest.fixture(scope="module")
def pair(folder, free_port):
    made = Pair(folder, free_port)
    yield made
    assert made.end() == [0, 0, 0, 0]


def complete(url, text, **asked):
    body = {"model": "laguna", "prompt": text, "max_tokens": 12, "temperature": 0, "logprobs": 5, **asked}
    return CLIENT.post(f"{url}/v1/completions", json=body)


@pytest.mark.parametrize("prompt", ["Hi", LONG], ids=["short", "long"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 7}], ids=["greedy", "sampled"])
def test_tokens_and_log_probabilities_are_those_of_a_single_engine(pair, prompt, sampling):
    moved = pair.prefill.metric("sglang:kv_transfer_total_mb_sum")
    apart, alone = (complete(server.url, prompt, **sampling).json() for server in (pair.router, pair.single))
    assert apart["choices"] == alone["choices"]
    assert apart["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    # Keys and values of each of the 4 layers, 2 heads of 32 float32 numbers a token.
    least = apart["usage"]["prompt_tokens"] * 4 * 2 * 2 * 32 * 4 / 1e6
    assert pair.prefill.metric("sglang:kv_transfer_total_mb_sum") - moved >= least


def test_prefill_only_computes_prompts_and_decode_only_generates(pair):
    before = [server.metric("sglang:generation_tokens_total") for server in (pair.prefill, pair.decode)]
    assert complete(pair.router.url, "One, two", max_tokens=9, ignore_eos=True).status_code == 200
    after = [server.metric("sglang:generation_tokens_total") for server in (pair.prefill, pair.decode)]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 9]
    modes = [CLIENT.get(f"{server.url}/server_info").json()["disaggregation_mode"] for server in pair.servers[1:]]
    assert modes == ["null", "decode", "prefill"]


def test_a_repeated_prompt_is_told_as_cached_by_the_half_that_had_it(pair):
    first, again = (complete(pair.router.url, f"{LONG} twice").json()["usage"] for _ in range(2))
    assert again["prompt_tokens_details"] == {"cached_tokens": first["prompt_tokens"] - 1}


def test_a_stream_is_the_whole_answer(pair):
    asked = {"messages": [{"role": "user", "content": "Name a prime."}], "max_tokens": 10, "temperature": 0}
    whole = CLIENT.post(f"{pair.router.url}/v1/chat/completions", json=asked).json()
    said = ""
    with CLIENT.stream("POST", f"{pair.router.url}/v1/chat/completions", json={**asked, "stream": True}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    for frame in map(json.loads, lines):
        said += frame["choices"][0]["delta"].get("content") or ""
    assert said == whole["choices"][0]["message"]["content"]


def test_many_at_once_do_not_mix_their_rooms(pair):
    prompts = [f"Count from {number}: " for number in range(12)]
    with ThreadPoolExecutor(8) as pool:
        apart = list(pool.map(lambda prompt: complete(pair.router.url, prompt).json()["choices"], prompts))
    alone = [complete(pair.single.url, prompt).json()["choices"] for prompt in prompts]
    # Requests that are computed together are rounded otherwise than one alone, so only the numbers are compared with a margin.
    found, expected = ([_numbers(choices) for choices in answers] for answers in (apart, alone))
    assert found == [pytest.approx(numbers, abs=1e-4) for numbers in expected]
    assert apart == alone


def _numbers(choices):
    """The log probabilities of the one choice, taken out of it."""
    inside = choices[0]["logprobs"]
    numbers = list(inside.pop("token_logprobs"))
    for place in inside["top_logprobs"] or []:
        numbers += place.values()
        place.update(dict.fromkeys(place))
    return numbers


def test_half_of_a_pair_asked_directly_names_the_router(pair):
    for server in (pair.prefill, pair.decode):
        refused = complete(server.url, "Hi")
        assert refused.status_code == 400
        assert "ask the router" in refused.text
        assert CLIENT.get(f"{server.url}/health_generate").status_code == 200


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"n": 2}, 400, "n = 1"),
        ({"prompt": ["a", "b"]}, 400, "one prompt"),
        ({"max_tokens": 100_000}, 400, "context length"),
        ({"temperature": -1}, 400, "non-negative"),
    ],
)
def test_what_one_half_refuses_is_refused(pair, asked, status, said):
    refused = complete(pair.router.url, "Hi", **asked)
    assert (refused.status_code, said in refused.text) == (status, True), refused.text


def test_the_router_tells_about_its_servers(pair):
    url = pair.router.url
    assert [CLIENT.get(f"{url}/{page}").status_code for page in ("liveness", "readiness", "health")] == [200] * 3
    assert CLIENT.get(f"{url}/v1/models").json()["data"][0]["id"] == "laguna"
    told = CLIENT.get(f"{url}/workers").json()
    assert told["stats"] == {"prefill_count": 1, "decode_count": 1}
    assert [(one["worker_type"], one["is_healthy"]) for one in told["workers"]] == [("prefill", True), ("decode", True)]
    assert CLIENT.post(f"{url}/v1/completions", content="[1]").status_code == 400
    assert CLIENT.post(f"{url}/v1/completions", content="{").status_code == 400


def test_a_client_that_goes_away_leaves_nothing_running(pair):
    body = {"prompt": "Hi", "max_tokens": 4000, "temperature": 0, "ignore_eos": True, "stream": True}
    with CLIENT.stream("POST", f"{pair.router.url}/v1/completions", json=body) as answer:
        next(answer.iter_lines())
    pause = threading.Event()
    for _ in range(200):
        if pair.decode.metric("sglang:num_running_reqs") == 0:
            break
        pause.wait(0.05)
    assert pair.decode.metric("sglang:num_running_reqs") == 0
    assert pair.decode.metric("sglang:num_aborted_requests_total") >= 1


def test_without_its_other_half_each_says_so_in_time(folder, free_port):
    with ExitStack() as ends:
        pair = Pair(folder, free_port, timeout_s=1, single=False)
        ends.callback(pair.end)
        room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pair.bootstrap, "bootstrap_room": 5}
        refused = complete(pair.prefill.url, "Hi", **room)
        assert (refused.status_code, "no decode server fetched" in refused.text) == (500, True)
        refused = complete(pair.decode.url, "Hi", **room)
        assert (refused.status_code, "was not computed here" in refused.text) == (500, True)
        # The room of one request, another request's prompt.
        with ThreadPoolExecutor(2) as pool:
            computing = pool.submit(complete, pair.prefill.url, "Hi", **room)
            refused = complete(pair.decode.url, "Ho", **room)
            assert (refused.status_code, "another prompt" in refused.text) == (500, True)
            assert computing.result().status_code == 200
        pair.decode.end(signal.SIGKILL)
        refused = complete(pair.router.url, "Hi")
        assert (refused.status_code, f"{pair.decode.url} did not answer" in refused.text) == (502, True)
        assert CLIENT.get(f"{pair.router.url}/readiness").status_code == 503
        assert CLIENT.get(f"{pair.router.url}/liveness").status_code == 200
        assert CLIENT.get(f"{pair.router.url}/v1/models").status_code == 502


def test_the_router_waits_for_its_servers_and_gives_up_in_time(free_port, capsys):
    words = ["--pd-disaggregation", "--prefill", f"http://127.0.0.1:{free_port()}", "8998"]
    words += ["--decode", f"http://127.0.0.1:{free_port()}", "--port", str(free_port())]
    assert router.main([*words, "--worker-startup-timeout-secs", "1"]) == 9
    assert "is not healthy within 1 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--prefill", "http://a:1", "--decode", "http://b:2"), "bootstrap port"),
        (("--prefill", "a:1", "8998", "--decode", "http://b:2"), "a URL like"),
        (("--prefill", "http://a:1", "8998"), "--decode"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        router.main(["--pd-disaggregation", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def model(folder):
    return Laguna.load(folder)


class TestKv:
    def test_logits_after_a_transfer_are_the_same_numbers(self, model):
        prompt = np.arange(3, 303, dtype=np.int32) % 500
        cache = model.cache()
        logits = model.logits(prompt.tolist(), cache)
        received = transfer.unpacked(transfer.packed(prompt, cache, logits, 17), model, prompt)
        assert received.cached_tokens == 17
        assert np.array_equal(received.logits, logits)
        for token in (5, 6, 7):
            assert np.array_equal(model.logits([token], received.cache), model.logits([token], cache))

    @pytest.mark.parametrize("change", ["prompt", "truncated", "heads", "missing"])
    def test_what_is_not_this_prompts_kv_is_refused(self, model, change):
        prompt = np.arange(3, 9, dtype=np.int32)
        cache = model.cache()
        payload = transfer.packed(prompt, cache, model.logits(prompt.tolist(), cache), 0)
        if change == "prompt":
            prompt = prompt + 1
        elif change == "truncated":
            payload = payload[:-1]
        else:
            tensors = transfer.load(payload)
            tensors["keys.0"] = tensors["keys.0"][:1]
            if change == "missing":
                del tensors["keys.0"]
            payload = transfer.save(tensors)
        with pytest.raises(Refusal, match="cannot be used"):
            transfer.unpacked(payload, model, prompt)
