"""The only YAML reader: every hand-written document goes through `read`.

PyYAML gives nodes with positions, pydantic gives the schema; what stands here is the mapping between the two, the refusal of
YAML's silent conversions, and "did you mean". All problems of a file are reported at once, with `file:line:col`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from slipway.documents.reader import LOADER, MAX_DEPTH, Location, Reader, dotted
from slipway.durable import NotRegular, open_regular
from slipway.errors import DocumentError, MissingFile, Problem, from_os_error


class Document(BaseModel):
    """Base of every model that is read from a file or printed as JSON: strict, frozen, unknown keys forbidden."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        """The document as plain JSON values, under the keys that its file has."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def prepared(cls, data: Any) -> Any:
        """What is validated for the plain `data` of a file; a model with shared blocks writes them out here."""
        return data

    @classmethod
    def written_at(cls, location: tuple[str | int, ...]) -> tuple[str | int, ...]:
        """Where the value at `location` of the prepared data stands in the file, when not at `location` itself."""
        return location


Model = TypeVar("Model", bound=Document)


@dataclass(frozen=True)
class Matching:
    """For `Annotated[str, Matching(pattern, words)]`: the whole value matches `pattern`; who gets it wrong is told `words`."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": f"^({self.pattern})$", "description": self.words}

    def _check(self, value: str) -> str:
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"must be {self.words}")
        return value


def canonical_json(value: Any) -> bytes:
    """`value` as the one JSON text that digests are taken of: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def digest(value: Any) -> str:
    """`sha256:…` of the canonical JSON of `value`."""
    return f"sha256:{hashlib.sha256(canonical_json(value)).hexdigest()}"


MAX_BYTES = 4_000_000
"""Largest document read; a recipe has kilobytes, so more is a mistake (a checkpoint shard, a log)."""


def read(path: Path | str, model: type[Model]) -> Model:
    """The document at `path` as a `model`.

    Raises: MissingFile, DiskFailure, DocumentError with every problem in the file.
    """
    try:
        text = _regular_file(Path(path)).decode("utf-8")
    except FileNotFoundError:
        raise MissingFile(
            path, "no such file", f"{_kind(model)} document in YAML is read here", "check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise DocumentError([Problem(str(path), 1, 1, "", f"is not UTF-8 text (byte {error.start})")]) from None
    except OSError as error:
        raise from_os_error(error, path, f"reading {_kind(model)} document") from error
    return parse(text, model, str(path))


def _regular_file(path: Path) -> bytes:
    """The bytes at `path`, at most MAX_BYTES; a pipe or a device could go on for ever."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except NotRegular:
        raise DocumentError([Problem(str(path), 1, 1, "", "is not a regular file; a document is read here")]) from None
    if len(data) > MAX_BYTES:
        raise DocumentError([Problem(str(path), 1, 1, "", f"is too long; a document has at most {MAX_BYTES} bytes")])
    return data


def parse(text: str, model: type[Model], name: str) -> Model:
    """The YAML or JSON `text` as a `model`; `name` stands for the file in messages.

    Raises: DocumentError with every problem in the text.
    """
    try:
        root = yaml.compose(text, Loader=LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        said = " ".join(filter(None, (error.context, error.problem)))
        raise DocumentError([Problem(name, line, column, "", f"is not valid YAML: {said}")]) from None
    except yaml.YAMLError as error:
        raise DocumentError([Problem(name, 1, 1, "", f"is not valid YAML: {' '.join(str(error).split())}")]) from None
    except RecursionError:
        raise DocumentError([Problem(name, 1, 1, "", f"is nested more than {MAX_DEPTH} levels deep")]) from None
    if root is None:
        raise DocumentError([Problem(name, 1, 1, "", f"is empty; {_kind(model)} document is needed")])
    reader = Reader(name)
    data = model.prepared(reader.value(root, ()))
    other = _other_kind(data, model)
    if other:
        raise DocumentError([reader.problem(("schema",), other)])
    problems = reader.problems
    try:
        document = model.model_validate(data)
    except ValidationError as error:
        # A value that the reader has refused already would only be reported a second time in pydantic's words.
        refused = {problem.path for problem in problems}
        for detail in error.errors():
            location = _document_location(detail["loc"], data)
            if not reader.knows(location) and reader.knows(model.written_at(location)):
                location = model.written_at(location)
            if dotted(location) not in refused:
                problems.append(
                    reader.problem(
                        location, _explain(detail, location, model, data), key=detail["type"] == "extra_forbidden"
                    )
                )
    if problems:
        raise DocumentError(sorted(set(problems), key=lambda problem: (problem.line, problem.column, problem.text)))
    return document


def read_json(path: Path, model: type[Model]) -> Model:
    """The machine-written JSON at `path` as a `model`; JSON arrays become the tuples that frozen models hold.

    Raises: MissingFile, DiskFailure, DocumentError.
    """
    try:
        data = _regular_file(path)
    except FileNotFoundError:
        raise MissingFile(
            path, "no such file", f"{_kind(model)} document in JSON is read here", "check the path"
        ) from None
    except OSError as error:
        raise from_os_error(error, path, f"reading {_kind(model)} document") from error
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        details = error.errors()
        problems = [
            Problem(str(path), 1, 1, dotted(tuple(d["loc"])), f"{d['msg'][:1].lower()}{d['msg'][1:]}") for d in details
        ]
        raise DocumentError(problems) from None


def _kind(model: type[BaseModel]) -> str:
    """The name of `model` in words with its article: `an image lock`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", model.__name__).lower()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _other_kind(data: Any, model: type[BaseModel]) -> str | None:
    """What to say of `data` that is a document of ours, but of another kind; its every key would be wrong otherwise."""
    named = data.get("schema") if isinstance(data, dict) else None
    field = next((one for name, one in model.model_fields.items() if (one.alias or name) == "schema"), None)
    wanted = [one for one in typing.get_args(field.annotation) if isinstance(one, str)] if field else []
    if not wanted or not isinstance(named, str) or not re.fullmatch(r"slipway/[a-z-]+/v[0-9]+", named):
        return None
    if named in wanted or difflib.get_close_matches(named, wanted, n=1, cutoff=0.9):
        return None  # a typing error, or another version of the same
    return f"is a {named}; a {' or '.join(wanted)} is read here"


def _document_location(location: tuple[int | str, ...], data: Any) -> Location:
    """Pydantic's `location` less the parts that name a union member and not a place in the document."""
    place: list[str | int] = []
    for position, part in enumerate(location):
        if isinstance(data, Mapping):
            if part in data:
                data = data[part]
            elif position < len(location) - 1:
                continue
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            continue
        place.append(part)
    return tuple(place)


def _explain(detail: ErrorDetails, at: Location, model: type[BaseModel], data: Any) -> str:
    """One pydantic error in the project's words: what is wrong, what is allowed."""
    kind = detail["type"]
    if kind == "extra_forbidden":
        known = sorted(_fields_at(model, at[:-1], data))
        near = difflib.get_close_matches(str(at[-1]), known, n=1, cutoff=0.6)
        return f"unknown key; {f'did you mean {near[0]}?' if near else 'known here: ' + ', '.join(known)}"
    if kind == "missing":
        return "is missing and has no default; add it"
    got = "" if isinstance(detail["input"], dict | list) else f" (got {detail['input']!r})"
    if kind in {"literal_error", "enum"}:
        expected = str(detail.get("ctx", {}).get("expected", ""))
        near = difflib.get_close_matches(str(detail["input"]), re.findall(r"'([^']*)'", expected), n=1)
        return f"is not one of the known values{got}; allowed: {expected}{f'; did you mean {near[0]}?' if near else ''}"
    if kind in {"model_type", "dict_type"}:
        return f"must be a mapping, a `key: value` on each line{got}"
    if kind in {"list_type", "tuple_type"}:
        return f"must be a list{got}"
    if kind in {"too_short", "too_long", "string_too_short", "string_too_long"}:
        return _length(detail, got)
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{message[:1].lower()}{message[1:]}{got}"


def _length(detail: ErrorDetails, got: str) -> str:
    """What is wrong with how many entries or characters there are."""
    limits = detail.get("ctx", {})
    least, what = limits.get("min_length"), "character" if detail["type"].startswith("string_") else "entry"
    bound = int(least if least is not None else limits.get("max_length", 0))
    shown = got or f" (got {limits.get('actual_length') or 'none'})"
    side, many = "most" if least is None else "least", {"character": "characters", "entry": "entries"}[what]
    return f"needs at {side} {bound} {what if bound == 1 else many}{shown}"


def _fields_at(model: type[BaseModel], at: Location, data: Any) -> Iterator[str]:
    """The keys that `model` knows at the place `at`."""
    candidates: list[Any] = [model]
    for part in at:
        candidates = [inner for candidate in candidates for inner in _descend(candidate, part)]
    for candidate in candidates:
        for field_name, field in candidate.model_fields.items() if _is_model(candidate) else ():
            yield field.alias or field_name


def _descend(annotation: Any, part: str | int) -> Iterator[Any]:
    """The annotations that `part` may lead to from `annotation`, unions opened."""
    if _is_model(annotation):
        for name, field in annotation.model_fields.items():
            if part in {name, field.alias}:
                yield from _members(field.annotation)
        return
    arguments = typing.get_args(annotation)
    if isinstance(part, int) and arguments:
        yield from _members(arguments[0])
    elif len(arguments) == 2:
        yield from _members(arguments[1])


def _members(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        for member in typing.get_args(annotation):
            yield from _members(member)
    elif typing.get_origin(annotation) is typing.Annotated:
        yield from _members(typing.get_args(annotation)[0])
    else:
        yield annotation


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
