"""The plan: exactly which processes start where, with which argv. Dry run prints it, launch executes it, the digest names it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from slipway import documents, engines, fit, placement, rules
from slipway.documents import Document
from slipway.engines import Command, Launch, Worker, reference, router, sglang, vllm
from slipway.errors import PlanRefused, UsageError
from slipway.fit import Fit, TransferTime
from slipway.inventory import Inventory, Runtime
from slipway.placement import Placed
from slipway.recipe import Checkpoint, Engine, Recipe


class LockedCheckpoint(Document):
    """A checkpoint of the plan and the digest of the lock file that names its bytes (null: not locked)."""

    repo: str
    revision: str | None
    folder: str
    lock_digest: str | None


class Mount(Document):
    """A folder of the host inside the container."""

    source: str
    target: str
    read_only: bool


class PublishedPort(Document):
    """A port of the host and the port it leads to inside the container; equal for a plain process."""

    host: int
    container: int


class Process(Document):
    """One process or container. `argv` is the engine's command after the image's entrypoint."""

    name: str
    role: str
    node: str
    runtime: Runtime
    image: str | None
    argv: tuple[str, ...]
    env: dict[str, str]
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...] = Field(description="`gpu:N` by the node's index, `rdma:NAME`, or a device path")
    all_gpus: bool
    network: Literal["bridge", "host"]
    capabilities: tuple[str, ...]
    ports: tuple[PublishedPort, ...]
    ulimits: dict[str, int]
    ipc: Literal["private", "host"]
    shm_size_bytes: int | None
    after: tuple[str, ...] = Field(description="processes that must be ready first")


class FrontDoor(Document):
    """Where clients send requests, and the model name they must use."""

    url: str
    served_name: str


class PlanWarning(Document):
    """A rule that speaks about this plan without refusing it."""

    rule: str
    message: str
    source: str


class Plan(Document):
    """Everything that launch needs, and nothing that differs between two machines that read the same documents."""

    schema_: Literal["slipway/plan/v1"] = Field(alias="schema")
    recipe: str
    engine: Engine
    engine_version: str
    inventory: str
    synthetic_inventory: bool
    deployment_digest: str
    checkpoints: tuple[LockedCheckpoint, ...]
    front_door: FrontDoor
    fit: tuple[Fit, ...]
    transfer: TransferTime | None = Field(description="the KV of one full-context prompt, from prefill to decode")
    warnings: tuple[PlanWarning, ...]
    processes: tuple[Process, ...]


ENGINE_COMMANDS = {"vllm": vllm.command, "sglang": sglang.command, "reference": reference.command}


def compile_plan(recipe: Recipe, inventory: Inventory | None, lock_digests: dict[str, str]) -> Plan:
    """The plan of `recipe` on `inventory`, or on a synthetic one that just satisfies it.

    `lock_digests` maps `repo@revision` to the digest of its lock. Pure: the same values give the same plan and digest anywhere.

    Raises: PlanRefused.
    """
    hosts = inventory or placement.synthetic(recipe)
    checkpoints = tuple(_locked(checkpoint, lock_digests) for checkpoint in recipe.checkpoints)
    findings = rules.check(recipe, locked=all(checkpoint.lock_digest for checkpoint in checkpoints))
    placed = placement.place(recipe, hosts)
    processes = tuple(_process(recipe, item, hosts, placed) for item in placed)
    front = _front(placed)
    figures = tuple(figure for item in placed if (figure := fit.of(recipe, item.role, _gpu_gib(item))))
    _refuse_what_cannot_fit(recipe, figures)
    what_runs = {
        "engine": [recipe.engine, recipe.engine_version],
        "checkpoints": [checkpoint.as_json() for checkpoint in checkpoints],
        "processes": [process.as_json() for process in processes],
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
            *_near_the_limit(recipe, figures),
        ),
        processes=processes,
    )


def docker_argv(process: Process) -> tuple[str, ...]:
    """The `docker run` command that creates exactly this container."""
    if process.image is None:
        raise UsageError(
            process.name, "has no image", "only a process with an image runs in Docker", "use runtime: process"
        )
    words = ["docker", "run", "--detach", "--name", process.name, *_gpu_words(process)]
    for name, value in process.env.items():
        words += ["--env", f"{name}={value}"]
    if process.ipc == "host":
        words.append("--ipc=host")
    if process.shm_size_bytes:
        words.append(f"--shm-size={process.shm_size_bytes}")
    for name, limit in process.ulimits.items():
        words += ["--ulimit", f"{name}={limit}:{limit}"]
    for capability in process.capabilities:
        words += ["--cap-add", capability]
    for device in process.devices:
        if device.startswith("/"):
            words += ["--device", device]
    if process.network == "host":
        words.append("--network=host")
    for port in process.ports if process.network == "bridge" else ():
        words += ["--publish", f"{port.host}:{port.container}"]
    for mount in process.mounts:
        words += ["--volume", f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"]
    return (*words, process.image, *process.argv)


def shell_text(plan: Plan) -> str:
    """The plan as commands to paste, one block per process, in start order; it ends with a newline."""
    lines = [
        f"# {plan.recipe} on inventory {plan.inventory}{' (synthetic)' if plan.synthetic_inventory else ''}",
        f"# deployment {plan.deployment_digest}",
    ]
    for checkpoint in plan.checkpoints:
        pinned = checkpoint.lock_digest or "NOT LOCKED"
        lines.append(f"# checkpoint {checkpoint.repo}@{checkpoint.revision or 'NOT PINNED'} lock {pinned}")
    for process in plan.processes:
        lines += ["", f"# {process.role} on node {process.node}", " \\\n  ".join(_groups(process))]
    lines += ["", f"# ready when {plan.front_door.url} generates as {plan.front_door.served_name}"]
    return "\n".join(lines) + "\n"


def changes(old: Plan, new: Plan) -> tuple[str, ...]:
    """What differs between two plans, one dotted path a line with both values, for telling a user why they are not the same."""
    return tuple(_changes("", old.as_json(), new.as_json(), skip={"deployment_digest", "warnings", "fit"}))


def _gpu_gib(item: Placed) -> float:
    """The memory of the smallest GPU that the role takes."""
    return min((item.node.gpus[index].memory_gib for index in item.gpu_indices), default=0)


def _refuse_what_cannot_fit(recipe: Recipe, figures: tuple[Fit, ...]) -> None:
    for figure in figures:
        role = next(role for role in recipe.cell.roles if role.name == figure.role)
        if figure.hopeless:
            place = f"{recipe.id}: roles.{figure.role}.context_tokens"
            problem = f"{figure.context_tokens} tokens do not fit"
            why = figure.arithmetic(fit.fraction(recipe, role))
            raise PlanRefused("does-not-fit", place, problem, why, "lower context_tokens, or use more or larger GPUs")


def _near_the_limit(recipe: Recipe, figures: tuple[Fit, ...]) -> Iterator[PlanWarning]:
    for figure in figures:
        if not figure.fits:
            role = next(role for role in recipe.cell.roles if role.name == figure.role)
            sums = figure.arithmetic(fit.fraction(recipe, role))
            message = (
                f"{recipe.id}: roles.{figure.role}: the context may not fit; {sums}; the engine's own start-up decides"
            )
            yield PlanWarning(rule="near-the-memory-limit", message=message, source="docs/benchmarks.md, memory")


def _transfer_time(recipe: Recipe, placed: tuple[Placed, ...]) -> TransferTime | None:
    prefill = next((item for item in placed if item.role.name == "prefill"), None)
    if prefill is None:
        return None
    devices = [device for device in prefill.node.rdma_devices if device.name in prefill.rdma_devices]
    context = prefill.role.context_tokens or recipe.architecture.max_context_tokens
    return fit.transfer_time(recipe, prefill.role, devices, context)


def _locked(checkpoint: Checkpoint, lock_digests: dict[str, str]) -> LockedCheckpoint:
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
        ulimits=dict(container.ulimits) if in_docker else {},
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
    build = router.command if item.role.name == "router" else ENGINE_COMMANDS[recipe.engine]
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


def _gpu_words(process: Process) -> list[str]:
    if not process.devices:
        return []
    if process.all_gpus:
        return ["--gpus", "all"]
    indices = ",".join(device.removeprefix("gpu:") for device in process.devices if device.startswith("gpu:"))
    return ["--gpus", f'"device={indices}"']  # docker parses the value as CSV, so the quotes are part of it


def _groups(process: Process) -> Iterator[str]:
    """The command's words quoted for a shell, a flag and its values a group, so that each stands on a line of its own."""
    if process.runtime == "docker":
        words: tuple[str, ...] = docker_argv(process)
    else:
        words = ("env", *(f"{name}={value}" for name, value in process.env.items()), *process.argv)
        words = words if process.env else process.argv
    group: list[str] = []
    for word in words:
        if group and (word.startswith("--") or word == process.image):
            yield shlex.join(group)
            group = []
        group.append(word)
    yield shlex.join(group)


def _changes(path: str, old: object, new: object, skip: set[str]) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in skip:
                yield from _changes(f"{path}.{key}" if path else str(key), old.get(key), new.get(key), skip)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{path}[{index}]", before, after, skip)
    elif old != new:
        yield f"{path}: {engines.compact_json(old)} -> {engines.compact_json(new)}"
