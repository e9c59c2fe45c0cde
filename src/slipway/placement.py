"""Which node each role runs on, with which GPUs and ports; or an error that says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slipway.errors import PlanRefused
from slipway.inventory import Gpu, Inventory, Node, RdmaDevice, Runtime
from slipway.recipe import Recipe, Requires, Role
from slipway.recipe.words import Fabric


@dataclass(frozen=True)
class Placed:
    """One role on one node; `gpu_indices` count the node's GPUs from 0."""

    role: Role
    node: Node
    gpu_indices: tuple[int, ...]
    rdma_devices: tuple[str, ...] = ()

    @property
    def host_port(self) -> int:
        """The port that others reach the role by."""
        return self.role.host_port or self.role.port

    @property
    def whole_node(self) -> bool:
        """Whether the role has every GPU of its node."""
        return len(self.gpu_indices) == len(self.node.gpus)


def place(recipe: Recipe, inventory: Inventory) -> tuple[Placed, ...]:
    """One `Placed` per role, in the recipe's order: GPU roles on the first node with enough free GPUs, a router on the first node
    without GPUs where there is one, else beside the first role.

    Raises: PlanRefused, saying what the inventory lacks.
    """
    needs = recipe.cell.requires
    where = f"inventory {inventory.name}"
    _check(recipe, inventory, where)
    free = {node.name: list(_usable(node, needs)) for node in inventory.nodes}
    spread = needs.nodes > 1
    placed: list[Placed] = []
    for role in recipe.cell.roles:
        count = recipe.cell.gpus(role)
        taken = {item.node.name for item in placed if item.gpu_indices} if spread else set()
        node = next((n for n in inventory.nodes if n.name not in taken and len(free[n.name]) >= count), None)
        if count == 0 and placed:
            node = _router_host(inventory, needs) or placed[0].node
        if node is None:
            offers = ", ".join(f"{name} {len(gpus)}" for name, gpus in free.items())
            why = f"a role runs on one node; free GPUs of {needs.gpu_memory_gib:g} GiB or more: {offers}"
            remedy = "add a node to the inventory or choose another recipe"
            raise PlanRefused("placement-gpus", where, f"{role.name} needs {count} GPUs on one node", why, remedy)
        indices = tuple(free[node.name][:count])
        free[node.name] = free[node.name][count:]
        placed.append(Placed(role, node, indices, _pinned(recipe, role, node, where)))
    _refuse_shared_ports(placed, where)
    _refuse_unequal_devices(placed, where)
    return tuple(placed)


def synthetic(recipe: Recipe) -> Inventory:
    """An inventory that just satisfies the recipe's `requires`; its addresses are reserved for documentation (RFC 5737)."""
    needs = recipe.cell.requires
    gpus = [Gpu(model=recipe.cell.hardware, memory_gib=needs.gpu_memory_gib) for _ in range(needs.gpus_per_node)]
    fabric: Fabric = needs.fabric[0] if needs.fabric else "tcp"
    nodes = [
        Node(
            name=f"node-{number}",
            address=f"192.0.2.{10 + number}",
            ssh=f"node-{number}",
            gpus=gpus,
            fabric=fabric,
            rdma_devices=_example_devices(fabric, needs.rdma_devices_per_node),
        )
        for number in range(1, needs.nodes + 1)
    ]
    runtime: Runtime = "process" if recipe.cell.image is None else "docker"
    return Inventory(schema_="slipway/inventory/v1", name="synthetic", runtime=runtime, nodes=nodes)


def _example_devices(fabric: Fabric, count: int) -> list[RdmaDevice]:
    """Devices as such hosts name them; only for a plan without an inventory."""
    names = [f"rdmap{85 + number}s0" if fabric == "efa" else f"mlx5_{number}" for number in range(count)]
    return [RdmaDevice(name=name, rate_gbps=200 if fabric == "efa" else 400) for name in names]


def _pinned(recipe: Recipe, role: Role, node: Node, where: str) -> tuple[str, ...]:
    """The RDMA devices of `node` that `role` pins: by the recipe's selector, from the inventory's list, never by name."""
    transfer = recipe.cell.transfer
    if transfer is None or transfer.devices == "none" or role.name not in {"prefill", "decode"}:
        return ()
    names = tuple(device.name for device in node.rdma_devices)
    if not names:
        problem = f"node {node.name} lists no rdma_devices"
        why = f"{recipe.id} pins {transfer.devices} of them; an unpinned transfer may run over TCP unseen"
        raise PlanRefused(
            "rdma-devices-unpinned", where, problem, why, "write the data ports of `ls /sys/class/infiniband` there"
        )
    if any((node.fabric == "efa") != name.startswith("rdmap") for name in names):
        problem = f"node {node.name} has on {node.fabric} the devices {', '.join(names)}"
        why = "AWS names its EFA devices rdmap…, and nobody else does; such names are copied from another host"
        raise PlanRefused(
            "efa-has-no-mlx5", where, problem, why, "write the names that `ls /sys/class/infiniband` shows"
        )
    return names if transfer.devices == "all" else names[:1]


def _refuse_unequal_devices(placed: list[Placed], where: str) -> None:
    fabrics = {item.node.fabric for item in placed if item.rdma_devices}
    if len(fabrics) > 1:
        problem, why = f"the nodes have different fabrics ({', '.join(sorted(fabrics))})", "KV moves over one fabric"
        raise PlanRefused("fabrics-differ", where, problem, why, "use nodes on the same fabric")
    counts = {item.role.name: len(item.rdma_devices) for item in placed if item.role.name in {"prefill", "decode"}}
    if len(set(counts.values())) > 1:
        problem = ", ".join(f"{role} pins {count}" for role, count in counts.items()) + " RDMA devices"
        why = "ranks pair their devices by position, so both sides need the same number"
        raise PlanRefused(
            "rdma-devices-unequal", where, problem, why, "list the same number on both nodes, or use the one-NIC recipe"
        )


def _check(recipe: Recipe, inventory: Inventory, where: str) -> None:
    needs = recipe.cell.requires
    hosts = _hosts(inventory, needs)
    if len(hosts) < needs.nodes:
        problem = f"has too few nodes (got {len(hosts)})"
        raise PlanRefused(
            "placement-nodes", where, problem, f"{recipe.id} needs {needs.nodes}", "add the missing nodes"
        )
    if inventory.runtime == "docker" and recipe.cell.image is None:
        why = f"{recipe.id} has no container image"
        raise PlanRefused("placement-runtime", where, "asks for docker", why, "set runtime: process")
    for node in inventory.nodes if needs.nodes > 1 else ():
        if node.address.lower() == "localhost" or node.address.startswith("127.") or node.address == "::1":
            problem = f"node {node.name} has a loopback address (got {node.address})"
            why = "the other nodes connect to it by this address"
            raise PlanRefused("placement-loopback", where, problem, why, "write the address on the fabric's network")
    for node in inventory.nodes:
        for what, path in (("models", node.paths.models), ("caches", node.paths.caches)):
            if inventory.runtime == "docker" and not path.startswith("/"):
                problem = f"node {node.name}: paths.{what} is not absolute (got {path})"
                why = "Docker takes a relative path for the name of a volume, which is empty"
                raise PlanRefused("placement-paths", where, problem, why, "write the whole path")
    if needs.nodes > 1 and needs.fabric:
        for node in hosts:
            if node.fabric not in needs.fabric:
                problem = f"node {node.name} has the wrong fabric (got {node.fabric})"
                why = f"{recipe.id} moves KV over {' or '.join(needs.fabric)}"
                raise PlanRefused(
                    "placement-fabric", where, problem, why, "choose the recipe's variant for this fabric"
                )


def _hosts(inventory: Inventory, needs: Requires) -> list[Node]:
    """The nodes that servers can run on: those with GPUs, where the recipe needs any."""
    return [node for node in inventory.nodes if node.gpus or needs.gpus_per_node == 0]


def _router_host(inventory: Inventory, needs: Requires) -> Node | None:
    """The first node that is there for the router only."""
    return next((node for node in inventory.nodes if not node.gpus and needs.gpus_per_node), None)


def _usable(node: Node, needs: Requires) -> Iterator[int]:
    # Vendors round memory: an "80 GB" card reports 79.6 GiB, so 4 % less still counts.
    return (index for index, gpu in enumerate(node.gpus) if gpu.memory_gib >= needs.gpu_memory_gib * 0.96)


def _refuse_shared_ports(placed: list[Placed], where: str) -> None:
    owner: dict[tuple[str, int], str] = {}
    for item in placed:
        key = (item.node.name, item.host_port)
        if key in owner:
            problem = f"{owner[key]} and {item.role.name} both want port {item.host_port} on node {item.node.name}"
            why, remedy = "one process listens on a port", "give one of them another port or host_port in the recipe"
            raise PlanRefused("placement-ports", where, problem, why, remedy)
        owner[key] = item.role.name
