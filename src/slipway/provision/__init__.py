"""`invoke up`, `down`, `orphans` and `inventory`: a stack's resources through the Pulumi CLI, as resumable steps.

The CLI runs as a subprocess and reports events as JSON; this library never imports Pulumi (decision 004).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipway import preview, stacks, steps
from slipway.cloud import hosts, settings
from slipway.errors import UsageError
from slipway.host_setup import remote
from slipway.progress import Progress
from slipway.provision import backend as backends
from slipway.provision import failures, interrupted, leftovers, locks, pulumi_cli, state
from slipway.provision.account import Account
from slipway.provision.backend import Backend
from slipway.provision.kinds import Found
from slipway.provision.leftovers import Orphans
from slipway.provision.pulumi_cli import Cli, Outcome
from slipway.stacks import Checkout
from slipway.steps import Done, Step, StepResult

Confirm = Callable[[str], bool]
"""Shows what would be done and asks; True means yes. None where nobody can be asked and `--yes` was given."""


@dataclass(frozen=True)
class Provisioned:
    """What `up` or `down` came to, step by step."""

    stack: str
    results: tuple[StepResult, ...]
    changes: dict[str, int]
    orphans: Orphans | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "steps": [result.as_json() for result in self.results],
            "changes": self.changes,
            "orphans": self.orphans.as_json() if self.orphans else None,
        }

    def text(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.changes.items())) or "nothing to do"
        said = f"{self.stack}: {done}\n"
        if self.orphans and self.orphans.orphans:
            words = "--delete --strangers" if self.orphans.state_is_empty else "--delete"
            said += f"{self.orphans.text()}`invoke orphans --stack {self.stack} {words}` removes them\n"
        return said


def up(checkout: Checkout, stack: str, *, confirm: Confirm | None, progress: Progress) -> Provisioned:
    """The stack's resources as its file says, and its inventory saved; `confirm` None means that the user said yes beforehand.

    Raises: PlanRefused when recipe and hosts do not belong together, MissingFile without the CLI; UsageError, AuthFailure,
        NetworkFailure, CheckFailed in the words of `failures`.
    """
    # The program says the same, but a minute later and through two other programs.
    config = stacks.config(checkout, stack)
    preview.refuse_wrong_combination(checkout, stack, config)
    there_already = [] if config.aws else stacks.hosts(checkout, stack, config).nodes
    settings.refuse_placeholders(config, there_already, stack)
    return _Run(checkout, stack, confirm, progress).up()


def down(checkout: Checkout, stack: str, *, confirm: Confirm | None, progress: Progress) -> Provisioned:
    """The stack with every resource removed; its state stays, empty.

    Raises: as `up`.
    """
    return _Run(checkout, stack, confirm, progress).down()


@dataclass(frozen=True)
class Removal:
    """What `orphans` does beyond listing: `delete` removes after a yes, `strangers` counts what another state made in."""

    delete: bool = False
    strangers: bool = False


def orphans(
    checkout: Checkout, stack: str, *, removal: Removal, confirm: Confirm | None, progress: Progress
) -> Orphans:
    """What carries the stack's tag in AWS and is in no state; removed after a yes where `removal` says so.

    Raises: as `up`.
    """
    return _Run(checkout, stack, confirm, progress).orphans(removal)


def save_inventory(checkout: Checkout, stack: str, progress: Progress) -> Path:
    """The file that holds the stack's inventory: the hand-kept one, or one saved now, for AWS from Pulumi's outputs.

    Raises: as `up`; UsageError before the first `up`.
    """
    config = stacks.config(checkout, stack)
    by_hand = checkout.stacks / "inventory" / f"{stack}.yaml"
    if config.aws is None or by_hand.is_file():
        return stacks.save_inventory(checkout, stacks.read(checkout, stack))
    return _Run(checkout, stack, None, progress).save_inventory()


class _Run:
    """One command on one stack; the steps share what the earlier ones found out."""

    def __init__(self, checkout: Checkout, stack: str, confirm: Confirm | None, progress: Progress) -> None:
        self._checkout, self._stack = checkout, stack
        self._confirm, self._progress = confirm, progress
        self._config = stacks.config(checkout, stack)
        self._backend: Backend = backends.choose(checkout.root, checkout.state, stack)
        self._cli: Cli = pulumi_cli.find(checkout.root, self._backend.env)
        self._outcome = Outcome()
        self._released = 0
        self._orphans: Orphans | None = None
        self._region = str(self._config.region)

    def up(self) -> Provisioned:
        first = [] if self._config.aws or self._config.hosts else [Step("hosts", {}, self._reach_hosts)]
        todo = [
            *first,
            *self._opening(self._refuse_other_region),
            *([Step("nothing twice", {}, self._refuse_second_making)] if self._config.aws else []),
            Step("resources", {}, lambda: self._operate("up")),
            *self._closing(),
        ]
        if not self._config.hosts:
            todo.append(Step("inventory", {}, self._write_inventory))
        return self._done(todo)

    def down(self) -> Provisioned:
        opening = self._opening(self._refuse_other_region)
        return self._done([*opening, Step("resources", {}, lambda: self._operate("destroy")), *self._closing()])

    def orphans(self, removal: Removal) -> Orphans:
        if not self._config.aws:
            why = "its hosts are reached by SSH; nothing of it is in a cloud"
            raise UsageError(f"stack {self._stack}", "has no cloud resources", why, "choose a stack with slipway:aws")
        with locks.alone(self._folder, self._stack):
            for _ in steps.run(self._opening(self._go_to_region), self._folder, self._progress):
                pass  # what a run that died has left is taken in before anything counts as left behind
            account = self._required_account()
            found, things = self._leftovers(account, None if removal.strangers else self._owner)
            if not (removal.delete and things):
                return found
            if not removal.strangers:
                leftovers.refuse_unknown_removal(found)
            self._ask(f"{found.text()}remove {len(things)} from AWS?")
            return found.model_copy(update={"removed": leftovers.remove(things, account, self._progress)})

    def save_inventory(self) -> Path:
        """The file that holds the inventory of Pulumi's outputs now; what a person wrote into an earlier one is kept."""
        said = self._cli.json("stack", "output", "--json", "--stack", self._stack)
        new = hosts.from_outputs(self._stack, said)
        known = stacks.saved_inventory(self._checkout, self._stack, self._progress)
        inventory = hosts.with_known_devices(new, known)
        return stacks.save_inventory(self._checkout, stacks.Stack(self._stack, self._config.recipe, inventory))

    @property
    def _folder(self) -> Path:
        return self._checkout.state / "provision" / self._stack

    @property
    def _owner(self) -> str | None:
        """Read when it is asked for: the first step of the first run writes it."""
        return stacks.owner(self._checkout, self._stack)

    def _leftovers(self, account: Account, owner: str | None) -> tuple[Orphans, tuple[Found, ...]]:
        recorded = self._recorded()
        found, things = leftovers.find(self._stack, account, state.ids(recorded), owner, self._checkout.stacks / "data")
        return found.model_copy(update={"state_is_empty": state.is_empty(recorded)}), things

    def _recorded(self) -> dict[str, Any]:
        """The state as it is now."""
        recorded: dict[str, Any] = self._cli.json("stack", "export", "--stack", self._stack)
        return recorded

    def _done(self, todo: list[Step]) -> Provisioned:
        with locks.alone(self._folder, self._stack):
            results = tuple(steps.run(todo, self._folder, self._progress))
        return Provisioned(self._stack, results, self._outcome.changes, self._orphans)

    def _opening(self, region: Callable[[], Done]) -> list[Step]:
        # None of them has evidence that could be kept: each asks how things are now.
        todo = [Step("state", {}, self._open_state)]
        if self._config.aws:
            todo += [Step("region", {}, region), Step("account", {}, self._check_account)]
        return [*todo, Step("interrupted runs", {}, self._mend)]

    def _closing(self) -> list[Step]:
        return [Step("orphans", {}, self._look_for_orphans)] if self._config.aws else []

    def _open_state(self) -> Done:
        backends.refuse_full_disk(self._backend)
        self._released = interrupted.release(self._backend, self._stack, self._progress)
        self._cli.text("stack", "select", "--create", "--stack", self._stack)
        backends.remember(self._checkout.state, self._stack, self._backend)
        return Done(proved=f"Pulumi {self._cli.version}, state in {self._backend}", evidence={})

    def _refuse_other_region(self) -> Done:
        """Elsewhere the refresh finds nothing, drops what runs from the state, and the hosts are paid for and known to nobody."""
        recorded = state.regions(self._recorded())
        if recorded - {self._region}:
            there = ", ".join(sorted(recorded))
            place = self._checkout.stacks / f"Pulumi.{self._stack}.yaml"
            problem = f"aws:region differs from where the stack's resources are (got {self._region})"
            remedy = f"set it back to {there}; to move: `invoke down` there first, then change the region"
            raise UsageError(place, problem, f"its state has resources in {there}", remedy)
        return Done(proved=self._region, evidence={})

    def _go_to_region(self) -> Done:
        """What is left behind is where the state was made, whatever the file says now."""
        recorded = state.regions(self._recorded())
        if recorded and self._region not in recorded:
            self._region = min(recorded)
        others = sorted(recorded - {self._region})
        if others:
            self._progress.note(f"  looks in {self._region} only; the state also has resources in {', '.join(others)}")
        return Done(proved=self._region, evidence={})

    def _check_account(self) -> Done:
        account = self._account()
        assert account is not None
        return Done(proved=f"AWS as {account.identity()} in {account.region}", evidence={})

    def _mend(self) -> Done:
        if self._backend.folder:
            # Once more: a run from another checkout may have begun since, and what it has pending is no leftover.
            locks.refuse_living(self._stack, locks.in_folder(self._backend.folder, self._stack))
        found = self._mend_unlocked()
        return Done(proved=str(replace(found, locks=self._released)), evidence={})

    def _mend_unlocked(self) -> interrupted.Mend:
        """What was mended; writing the mended state needs the lock, which the dead run may still hold."""

        def mend() -> interrupted.Mend:
            return interrupted.mend(self._cli, self._stack, self._required_account, self._owner, self._progress)

        try:
            return mend()
        except failures.Locked as error:
            holders = locks.in_message(error.said)
            if not holders:
                raise
            self._cancel(holders)
            return mend()

    def _refuse_second_making(self) -> Done:
        if not state.is_empty(self._recorded()):
            return Done(proved="the state knows what it made", evidence={})
        found, _ = self._leftovers(self._required_account(), None)
        leftovers.refuse_second_making(found)
        return Done(proved="nothing in AWS carries the stack's tag", evidence={})

    def _operate(self, verb: str) -> Done:
        words = ("--stack", self._stack, "--refresh")
        if self._confirm is not None:
            self._preview(verb, words)
        outcome = self._unlocked((verb, *words, "--yes", "--skip-preview"))
        error = outcome.failed(f"stack {self._stack}", f"`pulumi {verb}`")
        if error:
            raise error
        self._outcome = replace(outcome, changes={k: n for k, n in outcome.changes.items() if k != "same"})
        changed = ", ".join(f"{count} {what}" for what, count in sorted(outcome.changes.items()))
        return Done(proved=changed or "nothing to do", evidence={})

    def _preview(self, verb: str, words: tuple[str, ...]) -> None:
        shown = (verb, *words, "--preview-only") if verb == "destroy" else ("preview", *words)
        outcome = self._unlocked(shown)
        error = outcome.failed(f"stack {self._stack}", "the preview")
        if error:
            raise error
        lines = "".join(f"  {op} {name} ({kind})\n" for op, kind, name in outcome.planned) or "  no change\n"
        self._ask(f"{lines}{verb} stack {self._stack}?")

    def _unlocked(self, words: tuple[str, ...]) -> Outcome:
        """The outcome of an operation; where an object store holds the lock of a dead run, it is released and tried once more."""
        outcome = self._cli.run(words, self._progress)
        holders = locks.in_message(outcome.stderr + " ".join(outcome.diagnostics)) if outcome.exit_code else ()
        if not holders:
            return outcome
        self._cancel(holders)
        self._mend()
        return self._cli.run(words, self._progress)

    def _cancel(self, holders: tuple[locks.Holder, ...]) -> None:
        """Free the lock of dead holders in a backend that is no folder of ours."""
        for holder in locks.refuse_living(self._stack, holders):
            self._progress.note(f"  releasing the lock of a run that died ({holder})")
        self._cli.text("cancel", "--yes", "--stack", self._stack)
        self._released += len(holders)

    def _look_for_orphans(self) -> Done:
        account = self._account()
        assert account is not None
        found, _ = self._leftovers(account, self._owner)
        self._orphans = found
        count = len(found.orphans)
        return Done(
            proved=f"{count} in AWS and in no state" if count else "nothing in AWS that the state lacks", evidence={}
        )

    def _write_inventory(self) -> Done:
        path = self.save_inventory()
        return Done(proved=f"saved {path.relative_to(self._checkout.root)}", evidence={})

    def _reach_hosts(self) -> Done:
        nodes = stacks.read(self._checkout, self._stack).inventory.nodes
        for node in nodes:
            remote.reach(node)
        far = [node.name for node in nodes if node.ssh]
        return Done(proved=f"{', '.join(far)} answered over ssh" if far else "the host is this machine", evidence={})

    def _account(self) -> Account | None:
        return Account(self._region) if self._config.aws else None

    def _required_account(self) -> Account:
        account = self._account()
        if account is None:
            raise UsageError(
                f"stack {self._stack}", "has interrupted cloud operations and no slipway:aws", "", "bring it back"
            )
        return account

    def _ask(self, question: str) -> None:
        if self._confirm is not None and not self._confirm(question):
            raise UsageError(
                f"stack {self._stack}", "not confirmed", "nothing was changed", "answer yes, or give --yes"
            )
