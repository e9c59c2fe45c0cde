"""Placement: roles find nodes, GPUs and ports, or the error says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway import placement, recipe
from slipway.documents import parse
from slipway.errors import DocumentError, PlanRefused
from slipway.inventory import Gpu, Inventory, Node
from slipway.recipe import Recipe, Role, Transfer

BOOK = Path(__file__).resolve().parent.parent / "recipes"


def node(name: str, gpus: int, memory_gib: float = 141, fabric: str = "infiniband") -> Node:
    cards = [Gpu(model="h200", memory_gib=memory_gib) for _ in range(gpus)]
    return Node(name=name, address=f"{name}.example", gpus=cards, fabric=fabric)  # type: ignore[arg-type]


def hosts(*nodes: Node) -> Inventory:
    return Inventory(schema_="slipway/inventory/v1", name="test", runtime="docker", nodes=list(nodes))


def pd(tp: int = 8, nodes: int = 2, decode_port: int = 30001) -> Recipe:
    """A prefill/decode pair with a router, made from the shipped M.1 cell."""
    base = recipe.find(BOOK, "laguna-m.1.sglang/h200-bf16")
    server = base.cell.roles[0]
    roles = [
        server.model_copy(update={"name": "prefill", "tp": tp}),
        server.model_copy(update={"name": "decode", "tp": tp, "port": decode_port}),
        Role(name="router", port=8000),
    ]
    needs = base.cell.requires.model_copy(
        update={"nodes": nodes, "fabric": ["infiniband", "roce"], "gpus_per_node": tp}
    )
    transfer = Transfer(backend="mooncake", bootstrap_port=8998, devices="none")
    changed = {"roles": roles, "requires": needs, "transfer": transfer}
    return base.model_copy(update={"cell": base.cell.model_copy(update=changed)})


def test_prefill_and_decode_get_a_node_each_and_the_router_joins_the_first() -> None:
    placed = placement.place(pd(), hosts(node("a", 8), node("b", 8)))
    assert [(item.role.name, item.node.name, item.gpu_indices) for item in placed] == [
        ("prefill", "a", tuple(range(8))),
        ("decode", "b", tuple(range(8))),
        ("router", "a", ()),
    ]
    assert placed[0].whole_node


def test_two_roles_share_a_node_where_the_recipe_allows_it() -> None:
    placed = placement.place(pd(tp=4, nodes=1), hosts(node("a", 8)))
    assert [item.gpu_indices for item in placed] == [(0, 1, 2, 3), (4, 5, 6, 7), ()]
    assert not placed[0].whole_node


@pytest.mark.parametrize(
    ("nodes", "rule", "said"),
    [
        ([node("a", 8)], "placement-nodes", "has too few nodes (got 1)"),
        ([node("a", 8), node("b", 4)], "placement-gpus", "decode needs 8 GPUs on one node"),
        ([node("a", 8), node("b", 8, memory_gib=80)], "placement-gpus", "decode needs 8 GPUs"),
        ([node("a", 8), node("b", 8, fabric="efa")], "placement-fabric", "node b has the wrong fabric (got efa)"),
    ],
)
def test_what_the_inventory_lacks_is_named(nodes: list[Node], rule: str, said: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        placement.place(pd(), hosts(*nodes))
    assert caught.value.rule == rule
    assert said in str(caught.value)


def test_one_port_is_never_given_twice_on_a_node() -> None:
    with pytest.raises(PlanRefused, match="prefill and decode both want port 30000 on node a"):
        placement.place(pd(tp=4, nodes=1, decode_port=30000), hosts(node("a", 8)))


def test_a_recipe_without_a_container_does_not_run_in_docker() -> None:
    tiny = recipe.find(BOOK, "laguna-tiny.reference/laptop")
    with pytest.raises(PlanRefused, match="has no container image"):
        placement.place(tiny, hosts(node("a", 0)))


def test_every_shipped_recipe_fits_its_own_synthetic_inventory() -> None:
    for item in recipe.read_book(BOOK):
        assert placement.place(item, placement.synthetic(item))


@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.sampled_from([1, 2, 4, 8]))
def test_no_gpu_is_given_to_two_roles(sizes: list[int], tp: int) -> None:
    inventory = hosts(*(node(f"n{number}", size) for number, size in enumerate(sizes)))
    try:
        placed = placement.place(pd(tp=tp, nodes=1), inventory)
    except PlanRefused:
        return
    taken = [(item.node.name, index) for item in placed for index in item.gpu_indices]
    assert len(taken) == len(set(taken)) == 2 * tp
    assert all(index < len(inventory.node(name).gpus) for name, index in taken)


@pytest.mark.parametrize("what", ["name", "address"])
def test_two_nodes_never_share_a_name_or_address(what: str) -> None:
    lines = ["schema: slipway/inventory/v1", "name: x", "nodes:"]
    for number in (1, 2):
        values = {"name": f"n{number}", "address": f"10.0.0.{number}", what: "same"}
        lines.append(f"  - {{name: {values['name']}, address: {values['address']}}}")
    with pytest.raises(DocumentError, match=f"two nodes have the {what} same"):
        parse("\n".join(lines), Inventory, "x.yaml")


def test_nodes_that_must_reach_each_other_have_no_loopback_address() -> None:
    here = node("a", 8).model_copy(update={"address": "127.0.0.1"})
    with pytest.raises(PlanRefused, match="node a has a loopback address"):
        placement.place(pd(), hosts(here, node("b", 8)))


def test_a_node_without_gpus_takes_the_router_and_needs_no_fabric() -> None:
    front = node("front", 0, fabric="tcp")
    placed = placement.place(pd(), hosts(front, node("one", 8), node("two", 8)))
    assert [(item.role.name, item.node.name) for item in placed] == [
        ("prefill", "one"),
        ("decode", "two"),
        ("router", "front"),
    ]
    with pytest.raises(PlanRefused, match=r"too few nodes \(got 1\)"):
        placement.place(pd(), hosts(front, node("one", 8)))
