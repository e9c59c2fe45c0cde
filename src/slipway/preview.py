"""What a stack would create, run and cost, offline: no account, no Pulumi, nothing touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from slipway import book, plan, rules, stacks
from slipway.cloud import access, cost, hosts, instance_types, resources, settings
from slipway.cloud.cost import Cost
from slipway.cloud.instance_types import InstanceType
from slipway.cloud.settings import StackConfig
from slipway.documents import Document
from slipway.errors import PlanRefused
from slipway.inventory import Inventory
from slipway.plan import Plan
from slipway.recipe import Recipe
from slipway.rules import Case
from slipway.stacks import Checkout


class PlannedResource(Document):
    """One cloud resource that `pulumi up` would create."""

    type: str
    name: str
    says: str


class NicRow(Document):
    """Network interfaces of one host that are alike: cards `first_card` to `last_card`."""

    first_card: int
    last_card: int
    device_index: int
    interface_type: str
    interfaces: int


class Preview(Document):
    """What the stack would be."""

    schema_: Literal["slipway/preview/v1"] = Field(alias="schema")
    stack: str
    hosts: Literal["aws", "ssh", "local"]
    resources: tuple[PlannedResource, ...]
    nics_per_host: tuple[NicRow, ...]
    cost: Cost | None = Field(description="null: no cloud resource is created")
    notes: tuple[str, ...]
    up_would_refuse: tuple[str, ...]
    inventory: Inventory
    plan: Plan


def of(checkout: Checkout, stack: str) -> Preview:
    """The preview of `stack`.

    Raises: PlanRefused when recipe and hosts do not belong together, DocumentError, UsageError, MissingFile.
    """
    config = stacks.config(checkout, stack)
    made = refuse_wrong_combination(checkout, stack, config)
    kind = _instance_type(checkout, config)
    hosts_then = _hosts(checkout, stack, config, kind)
    ports = access.ports(book.stack_recipe(checkout, stack, config.recipe))
    planned = resources.planned(config.aws, kind, ports) if config.aws and kind else ()
    there_already = [] if config.aws else hosts_then.nodes
    left = settings.placeholders(config, there_already)
    return Preview(
        schema_="slipway/preview/v1",
        stack=stack,
        hosts="aws" if config.aws else "local" if config.hosts else "ssh",
        resources=tuple(PlannedResource(type=item.type, name=item.name, says=item.says) for item in planned),
        nics_per_host=tuple(_nic_rows(kind)) if kind else (),
        cost=cost.of(config.aws, planned, cost.read(data_folder(checkout))) if config.aws else None,
        notes=tuple(_notes(checkout, stack, config, kind)),
        up_would_refuse=tuple(f"{key} still has an example value; {remedy}" for key, remedy in left.items()),
        inventory=hosts_then,
        plan=made,
    )


def refuse_wrong_combination(checkout: Checkout, stack: str, config: StackConfig) -> Plan:
    """The plan of the stack's recipe on the hosts that it will have; nothing has to exist for it.

    Raises: PlanRefused with the rule that says no, DocumentError, UsageError, MissingFile.
    """
    item = book.stack_recipe(checkout, stack, config.recipe)
    hosts_then = _hosts(checkout, stack, config, _instance_type(checkout, config))
    _refuse_for_hardware(item, hosts_then)
    return book.on_hosts(checkout, item, hosts_then)


def data_folder(checkout: Checkout) -> Path:
    """Where the instance types and prices stand."""
    return checkout.stacks / "data"


def text(seen: Preview) -> str:
    """The preview for a terminal: what is created, the network cards, what it costs, the launch plan, what is missing."""
    return (
        "\n".join([*_resource_lines(seen), *_nic_lines(seen), *_cost_lines(seen), *_plan_lines(seen), *_closing(seen)])
        + "\n"
    )


def _instance_type(checkout: Checkout, config: StackConfig) -> InstanceType | None:
    return instance_types.find(data_folder(checkout), config.aws.instance_type) if config.aws else None


def _hosts(checkout: Checkout, stack: str, config: StackConfig, kind: InstanceType | None) -> Inventory:
    if config.aws and kind:
        return hosts.expected(stack, config.aws, kind)
    return stacks.hosts(checkout, stack, config)


def _refuse_for_hardware(item: Recipe, hosts_then: Inventory) -> None:
    """A rule may say no to the hosts' GPUs where it said yes to those that the recipe was written for (NVFP4 on H200)."""
    for model in sorted({gpu.model for node in hosts_then.nodes for gpu in node.gpus} - {item.cell.hardware}):
        there = item.model_copy(update={"cell": item.cell.model_copy(update={"hardware": model})})
        for rule in rules.RULES:
            for role in item.cell.roles:
                if rule.severity == "refuse" and rule.broken(Case(there, role, True)) > rule.broken(
                    Case(item, role, True)
                ):
                    place = f"{item.id} on {hosts_then.name}, whose GPUs are {model}"
                    raise PlanRefused(rule.id, place, rule.message, rule.why, f"{rule.remedy} ({rule.source})")


def _nic_rows(kind: InstanceType) -> Iterator[NicRow]:
    rows: list[NicRow] = []
    for nic in instance_types.nics(kind):
        last = rows[-1] if rows else None
        if last and (last.device_index, last.interface_type, last.last_card + 1) == (nic.device, nic.kind, nic.card):
            rows[-1] = last.model_copy(update={"last_card": nic.card, "interfaces": last.interfaces + 1})
        else:
            rows.append(
                NicRow(
                    first_card=nic.card,
                    last_card=nic.card,
                    device_index=nic.device,
                    interface_type=nic.kind,
                    interfaces=1,
                )
            )
    yield from rows


def _notes(checkout: Checkout, stack: str, config: StackConfig, kind: InstanceType | None) -> Iterator[str]:
    if config.aws is None or kind is None:
        return
    yield "addresses and instance ids are examples until `pulumi up` made the hosts"
    yield "the hosts have no internet: images come from the stack's ECR repositories, models from its bucket"
    if any(card.efa_gbps for card in kind.cards):
        known = "as such hosts were seen to name them" if kind.expected_devices else "not known for this type"
        yield f"EFA device names are {known}; the saved inventory has none until they are read on the hosts"
    written_for = book.stack_recipe(checkout, stack, config.recipe).cell.hardware
    if written_for != kind.gpu_model:
        yield f"the recipe was written for {written_for}, the hosts have {kind.gpu_model}"


def _resource_lines(seen: Preview) -> Iterator[str]:
    yield f"stack {seen.stack}: {seen.plan.recipe} on {_said_hosts(seen)}"
    yield ""
    if not seen.resources:
        yield "creates nothing: the hosts are there already"
        return
    yield f"creates {len(seen.resources)} resources"
    kinds = {item.type: item.type.rpartition(":")[2] for item in seen.resources}
    width = max(len(kind) for kind in kinds.values())
    name_width = max(len(item.name) for item in seen.resources)
    for item in seen.resources:
        yield f"  {kinds[item.type]:{width}}  {item.name:{name_width}}  {item.says}".rstrip()


def _said_hosts(seen: Preview) -> str:
    counts: dict[str, int] = {}
    for node in seen.inventory.nodes:
        gpus = f"{len(node.gpus)}x {node.gpus[0].model}" if node.gpus else "no GPU"
        what = f"{gpus}, {node.fabric}"
        counts[what] = counts.get(what, 0) + 1
    return " and ".join(f"{count} host{'s' if count > 1 else ''} ({what})" for what, count in counts.items())


def _nic_lines(seen: Preview) -> Iterator[str]:
    if not seen.nics_per_host:
        return
    yield ""
    yield f"network interfaces of each GPU host: {sum(row.interfaces for row in seen.nics_per_host)}"
    yield "  cards   device  type       count"
    for row in seen.nics_per_host:
        cards = f"{row.first_card}" if row.first_card == row.last_card else f"{row.first_card}-{row.last_card}"
        yield f"  {cards:6}  {row.device_index:6}  {row.interface_type:9}  {row.interfaces:5}"


def _cost_lines(seen: Preview) -> Iterator[str]:
    bill = seen.cost
    if bill is None:
        return
    yield ""
    yield f"cost per hour ({bill.source}, {bill.date})"
    for line in bill.lines:
        price = "price not known" if line.hourly is None else f"{line.hourly:.2f} {bill.currency}"
        yield f"  {line.quantity:>5} x {line.item:18} {price}{f' ({line.note})' if line.note else ''}"
    left_out = (
        f", without {', '.join(bill.unknown)}: write their prices into stacks/data/prices.yaml" if bill.unknown else ""
    )
    yield f"  known so far: {bill.known_hourly:.2f} {bill.currency} per hour{left_out}"


def _plan_lines(seen: Preview) -> Iterator[str]:
    yield ""
    yield "would launch"
    for line in plan.shell_text(seen.plan).splitlines():
        yield f"  {line}".rstrip()


def _closing(seen: Preview) -> Iterator[str]:
    warned = tuple(f"[{warning.rule}] {warning.message}" for warning in seen.plan.warnings)
    for title, lines in (
        ("notes", seen.notes),
        ("the plan warns", warned),
        ("`pulumi up` would refuse this stack", seen.up_would_refuse),
    ):
        if lines:
            yield ""
            yield title
            yield from (f"  - {line}" for line in lines)
