"""The user's commands. Each one parses, calls one library function, and prints.

Modules are imported inside the tasks, so that `invoke --list` does not wait for numpy, pydantic or matplotlib.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke import Context, task

from slipway import usage

if TYPE_CHECKING:
    from slipway.endpoint import Endpoint
    from slipway.evidence import Saved
    from slipway.launch import Deployment
    from slipway.plan import Plan
    from slipway.stacks import Checkout, Stack

ROOT = Path(__file__).resolve().parent

# Invoke switches bytecode off for itself; without it every command would compile the libraries it loads.
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))

usage.mend_usage_errors()

JSON = "print one JSON document on stdout"
STACK = "the stack that is meant (default: SLIPWAY_STACK, the selected one, or the only one with an inventory)"
YES = "do it without asking"
RECIPE = "recipe id, as laguna-m.1.sglang/h200-bf16"


@task(help={"keep": "leave the engine running", "json": JSON})
def demo(_: Context, keep: bool = False, json: bool = False) -> None:
    """Run the main job on this machine: hub, lock, fetch, plan, launch, gates, bench, report."""
    from slipway import cli
    from slipway import demo as journey

    with cli.command(json) as output:
        made = journey.run(_checkout(), keep=keep, progress=output.progress)
        output.shown(made.as_json(), made.show)


@task(
    help={
        "model": "only this model, as laguna-m.1",
        "hardware": "only this hardware, as h200",
        "quantization": "only this quantization, as fp8",
        "check": "compile a plan for each and fail when one is refused",
        "json": JSON,
    }
)
def recipes(
    _: Context,
    model: str | None = None,
    hardware: str | None = None,
    quantization: str | None = None,
    check: bool = False,
    json: bool = False,
) -> None:
    """List the recipes, with where each was run by its source."""
    from slipway import book, cli

    with cli.command(json) as output:
        rows = book.rows(_checkout(), {"model": model, "hardware": hardware, "quantization": quantization})
        said = book.check(_checkout(), rows) if check else ""
        output.result(rows, book.table(rows) + said)


@task(help={"recipe": RECIPE, "inventory": "inventory file (YAML)", "stack": STACK, "json": JSON})
def plan(
    _: Context, recipe: str | None = None, inventory: str | None = None, stack: str | None = None, json: bool = False
) -> None:
    """Print exactly what launch would execute."""
    from slipway import cli, plan

    with cli.command(json) as output:
        made = _plan(recipe, inventory, stack)
        for warning in made.warnings:
            output.progress.note(f"warning [{warning.rule}]: {warning.message}")
        output.result(made.as_json(), plan.shell_text(made))


@task(help={"stack": "the stack to choose", "json": JSON})
def select(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Choose the stack that commands without --stack mean; without --stack, tell which one that is."""
    from slipway import cli, stacks

    with cli.command(json) as output:
        name = stacks.select(_checkout(), stack)
        output.result({"stack": name}, f"{'selected' if stack else 'meant now:'} {name}\n")


@task(help={"stack": STACK, "json": JSON})
def inventory(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Save where the stack's hosts are, so that later commands need nothing else."""
    from slipway import cli, provision

    with cli.command(json) as output:
        name = _name(stack)
        path = provision.save_inventory(_checkout(), name, output.progress)
        output.result(_stack(name).inventory.as_json(), f"the inventory is in {path}\n")


@task(help={"stack": STACK, "json": JSON})
def preview(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Show what a stack would create, run and cost, offline; exit 2 when recipe and hosts do not belong together."""
    from slipway import cli, preview, stacks

    with cli.command(json) as output:
        seen = preview.of(_checkout(), stacks.choose(_checkout(), stack))
        output.result(seen.as_json(), preview.text(seen))


@task(
    name="host-setup",
    help={"stack": STACK, "node": "only this node", "dry-run": "print the script of each node instead", "json": JSON},
)
def host_setup(
    _: Context, stack: str | None = None, node: str | None = None, dry_run: bool = False, json: bool = False
) -> None:
    """Set up the hosts that are reached by SSH: Docker, GPUs in containers, limits, driver; safe to run again."""
    from slipway import cli, stacks
    from slipway.host_setup import remote

    with cli.command(json) as output:
        name = stacks.choose(_checkout(), stack)
        scripts = remote.scripts(_checkout(), name, node)
        if dry_run:
            output.result(scripts, remote.text(scripts))
            return
        done = remote.run_all(_stack(name).inventory, scripts, progress=output.progress)
        output.result(done, f"set up {', '.join(done)}\n")


@task(
    name="lock-models",
    help={
        "repo": "repository, as poolside/Laguna-M.1",
        "revision": "branch, tag or commit; resolved to 40 hex digits",
        "request": "a checkpoints/<name>.lock-request.json to complete into <name>.lock.json beside it",
        "all": "complete every lock request, target and drafter in one go; with --check, compare those that are completed",
        "out": "lock file (default: checkpoints/<name>.lock.json)",
        "check": "compare with the lock file instead of writing it; exit 3 when upstream moved",
        "json": JSON,
    },
)
def lock_models(
    _: Context,
    repo: str | None = None,
    revision: str = "main",
    request: str | None = None,
    all: bool = False,
    out: str | None = None,
    check: bool = False,
    json: bool = False,
) -> None:
    """Write down size and digest of every file of a checkpoint at one commit."""
    from slipway import cli, models
    from slipway.errors import UsageError

    with cli.command(json) as output:
        if [bool(repo), bool(request), all].count(True) != 1:
            raise UsageError("lock-models", "must be told what to lock", "", "give one of --repo, --request and --all")
        if repo:
            path = Path(out) if out else None
            lock, text = models.lock(_checkout(), repo, revision, path, check=check, progress=output.progress)
            output.result(lock, text)
            return
        paths = [Path(request)] if request else models.requested(_checkout(), locked=check)
        locks, text = models.lock_requested(_checkout(), paths, check=check, progress=output.progress)
        output.result(locks, text)


@task(
    name="fetch-models",
    help={
        "stack": STACK,
        "recipe": RECIPE,
        "lock": "lock file of one checkpoint",
        "dest": "models folder (default: the inventory's, or .slipway/models)",
        "workers": "files fetched at a time",
        "source": "server to ask instead of the hub, may be given again; `hub` is the hub",
        "io": "auto, buffered or direct (past the page cache)",
        "adopt": "take over what is right in a plain folder that stands in the checkpoint's place",
        "json": JSON,
    },
    iterable=["source"],
)
def fetch_models(
    _: Context,
    stack: str | None = None,
    recipe: str | None = None,
    lock: str | None = None,
    dest: str | None = None,
    workers: int = 4,
    source: list[str] | None = None,
    io: str = "",
    adopt: bool = False,
    json: bool = False,
) -> None:
    """Fetch checkpoints to every node of a stack, hash them in the same pass, and publish them whole or not at all."""
    from slipway import cli, models, spread

    with cli.command(json) as output:
        wanted = models.wanted(_checkout(), stack, recipe, Path(lock) if lock else None)
        if not recipe and not lock:
            options = spread.Options(dest, workers, tuple(source or ()), io, adopt)
            results, text = spread.fetch(_checkout(), _stack(stack), wanted, options, output.progress)
            output.result(results, text)
            return
        results, text = models.fetch(
            _checkout(),
            wanted,
            Path(dest) if dest else None,
            workers=workers,
            progress=output.progress,
            sources=source or (),
            io=io,
            adopt=adopt,
        )
        output.result(results, text)


@task(
    name="verify-models",
    help={
        "lock": "lock file of one checkpoint",
        "dir": "the checkpoint's folder (default: where fetch-models publishes it)",
        "stack": STACK,
        "level": "stat, structure, sample or full",
        "workers": "files hashed at a time",
        "json": JSON,
    },
)
def verify_models(
    _: Context,
    lock: str | None = None,
    dir: str | None = None,
    stack: str | None = None,
    level: str = "full",
    workers: int = 2,
    json: bool = False,
) -> None:
    """Prove that published checkpoints still are what their locks say."""
    from slipway import cli, models

    with cli.command(json) as output:
        wanted = models.wanted(_checkout(), stack, None, Path(lock) if lock else None)
        folder = Path(dir) if dir else None
        results, text = models.verify(
            _checkout(), wanted, folder, level=level, workers=workers, progress=output.progress
        )
        output.result(results, text)


@task(
    name="mirror-models",
    help={
        "to": "s3://bucket/prefix or a folder that is to hold the checkpoints (AWS_ENDPOINT_URL names another S3 server)",
        "from": "the same, to fetch from",
        "lock": "lock file of one checkpoint",
        "recipe": RECIPE,
        "stack": STACK,
        "dir": "with --to, the checkpoint's folder; with --from, the models folder (default: .slipway/models)",
        "check": "with --to, read every object back and hash it",
        "workers": "files sent or fetched at a time",
        "json": JSON,
    },
)
def mirror_models(
    _: Context,
    to: str | None = None,
    from_: str | None = None,
    lock: str | None = None,
    recipe: str | None = None,
    stack: str | None = None,
    dir: str | None = None,
    check: bool = False,
    workers: int = 4,
    json: bool = False,
) -> None:
    """Keep checkpoints in a bucket or a folder of your own, or fetch them from there."""
    from slipway import cli, mirrors, models

    with cli.command(json) as output:
        way = mirrors.Way(to, from_, Path(dir) if dir else None, check, workers)
        wanted = models.wanted(_checkout(), stack, recipe, Path(lock) if lock else None)
        results, text = mirrors.run(_checkout(), wanted, way, output.progress)
        output.result(results, text)


@task(help={"dest": "models folder (default: .slipway/models)", "json": JSON})
def models(_: Context, dest: str | None = None, json: bool = False) -> None:
    """List the checkpoints here: revision, size, when they were last proved and at which level, and what uses them."""
    from slipway import cli, holdings

    with cli.command(json) as output:
        entries = holdings.listing(_checkout(), Path(dest) if dest else None)
        output.shown(entries, lambda console: holdings.show(entries, console))


@task(
    name="prune-models",
    help={
        "dest": "models folder (default: .slipway/models)",
        "keep": "revisions of each repository to keep besides what links name",
        "older-h": "hours after which what an interrupted fetch left is removed",
        "yes": "remove it; without this flag the command only says what it would remove",
        "json": JSON,
    },
)
def prune_models(
    _: Context, dest: str | None = None, keep: int = 1, older_h: int = 168, yes: bool = False, json: bool = False
) -> None:
    """Remove replaced revisions and what interrupted downloads left; never what a link names."""
    from slipway import cli, holdings

    with cli.command(json) as output:
        folder = Path(dest) if dest else None
        done, text = holdings.prune(_checkout(), folder, keep=keep, older_h=older_h, yes=yes, progress=output.progress)
        output.result(done, text)


@task(
    help={
        "stack": STACK,
        "dry-run": "print the commands instead",
        "timeout-s": "how long the first generation may take",
        "json": JSON,
    }
)
def launch(
    _: Context, stack: str | None = None, dry_run: bool = False, timeout_s: int = 300, json: bool = False
) -> None:
    """Start the stack's processes; done when a real generation came back."""
    from slipway import cli, plan, serving

    with cli.command(json) as output:
        made = _plan(None, None, stack)
        if dry_run:
            output.result(made.as_json(), plan.shell_text(made))
            return
        launched = serving.up(_checkout(), made, timeout_s=timeout_s, progress=output.progress)
        output.result(launched.as_json(), launched.text())


@task(help={"stack": STACK, "json": JSON})
def status(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Tell which processes run, and whether the stack generates; exit 1 when it does not."""
    from slipway import cli, serving

    with cli.command(json) as output:
        seen = serving.status(_checkout(), _stack(stack).name)
        output.result(seen.as_json(), seen.text())
        seen.refuse_unless_serving()


@task(help={"stack": STACK, "lines": "how many lines of each process", "json": JSON})
def logs(_: Context, stack: str | None = None, lines: int = 50, json: bool = False) -> None:
    """Show the last lines of each process."""
    from slipway import cli

    with cli.command(json) as output:
        said = _deployment(stack).logs(lines)
        output.result(said, "".join(f"{name}: {line}\n" for name, tail in said.items() for line in tail))


@task(help={"stack": STACK, "json": JSON})
def stop(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Stop the stack's processes; stopping twice is no error."""
    from slipway import cli

    with cli.command(json) as output:
        stopped = _deployment(stack).stop()
        output.result({"stopped": stopped}, f"stopped {', '.join(stopped) or 'nothing; nothing ran'}\n")


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
        gates.refuse_failed([result])


@task(
    help={
        "stack": STACK,
        "endpoint": "base URL of any OpenAI-compatible server",
        "model": "model name to ask for, with --endpoint",
        "concurrency": "requests in flight",
        "requests": "requests in all",
        "input-tokens": "tokens of each prompt",
        "output-tokens": "tokens to generate for each",
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


@task(help={"stack": STACK, "yes": YES, "json": JSON})
def up(_: Context, stack: str | None = None, yes: bool = False, json: bool = False) -> None:
    """Make the stack's resources as its file says; go on where an interrupted run stopped."""
    from slipway import cli, provision

    with cli.command(json) as output:
        made = provision.up(_checkout(), _name(stack), confirm=cli.confirmation(yes), progress=output.progress)
        output.result(made.as_json(), made.text())


@task(help={"stack": STACK, "yes": YES, "json": JSON})
def down(_: Context, stack: str | None = None, yes: bool = False, json: bool = False) -> None:
    """Remove the stack's resources; a bought capacity block is not given back."""
    from slipway import cli, provision

    with cli.command(json) as output:
        made = provision.down(_checkout(), _name(stack), confirm=cli.confirmation(yes), progress=output.progress)
        output.result(made.as_json(), made.text())


@task(
    help={
        "stack": STACK,
        "delete": "remove them, after a yes",
        "strangers": "count in what another state of this name made, whose state is lost",
        "yes": YES,
        "json": JSON,
    }
)
def orphans(
    _: Context,
    stack: str | None = None,
    delete: bool = False,
    strangers: bool = False,
    yes: bool = False,
    json: bool = False,
) -> None:
    """List what carries the stack's tag in AWS and is in no state, with what it costs."""
    from slipway import cli, provision

    with cli.command(json) as output:
        confirm = cli.confirmation(yes) if delete else None
        removal = provision.Removal(delete, strangers)
        found = provision.orphans(_checkout(), _name(stack), removal=removal, confirm=confirm, progress=output.progress)
        output.result(found.as_json(), found.text())


@task(help={"path": "a report.json (default: the newest one)", "json": JSON})
def report(_: Context, path: str | None = None, json: bool = False) -> None:
    """Show a run's report again."""
    from slipway import cli, report
    from slipway.report import page, terminal

    with cli.command(json) as output:
        file = Path(path) if path else page.newest(_checkout().reports)
        read = report.from_json(file)
        output.shown(read.as_json(), lambda console: terminal.show(read, console))


@task(help={"select": "only tests whose names match this expression", "fast": "without lint, types and coverage"})
def test(context: Context, select: str | None = None, fast: bool = False) -> None:
    """Run lint, type checks and the whole test suite with coverage."""
    # One worker a core; the tests of one file stay together, so that what they set up is set up once.
    words = ["python", "-m", "pytest", "-n", "auto", "--dist", "loadfile", *(["-k", select] if select else [])]
    if not fast and not select:
        lint(context)
        words += ["--cov", "--cov-report=term-missing:skip-covered"]
    _run(context, words)


@task
def lint(context: Context) -> None:
    """Check format, lint and types."""
    for words in (["ruff", "format", "--check", "."], ["ruff", "check", "."], ["mypy"]):
        _run(context, words)


@task(help={"check": "compare instead of writing; exit 1 when something is stale"})
def docs(_: Context, check: bool = False) -> None:
    """Write the generated documentation and editor schemas again."""
    from slipway import cli, manual

    with cli.command(False) as output:
        if check:
            manual.check(_checkout())
            output.result(None, "generated documentation agrees with the code\n")
        else:
            changed = manual.write(_checkout())
            output.result(None, "".join(f"wrote {path}\n" for path in changed) or "nothing changed\n")


@task(name="lock-requirements")
def lock_requirements(context: Context) -> None:
    """Write requirements.lock and requirements-dev.lock again from pyproject.toml."""
    common = [
        "uv",
        "pip",
        "compile",
        "pyproject.toml",
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
        "--quiet",
    ]
    common += ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--upgrade"]
    _run(context, [*common, "--output-file", "requirements.lock"])
    _run(context, [*common, "--group", "dev", "-c", "requirements.lock", "--output-file", "requirements-dev.lock"])


def _checkout() -> Checkout:
    from slipway.stacks import Checkout

    return Checkout(ROOT)


def _stack(stack: str | None) -> Stack:
    from slipway import stacks

    return stacks.read(_checkout(), stacks.choose(_checkout(), stack))


def _name(stack: str | None) -> str:
    from slipway import stacks

    return stacks.choose(_checkout(), stack)


def _plan(recipe: str | None, inventory: str | None, stack: str | None) -> Plan:
    from slipway import book

    return book.compiled(_checkout(), recipe, Path(inventory) if inventory is not None else None, stack)


def _deployment(stack: str | None) -> Deployment:
    from slipway import serving

    return serving.deployment(_checkout(), _stack(stack).name)


def _endpoint(stack: str | None, url: str | None, model: str | None) -> Endpoint:
    from slipway import serving

    return serving.endpoint(_checkout(), stack, url, model)


def _kept(stack: str | None, url: str | None, **found: Any) -> Saved | None:
    """The saved report about the stack that is meant; None for a bare endpoint, whose recipe nobody knows."""
    from slipway import evidence, serving

    plan = None if url is not None else serving.served_plan(_checkout(), _stack(stack).name)
    return evidence.keep(_checkout(), plan, **found) if plan else None


def _run(context: Context, words: list[str], **options: Any) -> None:
    """Run one of the checkout's own tools from its root; its exit code becomes ours."""
    import shlex

    # Through `python -m`, so that it works without an activated .venv.
    if words[0] in {"ruff", "mypy", "uv"}:
        words = ["python", "-m", *words]
    words = [sys.executable if word == "python" else word for word in words]
    with context.cd(str(ROOT)):
        context.run(shlex.join(words), pty=sys.stdout.isatty(), in_stream=False, **options)
