"""From recipe, inventory, locks and flag schemas to the plan: pure, so that the same documents give the same plan anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from slipway import documents, fit, placement, rules
from slipway.engines import Command, Launch, Worker, reference, router, sglang, vllm
from slipway.engines.check import check_argv
from slipway.engines.schema import FlagSchema, canonical_name
from slipway.errors import PlanRefused
from slipway.fit import Fit, TransferTime
from slipway.images.catalogue import Catalogue
from slipway.inventory import Inventory
from slipway.kernels import Caches
from slipway.placement import Placed
from slipway.plan.caches import with_cache
from slipway.plan.containers import about_drivers, about_images, with_built_image
from slipway.plan.model import FrontDoor, LockedCheckpoint, Mount, Plan, PlanWarning, Process, PublishedPort
from slipway.recipe import Checkpoint, Recipe
from slipway.rules.rule import BLACKWELL

ENGINE_COMMANDS = {"vllm": vllm.command, "sglang": sglang.command, "reference": reference.command}
ROUTER_COMMANDS = {"reference": reference.router_command}
"""Engines whose router is their own; the others have SGLang's."""


Schemas = Mapping[str, Mapping[str, FlagSchema]]
"""Engine → version → what that version's command line takes."""


def compile_plan(
    recipe: Recipe,
    inventory: Inventory | None,
    lock_digests: Mapping[str, str],
    schemas: Schemas,
    catalogue: Catalogue,
    caches: Caches,
) -> Plan:
    """The plan of `recipe` on `inventory`, or on a synthetic one that just satisfies it.

    `lock_digests` maps `repo@revision` to the digest of its lock; `catalogue` and `caches` are what images/ says. Pure: the same
    values give the same plan and digest anywhere.

    Raises: PlanRefused.
    """
    hosts = inventory or placement.synthetic(recipe)
    checkpoints = tuple(_locked(checkpoint, lock_digests) for checkpoint in recipe.checkpoints)
    # Rules and arithmetic look flags up by name, so they are shown the canonical ones.
    meant = _with_canonical_flags(recipe, schemas)
    findings = rules.check(meant, locked=all(checkpoint.lock_digest for checkpoint in checkpoints))
    placed = placement.place(recipe, hosts)
    checked = [_checked(recipe, _process(recipe, item, hosts, placed), schemas) for item in placed]
    processes = tuple(
        with_cache(recipe, item, with_built_image(process, catalogue), catalogue, caches)
        for item, (process, _) in zip(placed, checked, strict=True)
    )
    front = _front(placed)
    sized = ((role, _gpu_gib(item)) for role, item in zip(meant.cell.roles, placed, strict=True))
    figures = tuple(figure for role, gpu_gib in sized if (figure := fit.of(meant, role, gpu_gib)))
    _refuse_what_cannot_fit(recipe, figures)
    what_runs = {
        "engine": [recipe.engine, recipe.engine_version],
        "checkpoints": [checkpoint.as_json() for checkpoint in checkpoints],
        "processes": [_what_runs(process) for process in processes],
        "addresses": {item.node.name: item.node.address for item in placed},
    }
    return Plan(
        schema_="slipway/plan/v1",
        recipe=recipe.id,
        engine=recipe.engine,
        engine_version=recipe.engine_version,
        inventory=hosts.name,
        synthetic_inventory=inventory is None,
        deployment_digest=documents.digest(what_runs),
        checkpoints=checkpoints,
        front_door=FrontDoor(url=_url(front), served_name=recipe.cell.served_name),
        fit=figures,
        transfer=_transfer_time(recipe, placed),
        warnings=(
            *(PlanWarning(rule=f.rule.id, message=f.text, source=f.rule.source) for f in findings),
            *(notice for _, notices in checked for notice in notices),
            *_near_the_limit(recipe, figures),
            *_about_the_hosts(recipe, placed),
            *about_images(recipe, processes, catalogue),
            *(about_drivers(placed, processes, inventory, catalogue) if inventory else ()),
        ),
        processes=processes,
    )


def _what_runs(process: Process) -> dict[str, Any]:
    """The process as far as it decides what runs: the environment and the mounts name the cache folder already."""
    unsaid = {"cache_folder", "image_name"} | (set() if process.image_digest else {"image_digest"})
    return {key: value for key, value in process.as_json().items() if key not in unsaid}


def _schema(recipe: Recipe, role_name: str, schemas: Schemas) -> FlagSchema | None:
    """What the role's program takes; None for the reference engine and its router, whose parsers are this checkout's own."""
    if recipe.engine == "reference":
        return None
    if role_name == "router":
        engine, version = router.ENGINE, router.VERSION
    else:
        engine, version = recipe.engine, recipe.engine_version
    known = schemas.get(engine, {})
    if version not in known:
        have = ", ".join(sorted(known)) or "none"
        why = f"flags are checked against the pinned version's own list; lists of {engine} here: {have}"
        raise PlanRefused(
            "flags-unknown", recipe.id, f"no flag schema of {engine} {version}", why, "see docs/recipes.md"
        )
    return known[version]


def _with_canonical_flags(recipe: Recipe, schemas: Schemas) -> Recipe:
    roles = []
    for role in recipe.cell.roles:
        known = _schema(recipe, role.name, schemas)
        flags = {canonical_name(known, name) if known else name: value for name, value in role.flags.items()}
        roles.append(role.model_copy(update={"flags": flags}))
    return recipe.model_copy(update={"cell": recipe.cell.model_copy(update={"roles": roles})})


def _checked(recipe: Recipe, process: Process, schemas: Schemas) -> tuple[Process, tuple[PlanWarning, ...]]:
    """`process` with every flag under its canonical name, as the pinned engine version's own parser would take it."""
    known = _schema(recipe, process.role, schemas)
    if known is None:
        return process, ()
    others = {version: other for version, other in schemas[known.engine].items() if version != known.version}
    result = check_argv(process.argv, known, others)
    place = f"{recipe.id}: roles.{process.role}.flags"
    for finding in result.refusals:
        raise PlanRefused("flag-refused", f"{place}: {finding.flag}", finding.problem, finding.why, finding.remedy)
    notices = tuple(
        PlanWarning(
            rule="flag-notice", message=f"{place}: {finding}", source=f"{known.engine} {known.version}, its own parser"
        )
        for finding in result.findings
    )
    return process.model_copy(update={"argv": result.argv}), notices


def _gpu_gib(item: Placed) -> float:
    """The memory of the smallest GPU that the role takes."""
    return min((item.node.gpus[index].memory_gib for index in item.gpu_indices), default=0)


def _refuse_what_cannot_fit(recipe: Recipe, figures: tuple[Fit, ...]) -> None:
    for figure in figures:
        if figure.hopeless:
            place = f"{recipe.id}: roles.{figure.role}.context_tokens"
            problem = f"{figure.context_tokens} tokens do not fit"
            why = figure.arithmetic()
            raise PlanRefused(
                "does-not-fit",
                place,
                problem,
                why,
                "lower context_tokens, max-num-seqs or max-num-batched-tokens, or use more or larger GPUs",
            )


def _near_the_limit(recipe: Recipe, figures: tuple[Fit, ...]) -> Iterator[PlanWarning]:
    for figure in figures:
        if not figure.fits:
            sums = figure.arithmetic()
            message = (
                f"{recipe.id}: roles.{figure.role}: the context may not fit; {sums}; the engine's own start-up decides"
            )
            yield PlanWarning(rule="near-the-memory-limit", message=message, source="docs/benchmarks.md, memory")


def _about_the_hosts(recipe: Recipe, placed: tuple[Placed, ...]) -> Iterator[PlanWarning]:
    """What the chosen hosts bring along. Raises: PlanRefused where their GPUs cannot run the checkpoint at all."""
    wanted = recipe.cell.hardware
    found = sorted({item.node.gpus[index].model for item in placed for index in item.gpu_indices} - {wanted})
    if found and recipe.cell.quantization == "nvfp4" and not BLACKWELL.issuperset(found):
        why, remedy = "FP4 tensor cores came with Blackwell", "choose the FP8 or BF16 recipe"
        raise PlanRefused("nvfp4-needs-blackwell", recipe.id, f"NVFP4 on {', '.join(found)}", why, remedy)
    if found:
        message = f"{recipe.id}: was written for {wanted}, the inventory has {', '.join(found)}; flags and memory may not suit"
        yield PlanWarning(
            rule="hardware-differs", message=message, source="the recipe's hardware and the inventory's GPU models"
        )


def _transfer_time(recipe: Recipe, placed: tuple[Placed, ...]) -> TransferTime | None:
    prefill = next((item for item in placed if item.role.name == "prefill"), None)
    if prefill is None:
        return None
    devices = [device for device in prefill.node.rdma_devices if device.name in prefill.rdma_devices]
    context = prefill.role.context_tokens or recipe.architecture.max_context_tokens
    return fit.transfer_time(recipe, prefill.role, devices, context)


def _locked(checkpoint: Checkpoint, lock_digests: Mapping[str, str]) -> LockedCheckpoint:
    return LockedCheckpoint(
        repo=checkpoint.repo,
        revision=checkpoint.revision,
        folder=checkpoint.name,
        lock_digest=lock_digests.get(f"{checkpoint.repo}@{checkpoint.revision}"),
    )


def _process(recipe: Recipe, item: Placed, hosts: Inventory, placed: tuple[Placed, ...]) -> Process:
    container, role = recipe.cell.container, item.role
    in_docker = hosts.runtime == "docker"
    models = container.models_mount if in_docker else item.node.paths.models
    command = _command(recipe, item, models, placed)
    env = command.env
    if not in_docker and item.gpu_indices:
        env = {**env, "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in item.gpu_indices)}
    on_host = in_docker and container.network == "host"
    takes_weights = in_docker and role.name != "router"
    devices = [*(f"gpu:{index}" for index in item.gpu_indices), *(f"rdma:{name}" for name in item.rdma_devices)]
    return Process(
        name=f"{hosts.name}-{role.name}",
        role=role.name,
        node=item.node.name,
        ssh=item.node.ssh,
        runtime=hosts.runtime,
        image=_image(recipe, item) if in_docker else None,
        argv=command.argv,
        env=env,
        mounts=(Mount(source=item.node.paths.models, target=models, read_only=True),) if takes_weights else (),
        devices=(*devices, *(container.devices if in_docker and item.rdma_devices else ())),
        all_gpus=bool(item.gpu_indices) and item.whole_node,
        network=container.network if in_docker else "host",
        capabilities=tuple(container.capabilities) if in_docker and item.rdma_devices else (),
        ports=(PublishedPort(host=item.host_port if in_docker and not on_host else role.port, container=role.port),),
        ulimits={str(name): limit for name, limit in container.ulimits.items()} if in_docker else {},
        ipc=container.ipc if in_docker else "private",
        shm_size_bytes=container.shm_size_gib * fit.GIB if in_docker and container.shm_size_gib else None,
        after=tuple(f"{hosts.name}-{other.role.name}" for other in _workers(item, placed)),
    )


def _command(recipe: Recipe, item: Placed, models: str, placed: tuple[Placed, ...]) -> Command:
    cell, transfer = recipe.cell, recipe.cell.transfer
    variant = transfer.fabrics.get(item.node.fabric) if transfer else None
    launch = Launch(
        model_path=str(PurePosixPath(models, cell.checkpoint.name)),
        drafter_path=str(PurePosixPath(models, cell.speculation.drafter.name)) if cell.speculation else None,
        rdma_devices=item.rdma_devices,
        fabric_env=dict(variant.env) if variant else {},
        address=item.node.address,
        workers=tuple(
            Worker(
                other.role.name,
                _url(other),
                transfer.bootstrap_port if transfer and other.role.name == "prefill" else None,
            )
            for other in _workers(item, placed)
        ),
    )
    engine = recipe.engine
    build = ROUTER_COMMANDS.get(engine, router.command) if item.role.name == "router" else ENGINE_COMMANDS[engine]
    return build(recipe, item.role, launch)


def _image(recipe: Recipe, item: Placed) -> str | None:
    """The cell's image, or the one that the node's fabric needs instead."""
    transfer = recipe.cell.transfer
    variant = transfer.fabrics.get(item.node.fabric) if transfer else None
    return variant.image if variant and variant.image else recipe.cell.image


def _workers(item: Placed, placed: tuple[Placed, ...]) -> tuple[Placed, ...]:
    """The servers behind `item` when it is a router."""
    if item.role.name != "router":
        return ()
    return tuple(other for other in placed if other.role.name in {"prefill", "decode"})


def _front(placed: tuple[Placed, ...]) -> Placed:
    """The role that clients talk to: the router where there is one."""
    return next((item for item in placed if item.role.name == "router"), placed[0])


def _url(front: Placed) -> str:
    address = front.node.address
    return f"http://{f'[{address}]' if ':' in address else address}:{front.host_port}"
