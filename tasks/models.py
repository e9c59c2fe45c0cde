"""Checkpoints: lock, fetch, verify, mirror, list, prune."""

from __future__ import annotations

from pathlib import Path

from invoke import Context, task

from tasks.checkout import JSON, RECIPE, STACK, stack_meant, this_checkout


@task(
    name="lock-models",
    help={
        "repo": "repository, as poolside/Laguna-M.1",
        "revision": "branch, tag or commit (default: main); resolved to 40 hex digits",
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
            lock, text = models.lock(this_checkout(), repo, revision, path, check=check, progress=output.progress)
            output.result(lock, text)
            return
        paths = [Path(request)] if request else models.requested(this_checkout(), locked=check)
        locks, text = models.lock_requested(this_checkout(), paths, check=check, progress=output.progress)
        output.result(locks, text)


@task(
    name="fetch-models",
    help={
        "stack": STACK,
        "recipe": RECIPE,
        "lock": "lock file of one checkpoint",
        "dest": "models folder (default: the inventory's, or .slipway/models)",
        "workers": "files fetched at a time (default: 4)",
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
        wanted = models.wanted(this_checkout(), stack, recipe, Path(lock) if lock else None)
        if not recipe and not lock:
            options = spread.Options(dest, workers, tuple(source or ()), io, adopt)
            results, text = spread.fetch(this_checkout(), stack_meant(stack), wanted, options, output.progress)
            output.result(results, text)
            return
        results, text = models.fetch(
            this_checkout(),
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
        "workers": "files hashed at a time (default: 2)",
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
    """Prove that published checkpoints still are what their locks say, on every node of a stack."""
    from slipway import cli, models, spread

    with cli.command(json) as output:
        wanted = models.wanted(this_checkout(), stack, None, Path(lock) if lock else None)
        if not lock and not dir:
            check = spread.Check(level, workers)
            results, text = spread.verify(this_checkout(), stack_meant(stack), wanted, check, output.progress)
            output.result(results, text)
            return
        folder = Path(dir) if dir else None
        results, text = models.verify(
            this_checkout(), wanted, folder, level=level, workers=workers, progress=output.progress
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
        "workers": "files sent or fetched at a time (default: 4)",
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
        wanted = models.wanted(this_checkout(), stack, recipe, Path(lock) if lock else None)
        results, text = mirrors.run(this_checkout(), wanted, way, output.progress)
        output.result(results, text)


@task(help={"dest": "models folder (default: .slipway/models)", "json": JSON})
def models(_: Context, dest: str | None = None, json: bool = False) -> None:
    """List the checkpoints here: revision, size, when they were last proved and at which level, and what uses them."""
    from slipway import cli, holdings

    with cli.command(json) as output:
        entries = holdings.listing(this_checkout(), Path(dest) if dest else None)
        output.shown(entries, lambda console: holdings.show(entries, console))


@task(
    name="prune-models",
    help={
        "dest": "models folder (default: .slipway/models)",
        "keep": "revisions of each repository to keep besides what links name (default: 1)",
        "older-h": "hours after which what an interrupted fetch left is removed (default: 168)",
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
        done, text = holdings.prune(
            this_checkout(), folder, keep=keep, older_h=older_h, yes=yes, progress=output.progress
        )
        output.result(done, text)
