"""vLLM's command line. The image's entrypoint is `vllm serve`, so argv starts with the model.

Source: vLLM 0.25.1, `entrypoints/openai/cli_args.py` and `engine/arg_utils.py`, read 2026-11-30.
"""

from __future__ import annotations

from slipway import engines
from slipway.engines import Command, Launch
from slipway.recipe import Recipe, Role
from slipway.recipe.words import FlagValue, Scalar

TYPED_FLAGS = frozenset(
    {
        "model",
        "tensor-parallel-size",
        "pipeline-parallel-size",
        "max-model-len",
        "gpu-memory-utilization",
        "kv-cache-dtype",
        "block-size",
        "served-model-name",
        "reasoning-parser",
        "tool-call-parser",
        "default-chat-template-kwargs",
        "speculative-config",
        "host",
        "port",
    }
)
"""Flags that Slipway writes from typed fields; a recipe must not spell them itself."""


def command(recipe: Recipe, role: Role, launch: Launch) -> Command:
    """The argv and environment of one vLLM server."""
    cell = recipe.cell
    typed: dict[str, FlagValue | None] = {
        "tensor-parallel-size": role.tp,
        "pipeline-parallel-size": role.pp,
        "max-model-len": role.context_tokens,
        "gpu-memory-utilization": role.gpu_memory_fraction,
        "kv-cache-dtype": role.kv_dtype,
        "block-size": role.page_size_tokens,
        "tool-call-parser": cell.parsers.tool_call,
        "reasoning-parser": cell.parsers.reasoning,
        "speculative-config": _speculation(recipe, launch),
        "served-model-name": cell.served_name,
        "default-chat-template-kwargs": engines.thinking_kwargs(recipe),
        "host": role.bind,
        "port": role.port,
    }
    # With a local path nothing may be looked up on a hub, the drafter's path inside the JSON included.
    env = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **role.env}
    return Command((launch.model_path, *engines.flags(typed, role.flags)), env)


def _speculation(recipe: Recipe, launch: Launch) -> FlagValue | None:
    spec = recipe.cell.speculation
    if spec is None:
        return None
    config: dict[str, Scalar | list[Scalar] | dict[str, Scalar]] = {"model": launch.drafter_path or spec.drafter.repo}
    if spec.draft_tokens is not None:
        config["num_speculative_tokens"] = spec.draft_tokens
    config["method"] = spec.method
    if spec.synthetic_acceptance is not None:
        config["rejection_sample_method"] = "synthetic"
        config["synthetic_acceptance_rates"] = list(spec.synthetic_acceptance)
    return config
