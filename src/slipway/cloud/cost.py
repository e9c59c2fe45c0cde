"""What a stack costs per hour, from a price file with a date; a price that is not known is said, never guessed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from slipway import documents
from slipway.cloud.resources import Planned
from slipway.cloud.settings import AwsHosts
from slipway.documents import Document


class Price(Document):
    """The hourly price of one item; null: not known."""

    item: str
    price: float | None = Field(ge=0)
    read: str | None = Field(
        default=None, pattern=r"^\d{4}-\d{2}-\d{2}$", description="the day the price was read; null: the file's own"
    )


class Prices(Document):
    """A price list of one day."""

    schema_: Literal["slipway/prices/v1"] = Field(alias="schema")
    date: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    currency: str
    source: str
    hourly: list[Price]


class CostLine(Document):
    """One item of the bill: how many, and what they cost together per hour (null: the price is not known)."""

    item: str
    quantity: int
    hourly: float | None
    note: str


class Cost(Document):
    """The bill per hour: the sum of what is known, and what it leaves out."""

    currency: str
    date: str
    source: str
    lines: tuple[CostLine, ...]
    known_hourly: float
    unknown: tuple[str, ...]


def read(folder: Path) -> Prices:
    """The price file of `folder`.

    Raises: MissingFile, DocumentError.
    """
    return documents.read(folder / "prices.yaml", Prices)


def of(aws: AwsHosts, planned: Iterable[Planned], prices: Prices) -> Cost:
    """What the `planned` resources and the hosts' volumes cost per hour."""
    counts: dict[str, int] = {}
    for resource in planned:
        if resource.item:
            counts[resource.item] = counts.get(resource.item, 0) + resource.quantity
    volumes = aws.count * aws.root_volume_gib + (aws.router.root_volume_gib if aws.router else 0)
    counts["volume-gib"] = volumes
    known = {price.item: price for price in prices.hourly}
    lines = []
    for item, quantity in counts.items():
        entry = known.get(item)
        price = entry.price if entry else None
        block = item == aws.instance_type and aws.capacity.kind == "block"
        said = [f"read {entry.read}"] if entry and entry.read else []
        said += ["on demand; a capacity block was paid when it was bought"] if block else []
        hourly = None if price is None else price * quantity
        lines.append(CostLine(item=item, quantity=quantity, hourly=hourly, note="; ".join(said)))
    return Cost(
        currency=prices.currency,
        date=prices.date,
        source=prices.source,
        lines=tuple(lines),
        known_hourly=round(sum(line.hourly for line in lines if line.hourly is not None), 4),
        unknown=tuple(line.item for line in lines if line.hourly is None),
    )
