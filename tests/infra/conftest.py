"""Runs the Pulumi program without an engine: everything that it registers is recorded, in the engine's own words."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pulumi
import pytest
import yaml
from pulumi.runtime.mocks import MockMonitor

from slipway.cloud.policies import Record

ROOT = Path(__file__).resolve().parent.parent.parent
REAL = {"ami": "ami-0123456789abcdef0"}
RESERVATION = "cr-0123456789abcdef0"


class Options(MockMonitor):
    """The mocks' monitor, which also keeps what the mocks are not told: how a resource is protected and replaced."""

    def __init__(self, mocks: pulumi.runtime.Mocks) -> None:
        super().__init__(mocks)
        self.options: dict[str, dict[str, bool]] = {}

    def RegisterResource(self, request: Any) -> Any:
        self.options[f"{request.type.rpartition(':')[2]}/{request.name}"] = {
            "protect": request.protect,
            "delete_before_replace": request.deleteBeforeReplace,
        }
        return super().RegisterResource(request)


class Recorder(pulumi.runtime.Mocks):
    """Answers every registration with an id and with the outputs that AWS would add."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.monitor = Options(self)

    @property
    def options(self) -> dict[str, dict[str, bool]]:
        """`Type/name` → its resource options."""
        return self.monitor.options

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        if args.custom:
            self.records.append(Record(args.typ, args.name, args.inputs))
        identity = f"{args.typ.rpartition(':')[2]}-{args.name}"
        outputs = {
            **args.inputs,
            "arn": f"arn:aws:test:::{identity}",
            "prefixListId": "pl-12345678",
            "privateIp": f"10.60.0.{len(self.records)}",
            "latestVersion": 1,
        }
        outputs.setdefault("name", identity)
        return identity, outputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"the program must need no look-up, got {args.token}")

    def named(self, kind: str) -> dict[str, Record]:
        """The records of the type that ends in `kind`, by name."""
        return {record.name: record for record in self.records if record.type.rpartition(":")[2] == kind}


def stack_values(stack: str, **aws: Any) -> dict[str, Any]:
    """The configuration of a shipped stack with the example values filled in, and with the given keys of slipway:aws."""
    values = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"]
    if "slipway:aws" in values:
        capacity = {**values["slipway:aws"]["capacity"], "id": RESERVATION}
        values["slipway:aws"] = {**values["slipway:aws"], **REAL, "capacity": capacity, **aws}
    for number, node in enumerate(values.get("slipway:nodes", []), start=1):
        node["address"] = f"10.0.0.{number}"
    return values


def load(name: str) -> Any:
    """A module of infra/, imported as Pulumi does: siblings by their plain names."""
    if str(ROOT / "infra") not in sys.path:
        sys.path.insert(0, str(ROOT / "infra"))
    return importlib.import_module(name)


def run(
    stack: str, values: dict[str, Any], *, preview: bool = False, then: Callable[[Any], None] | None = None
) -> Recorder:
    """What the program registers for `stack`; `then` gets the inventory when it is known.

    Without `pulumi.runtime.test` a failing apply would pass unseen.
    """
    # Pulumi's mocks make an event loop in each of their threads and leave it open; all are closed here.
    make, made = asyncio.new_event_loop, []

    def noted() -> asyncio.AbstractEventLoop:
        made.append(make())
        return made[-1]

    with patch("asyncio.new_event_loop", noted):
        asyncio.set_event_loop(asyncio.new_event_loop())
        try:
            return _run(stack, values, preview, then)
        finally:
            asyncio.set_event_loop(None)
            for loop in made:
                loop.close()


def _run(stack: str, values: dict[str, Any], preview: bool, then: Callable[[Any], None] | None) -> Recorder:
    recorder = Recorder()
    pulumi.runtime.set_mocks(recorder, project="slipway", stack=stack, preview=preview, monitor=recorder.monitor)
    pulumi.runtime.set_all_config(
        {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    )
    program = load("program")

    @pulumi.runtime.test
    def everything() -> Any:
        return program.inventory().apply(lambda known: then(known) if then else None)

    everything()
    return recorder


class Program:
    """What the tests of this folder share."""

    run = staticmethod(run)
    values = staticmethod(stack_values)
    load = staticmethod(load)


@pytest.fixture
def program() -> type[Program]:
    """The Pulumi program, to be run without an engine."""
    return Program
