"""What runs: recipe files, their cells, and the roles of a cell.

One YAML file per model and engine under `recipes/`; the file name is `<model>.<engine>.yaml`, and a recipe's id is
`<model>.<engine>/<cell>`. A cell is flat: everything that differs from the file's own `defaults` stands in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from slipway import documents
from slipway.documents import Document
from slipway.errors import DocumentError, Problem, UsageError
from slipway.recipe.words import (
    ALLOW_PATTERNS,
    AbsolutePath,
    Capability,
    Day,
    DevicePath,
    Engine,
    EnvName,
    Fabric,
    FlagName,
    FlagValue,
    ImageRef,
    IpAddress,
    Port,
    RepoId,
    Revision,
    RoleName,
    VersionText,
    Word,
)


class Architecture(Document):
    """The model's shape, as far as memory arithmetic needs it (`fit`). Head counts may differ between kinds of layers."""

    source: str = Field(min_length=1, description="where the numbers come from")
    layers: int = Field(gt=0)
    full_attention_layers: int = Field(ge=0, description="layers whose KV cache grows with the context")
    dense_layers: int = Field(ge=0, description="layers with a plain feed-forward instead of experts")
    sliding_window_tokens: int = Field(default=0, ge=0, description="0: no layer has a window")
    hidden: int = Field(gt=0)
    dense_ffn: int = Field(gt=0)
    heads_full: int = Field(gt=0)
    heads_windowed: int = Field(default=0, ge=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    gating: Literal["per-head", "per-element"]
    experts: int = Field(gt=0)
    expert_ffn: int = Field(gt=0)
    shared_ffn: int = Field(gt=0)
    vocab: int = Field(gt=0)
    max_context_tokens: int = Field(gt=0)

    @property
    def expert_parameters(self) -> int:
        """The routed experts' weights."""
        return (self.layers - self.dense_layers) * self.experts * 3 * self.hidden * self.expert_ffn

    @property
    def router_parameters(self) -> int:
        """The routers' weights."""
        return (self.layers - self.dense_layers) * self.experts * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Input embedding and output head, which are not tied."""
        return 2 * self.vocab * self.hidden

    @property
    def matrix_parameters(self) -> int:
        """Attention, dense and shared-expert matrices."""
        windowed = self.layers - self.full_attention_layers
        heads = self.full_attention_layers * self.heads_full + windowed * self.heads_windowed
        gate_rows = heads * (self.head_dim if self.gating == "per-element" else 1)
        attention = self.hidden * (
            2 * heads * self.head_dim + gate_rows + 2 * self.layers * self.kv_heads * self.head_dim
        )
        feed_forward = (
            3 * self.hidden * (self.dense_layers * self.dense_ffn + (self.layers - self.dense_layers) * self.shared_ffn)
        )
        return attention + feed_forward


class Checkpoint(Document):
    """Weights by repository and revision."""

    repo: RepoId
    revision: Revision | None
    allow_patterns: list[str] = Field(
        default_factory=lambda: list(ALLOW_PATTERNS),
        min_length=1,
        description="shell patterns of the repository's files that are locked and fetched; nothing else is",
    )

    @property
    def name(self) -> str:
        """The folder name below the models directory: the repository's last part."""
        return self.repo.rpartition("/")[2]


class Speculation(Document):
    """Speculative decoding with a drafter that is locked as a pair with the target."""

    method: Literal["dflash"]
    drafter: Checkpoint
    synthetic_acceptance: list[float] | None = Field(
        default=None, description="accept drafts by this curve instead of by the model; for rehearsals on vLLM"
    )
    draft_tokens: int | None = Field(
        default=None, gt=0, description="tokens proposed per step; null: the engine's default"
    )
    drafter_parameters: int = Field(gt=0)
    drafter_unsplit_parameters: int = Field(default=0, ge=0, description="those that every rank keeps whole")
    kv_layers: int = Field(ge=0, description="draft layers that keep full KV")


class FabricVariant(Document):
    """What a prefill/decode cell changes on one kind of fabric."""

    image: ImageRef | None = None
    env: dict[EnvName, str] = Field(default_factory=dict)


class Transfer(Document):
    """How KV pages go from prefill to decode. Device names never stand here: `devices` selects among a node's own."""

    backend: Literal["mooncake", "nixl", "mooncake_tcp", "http"] = Field(
        description="http: the reference engine's own, and only its"
    )
    bootstrap_port: Port
    devices: Literal["all", "one", "none"] = Field(description="which of the node's RDMA devices each role pins")
    fabrics: dict[Fabric, FabricVariant] = Field(default_factory=dict)


class Allowed(Document):
    """A rule that this cell breaks on purpose."""

    rule: Word
    reason: str = Field(min_length=10)


class Requires(Document):
    """What the hosts must offer before anything is started."""

    nodes: int = Field(gt=0)
    gpus_per_node: int = Field(ge=0)
    gpu_memory_gib: float = Field(ge=0)
    fabric: list[Fabric] = Field(
        default_factory=list, description="any one of these between the nodes; empty: none needed"
    )
    rdma_devices_per_node: int = Field(default=0, ge=0)
    disk_gb: float = Field(ge=0, description="decimal GB for the checkpoints")


class Container(Document):
    """How the engine's container is created, where it is not the default."""

    ipc: Literal["private", "host"] = "private"
    network: Literal["bridge", "host"] = "bridge"
    devices: list[DevicePath] = Field(default_factory=list)
    capabilities: list[Capability] = Field(default_factory=list)
    ulimits: dict[Literal["memlock", "stack", "nofile"], int] = Field(default_factory=dict, description="-1: unlimited")
    shm_size_gib: int | None = Field(default=None, gt=0)
    models_mount: AbsolutePath = "/models"


class Role(Document):
    """One part of a deployment. Typed where Slipway itself checks or allocates; every other flag stands in `flags`."""

    name: RoleName
    tp: int = Field(default=1, gt=0)
    pp: int = Field(default=1, gt=0)
    port: Port
    host_port: Port | None = None
    bind: IpAddress = "127.0.0.1"
    context_tokens: int | None = Field(default=None, gt=0)
    kv_dtype: str | None = None
    page_size_tokens: int | None = Field(default=None, gt=0)
    gpu_memory_fraction: float | None = Field(default=None, gt=0, lt=1)
    flags: dict[FlagName, FlagValue] = Field(default_factory=dict)
    env: dict[EnvName, str] = Field(default_factory=dict)


class Verified(Document):
    """Where a cell was run by its source; never a promise of ours."""

    on: str
    date: Day | None = Field(description="null: the source gives none")
    evidence: str


class Parsers(Document):
    """The engine's parsers for reasoning and tool calls."""

    reasoning: str | None = None
    tool_call: str | None = None


class Cell(Document):
    """One combination of hardware, quantization and strategy, with every flag it needs."""

    id: Word
    hardware: Word
    quantization: Word
    strategy: Word
    topology: Word
    verified: Verified | None
    image: ImageRef | None = Field(description="null: no container exists for this engine")
    checkpoint: Checkpoint
    served_name: str = Field(min_length=1)
    parsers: Parsers
    thinking: bool | None = Field(description="the server's default; null: left to the chat template")
    speculation: Speculation | None = None
    transfer: Transfer | None = None
    allow: list[Allowed] = Field(default_factory=list)
    requires: Requires
    container: Container = Field(default_factory=Container)
    roles: list[Role] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_role_of_a_kind(self) -> Cell:
        names = [role.name for role in self.roles]
        if len(set(names)) != len(names):
            raise ValueError(f"roles: each role stands once in a cell, got {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _ranks_need_gpus(self) -> Cell:
        if self.requires.gpus_per_node == 0 and (self.image or any(role.tp * role.pp > 1 for role in self.roles)):
            raise ValueError("requires.gpus_per_node: is 0, but the roles run on GPUs; say how many a node must have")
        return self

    @model_validator(mode="after")
    def _transfer_goes_with_prefill_and_decode(self) -> Cell:
        disaggregated = {"prefill", "decode"} & {role.name for role in self.roles}
        if bool(disaggregated) != (self.transfer is not None) or len(disaggregated) == 1:
            raise ValueError("roles: prefill, decode and transfer stand together or not at all")
        return self

    def role(self, name: RoleName) -> Role | None:
        """The role called `name`, if the cell has it."""
        return next((role for role in self.roles if role.name == name), None)

    def gpus(self, role: Role) -> int:
        """How many GPUs `role` takes: none for a router, or where the cell runs without GPUs."""
        return 0 if role.name == "router" or self.requires.gpus_per_node == 0 else role.tp * role.pp


class RecipeFile(Document):
    """One file of the recipe book: a model on an engine version, and its cells."""

    schema_: Literal["slipway/recipe/v1"] = Field(alias="schema")
    model: Word
    engine: Engine
    engine_version: VersionText
    packages: dict[str, str] = Field(default_factory=dict, description="versions that the image pins beside the engine")
    architecture: Architecture
    defaults: dict[str, Any] = Field(default_factory=dict, description="keys of a cell that a cell may leave out")
    cells: list[Cell] = Field(min_length=1)

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """The file with its defaults written into every cell; a key that stands in a cell replaces the default whole."""
        shared, cells = (data.get("defaults"), data.get("cells")) if isinstance(data, dict) else (None, None)
        if not isinstance(shared, dict) or not isinstance(cells, list):
            return data
        return {**data, "cells": [{**shared, **cell} if isinstance(cell, dict) else cell for cell in cells]}

    @classmethod
    def written_at(cls, location: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Where a value of a cell that came from the defaults is written."""
        return ("defaults", *location[2:]) if location[:1] == ("cells",) and len(location) > 2 else location

    @property
    def id(self) -> str:
        """`<model>.<engine>`, the file's name without its ending."""
        return f"{self.model}.{self.engine}"


class Recipe(Document):
    """One cell with what its file says about model and engine: all that compiling a plan needs."""

    model: str
    engine: Engine
    engine_version: str
    packages: dict[str, str] = Field(default_factory=dict)
    architecture: Architecture
    cell: Cell

    @property
    def id(self) -> str:
        """`<model>.<engine>/<cell>`."""
        return f"{self.model}.{self.engine}/{self.cell.id}"

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Target first, then the drafter where there is one."""
        spec = self.cell.speculation
        return (self.cell.checkpoint, spec.drafter) if spec else (self.cell.checkpoint,)


def read_file(path: Path) -> RecipeFile:
    """The recipe file at `path`.

    Raises: MissingFile, DocumentError (also when the name disagrees with the content, or two cells share an id).
    """
    book = documents.read(path, RecipeFile)
    if path.name != f"{book.id}.yaml":
        text = f"says model {book.model} and engine {book.engine}, so its name must be {book.id}.yaml; rename it"
        raise DocumentError([Problem(str(path), 1, 1, "", text)])
    ids = [cell.id for cell in book.cells]
    twice = sorted({cell_id for cell_id in ids if ids.count(cell_id) > 1})
    if twice:
        text = f"two cells have the id {', '.join(twice)}; an id names one cell; rename one"
        raise DocumentError([Problem(str(path), 1, 1, "cells", text)])
    return book


def read_book(folder: Path) -> tuple[Recipe, ...]:
    """Every recipe under `folder`, ordered by file name, then as in the file.

    Raises: DocumentError with the problems of all files, UsageError when there is no file.
    """
    problems: list[Problem] = []
    recipes: list[Recipe] = []
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise UsageError(
            folder, "no recipe file (*.yaml) here", "recipes are read from this folder", "check the checkout"
        )
    for path in paths:
        try:
            recipes += cells(read_file(path))
        except DocumentError as error:
            problems += error.problems
    if problems:
        raise DocumentError(problems)
    return tuple(recipes)


def find(folder: Path, recipe_id: str) -> Recipe:
    """The recipe called `recipe_id`, as `laguna-m.1.sglang/h200-bf16`.

    Raises: UsageError with the nearest ids, MissingFile, DocumentError.
    """
    file_id, _, cell_id = recipe_id.partition("/")
    path = folder / f"{file_id}.yaml"
    if Path(file_id).name == file_id and cell_id and path.is_file():
        for recipe in cells(read_file(path)):
            if recipe.id == recipe_id:
                return recipe
    known = [recipe.id for recipe in read_book(folder)]
    inside = [name for name in known if recipe_id and recipe_id in name]
    near = inside or difflib.get_close_matches(recipe_id, known, n=3, cutoff=0.4) or known
    why = f"did you mean {' or '.join(near[:3])}?"
    raise UsageError("--recipe", f"no such recipe (got {recipe_id})", why, "`invoke recipes` lists all of them")


def cells(book: RecipeFile) -> Iterator[Recipe]:
    """Each cell of `book` with what the file says about model and engine."""
    for cell in book.cells:
        yield Recipe(
            model=book.model,
            engine=book.engine,
            engine_version=book.engine_version,
            packages=book.packages,
            architecture=book.architecture,
            cell=cell,
        )
