"""Flag schemas: what one version of an engine accepts on its command line, read from its published wheel.

No GPU, no torch, no import of the engine: the wheel's text is enough. Run it as
`python -m slipway.images.flag_schema --engine vllm --version 0.25.1 --wheel FILE --out images/vllm/flags/0.25.1.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slipway.engines.schema import Flag, FlagSchema, NestedField, SchemaEngine, WheelFile
from slipway.errors import LockDrift, SlipwayError, from_os_error
from slipway.images import flag_schema_router, flag_schema_sglang, flag_schema_vllm
from slipway.images.parser_calls import Found
from slipway.images.wheel_source import WheelSource

EXTRACTORS: dict[SchemaEngine, Callable[[WheelSource], Found]] = {
    "vllm": flag_schema_vllm.extract,
    "sglang": flag_schema_sglang.extract,
    "router": lambda source: flag_schema_router.extract(source, "sglang_router"),
    "smg": lambda source: flag_schema_router.extract(source, "smg"),
}


def extract(engine: SchemaEngine, version: str, wheel: Path) -> FlagSchema:
    """The flag schema of `engine` `version`, read from `wheel`.

    Raises: LockDrift when the wheel is another version's or holds a form that is not read, MissingFile, IntegrityMismatch.
    """
    if wheel.name.split("-")[1:2] != [version]:
        why = "a schema must describe the version that its name says"
        raise LockDrift(wheel, f"is not the wheel of version {version}", why, "give the wheel of that version")
    found = EXTRACTORS[engine](WheelSource(wheel))
    flags = tuple(sorted(found.flags, key=lambda flag: flag.name))
    _refuse_twice(flags, wheel)
    with wheel.open("rb") as data:
        sha256 = hashlib.file_digest(data, "sha256").hexdigest()
    return FlagSchema(
        schema_="slipway/flags/v1",
        engine=engine,
        version=version,
        wheel=WheelFile(file=wheel.name, sha256=sha256),
        dialect="vllm" if engine == "vllm" else "argparse",
        positional=found.positional,
        flags=flags,
        nested=dict(sorted(_reached(flags, found.nested).items())),
        registries={name: tuple(sorted(names)) for name, names in sorted(found.registries.items()) if names},
    )


def text(schema: FlagSchema) -> str:
    """`schema` as the file's text: JSON with one flag and one nested entry per line, so that two versions compare well."""
    whole = schema.model_dump(mode="json", by_alias=True, exclude={"flags", "nested"})
    head = "".join(f" {_compact(key)}: {_compact(item)},\n" for key, item in whole.items())
    flags = ",\n".join(f"  {_compact(flag.model_dump(mode='json', exclude_defaults=True))}" for flag in schema.flags)
    nested = ",\n".join(f"  {_compact(name)}: {_fields(fields)}" for name, fields in schema.nested.items())
    return f'{{\n{head} "flags": [\n{flags}\n ],\n "nested": {{\n{nested}\n }}\n}}\n'


def main(words: list[str] | None = None) -> int:
    """Write one schema file; 0, or the exit code of the error that stopped it."""
    parser = argparse.ArgumentParser(prog="python -m slipway.images.flag_schema", description=__doc__)
    parser.add_argument("--engine", required=True, choices=sorted(EXTRACTORS))
    parser.add_argument("--version", required=True)
    parser.add_argument("--wheel", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    given = parser.parse_args(words)
    try:
        schema = extract(given.engine, given.version, given.wheel)
        _write(given.out, text(schema))
    except SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    spellings = sum(len(flag.spellings) for flag in schema.flags)
    sys.stderr.write(f"{given.out}: {len(schema.flags)} flags in {spellings} spellings\n")
    return 0


def _write(path: Path, written: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.part")
        beside.write_text(written, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise from_os_error(error, path, "writing the flag schema") from error


def _refuse_twice(flags: tuple[Flag, ...], wheel: Path) -> None:
    words = [word for flag in flags for word in flag.spellings]
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        why = "argparse refuses the second, so the text was misread"
        raise LockDrift(wheel, f"registers {', '.join(twice)} twice", why, "teach the extractor this form")


def _reached(
    flags: tuple[Flag, ...], nested: Mapping[str, dict[str, NestedField]]
) -> dict[str, dict[str, NestedField]]:
    """The entries of `nested` that a flag leads to, directly or through another entry."""
    todo = [flag.nested for flag in flags if flag.nested]
    reached: dict[str, dict[str, NestedField]] = {}
    while todo:
        name = todo.pop()
        if name not in reached and name in nested:
            reached[name] = dict(sorted(nested[name].items()))
            todo += [field.nested for field in nested[name].values() if field.nested]
    return reached


def _fields(fields: Mapping[str, NestedField]) -> str:
    return _compact({name: field.model_dump(mode="json", exclude_defaults=True) for name, field in fields.items()})


def _compact(item: Any) -> str:
    return json.dumps(item, separators=(", ", ": "))


if __name__ == "__main__":
    sys.exit(main())
