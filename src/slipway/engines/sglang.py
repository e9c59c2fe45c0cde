"""SGLang's command line: `sglang serve` with every typed field under the flag's canonical name.

The cookbook writes `--tp`, which argparse accepts only as an abbreviation of `--tp-size`; a later flag with the same
beginning would break it, so the full name is written.
Source: sglang 0.5.18, `srt/server_args.py`, read 2026-11-30.
"""

from __future__ import annotations

from slipway import engines
from slipway.engines import Command, Launch
from slipway.recipe import Recipe, Role
from slipway.recipe.words import FlagValue

TYPED_FLAGS = frozenset(
    {
        "model-path",
        "model",
        "served-model-name",
        "tp",
        "tp-size",
        "tensor-parallel-size",
        "pp-size",
        "pipeline-parallel-size",
        "context-length",
        "mem-fraction-static",
        "kv-cache-dtype",
        "page-size",
        "reasoning-parser",
        "tool-call-parser",
        "speculative-algorithm",
        "speculative-draft-model-path",
        "speculative-num-draft-tokens",
        "disaggregation-mode",
        "disaggregation-transfer-backend",
        "disaggregation-ib-device",
        "disaggregation-bootstrap-port",
        "host",
        "port",
    }
)
"""Flags that Slipway writes from typed fields; a recipe must not spell them itself."""


def command(recipe: Recipe, role: Role, launch: Launch) -> Command:
    """The argv and environment of one SGLang server."""
    cell = recipe.cell
    spec = cell.speculation
    typed: dict[str, FlagValue | None] = {
        "model-path": launch.model_path,
        # The server registers the model under the path it was given; clients ask for the name.
        "served-model-name": cell.served_name,
        "reasoning-parser": cell.parsers.reasoning,
        "tool-call-parser": cell.parsers.tool_call,
        "tp-size": role.tp,
        "pp-size": role.pp if role.pp > 1 else None,
        "context-length": role.context_tokens,
        "mem-fraction-static": role.gpu_memory_fraction,
        "kv-cache-dtype": role.kv_dtype,
        "page-size": role.page_size_tokens,
        "speculative-algorithm": spec.method.upper() if spec else None,
        "speculative-draft-model-path": launch.drafter_path if spec else None,
        "speculative-num-draft-tokens": spec.draft_tokens if spec else None,
    }
    last = {**_disaggregation(recipe, role, launch), "host": role.bind, "port": role.port}
    words = (*engines.flags(typed, role.flags), *engines.flags(last, {}))
    env = {"HF_HUB_OFFLINE": "1", **_transfer_env(recipe, role, launch), **role.env, **launch.fabric_env}
    return Command(("sglang", "serve", *words), env)


def _disaggregation(recipe: Recipe, role: Role, launch: Launch) -> dict[str, FlagValue | None]:
    transfer = recipe.cell.transfer
    if transfer is None:
        return {}
    return {
        "disaggregation-mode": role.name,
        "disaggregation-transfer-backend": transfer.backend,
        "disaggregation-ib-device": ",".join(launch.rdma_devices) or None,
        "disaggregation-bootstrap-port": transfer.bootstrap_port if role.name == "prefill" else None,
    }


def _transfer_env(recipe: Recipe, role: Role, launch: Launch) -> dict[str, str]:
    """What keeps KV on the devices that were chosen; an inherited setting or a silent fallback would move it over TCP."""
    transfer = recipe.cell.transfer
    if transfer is None:
        return {}
    env = {"SGLANG_HOST_IP": launch.address}  # on hosts with many NICs the first address found is often the wrong one
    if transfer.backend == "mooncake" and "MOONCAKE_PROTOCOL" not in launch.fabric_env:
        env["MC_FORCE_HCA"] = "1"  # fail rather than fall back to TCP
    if transfer.backend == "nixl":
        # `lo`, because NIXL opens an endpoint to itself; a list without it also drops tcp.
        env["UCX_NET_DEVICES"] = ",".join([*(f"{device}:1" for device in launch.rdma_devices), "lo"])
    return env
