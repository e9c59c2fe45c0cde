"""The flags of the routers: `sglang-router` and its successor `smg`, both one `RouterArgs.add_cli_args`.

Source: sglang-router 0.3.2 `router_args.py`, smg 1.13.0 `router_args.py`, read 2026-11-30.
"""

from __future__ import annotations

import ast

from slipway.images.parser_calls import Found, ParserCalls
from slipway.images.static_value import Ref, Scope, attribute, lookup
from slipway.images.wheel_source import WheelSource


def extract(source: WheelSource, package: str) -> Found:
    """The flags of the stand-alone launcher in `package` (`sglang_router` or `smg`).

    Raises: MissingFile, LockDrift.
    """
    module = source.need(f"{package}.router_args")
    arguments = lookup(module, "RouterArgs")
    assert isinstance(arguments, Ref)
    function = attribute(arguments, "add_cli_args")
    assert isinstance(function, Ref)
    assert isinstance(function.node, ast.FunctionDef)
    # The launcher leaves both at their defaults: no prefix, host and port included.
    calls = ParserCalls(Scope(module, {"use_router_prefix": False, "exclude_host_port": False}))
    calls.read(function.node)
    return Found(calls.flags)
