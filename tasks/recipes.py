"""The recipe book and the plans made of it."""

from __future__ import annotations

from invoke import Context, task

from tasks.checkout import JSON, RECIPE, STACK, plan_meant, this_checkout


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
        rows = book.rows(this_checkout(), {"model": model, "hardware": hardware, "quantization": quantization})
        said = book.check(this_checkout(), rows) if check else ""
        output.result(rows, book.table(rows) + said)


@task(
    help={
        "recipe": RECIPE,
        "inventory": "inventory file (YAML); without one the hosts are made up",
        "stack": STACK,
        "json": JSON,
    }
)
def plan(
    _: Context, recipe: str | None = None, inventory: str | None = None, stack: str | None = None, json: bool = False
) -> None:
    """Print exactly what launch would execute."""
    from slipway import cli, plan

    with cli.command(json) as output:
        made = plan_meant(recipe, inventory, stack)
        if made.synthetic_inventory:
            host = made.front_door.url
            output.progress.note(
                f"no --inventory was given, so the hosts and addresses are made up ({host}); give one to paste what is printed"
            )
        for warning in made.warnings:
            output.progress.note(f"warning [{warning.rule}]: {warning.message}")
        output.result(made.as_json(), plan.shell_text(made))


@task(help={"stack": STACK, "json": JSON})
def preview(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Show what a stack would create, run and cost, offline; exit 2 when recipe and hosts do not belong together."""
    from slipway import cli, preview, stacks

    with cli.command(json) as output:
        seen = preview.of(this_checkout(), stacks.choose(this_checkout(), stack))
        output.result(seen.as_json(), preview.text(seen))


@task(help={"stack": "the stack to choose", "json": JSON})
def select(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Choose the stack that commands without --stack mean; without --stack, tell which one that is."""
    from slipway import cli, stacks

    with cli.command(json) as output:
        name = stacks.select(this_checkout(), stack)
        output.result({"stack": name}, f"{'selected' if stack else 'meant now:'} {name}\n")
