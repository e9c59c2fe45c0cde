"""BuildKit's progress as events: recorded streams, the same streams as later versions print them, and noise."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from slipway.images.builders import display
from slipway.images.builders.buildx import failed
from slipway.images.builders.progress_events import (
    BuildState,
    Event,
    EventReader,
    Line,
    Log,
    Status,
    Vertex,
    materials_of,
)
from slipway.progress import Bars, Lines

DATA = Path(__file__).resolve().parents[2] / "data" / "builds"
BASE = "sha256:9b6f797723f73b0b7e7dbe04688a46542b217ba6a6d4e82674d6489355d1d8fb"


def events_of(text: str) -> list[Event]:
    reader = EventReader()
    found = [event for line in text.splitlines(keepends=True) for event in reader.feed(line)]
    return [*found, *reader.close()]


def state_of(text: str) -> BuildState:
    state = BuildState()
    for event in events_of(text):
        state.take(event)
    return state


def one_line_each(text: str) -> str:
    """The stream as buildx prints it from 0.14 on: a document a line."""
    decoder = json.JSONDecoder()
    lines, rest = [], text
    while rest.lstrip().startswith("{"):
        rest = rest.lstrip()
        value, end = decoder.raw_decode(rest)
        lines.append(json.dumps(value))
        rest = rest[end:]
    return "\n".join([*lines, rest.lstrip()])


def recorded(name: str) -> str:
    return (DATA / f"buildx-0.13.1-{name}.txt").read_text()


def test_a_recorded_build_is_three_steps_a_pull_and_an_export() -> None:
    state = state_of(recorded("pulled-and-exported"))
    steps = [(step.stage, step.index, step.text.split()[0]) for step in state.steps.values() if step.index]
    assert sorted(steps) == [("stage-0", 1, "FROM"), ("stage-0", 2, "COPY"), ("stage-0", 3, "RUN")]
    pulled = next(step for step in state.steps.values() if step.text.startswith("FROM"))
    assert sum(pulled.total_bytes.values()) == sum(pulled.done_bytes.values()) == 45647377
    run = next(step for step in state.steps.values() if step.text.startswith("RUN"))
    assert list(run.output) == ["built"]
    assert run.seconds == pytest.approx(54.728087 - 54.518461, abs=0.001)
    assert state.materials == {"docker-image://127.0.0.1:51433/base": BASE}
    assert state.failed is None
    assert state.cached_steps == 0


def test_a_rebuild_counts_its_cached_instructions_but_not_the_base() -> None:
    assert state_of(recorded("cached")).cached_steps == 2


@pytest.mark.parametrize("name", ["pulled-and-exported", "cached", "failed-run"])
def test_documents_of_one_line_each_say_the_same(name: str) -> None:
    assert events_of(one_line_each(recorded(name))) == events_of(recorded(name))


def test_a_failed_run_is_told_with_its_place_its_code_and_its_last_lines() -> None:
    error = failed("small", state_of(recorded("failed-run")))
    assert str(error) == (
        "small, Dockerfile:3: a RUN ended with code 7; its last lines are\n  | two\n  | one\n"
        "correct the line, or what it needs, and run it again"
    )


def test_a_stream_that_breaks_off_in_a_document_gives_back_its_lines() -> None:
    text = recorded("cached")[:-20]
    assert isinstance(events_of(text)[-1], Line)
    assert len(events_of('{\n  "vertexes": [\n')) == 2


@given(st.text())
def test_any_text_is_read_without_an_error_and_none_of_its_words_is_lost(text: str) -> None:
    state = BuildState()
    for event in events_of(text):
        state.take(event)
        if isinstance(event, Line):
            assert event.text.strip() in text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "digest",
                    "name",
                    "started",
                    "completed",
                    "cached",
                    "id",
                    "vertex",
                    "total",
                    "current",
                    "data",
                    "error",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["vertexes", "statuses", "logs", "warnings"]), json_values))
def test_documents_of_another_shape_are_read_without_an_error(document: dict[str, object]) -> None:
    for text in (json.dumps(document) + "\n", json.dumps(document, indent=2) + "\n"):
        state = BuildState()
        for event in events_of(text):
            state.take(event)


@given(st.lists(st.sampled_from(["vertexes", "logs", "ERROR: x", "  }", "{", "}"]), max_size=20))
def test_lines_between_documents_do_not_swallow_the_document_after_them(noise: list[str]) -> None:
    document = {"vertexes": [{"digest": "sha256:1", "name": "[1/1] RUN true"}]}
    text = "".join(f"{line}\n" for line in noise if not line.startswith("{")) + json.dumps(document) + "\n"
    assert Vertex("sha256:1", "[1/1] RUN true") in events_of(text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"[build 1/6] FROM registry.example:5000/a/b:1@{BASE}", {"docker-image://registry.example:5000/a/b:1": BASE}),
        (f"FROM docker.io/library/debian:trixie@{BASE}", {"docker-image://docker.io/library/debian:trixie": BASE}),
        (
            f"docker-image://docker.io/docker/dockerfile:1@{BASE}",
            {"docker-image://docker.io/docker/dockerfile:1": BASE},
        ),
        ("[internal] load metadata for docker.io/library/debian:trixie", {}),
        ("[2/3] RUN echo FROM nothing", {}),
        ("[2/3] COPY --from=build /a /b", {}),
        (f"[2/3] ADD --checksum={BASE} https://host/x.whl /x", {"https://host/x.whl": BASE}),
        ("[2/3] ADD https://host/x.whl /x", {"https://host/x.whl": ""}),
        (f"[2/3] ADD https://host/r.git#{'a' * 40} /r", {"https://host/r.git": "a" * 40}),
        (f"[2/3] ADD https://host/r.git#{'a' * 40}:sub /r", {"https://host/r.git": "a" * 40}),
        ("[2/3] ADD https://host/r.git#main /r", {"https://host/r.git": ""}),
        ("[2/3] ADD git@host:a/r.git /r", {"git@host:a/r.git": ""}),
        ("[2/3] ADD here.tar /x", {}),
        ("[2/3] ADD 'https://host/unclosed /x", {}),
    ],
)
def test_a_steps_name_shows_what_it_takes_in(name: str, expected: dict[str, str]) -> None:
    assert materials_of(name) == expected


@given(st.text())
def test_any_name_of_a_step_can_be_looked_at(name: str) -> None:
    materials_of(name)
    materials_of(f"[1/2] ADD {name}")


def test_the_tree_shows_stages_with_cached_steps_times_and_bytes() -> None:
    state = state_of(recorded("pulled-and-exported"))
    stream = io.StringIO()
    Console(file=stream, width=140).print(display.tree("building small", state))
    told = stream.getvalue()
    assert "building small" in told
    assert "45.6 MB" in told
    assert "3/3 RUN mkdir /x" in told
    assert "0.3 s" in told
    assert "load remote build context" not in told
    assert "cached" in _tree(state_of(recorded("cached")))
    assert "failed" in _tree(state_of(recorded("failed-run")))


def test_a_step_under_way_shows_how_far_its_transfers_are() -> None:
    state = BuildState()
    state.take(Vertex("v", "[1/2] FROM base", started_s=1.0))
    state.take(Status("v", "layer", current_bytes=500_000, total_bytes=2_000_000))
    state.take(Vertex("w", "[2/2] RUN true"))
    state.take(Log("unknown", "x"))
    assert "500 kB of 2 MB" in _tree(state)
    assert "waits" in _tree(state)


def test_elsewhere_each_finished_step_is_one_line() -> None:
    stream = io.StringIO()
    state = BuildState()
    with display.shown("building small", state, Lines(stream)) as show:
        for event in events_of(recorded("pulled-and-exported")):
            show(event)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("[")]
    assert [line.split("]")[0] for line in lines] == ["[stage-0 1/3", "[stage-0 2/3", "[stage-0 3/3", "[export"]


def test_on_a_terminal_the_tree_is_drawn_in_place_and_goes_when_the_build_ends() -> None:
    stream = io.StringIO()
    bars = Bars(stream)
    with display.shown("building small", BuildState(), bars) as show:
        for event in events_of(recorded("cached")):
            show(event)
    assert stream.getvalue().strip() == ""


def _tree(state: BuildState) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160).print(display.tree("t", state))
    return stream.getvalue()
