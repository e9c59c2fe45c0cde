"""A run that died: its lock is released, and what it may have created is found by its tag and taken into the state.

Without this the next `up` makes every interrupted resource a second time, and the first copy, an 8-GPU host perhaps, is paid for
and known to nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass

from slipway.progress import Progress
from slipway.provision import kinds, locks, state, torn
from slipway.provision.account import Account
from slipway.provision.backend import Backend
from slipway.provision.kinds import Found
from slipway.provision.pulumi_cli import Cli
from slipway.provision.state import Pending


@dataclass(frozen=True)
class Mend:
    """What was found of a run that died."""

    locks: int
    adopted: tuple[str, ...]
    cleared: tuple[str, ...]

    def __str__(self) -> str:
        if not (self.locks or self.adopted or self.cleared):
            return "no run was interrupted"
        said = [f"released {self.locks} lock{'s' if self.locks != 1 else ''} of a run that died"] if self.locks else []
        if self.adopted:
            said.append(f"adopted {', '.join(self.adopted)}")
        if self.cleared:
            said.append(f"cleared {', '.join(self.cleared)}")
        return "; ".join(said)


def release(backend: Backend, stack: str, progress: Progress) -> int:
    """How many locks of dead runs were released; what they left half-written is mended, so that the state can be read again.

    Raises: CheckFailed when a living run holds the lock; DiskFailure, also where the state is damaged.
    """
    if backend.folder is None:
        return 0
    dead = locks.refuse_living(stack, locks.in_folder(backend.folder, stack))
    for holder in dead:
        progress.note(f"  releasing the lock of a run that died ({holder})")
        locks.release(holder)
    torn.mend(backend.folder, stack, progress)
    torn.refuse_damaged(backend.folder, stack)
    return len(dead)


def mend(cli: Cli, stack: str, account: Callable[[], Account], owner: str | None, progress: Progress) -> Mend:
    """What became of the operations that never ended, so that the next one can go on.

    `account` is called only when something may have been created; what another state than `owner`'s made is left alone.

    Raises: SlipwayError.
    """
    recorded = cli.json("stack", "export", "--stack", stack)
    if not state.pending(recorded):
        return Mend(0, (), ())
    finder = Finder(stack, account, state.ids(recorded), owner)
    mended = state.mend(recorded, finder)
    cli.text("stack", "import", "--stack", stack, stdin=json.dumps(mended.state))
    adopted = tuple(f"{what.name} ({identity})" for what, identity in mended.adopted)
    for said in adopted:
        progress.note(f"  adopted {said}: it was created, and the run died before that was recorded")
    return Mend(0, adopted, tuple(f"{what.name} ({what.kind})" for what in mended.cleared))


class Finder:
    """Finds what an interrupted creation left in AWS; called with the pending operation, gives the id or None."""

    def __init__(
        self,
        stack: str,
        account: Callable[[], Account],
        known: Collection[tuple[str, str]],
        owner: str | None = None,
    ) -> None:
        self._stack = stack
        self._owner = owner
        self._account_of = account
        self._known = known
        self._account: Account | None = None
        self._tagged: tuple[Found, ...] | None = None
        self._taken: set[tuple[str, str]] = set()

    def __call__(self, what: Pending) -> str | None:
        """The id of what `what` created, or None where there is nothing, or nothing any more."""
        if what.type in kinds.PARTS:
            return _part_id(what)
        if what.type == kinds.ASSOCIATION:
            return self._aws().association(str(what.inputs.get("subnetId")), str(what.inputs.get("routeTableId")))
        for found in self._all_tagged():
            key = (found.type, found.id)
            if (
                found.type == what.type
                and found.name == what.name
                and key not in self._known
                and key not in self._taken
                and not found.stranger_to(self._owner)
            ):
                self._taken.add(key)
                if what.type in kinds.REMADE:
                    self._aws().remove(found)
                    return None
                return found.id
        bucket = what.inputs.get("bucket")
        if what.type == kinds.BUCKET and bucket and self._aws().bucket_without_tags(str(bucket)):
            return str(bucket)
        return None

    def _aws(self) -> Account:
        if self._account is None:
            self._account = self._account_of()
        return self._account

    def _all_tagged(self) -> tuple[Found, ...]:
        if self._tagged is None:
            self._tagged = self._aws().tagged(self._stack)
        return self._tagged


def _part_id(what: Pending) -> str | None:
    try:
        return kinds.PARTS[what.type].format(**what.inputs)
    except KeyError:
        return None  # made from something that did not exist yet, so it was not made
