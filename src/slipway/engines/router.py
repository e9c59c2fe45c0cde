"""The router's command line in front of prefill and decode servers.

The bootstrap port is always written: the router takes a missing one as none, and the default 8998 collides with other
services. The host of the `--prefill` URL is what decode connects to, so it is the node's address, never loopback.
Source: sglang-router 0.3.2, `sglang_router/router_args.py`, read 2026-11-30.
"""

from __future__ import annotations

from slipway import engines
from slipway.engines import Command, Launch
from slipway.recipe import Recipe, Role

ENGINE, VERSION = "router", "0.3.2"
"""The flag schema that router command lines are checked against; frozen upstream since January 2026."""

TYPED_FLAGS = frozenset({"pd-disaggregation", "prefill", "decode", "host", "port"})
"""Flags that Slipway writes from typed fields; a recipe must not spell them itself."""


def command(_: Recipe, role: Role, launch: Launch) -> Command:
    """The argv and environment of one router."""
    words = ["python3", "-m", "sglang_router.launch_router", "--pd-disaggregation", *engines.worker_flags(launch)]
    address = engines.flags({"host": role.bind, "port": role.port}, {})
    return Command((*words, *engines.flags({}, role.flags), *address), dict(role.env))
