"""The reference engine as a process: what it answers, how it streams, how it starts, stops and fails."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from slipway.errors import SlipwayError
from slipway.reference import checkpoint
from slipway.reference.engine import load, main, parse_arguments

SOURCE = Path(__file__).resolve().parent.parent / "src"
PARSERS = ("--reasoning-parser", "poolside_v1", "--tool-call-parser", "poolside_v1")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint.generate(tmp_path_factory.mktemp("laguna")).folder


def launch(*argv, **environment):
    command = [sys.executable, "-m", "slipway.reference.engine", *map(str, argv)]
    kept = {"PYTHONPATH": str(SOURCE), **environment}
    return subprocess.Popen(
        command, env={**os.environ, **kept}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Engine:
    """A running engine process; `lines` is its stderr so far."""

    def __init__(self, process, port):
        self.process = process
        self.lines = []
        self._up = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._up.wait(30), "".join(self.lines)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        assert process.poll() is None, "".join(self.lines)

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            if "Application startup complete." in line:
                self._up.set()
        self._up.set()

    def end(self, number=signal.SIGTERM):
        """(exit code, seconds it took)"""
        self.client.close()
        start = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(15)
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code, time.monotonic() - start

    def chat(self, text="Hi", **body):
        messages = body.pop("messages", [{"role": "user", "content": text}])
        response = self.client.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, **body})
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path="/v1/chat/completions", **body):
        """The data of each event; the stream must end with [DONE]."""
        with self.client.stream("POST", path, json={"temperature": 0, "stream": True, **body}) as response:
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]

    def metric(self, name):
        text = self.client.get("/metrics").text
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


@contextlib.contextmanager
def running(port, *argv, **environment):
    engine = Engine(launch(*argv, "--port", port, **environment), port)
    try:
        yield engine
    finally:
        assert engine.end()[0] == 0, "".join(engine.lines)
        assert "Traceback" not in "".join(engine.lines)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def engine(folder):
    flags = ("--served-model-name", "laguna", "--max-num-seqs", "2", "--enable-prompt-tokens-details")
    with running(free_port(), folder, *PARSERS, *flags) as engine:
        yield engine


def ask_user(text):
    return [{"role": "user", "content": text}]


def message(answer):
    return answer["choices"][0]["message"]


def streamed(frames, key):
    deltas = [choice["delta"] for frame in frames for choice in frame["choices"]]
    return "".join(delta.get(key) or "" for delta in deltas)


def test_an_answer_has_text_a_finish_reason_and_usage(engine):
    answer = engine.chat("What is 15% of 240?")
    assert message(answer)["content"].startswith("This answer comes from a tiny Laguna")
    assert message(answer)["reasoning"] is None
    assert answer["choices"][0]["finish_reason"] == "stop"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("thinking", [True, False])
def test_a_stream_adds_up_to_the_whole_answer(engine, thinking):
    body = {"messages": ask_user("Why?"), "chat_template_kwargs": {"enable_thinking": thinking}}
    whole = engine.chat(**body)
    frames = engine.stream(**body, stream_options={"include_usage": True})
    assert streamed(frames, "content") == message(whole)["content"]
    assert streamed(frames, "reasoning") == (message(whole)["reasoning"] or "")
    assert bool(message(whole)["reasoning"]) is thinking
    assert "think>" not in json.dumps(frames)
    assert frames[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    tokens = [frame for frame in frames if frame["choices"] and frame["choices"][0]["finish_reason"] is None]
    assert len(tokens) >= 10, "tokens must come one by one"


def test_a_tool_call_is_the_same_whole_and_streamed(engine):
    body = {"messages": ask_user("How is the weather in Lisbon?"), "tools": [WEATHER]}
    whole = engine.chat(**body)
    [call] = message(whole)["tool_calls"]
    assert (message(whole)["content"], whole["choices"][0]["finish_reason"]) == (None, "tool_calls")
    assert json.loads(call["function"]["arguments"]) == {"city": "Lisbon"}
    frames = engine.stream(**body)
    deltas = [
        delta for frame in frames for choice in frame["choices"] for delta in choice["delta"].get("tool_calls", [])
    ]
    assert deltas[0]["function"]["name"] == call["function"]["name"] == "get_weather"
    assert "".join(delta["function"]["arguments"] for delta in deltas) == call["function"]["arguments"]
    assert frames[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_tool_call_can_be_answered_in_the_next_turn(engine):
    call = message(engine.chat("Weather?", tools=[WEATHER]))
    told = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "sunny"}
    answer = engine.chat(messages=[*ask_user("Weather?"), call, told], tools=[WEATHER])
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert message(answer)["content"]


def test_tools_are_not_called_when_the_client_forbids_it(engine):
    answer = engine.chat("Weather?", tools=[WEATHER], tool_choice="none")
    assert "tool_calls" not in message(answer)
    assert message(answer)["content"]


def test_exactly_the_asked_tokens_come_when_the_end_is_ignored(engine):
    answer = engine.chat("Hi", max_completion_tokens=70, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 70
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_ends_the_answer(engine):
    answer = engine.chat("Hi", stop=["tiny"])
    assert message(answer)["content"] == "This answer comes from a "
    assert answer["choices"][0] | {"message": None} == answer["choices"][0] | {
        "message": None,
        "finish_reason": "stop",
        "stop_reason": "tiny",
    }


def complete(engine, prompt, **body):
    response = engine.client.post("/v1/completions", json={"prompt": prompt, "temperature": 0, "max_tokens": 4, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_prompt_as_text_and_as_token_ids_is_the_same(engine):
    ids = engine.client.post("/tokenize", json={"prompt": "A bell rings"}).json()["tokens"]
    as_text, as_ids = complete(engine, "A bell rings"), complete(engine, ids)
    assert as_text["choices"] == as_ids["choices"]
    assert as_ids["usage"]["prompt_tokens"] == len(ids)


def test_several_prompts_and_several_choices_are_numbered_in_order(engine):
    answer = complete(engine, ["A bell", "Fog drifts"], n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts[0] == texts[1] != texts[2] == texts[3]
    assert answer["usage"]["completion_tokens"] == 16
    frames = engine.stream("/v1/completions", prompt=["A bell", "Fog drifts"], n=2, max_tokens=4)
    for index, text in enumerate(texts):
        own = [choice["text"] for frame in frames for choice in frame["choices"] if choice["index"] == index]
        assert "".join(own) == text


def test_a_seed_repeats_a_sampled_answer_and_another_seed_does_not(engine):
    body = {"max_tokens": 30, "temperature": 3.0}
    first, again, other = (complete(engine, "Once", **body, seed=seed) for seed in (7, 7, 8))
    assert first["choices"] == again["choices"] != other["choices"]


@pytest.mark.parametrize("chat", [True, False])
def test_log_probabilities_cover_every_token_whole_and_streamed(engine, chat):
    if chat:
        body = {"messages": ask_user("Hi"), "max_tokens": 5, "logprobs": True, "top_logprobs": 2}
        whole = engine.chat(**body)["choices"][0]["logprobs"]["content"]
        assert [set(entry) for entry in whole] == [{"token", "logprob", "bytes", "top_logprobs"}] * 5
        frames = engine.stream(**body)
        told = [choice["logprobs"] for frame in frames for choice in frame["choices"] if choice["logprobs"]]
        assert [entry for one in told for entry in one["content"]] == whole
        return
    body = {"prompt": "A bell", "max_tokens": 5, "logprobs": 1}
    whole = complete(engine, **body)["choices"][0]
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"]
    told = [choice["logprobs"] for frame in engine.stream("/v1/completions", **body) for choice in frame["choices"]]
    assert [at for one in told for at in one["text_offset"]] == whole["logprobs"]["text_offset"]


def test_a_repeated_prompt_is_told_as_cached_in_usage_and_counters(engine):
    before = engine.metric("vllm:prefix_cache_hits_total")
    text = "Repeat after me: " + "twelve keels slide toward open water " * 5
    cached = [engine.chat(text, max_tokens=2)["usage"] for _ in range(2)]
    first, second = (usage["prompt_tokens_details"]["cached_tokens"] for usage in cached)
    prompt_tokens = cached[0]["prompt_tokens"]
    assert first < 16
    assert second == (prompt_tokens - 1) // 16 * 16
    assert engine.metric("vllm:prefix_cache_hits_total") - before == first + second


def test_counters_grow_by_what_usage_says(engine):
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
    before = [engine.metric(name) for name in names]
    usage = engine.chat("Count me", max_tokens=11, ignore_eos=True)["usage"]
    grown = [engine.metric(name) - start for name, start in zip(names, before, strict=True)]
    assert grown == [usage["prompt_tokens"], usage["completion_tokens"], 1]


def test_concurrent_answers_equal_those_given_alone(engine):
    texts = [f"Question number {number}" for number in range(5)]
    body = {"max_tokens": 25, "ignore_eos": True}
    alone = [message(engine.chat(text, **body)) for text in texts]
    with ThreadPoolExecutor(5) as pool:
        together = list(pool.map(lambda text: message(engine.chat(text, **body)), texts))
    assert together == alone


def test_a_client_that_goes_away_ends_its_generation(engine):
    body = {"messages": ask_user("Go on"), "max_tokens": 15_000, "ignore_eos": True}
    before = engine.metric("vllm:request_success_total")
    with engine.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        next(response.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        engine.client.post("/v1/chat/completions", json=body, timeout=0.3)
    deadline = time.monotonic() + 5
    while engine.metric("vllm:num_requests_running") and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert engine.metric("vllm:num_requests_running") == 0
    assert engine.metric("vllm:request_success_total") - before == 2, "both must be counted as aborted"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat", {"messages": []}, "messages"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ("chat", {"messages": ask_user("x"), "response_format": {"type": "json_schema"}}, "response_format"),
        ("chat", {"messages": ask_user("x"), "tools": [{}]}, "tools"),
        ("chat", {"messages": ask_user("x"), "tool_choice": "required"}, "tool_choice"),
        ("chat", {"messages": ask_user("x"), "tool_choice": "often", "tools": [WEATHER]}, "tool_choice"),
        ("chat", {"messages": ask_user("x"), "top_logprobs": 99, "logprobs": True}, "top_logprobs"),
        ("", {"prompt": []}, "prompt"),
        ("", {"prompt": ""}, "prompt"),
        ("", {"prompt": [5000]}, "prompt"),
        ("", {"prompt": "x", "echo": True}, "echo"),
        ("", {"prompt": "x", "n": 0}, "n"),
        ("", {"prompt": "x", "top_p": 0}, "top_p"),
        ("", {"prompt": "x", "top_k": -2}, "top_k"),
        ("", {"prompt": "x", "min_p": 2}, "min_p"),
        ("", {"prompt": "x", "seed": -1}, "seed"),
        ("", {"prompt": "x", "presence_penalty": 3}, "presence_penalty"),
        ("", {"prompt": "x", "repetition_penalty": 0}, "repetition_penalty"),
        ("", {"prompt": "x", "min_tokens": 99}, "min_tokens"),
        ("", {"prompt": "x", "logit_bias": {"5000": 1}}, "logit_bias"),
        ("", {"prompt": {"a": 1}}, None),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_what_cannot_be_honoured_is_refused_by_name(engine, path, body, param):
    response = engine.client.post("/v1/chat/completions" if path else "/v1/completions", json=body)
    assert response.status_code == 400, response.text
    assert param is None or response.json()["error"]["param"] == param
    assert engine.client.get("/health").status_code == 200


def test_half_a_surrogate_pair_in_a_request_does_no_harm(engine):
    raw = b'{"prompt": "a\\ud800b", "max_tokens": 2}'
    assert engine.client.post("/v1/completions", content=raw).status_code == 200


def test_without_parsers_the_tags_are_plain_text(folder, unused_port):
    with running(unused_port, "--model", folder) as engine:
        answer = engine.chat("Hi", chat_template_kwargs={"enable_thinking": True}, tools=[WEATHER])
    assert "</think>" in message(answer)["content"]
    assert message(answer)["reasoning"] is None
    assert answer["model"] == str(folder)


def test_the_sglang_dress_wants_the_key_that_its_environment_holds(folder, unused_port):
    flags = ("--dress", "sglang", "--enable-metrics", "--served-model-name", "laguna", *PARSERS)
    with running(unused_port, folder, *flags, SLIPWAY_API_KEY="s3cret") as engine:
        body = {"messages": ask_user("Weather?"), "tools": [WEATHER], "chat_template_kwargs": {"enable_thinking": True}}
        refused = engine.client.post("/v1/chat/completions", json=body, headers={"authorization": "Bearer wrong"})
        assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
        assert engine.client.get("/server_info").status_code == 401
        assert engine.client.get("/health_generate").status_code == 200
        assert engine.metric("sglang:generation_tokens_total") == 1, "its health check really generates"
        engine.client.headers["authorization"] = "Bearer s3cret"
        told = message(engine.chat(**body))
        assert told["reasoning_content"]
        assert told["tool_calls"][0]["index"] == 0
        frames = engine.stream(**body)
        assert streamed(frames, "reasoning_content") == told["reasoning_content"]
        assert engine.client.get("/server_info").json()["served_model_name"] == "laguna"
        assert "s3cret" not in engine.client.get("/server_info").text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_within_two_seconds_and_its_streams_with_an_error(folder, unused_port, number, code):
    engine = Engine(launch(folder, "--port", unused_port), unused_port)
    body = {"prompt": "x", "max_tokens": 15_000, "ignore_eos": True, "stream": True}
    with engine.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        engine.process.send_signal(number)
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["error"]["message"] == "the engine is shutting down"
    got, seconds = engine.end()
    assert got == code, "".join(engine.lines)
    assert seconds < 2
    assert "Traceback" not in "".join(engine.lines)


def failed(*argv, **environment):
    """The only line that a failed start leaves besides its log."""
    process = launch(*argv, **environment)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 9, said
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if not line.startswith("INFO: ")]
    assert len(lines) == 1, said
    return lines[0]


def test_a_port_in_use_is_told_before_the_model_is_loaded(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = failed(folder, "--port", port)
    assert f"127.0.0.1:{port}: port {port} is in use" in said


def test_a_truncated_shard_is_one_line_that_names_it(folder, tmp_path, unused_port):
    copy = shutil.copytree(folder, tmp_path / "copy")
    os.truncate(copy / "model-00002-of-00004.safetensors", 1000)
    assert "model-00002-of-00004.safetensors" in failed(copy, "--port", unused_port)


def damaged(folder, tmp_path, name, content):
    copy = shutil.copytree(folder, tmp_path / "copy")
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(content)
    return copy


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("model-00002-of-00004.safetensors", None, "model-00002-of-00004.safetensors"),
        ("tokenizer.json", b"{", "tokenizer.json: is no tokenizer"),
        ("tokenizer.json", b"\xff", "tokenizer.json: is not UTF-8"),
        ("tokenizer.json", None, "tokenizer.json: no such file"),
        ("chat_template.jinja", b"{% if %}", "chat_template.jinja: is no template"),
        ("generation_config.json", b"{", "generation_config.json: is not JSON"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_file_name(folder, tmp_path, name, content, told):
    copy = damaged(folder, tmp_path, name, content)
    with pytest.raises(SlipwayError, match=re.escape(told)):
        load(parse_arguments([str(copy)]), copy)


def test_a_window_that_the_model_was_not_made_for_is_refused(folder):
    with pytest.raises(SlipwayError, match="--max-model-len: is too large"):
        load(parse_arguments([str(folder), "--max-model-len", "99999999"]), folder)


def test_a_parser_needs_its_tokens_in_the_vocabulary(folder, tmp_path):
    text = (folder / "tokenizer.json").read_bytes().replace(b"<think>", b"<musing>")
    copy = damaged(folder, tmp_path, "tokenizer.json", text)
    with pytest.raises(SlipwayError, match="lacks the tokens <think>; --reasoning-parser"):
        load(parse_arguments([str(copy), *PARSERS]), copy)


def test_a_checkpoint_without_a_template_answers_completions_only(folder, tmp_path, unused_port):
    copy = damaged(folder, tmp_path, "chat_template.jinja", None)
    with running(unused_port, copy) as engine:
        refused = engine.client.post("/v1/chat/completions", json={"messages": ask_user("Hi")})
        assert refused.status_code == 400
        assert "no chat template" in refused.json()["error"]["message"]
        assert complete(engine, "A bell")["choices"][0]["text"]


@pytest.mark.parametrize(
    "argv",
    [
        ("--swap-space", "4"),
        ("--port", "70000"),
        ("--port", "eight"),
        ("--max-num-seqs", "0"),
        ("--default-chat-template-kwargs", "{"),
        ("--default-chat-template-kwargs", "[]"),
        ("--dress", "tgi"),
        ("--enable-cache-report",),
        ("--dress", "sglang", "--enable-prompt-tokens-details"),
        ("--model", "twice"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_meant_exits_2(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["checkpoint", *argv])
    assert stopped.value.code == 2
    assert "usage:" in capsys.readouterr().err
