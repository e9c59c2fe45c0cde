"""A plan as the commands to paste, and the differences between two plans. What is printed is what launch executes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from slipway import engines
from slipway.errors import UsageError
from slipway.plan.model import Plan, Process


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
    if process.image_name:
        # Nobody but us has it: a registry that answered to this name would serve something else.
        words.append("--pull=never")
    return (*words, process.image_name or process.image, *process.argv)


def shell_text(plan: Plan) -> str:
    """The plan as commands to paste, one block per process, in start order; it ends with a newline."""
    lines = [
        f"# {plan.recipe} on inventory {plan.inventory}{' (synthetic)' if plan.synthetic_inventory else ''}",
        f"# deployment {plan.deployment_digest}",
    ]
    for checkpoint in plan.checkpoints:
        pinned = checkpoint.lock_digest or "NOT LOCKED"
        lines.append(f"# checkpoint {checkpoint.repo}@{checkpoint.revision or 'NOT PINNED'} lock {pinned}")
    lines += [f"# memory of {figures.role}: {figures.arithmetic()}" for figures in plan.fit]
    if plan.transfer:
        moved = plan.transfer
        lines.append(
            f"# KV of a {moved.prompt_tokens:,}-token prompt: {moved.payload_bytes / 1e9:.1f} GB, "
            f"{moved.seconds:g} s from prefill to decode at {moved.bytes_s / 1e9:.3g} GB/s"
        )
    for process in plan.processes:
        lines += ["", f"# {process.role} on node {process.node}"]
        if process.image_name:
            built = f"image {process.image_digest}" if process.image_digest else "NOT BUILT"
            lines.append(
                f"# {process.image} is {process.image_name} here, {built}; `docker load` its archive on the node"
            )
        lines.append(" \\\n  ".join(_groups(process)))
    lines += ["", f"# ready when {plan.front_door.url} generates as {plan.front_door.served_name}"]
    return "\n".join(line if not line.startswith("# ") else _one_line(line) for line in lines) + "\n"


def _one_line(comment: str) -> str:
    """A comment that stays one: whatever a value contains, nothing after it is read as a command."""
    return "".join(character if character.isprintable() else "?" for character in comment)


def changes(old: Plan, new: Plan) -> tuple[str, ...]:
    """What differs between two plans, one dotted path a line with both values, for telling a user why they are not the same.

    Cache keys follow from the rest and are not told.
    """
    consequences = {"deployment_digest", "warnings", "fit", "cache_folder"}
    return tuple(_changes("", _without_cache_keys(old), _without_cache_keys(new), skip=consequences))


def _without_cache_keys(plan: Plan) -> dict[str, Any]:
    """The plan with one word for every cache key."""
    processes = []
    for process in plan.processes:
        text = json.dumps(process.as_json())
        key = PurePosixPath(process.cache_folder).name if process.cache_folder else ""
        processes.append(json.loads(text.replace(key, "CACHE-KEY") if key else text))
    return {**plan.as_json(), "processes": processes}


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
        if group and (word.startswith("--") or word in {process.image, process.image_name}):
            yield shlex.join(group)
            group = []
        group.append(word)
    yield shlex.join(group)


def _changes(path: str, old: object, new: object, skip: set[str]) -> Iterator[str]:
    if path.endswith(".argv") and isinstance(old, list) and isinstance(new, list):
        old, new = _by_flag(old), _by_flag(new)
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in skip:
                yield from _changes(f"{path}.{key}" if path else str(key), old.get(key), new.get(key), skip)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{path}[{index}]", before, after, skip)
    elif old != new:
        yield f"{path}: {engines.compact_json(old)} -> {engines.compact_json(new)}"


def _by_flag(argv: list[str]) -> dict[str, object]:
    """The words of a command by the flag they belong to, so that a difference is named by its flag."""
    found: dict[str, object] = {}
    flag = "command"
    for word in argv:
        if word.startswith("--"):
            flag = word
            found[flag] = []
        else:
            values = found.setdefault(flag, [])
            assert isinstance(values, list)
            values.append(word)
    return {
        name: values[0] if isinstance(values, list) and len(values) == 1 else values for name, values in found.items()
    }
