"""The set-up script of each kind of host, as text: a few settings in front of one body that is the same everywhere."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib import resources

from slipway.cloud import hosts
from slipway.cloud.settings import AwsHosts, Workstation
from slipway.inventory import Node

BODY = resources.files("slipway.host_setup").joinpath("body.sh").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Setup:
    """What differs between hosts. `root` is a folder to rehearse in: files are written below it and nothing else happens."""

    models: str
    gpus: bool
    nvme: bool = False
    power_limit_w: int | None = None
    login: str = ""
    ssh_keys: tuple[str, ...] = ()
    root: str = ""


def cloud(aws: AwsHosts) -> str:
    """The user data of a host on AWS: it runs as root at the first boot. Nothing secret is in it; any process can read it."""
    return script(Setup(models=aws.models, gpus=True, nvme=True, login=hosts.USER, ssh_keys=tuple(aws.ssh_keys)))


def router(aws: AwsHosts) -> str:
    """The user data of the router's host, which has no GPUs and no models."""
    return script(Setup(models=aws.models, gpus=False, login=hosts.USER, ssh_keys=tuple(aws.ssh_keys)))


def bare_metal(node: Node, settings: Workstation, root: str = "") -> str:
    """The script for a host that is there already. Its disks are the owner's: nothing is formatted or mounted."""
    limit = settings.gpu_power_limit_w if node.gpus else None
    return script(Setup(models=node.paths.models, gpus=bool(node.gpus), power_limit_w=limit, root=root))


def script(setup: Setup) -> str:
    """The whole script in POSIX sh; running it twice changes nothing the second time."""
    settings = {
        "ROOT": setup.root,
        "MODELS": setup.models,
        "GPUS": "yes" if setup.gpus else "no",
        "NVME": "yes" if setup.nvme else "no",
        "POWER_LIMIT_W": "" if setup.power_limit_w is None else str(setup.power_limit_w),
        "SSH_KEYS": "\n".join(setup.ssh_keys),
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    # Over ssh the user is whoever called sudo, which only the host knows.
    lines.append(f"LOGIN={shlex.quote(setup.login)}" if setup.login else 'LOGIN="${SUDO_USER-}"')
    return "\n".join(["#!/bin/sh", "# Slipway host set-up; safe to run again.", "set -eu", *lines]) + "\n" + BODY
