"""The flags that one version of an engine knows: the model of `images/<engine>/flags/<version>.json`, and its reader.

The files are written by `slipway.images.flag_schema` from the engine's published wheel; `engines.check` reads argv against
them. What the wheel's text does not tell is `unknown` or null, and is never checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field

from slipway import documents
from slipway.documents import Document
from slipway.errors import MissingFile

SchemaEngine = Literal["vllm", "sglang", "router", "smg"]
Kind = Literal["switch", "value", "list", "json", "optional-switch"]
ValueType = Literal[
    "str",
    "int",
    "float",
    "json",
    "json-human",
    "json-or-str",
    "human-int",
    "human-int-auto",
    "human-int-si",
    "lower",
    "lower-snake",
    "unknown",
]
"""How the engine turns the word into a value.

`human-int`: k, m, g, t are powers of 1000 and K, M, G, T powers of 1024 (vLLM); `-auto` also takes `auto` for -1.
`human-int-si`: k, M, G, T are powers of 1000 and Ki, Mi, Gi, Ti powers of 1024 (SGLang). `json-human`: JSON whose bare
numbers may carry vLLM's letters. `json-or-str`: JSON when it stands in braces. `lower`, `lower-snake`: a word, lower-cased,
the latter with `_` for `-`.
"""
Choice = str | int | float | None
NestedType = Literal["int", "float", "str", "bool", "list", "dict", "unknown"]


class Flag(Document):
    """One option of the engine's parser."""

    name: str = Field(description="canonical, without dashes in front")
    aliases: tuple[str, ...] = Field(default=(), description="other spellings, with their dashes")
    kind: Kind = "value"
    type: ValueType = "str"
    choices: tuple[Choice, ...] | None = Field(default=None, description="what the parser accepts; null: anything")
    known: tuple[str, ...] | None = Field(default=None, description="names the engine ships; it may accept more")
    nargs: Literal["?", "*", "+"] | int | None = Field(default=None, description="as argparse; null: one value or none")
    optional: bool = Field(default=False, description="an empty word or None stands for no value")
    repeats: bool = Field(default=False, description="given again, it adds instead of replacing")
    required: bool = False
    exact: bool = Field(default=False, description="read before argparse: no abbreviation")
    default: str | None = Field(default=None, description="as the source says it; the platform may change it")
    nested: str | None = Field(default=None, description="the entry of `nested` that its JSON must follow")
    registry: str | None = Field(default=None, description="the entry of `registries` that its value must be in")
    replaced_by: str | None = Field(default=None, description="deprecated: the flag to use")
    refused: bool = Field(default=False, description="registered only to be refused by name")

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every word that names the flag, `--no-` twins included."""
        names = (f"--{self.name}", *self.aliases)
        twins = [f"--no-{name[2:]}" for name in names if name.startswith("--")]
        return (*names, *twins) if self.kind == "optional-switch" else names


class NestedField(Document):
    """One key of a JSON-valued flag."""

    type: NestedType = "unknown"
    choices: tuple[Choice, ...] | None = None
    known: tuple[str, ...] | None = None
    nested: str | None = None


class WheelFile(Document):
    """The published file that the schema was read from."""

    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Positional(Document):
    """The one word that may stand without a flag, and the flag it stands for."""

    becomes: str
    place: Literal["first", "anywhere"]


class FlagSchema(Document):
    """Everything that the command line of one engine version can be checked against without the engine."""

    schema_: Literal["slipway/flags/v1"] = Field(alias="schema")
    engine: SchemaEngine
    version: str
    wheel: WheelFile
    dialect: Literal["argparse", "vllm"] = Field(
        description="vllm: underscores, dotted JSON and -O3 are rewritten before argparse reads the words"
    )
    positional: Positional | None
    flags: tuple[Flag, ...]
    nested: dict[str, dict[str, NestedField]]
    registries: dict[str, tuple[str, ...]]

    def flag(self, name: str) -> Flag | None:
        """The flag whose canonical name is `name`."""
        return next((flag for flag in self.flags if flag.name == name), None)


def canonical_name(schema: FlagSchema, name: str) -> str:
    """The name of the flag that `name` (without dashes) means: itself, an alias, or the only one it abbreviates.

    A name that means none or several is returned as it is; checking the command line says why it is refused.
    """
    meant = {
        flag.name
        for flag in schema.flags
        for spelling in flag.spellings
        if spelling.lstrip("-") == name or (not flag.exact and spelling.startswith(f"--{name}"))
    }
    exact = {flag.name for flag in schema.flags if f"--{name}" in flag.spellings}
    found = exact or meant
    return found.pop() if len(found) == 1 else name


def place(folder: Path, engine: SchemaEngine, version: str) -> Path:
    """Where the schema of `version` stands below `folder` (the checkout's `images`)."""
    return folder / engine / "flags" / f"{version}.json"


def read(folder: Path, engine: SchemaEngine, version: str) -> FlagSchema:
    """The schema of `engine` `version` below `folder`.

    Raises: MissingFile that names the command which writes it, DocumentError, DiskFailure.
    """
    path = place(folder, engine, version)
    try:
        return documents.read_json(path, FlagSchema)
    except MissingFile:
        have = ", ".join(sorted(versions(folder, engine), key=release)) or "none"
        run = f"python -m slipway.images.flag_schema --engine {engine} --version {version} --wheel FILE --out {path}"
        raise MissingFile(
            path,
            f"no flag schema of {engine} {version}",
            f"schemas here: {have}",
            f"with the wheel at hand run `{run}`",
        ) from None


def read_others(folder: Path, engine: SchemaEngine, version: str) -> dict[str, FlagSchema]:
    """The schemas of every other version of `engine` below `folder`, oldest first; for messages only."""
    others = sorted(set(versions(folder, engine)) - {version}, key=release)
    return {other: read(folder, engine, other) for other in others}


def read_all(folder: Path, engine: SchemaEngine) -> dict[str, FlagSchema]:
    """Every schema of `engine` below `folder` by version, oldest first; empty when there is none."""
    return {version: read(folder, engine, version) for version in sorted(versions(folder, engine), key=release)}


def versions(folder: Path, engine: SchemaEngine) -> Iterator[str]:
    """The versions of `engine` that have a schema below `folder`."""
    return (path.stem for path in (folder / engine / "flags").glob("*.json"))


def release(version: str) -> tuple[int, ...]:
    """`version` as numbers that compare in the order of release; a part without digits counts as 0."""
    return tuple(int("0" + "".join(filter(str.isdigit, part))) for part in version.split("."))
