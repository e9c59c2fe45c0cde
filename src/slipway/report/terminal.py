"""The report on a terminal: what each step proved, what each gate checked, what the bench measured."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slipway.bench import BenchResult, Summary
from slipway.gates import GateResult
from slipway.report import RunReport
from slipway.steps import StepResult

MARKS = {"done": ("✓", "green"), "skipped": ("=", "cyan"), "failed": ("✗", "red")}

QUANTITIES = (
    ("ttft_any_ms", "TTFT, any token", "ms"),
    ("ttft_visible_ms", "TTFT, visible text", "ms"),
    ("decode_ms_per_token", "decode per token", "ms"),
    ("frame_gap_ms", "gap between frames", "ms"),
    ("e2e_ms", "whole answer", "ms"),
    ("client_wall_tok_s", "output of one request", "tok/s"),
)
"""The bench's summaries in the order they are shown: key, words, unit."""


def show(report: RunReport, console: Console) -> None:
    """Print `report`; nothing in it is taken as markup, and no control character of a server reaches the terminal."""
    console.print(_text(f"{report.recipe} on {report.engine.name} {report.engine.version}", "bold"))
    if report.endpoint is not None:
        console.print(_text(f"{report.endpoint.served_name} at {report.endpoint.url}"))
    for step in report.steps:
        console.print(_step(step))
    for gate in report.gates:
        console.print(gate_table(gate))
    if report.bench is not None:
        show_bench(report.bench, console)
    styles = {"passed": "bold green", "not passed": "bold red"}
    console.print(_text(f"run {report.verdict}", styles.get(report.verdict, "bold")))


def show_bench(result: BenchResult, console: Console) -> None:
    """Print one bench result: rates, failures, summaries and the cross-checks that did not pass."""
    load = result.load
    console.print(
        _text(
            f"bench: {load.requests} requests, {load.concurrency} streams, {load.input_tokens} tokens in, "
            f"{load.output_tokens} out; {result.completed} completed, {result.failed} failed in {result.wall_s:.1f} s"
        )
    )
    console.print(
        _text(
            f"{result.output_throughput:.1f} tok/s, {result.request_throughput:.2f} requests/s, "
            f"{result.mean_concurrency:.2f} streams open on average"
        )
    )
    for reason, count in sorted(result.failures.items()):
        console.print(_text(f"✗ {count} × {reason}", "red"))
    console.print(bench_table(result))
    for check in result.cross_checks:
        if not check.ok:
            # A doubt about the figures, which a busy machine can cause; it fails no run.
            mark = "?" if check.ok is None else "!"
            console.print(_text(f"{mark} figures in doubt, {check.id}: {check.detail}", "yellow"))


def gate_table(gate: GateResult) -> Table:
    """One row per check."""
    table = Table(title=_text(f"gate {gate.gate}: {'passed' if gate.passed else 'failed'}"), title_justify="left")
    for heading in ("", "check", "found"):
        table.add_column(heading, overflow="fold")
    for check in gate.checks:
        mark, style = MARKS["done" if check.passed else "failed"]
        table.add_row(Text(mark, style), _text(check.id), _text(check.detail))
    return table


def bench_table(result: BenchResult) -> Table:
    """One row per quantity; a percentile that the sample cannot bound is a dash."""
    table = Table()
    table.add_column("")
    for heading in ("n", "mean", "median", "p90", "p95", "p99", "max"):
        table.add_column(heading, justify="right")
    for key, words, unit in QUANTITIES:
        summary: Summary | None = getattr(result, key)
        if summary is not None:
            row = (summary.mean, summary.median, summary.p90, summary.p95, summary.p99, summary.max)
            table.add_row(f"{words}, {unit}", str(summary.n), *(figure(value) for value in row))
    if result.completed and result.ttft_any_ms and result.ttft_any_ms.too_small:
        table.caption = "– n too small to bound this percentile"
    return table


def figure(value: float | None) -> str:
    """`value` with two or three significant digits at least, or a dash where there is none."""
    if value is None:
        return "–"
    digits = 0 if value >= 1000 or value == 0 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def printable(text: str) -> str:
    """`text` with every control and invisible character shown as a replacement mark; tabs and newlines as spaces."""
    return "".join(c if c.isprintable() else " " if c in "\t\n" else "\ufffd" for c in text)


def _step(step: StepResult) -> Text:
    mark, style = MARKS[step.status]
    return Text.assemble(
        (mark, style),
        " ",
        (printable(step.name), "bold"),
        " ",
        printable(step.proved),
        (f"  {step.seconds:.1f} s", "dim"),
    )


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style)
