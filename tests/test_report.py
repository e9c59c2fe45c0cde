"""The report shows what is in it, to people and machines, whatever a server or a file put there."""

from __future__ import annotations

import functools
import html
import html.parser
import io
import json
import os
import re
import stat
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from slipway import bench
from slipway.bench.crosschecks import Circumstances, cross_checks
from slipway.bench.statistics import summarize
from slipway.errors import DiskFailure, DocumentError, MissingFile
from slipway.gates import Check, GateResult
from slipway.report import (
    CheckpointFacts,
    EndpointFacts,
    Engine,
    GpuFacts,
    HostFacts,
    RunReport,
    from_json,
    page,
    plots,
    terminal,
)
from slipway.steps import StepResult

WHEN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}\x1b[31m\u202e[bold]$\\frac$"


def record(index: int, completed: bool = True, words: str = "") -> bench.RequestRecord:
    start_ms = 50.0 * index
    if not completed:
        return bench.RequestRecord(
            index=index, stream=index % 2, completed=False, reason=words or "cut", detail=words, start_ms=start_ms,
            e2e_ms=20.0, frames_ms=(10.0,),
        )  # fmt: skip
    return bench.RequestRecord(
        index=index, stream=index % 2, completed=True, start_ms=start_ms, ttft_any_ms=20.0 + index, e2e_ms=100.0,
        ttft_visible_ms=40.0 + index, decode_ms_per_token=4.0 + index / 10, client_wall_tok_s=80.0, prompt_tokens=40,
        completion_tokens=8, finish_reason=words or "length", frames_ms=tuple(20.0 + index + 10 * n for n in range(8)),
    )  # fmt: skip


def bench_result(records: list[bench.RequestRecord], words: str = "") -> bench.BenchResult:
    load = bench.Load(concurrency=2, requests=len(records), input_tokens=40, output_tokens=8)
    done = [entry for entry in records if entry.completed]
    around = Circumstances(words or "m", None, None, None, None, False, 1.9, 3.0)
    return bench.BenchResult(
        created_at=WHEN, url="http://127.0.0.1:8000", model=words or "m", load=load, client="slipway",
        prompt_length_by="words", wall_s=1.5, completed=len(done), failed=len(records) - len(done),
        failures=dict(Counter(entry.reason for entry in records if not entry.completed)),
        finish_reasons={words or "length": len(records)}, prompt_tokens=40 * len(done), completion_tokens=8 * len(done),
        cached_tokens=None, output_throughput=1234.5, request_throughput=2.5, mean_concurrency=1.9,
        ttft_any_ms=summarize(entry.ttft_any_ms for entry in done),
        ttft_visible_ms=summarize(entry.ttft_visible_ms for entry in done),
        decode_ms_per_token=summarize(entry.decode_ms_per_token for entry in done), frame_gap_ms=summarize([10.0] * 70),
        e2e_ms=summarize(entry.e2e_ms for entry in done), client_wall_tok_s=summarize([]), warmup_requests=3,
        warmup_failed=0, reconnects=0, loop_lag_ms=3.0, cross_checks=cross_checks(load, records, around),
        requests=tuple(records),
    )  # fmt: skip


def report(words: str = "", records: list[bench.RequestRecord] | None = None, **changes: object) -> RunReport:
    records = [record(index) for index in range(4)] if records is None else records
    fields: dict = {
        "created_at": WHEN,
        "recipe": words or "laguna-s-2.1.reference/cpu",
        "stack": words or "demo",
        "deployment_digest": words or "sha256:" + "ab" * 32,
        "engine": Engine(name=words or "reference", version=words or "0.1.0"),
        "checkpoint": CheckpointFacts(
            repo=words or "poolside/Laguna-S-2.1",
            revision=words or "0" * 40,
            files=14,
            total_bytes=67_340_000_000,
            lock_digest=words or "sha256:" + "cd" * 32,
        ),
        "host": HostFacts(
            cpu=words or "Xeon",
            cores=16,
            memory_bytes=137_000_000_000,
            os=words or "Linux",
            python="3.12",
            gpus=(GpuFacts(name=words or "H200", memory_bytes=150_000_000_000, driver=words or "580"),),
        ),
        "steps": (
            StepResult(name=words or "fetch-models", status="done", proved=words or "14 files, sha256 ok", seconds=3.2),
            StepResult(name=words or "launch", status="skipped", proved=words or "evidence matches", seconds=0.0),
        ),
        "gates": (
            GateResult.of(
                words or "smoke",
                [
                    Check(
                        id=words or "usage",
                        passed=True,
                        detail=words or "holds",
                        measured={words or "n": words or None},
                    )
                ],
                0.8,
            ),
        ),
        "bench": bench_result(records, words) if records else None,
        "endpoint": EndpointFacts(url=words or "http://127.0.0.1:8000", served_name=words or "laguna"),
        **changes,
    }
    return RunReport(**fields)


FAILED_STEP = StepResult(name="launch", status="failed", proved="nothing answered", seconds=1.0)
FAILED_GATE = GateResult.of("smoke", [Check(id="usage", passed=False, detail="no usage")], 0.1)


class Reader(html.parser.HTMLParser):
    """Collects what a page would load, its text, and whether its tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.loads: list[str] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attributes)
        self.ids += filter(None, [values.get("id")])
        self.loads += [
            value or "" for key, value in attributes if key in {"src", "href", "xlink:href", "srcset", "action", "data"}
        ]
        assert not [key for key in values if key.startswith("on")]
        if tag not in {"meta", "br", "link", "img", "input"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@functools.cache
def rendered() -> str:
    """The page of the plain report, made once."""
    return page.render(report())


class TestPage:
    def test_it_is_one_file_that_asks_for_nothing_and_runs_nothing(self) -> None:
        text = page.render(report(), json_name="report.json")
        reader = Reader(text)
        assert not reader.open
        assert {target for target in reader.loads if not target.startswith("#")} == {"report.json"}
        assert not {"script", "img", "iframe", "link", "object"} & set(reader.tags)
        assert "default-src 'none'" in text
        assert not re.search(r"@import|url\((?!#)", text)

    def test_every_id_in_the_page_is_there_once_and_every_reference_has_its_target(self) -> None:
        text = rendered()
        reader = Reader(text)
        assert len(set(reader.ids)) == len(reader.ids)
        targets = re.findall(r'(?:url\(#|href="#|aria-labelledby=")([^)"]+)', text)
        assert targets
        assert set(targets) <= set(reader.ids)

    def test_the_same_report_gives_the_same_bytes(self) -> None:
        assert page.render(report()) == rendered()

    def test_what_was_proved_checked_and_measured_is_in_it(self) -> None:
        text = " ".join("".join(Reader(rendered()).texts).split())
        for fact in (
            "laguna-s-2.1.reference/cpu", "14 files, sha256 ok", "sha256:" + "ab" * 32, "67.3 GB", "✓ passed", "1,234",
            "ttft_any_ms", "n too small", "cross-check", "not told", "2026-11-30 12:00:00 UTC",
        ):  # fmt: skip
            assert fact.lower() in text.lower(), fact

    def test_no_string_of_a_report_becomes_markup(self) -> None:
        text = page.render(report(HOSTILE, [record(0, words=HOSTILE), record(1, completed=False, words=HOSTILE)]))
        reader = Reader(text)
        assert not reader.open
        assert "script" not in reader.tags
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "49" not in re.findall(r">([^<]*alert[^<]*)<", text)[0]
        assert html.escape("<script>alert(1)</script>") in text

    def test_the_plots_use_the_pages_colours_so_that_dark_mode_is_legible(self) -> None:
        text = rendered()
        for svg in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
            assert "currentColor" in svg
            assert "var(--accent)" in svg
            assert set(re.findall(r"#[0-9a-fA-F]{6}\b", svg)) <= {"#ffffff"}
            assert 'role="img"' in svg
            assert re.search(r'aria-label="[^"]{20,}"', svg)
            assert "<text" in svg
        assert text.count("<svg") == 3

    def test_a_report_of_nothing_says_that_nothing_is_proved(self) -> None:
        empty = RunReport(recipe="r", deployment_digest="d", engine=Engine(name="e", version="1"),
                          host=HostFacts(cpu="c", cores=1, memory_bytes=1, os="o", python="3"))  # fmt: skip
        text = page.render(empty)
        assert "No gate ran" in text
        assert "not passed" in text
        assert "<svg" not in text

    def test_a_measurement_alone_neither_passes_nor_fails(self) -> None:
        assert report(gates=()).verdict == "measured, no gate was run"
        assert report(gates=(FAILED_GATE,)).verdict == "not passed"

    def test_failures_are_shown_with_their_reason(self) -> None:
        records = [record(0), record(1, completed=False, words="error frame")]
        text = page.render(report(records=records, gates=(FAILED_GATE,), steps=(FAILED_STEP,)))
        assert "✗ failed" in text
        assert "error frame" in text
        assert "1 of them failed" in text

    def test_a_bench_where_nothing_completed_has_a_timeline_and_no_distributions(self) -> None:
        text = page.render(report(records=[record(n, completed=False) for n in range(2)]))
        assert text.count("<svg") == 1
        assert "nothing to measure" in text

    def test_a_thousand_frames_stay_a_small_picture(self) -> None:
        dense = record(0).model_copy(update={"e2e_ms": 9_000.0, "frames_ms": tuple(n * 1.0 for n in range(9_000))})
        every_other_point = dense.model_copy(update={"frames_ms": tuple(n * 20.0 for n in range(450))})
        assert len(plots.timeline([dense] * 70)) < 300_000
        assert len(plots.timeline([every_other_point] * 70)) < 2_000_000


class TestVerdict:
    @pytest.mark.parametrize(
        ("changes", "passed"),
        [
            ({}, True),
            ({"bench": None}, True),
            ({"gates": ()}, False),
            ({"gates": (FAILED_GATE,)}, False),
            ({"steps": (FAILED_STEP,)}, False),
            ({"bench": bench_result([record(0), record(1, completed=False)])}, False),
        ],
    )
    def test_a_run_passes_only_when_nothing_in_it_failed_and_a_gate_ran(self, changes: dict, passed: bool) -> None:
        assert report(**changes).passed is passed


class TestTerminal:
    def shown(self, what: RunReport) -> str:
        stream = io.StringIO()
        terminal.show(what, Console(file=stream, width=120, force_terminal=False))
        return stream.getvalue()

    def test_each_step_check_and_figure_is_printed(self) -> None:
        text = self.shown(report())
        for fact in ("fetch-models 14 files, sha256 ok", "gate smoke: passed", "usage", "1234.5 tok/s", "run passed"):
            assert fact in text
        assert "n too small" in text

    def test_failures_and_undecided_cross_checks_are_printed(self) -> None:
        text = self.shown(report(records=[record(0), record(1, completed=False, words="cut")], gates=(FAILED_GATE,)))
        for fact in (
            "✗ 1 × cut",
            "gate smoke: failed",
            "? figures in doubt, server-tokens",
            "! figures in doubt, all-completed",
            "run not passed",
        ):
            assert fact in text

    def test_a_servers_words_are_neither_markup_nor_control_characters(self) -> None:
        text = self.shown(report(HOSTILE, [record(0, words=HOSTILE), record(1, completed=False, words=HOSTILE)]))
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[bold]" in text.replace("\n", "")

    @pytest.mark.parametrize(
        ("value", "text"),
        [(None, "–"), (0.0, "0"), (0.1234, "0.123"), (3.987, "3.99"), (51.52, "51.5"), (12345.6, "12,346")],
    )
    def test_figures_have_the_digits_that_matter(self, value: float | None, text: str) -> None:
        assert terminal.figure(value) == text


class TestFiles:
    def test_a_saved_report_reads_back_as_it_was(self, tmp_path: Path) -> None:
        original = report("", [record(0), record(1, completed=False)])
        paths = page.save(original, tmp_path / "new" / "folder")
        assert from_json(paths.json) == original
        assert paths.html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
        assert json.loads(paths.json.read_text())["schema"] == "slipway/run-report/v1"
        assert json.loads(paths.json.read_text())["bench"]["schema"] == "slipway/bench-result/v1"
        assert stat.S_IMODE(paths.json.stat().st_mode) == 0o644

    def test_lists_of_numbers_take_one_line_and_strings_stay_as_they_are(self) -> None:
        text = report("[\n 1,\n  2\n]").saved_text()
        assert json.loads(text)["recipe"] == "[\n 1,\n  2\n]"
        assert re.search(r'"frames_ms": \[ 20\.0, 30\.0,.*\]', text)

    def test_a_full_disk_leaves_the_old_report_and_no_remains(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        page.save(report(), tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DiskFailure, match="no space left"):
            page.save(report("other"), tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_who_reads_the_old_report_while_it_is_replaced_reads_all_of_it(self, tmp_path: Path) -> None:
        page.save(report(), tmp_path)
        os.link(tmp_path / "report.html", tmp_path / "held.html")
        before = (tmp_path / "held.html").read_bytes()
        page.save(report("other"), tmp_path)
        assert (tmp_path / "held.html").read_bytes() == before != (tmp_path / "report.html").read_bytes()

    def test_a_folder_that_is_a_file_is_a_disk_failure(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(DiskFailure):
            page.save(report(), tmp_path / "file")

    def test_a_missing_report_is_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(MissingFile):
            from_json(tmp_path / "none.json")

    def test_a_folder_instead_of_a_report_is_a_disk_failure(self, tmp_path: Path) -> None:
        with pytest.raises(DiskFailure):
            from_json(tmp_path)


class TestDamage:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda text: text[:-40], "not valid JSON"),
            (lambda text: "[" * 100_000, "not valid JSON"),
            (lambda _: "", "not valid JSON"),
            (lambda _: "\x00\xff", "not valid JSON"),
            (lambda _: "[]", "object"),
            (lambda _: "{}", "recipe"),
            (lambda text: text.replace("run-report/v1", "run-report/v9"), "schema"),
            (lambda text: text.replace('"recipe"', '"receipe"', 1), "receipe"),
            (lambda text: text.replace('"cores": 16', '"cores": "16"'), "host.cores"),
            (lambda text: text.replace('"passed": true', '"passed": false', 1), "does not follow"),
            (lambda text: text.replace('"wall_s": 1.5', '"wall_s": 1e300'), "bench.wall_s"),
            (lambda text: text.replace('"wall_s": 1.5', '"wall_s": NaN'), "wall_s"),
            (lambda text: text.replace('"concurrency": 2', '"concurrency": 0'), "concurrency"),
            (lambda text: text.replace('"2026-11-30T12:00:00Z"', '"yesterday"'), "created_at"),
        ],
    )
    def test_a_damaged_or_foreign_file_is_a_document_error(self, tmp_path: Path, change: object, said: str) -> None:
        assert callable(change)
        path = tmp_path / "report.json"
        text = report().saved_text()
        assert change(text) != text
        path.write_text(change(text), encoding="latin-1" if change(text).startswith("\x00") else "utf-8")
        with pytest.raises(DocumentError, match=re.escape(said)) as caught:
            from_json(path)
        assert str(path) in str(caught.value)

    def test_a_file_too_large_is_refused_before_it_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "report.json"
        with path.open("wb") as stream:
            stream.truncate(300_000_000)
        with pytest.raises(DocumentError, match="at most"):
            from_json(path)

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
    def test_a_few_damaged_bytes_end_in_a_report_or_a_document_error(self, tmp_path: Path, at: int, new: bytes) -> None:
        raw = report(records=[record(0), record(1)]).saved_text().encode()
        at %= len(raw)
        path = tmp_path / "report.json"
        path.write_bytes(raw[:at] + new + raw[at + len(new) :])
        try:
            read = from_json(path)
        except DocumentError:
            return
        terminal.show(read, Console(file=io.StringIO()))

    @settings(max_examples=6, deadline=None)
    @given(st.lists(st.floats(0, 1e12), min_size=1, max_size=5), st.floats(0, 1e12))
    def test_any_times_that_pass_the_schema_can_be_drawn(self, frames: list[float], start: float) -> None:
        strange = record(0).model_copy(update={"frames_ms": tuple(frames), "start_ms": start, "e2e_ms": start})
        assert "</svg>" in plots.timeline([strange, record(1)])
        assert "</svg>" in plots.distribution("d", [("x", frames), ("y", [start])], "ms")

    @settings(max_examples=4, deadline=None)
    @given(st.text(max_size=20))
    def test_any_words_can_stand_in_a_page(self, words: str) -> None:
        words = words.encode("utf-8", "replace").decode()
        assert not Reader(page.render(report(words, [record(0), record(1, completed=False, words=words)]))).open
