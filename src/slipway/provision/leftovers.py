"""What carries a stack's tag in AWS and is in no state: paid for, and known to nobody."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from slipway.cloud import cost
from slipway.documents import Document
from slipway.errors import SlipwayError, UsageError
from slipway.progress import Progress
from slipway.provision import kinds
from slipway.provision.account import Account
from slipway.provision.kinds import Found

FREE = frozenset(kinds.ORDER_OF_REMOVAL) - {
    kinds.INSTANCE,
    kinds.BUCKET,
    kinds.REPOSITORY,
    *(kinds.EC2[kind] for kind in ("volume", "capacity-reservation", "natgateway", "elastic-ip", "vpc-endpoint")),
}
"""Types that AWS does not charge for by the hour; storage is paid by size and month, so its hourly price is not known here."""


class Orphan(Document):
    """One thing that no state knows; `hourly` is null where its price is not known."""

    type: str
    id: str
    name: str
    detail: str
    hourly: float | None
    owner: str | None = None


class Orphans(Document):
    """All of a stack's orphans, and what they cost per hour as far as it is known.

    `strangers` carry the stack's name and another state's owner: somebody else's, or left by a state that was lost. Where
    `state_is_empty`, everything may be somebody else's: another clone with the same stack file has the same owner.
    """

    stack: str
    orphans: tuple[Orphan, ...]
    known_hourly: float
    unknown_prices: tuple[str, ...]
    currency: str
    prices_of: str
    removed: tuple[str, ...] = ()
    strangers: tuple[Orphan, ...] = ()
    state_is_empty: bool = False

    def text(self) -> str:
        """The list for people."""
        lines = [f"{self.stack}: everything that carries its tag is in its state"]
        if self.orphans:
            lines = [f"{self.stack}: {len(self.orphans)} in AWS and in no state", self.listed().rstrip()]
            if self.state_is_empty:
                lines.append(
                    "  the state here is empty: these may be another checkout's, `--delete` needs `--strangers` too"
                )
        if self.strangers:
            lines.append(f"{len(self.strangers)} made by another state that is called {self.stack} too, left alone")
            lines += map(self._line, self.strangers)
            lines.append("  yours from a state that is lost? `--strangers` counts them in")
        if self.removed:
            lines.append(f"removed {', '.join(self.removed)}")
        return "\n".join(lines) + "\n"

    def listed(self) -> str:
        """One line for each orphan, and one for what they cost together."""
        cost = f"  together {self.known_hourly:.2f} {self.currency} an hour (prices of {self.prices_of})"
        if self.unknown_prices:
            cost += f", and {len(self.unknown_prices)} of unknown price"
        return "\n".join([*map(self._line, self.orphans), cost]) + "\n"

    def _line(self, one: Orphan) -> str:
        detail = f", {one.detail}" if one.detail else ""
        whose = f", owner {one.owner}" if one in self.strangers else ""
        return f"  {one.type.rpartition(':')[2]} {one.id} ({one.name or 'no name'}{detail}{whose}): {self._price(one)}"

    def _price(self, one: Orphan) -> str:
        if one.hourly is None:
            return "price not known"
        return f"{one.hourly:.2f} {self.currency} an hour" if one.hourly else "free"


def find(
    stack: str, account: Account, known: Collection[tuple[str, str]], owner: str | None, prices: Path
) -> tuple[Orphans, tuple[Found, ...]]:
    """The orphans of `stack`: tagged as its own, and not among the `known` types and ids of its state.

    What a state of the same name and another `owner` made is told apart; without an owner (None) everything counts as ours.

    Raises: AuthFailure, NetworkFailure, MissingFile, DocumentError.
    """
    unknown = tuple(one for one in account.tagged(stack) if (one.type, one.id) not in known)
    things = tuple(one for one in unknown if not one.stranger_to(owner))
    priced = cost.read(prices)
    hourly = {price.item: price.price for price in priced.hourly}
    shown = tuple(_orphan(one, hourly) for one in things)
    return Orphans(
        stack=stack,
        orphans=shown,
        known_hourly=round(sum(one.hourly for one in shown if one.hourly is not None), 4),
        unknown_prices=tuple(one.id for one in shown if one.hourly is None),
        currency=priced.currency,
        prices_of=priced.date,
        strangers=tuple(_orphan(one, hourly) for one in unknown if one not in things),
    ), things


def refuse_second_making(found: Orphans) -> None:
    """Nothing while an empty state stands beside nothing in the account.

    `found` are the leftovers of a stack whose state is empty, with every owner counted in.

    Raises: UsageError that lists what runs, its price and the ways out.
    """
    if not found.orphans:
        return
    why = f"what it made before, or another checkout makes, would be made a second time; there is already:\n{found.listed()}"
    remedy = (
        f"bring back the state that made it (a copy of .slipway/pulumi/, or PULUMI_BACKEND_URL), or use another stack name; "
        f"if nobody needs it: `invoke orphans --stack {found.stack} --delete --strangers`"
    )
    raise UsageError(f"stack {found.stack}", "its state is empty and its account is not", why, remedy)


def refuse_unknown_removal(found: Orphans) -> None:
    """Nothing where the state tells what is left behind from what another state has.

    Raises: UsageError where the state is empty and something would be removed.
    """
    if not (found.state_is_empty and found.orphans):
        return
    why = (
        "so nothing tells forgotten things from the living ones of another checkout or of a state that was lost; "
        f"there is:\n{found.listed()}"
    )
    remedy = "bring that state back, or, if nobody uses any of it, say so with `--delete --strangers`"
    raise UsageError(f"stack {found.stack}", "its state is empty", why, remedy)


def remove(things: Iterable[Found], account: Account, progress: Progress) -> tuple[str, ...]:
    """What was removed, in the order of removal; everything is tried before the first refusal is raised.

    Raises: SlipwayError, the first one; what could not be removed is listed again next time.
    """
    removed: list[str] = []
    refused: list[SlipwayError] = []
    for thing in things:
        try:
            account.remove(thing)
        except SlipwayError as error:
            progress.note(f"  {thing.kind} {thing.id} stays: {error}")
            refused.append(error)
        else:
            progress.note(f"  removed {thing.kind} {thing.id} ({thing.name})")
            removed.append(thing.id)
    if refused:
        raise refused[0]
    return tuple(removed)


def _orphan(one: Found, hourly: dict[str, float | None]) -> Orphan:
    each = 0.0 if one.type in FREE else hourly.get(one.price_item or "")
    price = None if each is None else each * one.quantity
    return Orphan(type=one.type, id=one.id, name=one.name, detail=one.detail, hourly=price, owner=one.owner)
