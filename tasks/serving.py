"""The deployment of a stack: launched, watched, proved, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Context, task

from tasks.checkout import JSON, STACK, plan_meant, stack_meant, this_checkout

if TYPE_CHECKING:
    from slipway.endpoint import Endpoint
    from slipway.evidence import Saved


@task(help={"keep": "leave the engine running", "json": JSON})
def demo(_: Context, keep: bool = False, json: bool = False) -> None:
    """Run the main job on this machine: hub, lock, fetch, plan, launch, gates, bench, report."""
    from slipway import cli
    from slipway import demo as journey

    with cli.command(json) as output:
        made = journey.run(this_checkout(), keep=keep, progress=output.progress)
        output.shown(made.as_json(), made.show)


@task(
    help={
        "stack": STACK,
        "dry-run": "print the commands instead",
        "timeout-s": "how long the first generation may take (default: 300)",
        "json": JSON,
    }
)
def launch(
    _: Context, stack: str | None = None, dry_run: bool = False, timeout_s: int = 300, json: bool = False
) -> None:
    """Start the stack's processes; done when a real generation came back."""
    from slipway import cli, plan, serving

    with cli.command(json) as output:
        made = plan_meant(None, None, stack)
        if dry_run:
            output.result(made.as_json(), plan.shell_text(made))
            return
        launched = serving.up(this_checkout(), made, timeout_s=timeout_s, progress=output.progress)
        output.result(launched.as_json(), launched.text())


@task(help={"stack": STACK, "json": JSON})
def status(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Tell which processes run, and whether the stack generates; exit 1 when it does not."""
    from slipway import cli, serving

    with cli.command(json) as output:
        seen = serving.status(this_checkout(), stack_meant(stack).name)
        output.result(seen.as_json(), seen.text())
        seen.refuse_unless_serving()


@task(help={"stack": STACK, "lines": "how many lines of each process (default: 50)", "json": JSON})
def logs(_: Context, stack: str | None = None, lines: int = 50, json: bool = False) -> None:
    """Show the last lines of each process."""
    from slipway import cli, serving

    with cli.command(json) as output:
        said = serving.logs(this_checkout(), stack_meant(stack).name, lines)
        output.result(said, "".join(f"{name}: {line}\n" for name, tail in said.items() for line in tail))


@task(help={"stack": STACK, "json": JSON})
def stop(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Stop the stack's processes; stopping twice is no error."""
    from slipway import cli, serving

    with cli.command(json) as output:
        stopped, text = serving.stop(this_checkout(), stack_meant(stack).name)
        output.result({"stopped": stopped}, text)


@task(
    help={
        "stack": STACK,
        "endpoint": "base URL of any OpenAI-compatible server",
        "model": "model name to ask for, with --endpoint",
        "json": JSON,
    }
)
def verify(
    _: Context, stack: str | None = None, endpoint: str | None = None, model: str | None = None, json: bool = False
) -> None:
    """Run the gates against a served model; exit 1 when one says no."""
    from slipway import cli, gates
    from slipway.gates import smoke
    from slipway.report import terminal

    with cli.command(json) as output:
        result = smoke.run(_endpoint(stack, endpoint, model), progress=output.progress)
        saved = _kept(stack, endpoint, gates=[result])
        output.shown([result.as_json()], lambda console: console.print(terminal.gate_table(result)))
        output.progress.note(f"report: {saved.paths.html}" if saved else "no report: --endpoint names no recipe")
        gates.refuse_failed([result], "the server's log" if endpoint else "`invoke logs`")


@task(
    help={
        "stack": STACK,
        "endpoint": "base URL of any OpenAI-compatible server",
        "model": "model name to ask for, with --endpoint",
        "concurrency": "requests in flight (default: 1)",
        "requests": "requests in all (default: 8)",
        "input-tokens": "tokens of each prompt (default: 128)",
        "output-tokens": "tokens to generate for each (default: 64)",
        "json": JSON,
    }
)
def bench(
    _: Context,
    stack: str | None = None,
    endpoint: str | None = None,
    model: str | None = None,
    concurrency: int = 1,
    requests: int = 8,
    input_tokens: int = 128,
    output_tokens: int = 64,
    json: bool = False,
) -> None:
    """Measure TTFT, decode speed and throughput of a served model."""
    from slipway import bench, cli
    from slipway.report import terminal

    with cli.command(json) as output:
        load = bench.Load(
            concurrency=concurrency, requests=requests, input_tokens=input_tokens, output_tokens=output_tokens
        )
        result = bench.run(_endpoint(stack, endpoint, model), load, progress=output.progress)
        saved = _kept(stack, endpoint, bench=result)
        output.shown(result.as_json(), lambda console: terminal.show_bench(result, console))
        output.progress.note(f"report: {saved.paths.html}" if saved else "no report: --endpoint names no recipe")
        bench.refuse_failed(result)


@task(help={"path": "a report.json (default: the newest one)", "json": JSON})
def report(_: Context, path: str | None = None, json: bool = False) -> None:
    """Show a run's report again."""
    from slipway import cli, report
    from slipway.report import page, terminal

    with cli.command(json) as output:
        file = Path(path) if path else page.newest(this_checkout().reports)
        read = report.from_json(file)
        output.shown(read.as_json(), lambda console: terminal.show(read, console))
        page_file = file.with_name("report.html")
        output.progress.note(f"report: {page_file if page_file.is_file() else file}")


def _endpoint(stack: str | None, url: str | None, model: str | None) -> Endpoint:
    from slipway import serving

    return serving.endpoint(this_checkout(), stack, url, model)


def _kept(stack: str | None, url: str | None, **found: Any) -> Saved | None:
    """The saved report about the stack that is meant; None for a bare endpoint, whose recipe nobody knows."""
    from slipway import evidence, serving

    plan = None if url is not None else serving.served_plan(this_checkout(), stack_meant(stack).name)
    return evidence.keep(this_checkout(), plan, **found) if plan else None
