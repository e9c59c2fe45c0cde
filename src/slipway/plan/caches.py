"""The kernel cache of a process: one folder on the node, named by the cache key, and every variable that points into it."""

from __future__ import annotations

from pathlib import PurePosixPath

from slipway import kernels
from slipway.errors import PlanRefused
from slipway.images.catalogue import Catalogue
from slipway.kernels import Caches, Compiled
from slipway.placement import Placed
from slipway.plan.model import Mount, Process
from slipway.recipe import Recipe

DEFAULT_FOLDER = "/cache"
"""Where an image that images/ does not describe gets its caches."""


def with_cache(recipe: Recipe, item: Placed, process: Process, catalogue: Catalogue, caches: Caches) -> Process:
    """`process` with its kernel cache; unchanged for one that compiles nothing: a router, or an engine without caches.

    Raises: PlanRefused where the recipe sets one of the variables itself.
    """
    if process.role == "router" or not kernels.compiles(caches, recipe.engine):
        return process
    image = catalogue.of(process.image) if process.image else None
    identity = process.image_digest or process.image or recipe.engine_version
    key = kernels.cache_key(
        caches,
        Compiled(
            engine=recipe.engine,
            engine_version=recipe.engine_version,
            image=identity.rpartition("@")[2],
            gpu_models=tuple(item.node.gpus[index].model for index in item.gpu_indices),
            checkpoints=_checkpoints(recipe, item, process),
            argv=process.argv,
            env=process.env,
        ),
    )
    on_host = str(PurePosixPath(item.node.paths.caches, key))
    inside = (image.cache_folder if image else DEFAULT_FOLDER) if process.image else on_host
    env = kernels.cache_env(caches, recipe.engine, recipe.engine_version, inside)
    _refuse_own_caches(recipe, process, env)
    mounts = (Mount(source=on_host, target=inside, read_only=False),) if process.image else ()
    return process.model_copy(
        update={"env": {**process.env, **env}, "mounts": (*process.mounts, *mounts), "cache_folder": on_host}
    )


def _checkpoints(recipe: Recipe, item: Placed, process: Process) -> dict[str, str]:
    """Path, as the process sees it → `repo@revision`, of target and drafter."""
    models = recipe.cell.container.models_mount if process.image else item.node.paths.models
    return {
        str(PurePosixPath(models, checkpoint.name)): f"{checkpoint.repo}@{checkpoint.revision}"
        for checkpoint in recipe.checkpoints
    }


def _refuse_own_caches(recipe: Recipe, process: Process, env: dict[str, str]) -> None:
    for name in sorted(env.keys() & process.env.keys()):
        place = f"{recipe.id}: roles.{process.role}.env.{name}"
        why = "every cache lies in the one folder that the plan mounts, named by what was compiled; another place is lost or mixed"
        raise PlanRefused(
            "cache-variable-set", place, "is set by the recipe", why, "remove it; paths.caches says where"
        )
