"""The reference engine's answers against those that real engines gave: keys, their order, types and what is null.

`data/captures/` holds trimmed recordings of vLLM 0.25.1 and SGLang 0.5.16 (one H200, 2026-11-30): for every request its
line, its status and headers, and the first and last frames.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path

import httpx
import pytest

from slipway.reference import checkpoint
from slipway.reference.api import build_app
from slipway.reference.engine import app_settings, load, parse_arguments

CAPTURES = Path(__file__).parent / "data" / "captures"
RECORDED = {"vllm": "vllm-0.25.1", "sglang": "sglang-0.5.16"}
FLAGS = {
    "vllm": ["--enable-prompt-tokens-details", "--default-chat-template-kwargs", '{"enable_thinking": true}'],
    "sglang": ["--enable-cache-report", "--enable-metrics"],
}
WINDOW = 400


def shape(value):
    """Keys in their order, and the type of every value; a list counts as its first element."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value else "[]"
    return "null" if value is None else type(value).__name__


class App:
    """One app in this process, asked over ASGI."""

    def __init__(self, folder, dress, *flags, parsers=True):
        parser_flags = ["--reasoning-parser", "poolside_v1", "--tool-call-parser", "poolside_v1"] if parsers else []
        argv = [str(folder), "--dress", dress, "--served-model-name", "laguna", "--max-model-len", str(WINDOW)]
        args = parse_arguments([*argv, *parser_flags, *flags])
        self.served = load(args, folder)
        self.app = build_app(self.served, app_settings(args))

    def ask(self, method, path, body=None, raw=None):
        async def go():
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
                return await client.request(method, path, content=raw, json=body)

        return asyncio.run(go())

    def frames(self, path, body):
        """(response, frames): the data of every event but the last, which must be [DONE]."""
        response = self.ask("POST", path, body)
        assert response.status_code == 200, response.text
        *events, end = response.text.strip().split("\n\n")
        assert end == "data: [DONE]"
        return response, [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint.generate(tmp_path_factory.mktemp("laguna")).folder


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def app(request, folder):
    made = App(folder, request.param, *FLAGS[request.param])
    yield made
    made.served.scheduler.stop(5)


def dress_of(app):
    return app.served.dress.name


def recorded_streams(dress):
    """{name: (path, request, headers, frames)}"""
    found = {}
    for section in (CAPTURES / f"{RECORDED[dress]}.sse.txt").read_text().split("### end\n")[:-1]:
        line, headers, body = section.split("\n", 2)
        name, path, request = re.fullmatch(r"### (.+) POST (\S+) (\{.*\})", line).groups()
        *events, end = body.strip().split("\n\n")
        assert end == "data: [DONE]"
        found[name] = path, json.loads(request), headers, [json.loads(event[len("data: ") :]) for event in events]
    return found


def recorded_probes(dress):
    """{step: (status, body)}"""
    lines = (CAPTURES / f"{RECORDED[dress]}.probe.jsonl").read_text().splitlines()
    return {probe["step"]: (probe["status"], probe["body"]) for probe in map(json.loads, lines)}


STREAMS = ["stream-think-true", "stream-think-false", "no include_usage", "continuous_usage_stats", "completions"]


def sequence(frames):
    """The shapes of `frames` less what their deltas say, without immediate repetitions."""
    bare = []
    for frame in frames:
        choices = [{**choice, "delta": "…"} if "delta" in choice else choice for choice in frame["choices"]]
        bare.append(json.dumps(shape({**frame, "choices": choices})))
    return [key for key, _ in itertools.groupby(bare)]


def deltas(frames):
    """The shapes of the deltas of frames that end nothing."""
    choices = [choice for frame in frames for choice in frame["choices"] if "delta" in choice]
    return {json.dumps(shape(choice["delta"])) for choice in choices if choice["finish_reason"] is None}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_has_the_frames_that_the_real_engine_sent(app, name):
    path, request, headers, recorded = recorded_streams(dress_of(app))[name]
    # Our answers are shorter than 24 tokens of reasoning; the second time, the prompt is cached as it was there.
    request = {**request, "model": "laguna", "max_tokens": 6}
    if dress_of(app) == "sglang" and name != "completions":
        app.frames(path, request)
    response, frames = app.frames(path, request)
    assert sequence(frames) == sequence(recorded)
    assert deltas(frames) == deltas(recorded)
    assert f"'content-type': '{response.headers['content-type']}'" in headers


@pytest.mark.parametrize("step", ["chat first-default", "chat think-false", "chat think-true", "completion"])
@pytest.mark.parametrize("dress", ["vllm", "sglang"])
def test_a_whole_answer_has_the_fields_that_the_real_engine_gave(folder, dress, step):
    app = App(folder, dress, *FLAGS[dress])  # with nothing cached yet
    status, recorded = recorded_probes(dress)[step]
    body = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    if step == "completion":
        path, body["prompt"] = "/v1/completions", "one more time"
    else:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": f"{step}?"}]
        if step != "chat first-default":
            body["chat_template_kwargs"] = {"enable_thinking": step == "chat think-true"}
    response = app.ask("POST", path, body)
    if dress == "sglang" and recorded["usage"]["prompt_tokens_details"]:
        # Null for a fresh prompt, an object for a known one; the recorded prompts were both.
        response = app.ask("POST", path, body)
    app.served.scheduler.stop(5)
    assert response.status_code == status
    assert shape(response.json()) == shape(recorded)


def test_a_demanded_tool_call_that_never_came_leaves_empty_content(folder):
    app = App(folder, "vllm", *FLAGS["vllm"])
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0, "tools": [tool]}
    ours = app.ask("POST", "/v1/chat/completions", {**chat, "tool_choice": "required"}).json()
    assert shape(ours) == shape(recorded_probes("vllm")["tools required"][1])
    assert ours["choices"][0]["message"]["content"] == ""
    app.served.scheduler.stop(5)


def test_the_small_endpoints_answer_as_those_of_the_real_engine(app):
    probes = {step[4:]: probe for step, probe in recorded_probes(dress_of(app)).items() if step.startswith("GET ")}
    assert len(probes) >= 4
    for path, (status, recorded) in probes.items():
        response = app.ask("GET", path)
        assert response.status_code == status, path
        assert shape(response.json() if response.content else "") == shape(recorded), path


def test_tokenize_and_detokenize_answer_as_vllm(folder):
    app = App(folder, "vllm")
    text = app.ask("POST", "/tokenize", {"prompt": "hello world"}).json()
    assert shape(text) == shape(recorded_probes("vllm")["tokenize"][1])
    chat = app.ask("POST", "/tokenize", {"messages": [{"role": "user", "content": "hello world"}]}).json()
    assert chat["count"] > text["count"] == len(text["tokens"])
    back = app.ask("POST", "/detokenize", {"tokens": text["tokens"]}).json()
    assert back == {"prompt": "hello world"}
    app.served.scheduler.stop(5)


HI = [{"role": "user", "content": "Hi"}]
ERRORS = {
    "err badmodel": {"model": "nope", "messages": HI},
    "err nomessages": {"model": "laguna"},
    "err neg-temp": {"messages": HI, "temperature": -1},
    "err max0": {"messages": HI, "max_tokens": 0},
    "err max_tokens-too-big": {"messages": HI, "max_tokens": WINDOW},
    "err too-long-chat": {"messages": [{"role": "user", "content": "a " * WINDOW}], "max_tokens": 8},
    "err too-long-ids": {"prompt": [100] * (WINDOW + 10), "max_tokens": 8},
    "err exact-len": {"prompt": [100] * WINDOW, "max_tokens": 1},
}


def without_numbers(text):
    """`text` less its numbers and the real server's own file names."""
    return re.sub(r"\d[\d.]*", "N", text.split("\n\n  File")[0])


@pytest.mark.parametrize("step", ERRORS)
def test_vllm_errors_say_what_the_real_engine_said(folder, vllm, step):
    status, recorded = recorded_probes("vllm")[step]
    path = "/v1/completions" if "prompt" in ERRORS[step] else "/v1/chat/completions"
    response = vllm.ask("POST", path, ERRORS[step])
    ours, theirs = response.json()["error"], recorded["error"]
    assert response.status_code == status == ours["code"]
    assert list(ours) == list(theirs)
    assert {**ours, "message": ""} == {**theirs, "message": ""}
    assert without_numbers(ours["message"]) == without_numbers(theirs["message"])


@pytest.fixture(scope="module")
def vllm(folder):
    made = App(folder, "vllm")
    yield made
    made.served.scheduler.stop(5)


def test_a_body_that_is_no_json_is_refused_like_vllm_refuses_it(vllm):
    recorded = recorded_probes("vllm")["err badjson"][1]["error"]
    ours = vllm.ask("POST", "/v1/chat/completions", raw=b"{bad").json()["error"]
    assert {**ours, "message": ""} == {**recorded, "message": ""}
    assert without_numbers(ours["message"]) == without_numbers(recorded["message"])


def test_unknown_paths_and_methods_are_refused_like_the_real_engines_refuse_them(app):
    for step, method, path in (("err 404", "GET", "/nope"), ("err 405", "GET", "/v1/chat/completions")):
        response = app.ask(method, path)
        assert (response.status_code, response.json()) == recorded_probes("vllm")[step]


@pytest.mark.parametrize("step", ERRORS)
def test_sglang_errors_are_flat_objects_but_an_unknown_model_is_served(folder, step):
    app = App(folder, "sglang")
    path = "/v1/completions" if "prompt" in ERRORS[step] else "/v1/chat/completions"
    response = app.ask("POST", path, {"max_tokens": 2, **ERRORS[step]})
    app.served.scheduler.stop(5)
    if step == "err badmodel":
        assert (response.status_code, response.json()["model"]) == (200, "nope")
        return
    assert response.status_code == 400
    told = response.json()
    assert list(told) == ["object", "message", "type", "param", "code"]
    assert (told["object"], told["code"]) == ("error", 400)


def test_cached_tokens_are_told_only_where_the_flag_asks_for_it(folder):
    for dress in ("vllm", "sglang"):
        app = App(folder, dress)
        chat = {"messages": [{"role": "user", "content": "a b c d e f g h i j k l"}], "max_tokens": 2}
        for _ in range(2):
            usage = app.ask("POST", "/v1/chat/completions", chat).json()["usage"]
            assert usage["prompt_tokens_details"] is None
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
        assert "prompt_tokens_details" not in app.frames("/v1/chat/completions", chat)[1][-1]["usage"]
        app.served.scheduler.stop(5)


def samples(text):
    """{name: set of label names} of a Prometheus text."""
    found = {}
    for name, labels, value in re.findall(r"(?m)^([\w:]+)\{(.*)\} (\S+)$", text):
        float(value)
        found.setdefault(name, set()).add(tuple(re.findall(r'(\w+)="', labels)))
    return found


def test_metrics_have_the_names_and_labels_of_the_real_engine(app):
    app.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 3})
    response = app.ask("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    ours = samples(response.text)
    recorded = samples((CAPTURES / f"{RECORDED[dress_of(app)]}.metrics.txt").read_text())
    # The rows of a configuration differ, but not its name.
    ours.pop("vllm:cache_config_info", None)
    recorded.pop("vllm:cache_config_info", None)
    for name, labels in recorded.items():
        assert ours[name] == labels, name


def test_sglang_serves_metrics_only_on_request(folder):
    app = App(folder, "sglang")
    assert app.ask("GET", "/metrics").status_code == 404
    app.served.scheduler.stop(5)
