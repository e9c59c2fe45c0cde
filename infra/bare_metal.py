"""Hosts that are there already, reached by SSH: their inventory is the output, and no cloud resource is made."""

from __future__ import annotations

import pulumi

from slipway.inventory import Inventory


class BareMetal(pulumi.ComponentResource):
    """The hosts of `inventory`, which was read from the stack's settings or from its file under stacks/inventory/."""

    def __init__(self, inventory: Inventory) -> None:
        super().__init__("slipway:hosts:BareMetal", "bare-metal")
        self.inventory = pulumi.Output.from_input(inventory.as_json())
        self.register_outputs({"nodes": [node.name for node in inventory.nodes]})
