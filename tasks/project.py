"""What the checkout's own developers run."""

from __future__ import annotations

import os
import sys
from typing import Any

from invoke import Context, task

from tasks.checkout import ROOT, this_checkout


@task(
    help={
        "select": "only tests whose names match this expression",
        "fast": "without lint and types",
        "coverage": "measure coverage, subprocesses included, and fail below 90 % (always where CI is set); twice as slow",
    }
)
def test(context: Context, select: str | None = None, fast: bool = False, coverage: bool = False) -> None:
    """Run lint, type checks and the whole test suite; tests of a service that is not running here are skipped."""
    # A worker more than cores, since many tests wait for a process; those of one file stay together, so that what they set
    # up is set up once.
    workers = str((os.cpu_count() or 1) + 1)
    words = ["python", "-m", "pytest", "-n", workers, "--dist", "loadfile", *(["-k", select] if select else [])]
    if not fast and not select:
        lint(context)
    if coverage or (os.environ.get("CI") and not select):
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
            manual.check(this_checkout())
            output.result(None, "generated documentation agrees with the code\n")
        else:
            changed = manual.write(this_checkout())
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


def _run(context: Context, words: list[str], **options: Any) -> None:
    """Run one of the checkout's own tools from its root; its exit code becomes ours."""
    import shlex

    # Through `python -m`, so that it works without an activated .venv.
    if words[0] in {"ruff", "mypy", "uv"}:
        words = ["python", "-m", *words]
    words = [sys.executable if word == "python" else word for word in words]
    with context.cd(str(ROOT)):
        context.run(shlex.join(words), pty=sys.stdout.isatty(), in_stream=False, **options)
