"""The stack's settings as Pulumi hands them over, read by the same model that Slipway reads the stack file with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import config as pulumi_config

from slipway import stacks
from slipway.cloud.settings import StackConfig
from slipway.stacks import Checkout

CHECKOUT = Checkout(Path(__file__).resolve().parent.parent)


def read() -> StackConfig:
    """The settings of the stack that runs.

    Pulumi gives every value as text, objects as JSON; all keys are looked at, so that a misspelt one is refused.

    Raises: DocumentError.
    """
    values = {**pulumi_config.get_config_env(), **pulumi_config.CONFIG.get()}
    plain = {key: _plain(value) for key, value in values.items()}
    return stacks.parse_config(plain, f"stack {pulumi.get_stack()} (keys slipway:…)")


def _plain(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value[:1] in {"{", "["} else value
