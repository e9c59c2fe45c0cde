"""Where compiled kernels are kept: the variables that move every engine's caches into one folder, and the name of that folder.

Engines compile at run time (DeepGEMM, Triton, Inductor, FlashInfer …), each into a place of its own below HOME, which a container
loses. Here all of them get one folder, named by what the kernels depend on, so that a second start finds them and another shape
never does.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, model_validator

from slipway import documents
from slipway.documents import Document, Matching
from slipway.engines.schema import release
from slipway.recipe.words import Engine, EnvName, VersionText

Pattern = Annotated[str, Matching(r"[A-Za-z0-9_*?-]+", "a name, or a pattern with * as of a shell")]


class CacheVariable(Document):
    """One variable that moves one cache; `folder` is its own place inside the mounted one."""

    name: EnvName
    engines: list[Engine] = Field(min_length=1)
    since: VersionText | None = Field(
        default=None, description="the engine's first version that knows it; null: set always"
    )
    folder: Annotated[str, Matching(r"[a-z0-9][a-z0-9_-]*", "a folder name of lower-case letters and dashes")]
    source: str = Field(min_length=1)


class KeyExceptions(Document):
    """Flags and variables of one engine that its kernels do not depend on."""

    engine: Engine
    flags_left_out: list[Pattern]
    env_left_out: list[Pattern]


class Caches(Document):
    """images/caches.yaml."""

    schema_: Literal["slipway/caches/v1"] = Field(alias="schema")
    variables: list[CacheVariable]
    keys: list[KeyExceptions]

    @model_validator(mode="after")
    def _each_has_its_own_folder(self) -> Caches:
        for engine in ("sglang", "vllm", "reference"):
            rows = [row for row in self.variables if engine in row.engines]
            for what, values in (("name", [row.name for row in rows]), ("folder", [row.folder for row in rows])):
                twice = sorted({value for value in values if values.count(value) > 1})
                if twice:
                    raise ValueError(f"variables: two rows of {engine} have the {what} {', '.join(twice)}")
        return self


@dataclass(frozen=True)
class Compiled:
    """All that a process's kernels depend on, and more; what they do not depend on is taken out by `cache_key`."""

    engine: Engine
    engine_version: str
    image: str
    """A digest of the image, or the engine's version for a plain process."""
    gpu_models: tuple[str, ...]
    checkpoints: Mapping[str, str]
    """Path, as the process sees it → `repo@revision`."""
    argv: tuple[str, ...]
    """With canonical flag names."""
    env: Mapping[str, str] = field(default_factory=dict)


def read(path: Path) -> Caches:
    """The table at `path` (images/caches.yaml). Raises: MissingFile, DocumentError, DiskFailure."""
    return documents.read(path, Caches)


def compiles(caches: Caches, engine: Engine) -> bool:
    """Whether `engine` keeps compiled kernels at all; the reference engine does not."""
    return any(engine in row.engines for row in caches.variables)


def cache_env(caches: Caches, engine: Engine, engine_version: str, folder: str) -> dict[str, str]:
    """The variables that put every cache of `engine` below `folder`; empty for an engine that compiles nothing."""
    return {
        row.name: str(PurePosixPath(folder, row.folder))
        for row in caches.variables
        if engine in row.engines and (row.since is None or release(row.since) <= release(engine_version))
    }


def cache_key(caches: Caches, compiled: Compiled) -> str:
    """The name of the folder for these kernels, as sglang-0.5.18-h200-0123456789ab: equal for equal kernels on every machine.

    It holds engine, version, image, GPU models, checkpoint revisions, and every flag and variable that images/caches.yaml does
    not leave out. Paths, addresses and ports are no part of it.
    """
    left_out = next((row for row in caches.keys if row.engine == compiled.engine), None)
    flags, env = (left_out.flags_left_out, left_out.env_left_out) if left_out else ([], [])
    models = sorted(set(compiled.gpu_models))
    parts = {
        "engine": [compiled.engine, compiled.engine_version, compiled.image],
        "gpus": models,
        "checkpoints": sorted(set(compiled.checkpoints.values())),
        "flags": {name: words for name, words in _flags(compiled) if not _matches(name, flags)},
        "env": {name: value for name, value in compiled.env.items() if not _matches(name, env)},
    }
    short = documents.digest(parts).partition(":")[2][:12]
    return "-".join((compiled.engine, compiled.engine_version, "+".join(models) or "cpu", short))


def _flags(compiled: Compiled) -> Iterator[tuple[str, list[str]]]:
    """Each flag of the command with its words; the words before the first flag under the empty name."""
    found: dict[str, list[str]] = {"": []}
    flag = ""
    for word in compiled.argv:
        if word.startswith("--"):
            name, equals, joined = word.removeprefix("--").partition("=")
            flag = name
            found.setdefault(flag, []).extend([_without_paths(joined, compiled)] if equals else [])
        else:
            found[flag].append(_without_paths(word, compiled))
    yield from found.items()


def _without_paths(word: str, compiled: Compiled) -> str:
    """`word` with the repository in place of a checkpoint's path: the same weights may lie elsewhere on the next host."""
    for path in sorted(compiled.checkpoints, key=len, reverse=True):  # one path may be the beginning of another
        word = word.replace(path, compiled.checkpoints[path])
    return word


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
