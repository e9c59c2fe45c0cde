"""The plan as a document: processes, front door, figures and warnings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from slipway.documents import Document, Matching
from slipway.fit import Fit, TransferTime
from slipway.inventory import Runtime
from slipway.recipe.words import Engine

ProcessName = Annotated[
    str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,120}", "a name of letters, digits, dots and dashes")
]


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

    name: ProcessName
    role: str
    node: str
    ssh: str | None = Field(description="how the node is reached; null: this machine")
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
    image_digest: str | None = Field(
        default=None,
        description="the config digest of what was built for a build:… image; null: not built, or not ours",
    )
    image_name: str | None = Field(
        default=None,
        description="what docker calls a build:… image once its archive is loaded on the node; null: `image` is its name",
    )
    cache_folder: str | None = Field(
        default=None, description="the node's folder for compiled kernels, made by launch; null: it compiles none"
    )


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
