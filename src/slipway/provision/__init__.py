"""`invoke up`, `invoke down` and `invoke orphans`: a stack's resources through the Pulumi CLI, as resumable steps.

The CLI runs as a subprocess and reports events as JSON; this library never imports Pulumi (decision 004).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from slipway import stacks, steps
from slipway.cloud import hosts
from slipway.errors import UsageError
from slipway.progress import Progress
from slipway.provision import backend as backends
from slipway.provision import interrupted, leftovers, locks, pulumi_cli, state
from slipway.provision.account import Account
from slipway.provision.backend import Backend
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
            said += f"{self.orphans.text()}`invoke orphans --stack {self.stack} --delete` removes them\n"
        return said


def up(checkout: Checkout, stack: str, *, confirm: Confirm | None, progress: Progress) -> Provisioned:
    """The stack's resources as its file says, and its inventory saved; `confirm` None means that the user said yes beforehand.

    Raises: MissingFile without the CLI, UsageError, AuthFailure, NetworkFailure, CheckFailed in the words of `failures`.
    """
    return _Run(checkout, stack, confirm, progress).up()


def down(checkout: Checkout, stack: str, *, confirm: Confirm | None, progress: Progress) -> Provisioned:
    """The stack with every resource removed; its state stays, empty.

    Raises: as `up`.
    """
    return _Run(checkout, stack, confirm, progress).down()


def orphans(checkout: Checkout, stack: str, *, delete: bool, confirm: Confirm | None, progress: Progress) -> Orphans:
    """What carries the stack's tag in AWS and is in no state; with `delete`, removed after a yes.

    Raises: as `up`.
    """
    run = _Run(checkout, stack, confirm, progress)
    run.open()
    return run.orphans(delete=delete)


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

    def up(self) -> Provisioned:
        todo = [*self._opening(), Step("resources", {}, lambda: self._operate("up")), *self._closing()]
        if not self._config.hosts:
            todo.append(Step("inventory", {}, self._save_inventory))
        return self._done(todo)

    def down(self) -> Provisioned:
        todo = [*self._opening(), Step("resources", {}, lambda: self._operate("destroy")), *self._closing()]
        return self._done(todo)

    def open(self) -> None:
        """Everything before the first change: the state, the account, and what a run that died has left."""
        for _ in steps.run(self._opening(), self._folder, self._progress):
            pass

    def orphans(self, *, delete: bool) -> Orphans:
        account = self._account()
        if account is None:
            why = "its hosts are reached by SSH; nothing of it is in a cloud"
            raise UsageError(f"stack {self._stack}", "has no cloud resources", why, "choose a stack with slipway:aws")
        recorded = self._cli.json("stack", "export", "--stack", self._stack)
        prices = self._checkout.stacks / "data"
        found, things = leftovers.find(self._stack, account, state.ids(recorded), prices)
        if not (delete and things):
            return found
        self._ask(f"{found.text()}remove all of them from AWS?")
        return found.model_copy(update={"removed": leftovers.remove(things, account, self._progress)})

    @property
    def _folder(self) -> Any:
        return self._checkout.state / "provision" / self._stack

    def _done(self, todo: list[Step]) -> Provisioned:
        results = tuple(steps.run(todo, self._folder, self._progress))
        return Provisioned(self._stack, results, self._outcome.changes, self._orphans)

    def _opening(self) -> list[Step]:
        # None of them has evidence that could be kept: each asks how things are now.
        todo = [Step("state", {}, self._open_state)]
        if self._config.aws:
            todo.append(Step("account", {}, self._check_account))
        return [*todo, Step("interrupted runs", {}, self._mend)]

    def _closing(self) -> list[Step]:
        return [Step("orphans", {}, self._look_for_orphans)] if self._config.aws else []

    def _open_state(self) -> Done:
        self._released = interrupted.release(self._backend, self._stack, self._progress)
        self._cli.text("stack", "select", "--create", "--stack", self._stack)
        backends.remember(self._checkout.state, self._stack, self._backend)
        return Done(proved=f"Pulumi {self._cli.version}, state in {self._backend}", evidence={})

    def _check_account(self) -> Done:
        account = self._account()
        assert account is not None
        return Done(proved=f"AWS as {account.identity()} in {account.region}", evidence={})

    def _mend(self) -> Done:
        found = interrupted.mend(self._cli, self._stack, self._required_account, self._progress)
        return Done(proved=str(replace(found, locks=self._released)), evidence={})

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
        locks.refuse_living(self._stack, holders)
        self._cli.text("cancel", "--yes", "--stack", self._stack)
        self._mend()
        return self._cli.run(words, self._progress)

    def _look_for_orphans(self) -> Done:
        found = self.orphans(delete=False)
        self._orphans = found
        count = len(found.orphans)
        return Done(
            proved=f"{count} in AWS and in no state" if count else "nothing in AWS that the state lacks", evidence={}
        )

    def _save_inventory(self) -> Done:
        said = self._cli.json("stack", "output", "--json", "--stack", self._stack)
        inventory = hosts.from_outputs(self._stack, said)
        path = stacks.save_inventory(self._checkout, stacks.Stack(self._stack, self._config.recipe, inventory))
        return Done(proved=f"saved {path.relative_to(self._checkout.root)}", evidence={})

    def _account(self) -> Account | None:
        return Account(str(self._config.region)) if self._config.aws else None

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
