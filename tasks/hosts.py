"""Hosts: provisioned, set up, written down."""

from __future__ import annotations

from invoke import Context, task

from tasks.checkout import JSON, STACK, YES, name_meant, stack_meant, this_checkout


@task(help={"stack": STACK, "yes": YES, "json": JSON})
def up(_: Context, stack: str | None = None, yes: bool = False, json: bool = False) -> None:
    """Make the stack's resources as its file says; go on where an interrupted run stopped."""
    from slipway import cli, provision

    with cli.command(json) as output:
        made = provision.up(this_checkout(), name_meant(stack), confirm=cli.confirmation(yes), progress=output.progress)
        output.result(made.as_json(), made.text())


@task(help={"stack": STACK, "yes": YES, "json": JSON})
def down(_: Context, stack: str | None = None, yes: bool = False, json: bool = False) -> None:
    """Remove the stack's resources; a bought capacity block is not given back."""
    from slipway import cli, provision

    with cli.command(json) as output:
        made = provision.down(
            this_checkout(), name_meant(stack), confirm=cli.confirmation(yes), progress=output.progress
        )
        output.result(made.as_json(), made.text())


@task(
    help={
        "stack": STACK,
        "delete": "remove them, after a yes",
        "strangers": "count in what another state of this name made, or all of it when the state here is empty",
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
        found = provision.orphans(
            this_checkout(), name_meant(stack), removal=removal, confirm=confirm, progress=output.progress
        )
        output.result(found.as_json(), found.text())


@task(help={"stack": STACK, "json": JSON})
def inventory(_: Context, stack: str | None = None, json: bool = False) -> None:
    """Save where the stack's hosts are, so that later commands need nothing else."""
    from slipway import cli, provision

    with cli.command(json) as output:
        name = name_meant(stack)
        path = provision.save_inventory(this_checkout(), name, output.progress)
        output.result(stack_meant(name).inventory.as_json(), f"the inventory is in {path}\n")


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
        name = stacks.choose(this_checkout(), stack)
        scripts = remote.scripts(this_checkout(), name, node)
        if dry_run:
            output.result(scripts, remote.text(scripts))
            return
        done = remote.run_all(stack_meant(name).inventory, scripts, progress=output.progress)
        output.result(done, f"set up {', '.join(done)}\n")
