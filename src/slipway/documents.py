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
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

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


def canonical_json(value: Any) -> bytes:
    """`value` as the one JSON text that digests are taken of: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def digest(value: Any) -> str:
    """`sha256:…` of the canonical JSON of `value`."""
    return f"sha256:{hashlib.sha256(canonical_json(value)).hexdigest()}"


MAX_BYTES = 4_000_000
"""Largest document read; a recipe has kilobytes, so more is a mistake (a checkpoint shard, a log)."""

MAX_DEPTH = 60
"""Deepest nesting read; more is an attack or a mistake, and would exhaust the parser's recursion."""


def read(path: Path | str, model: type[Model]) -> Model:
    """The document at `path` as a `model`.

    Raises: MissingFile, DiskFailure, DocumentError with every problem in the file.
    """
    file = Path(path)
    try:
        if file.is_file() and file.stat().st_size > MAX_BYTES:
            raise DocumentError(
                [Problem(str(path), 1, 1, "", f"is {file.stat().st_size} bytes; a document has at most {MAX_BYTES}")]
            )
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFile(
            path, "no such file", f"a {model.__name__} document in YAML is read here", "check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise DocumentError([Problem(str(path), 1, 1, "", f"is not UTF-8 text (byte {error.start})")]) from None
    except OSError as error:
        raise from_os_error(error, path, f"reading the {model.__name__} document") from error
    return parse(text, model, str(path))


def parse(text: str, model: type[Model], name: str) -> Model:
    """The YAML or JSON `text` as a `model`; `name` stands for the file in messages.

    Raises: DocumentError with every problem in the text.
    """
    try:
        root = yaml.compose(text, Loader=_LOADER)
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
        raise DocumentError([Problem(name, 1, 1, "", f"is empty; a {model.__name__} document is needed")])
    reader = _Reader(name)
    data = model.prepared(reader.value(root, ()))
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
            if _dotted(location) not in refused:
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
        data = path.read_bytes()
    except FileNotFoundError:
        raise MissingFile(path, "no such file", f"a {model.__name__} is read here", "check the path") from None
    except OSError as error:
        raise from_os_error(error, path, f"reading the {model.__name__}") from error
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        details = error.errors()
        problems = [
            Problem(str(path), 1, 1, _dotted(tuple(d["loc"])), f"{d['msg'][:1].lower()}{d['msg'][1:]}") for d in details
        ]
        raise DocumentError(problems) from None


Location = tuple[str | int, ...]


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it, as every wheel is: the recipe book is read ten times faster."""


class _Reader:
    """Turns nodes into plain values, remembering where each stands and what must be refused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self._values: dict[Location, yaml.Node] = {}
        self._keys: dict[Location, yaml.Node] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node, at: Location) -> Any:
        self._values[at] = node
        if len(at) > MAX_DEPTH or id(node) in self._open:
            self._refuse(node, at, f"is nested more than {MAX_DEPTH} levels deep or contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, at)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*at, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, at) if isinstance(node, yaml.ScalarNode) else None
        finally:
            self._open.discard(id(node))

    def knows(self, at: Location) -> bool:
        """Whether something is written at `at`."""
        return at in self._values

    def problem(self, at: Location, text: str, *, key: bool = False) -> Problem:
        """The problem `text` at the nearest place that exists in the file; a missing key is reported at its parent."""
        node = (self._keys if key else self._values).get(at)
        while node is None and at:
            node = self._values.get(at[:-1])
            if node is None:
                at = at[:-1]
            else:
                break
        mark = (node or self._values[()]).start_mark
        return Problem(self.name, mark.line + 1, mark.column + 1, _dotted(at), text)

    def _mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, at, "has a key that is not a plain word")
                continue
            key = str(key_node.value)
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._refuse(key_node, at, "uses a merge key (<<); write the values where they belong")
                continue
            here = (*at, key)
            if key in first:
                line = first[key].start_mark.line + 1
                self._refuse(
                    key_node,
                    here,
                    f"stands twice in one mapping (first in line {line}) and the last would silently win; remove one",
                )
                continue
            first[key] = key_node
            self._keys[here] = key_node
            result[key] = self.value(value_node, here)
        return result

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> Any:
        text = str(node.value)
        if node.style:  # quoted or a block; plain is None here and empty from libyaml
            return text
        if node.tag not in _TAGS:
            self._refuse(
                node, at, f"has the tag {node.tag}; only plain values are read; remove the tag or quote the value"
            )
            return None
        if text in {"", "~", "null"}:
            return None
        if text in {"true", "false"}:
            return text == "true"
        if _INTEGER.fullmatch(text):
            return int(text)
        if _DECIMAL.fullmatch(text):
            return float(text)
        advice = _silent_conversion(text)
        if advice:
            self._refuse(node, at, f"got {text}, {advice}")
            return None
        return text

    def _refuse(self, node: yaml.Node, at: Location, text: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(self.name, mark.line + 1, mark.column + 1, _dotted(at), text))


_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "value")}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")


def _silent_conversion(text: str) -> str:
    """Why the plain scalar `text` is refused: what YAML readers would silently make of it; empty when it is harmless."""
    if text.lower() in {"on", "off", "yes", "no", "y", "n"}:
        meant = str(text.lower() in {"on", "yes", "y"}).lower()
        return f'which some YAML readers turn into {meant}; write true or false, or quote it: "{text}"'
    if text.lower() in {"true", "false", "null"}:
        return f'which is spelled {text.lower()} here; or quote it: "{text}"'
    if re.fullmatch(r"[-+]?0[0-9_]+", text):
        return f'which some YAML readers take as octal; write the decimal number without leading zeros, or quote it: "{text}"'
    if re.fullmatch(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9]*)?", text):
        return f'which YAML 1.1 readers turn into a base-60 number; quote it: "{text}"'
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        return f'a number that YAML readers disagree on; write digits, as 100000 or 0.5, or quote it: "{text}"'
    if re.fullmatch(r"[-+]?(0[xob][0-9a-fA-F_]+|[0-9][0-9_]*_[0-9_]*)", text):
        return f'a number that YAML readers disagree on; write plain decimal digits, or quote it: "{text}"'
    if re.fullmatch(r"[-+]?\.(inf|nan)", text, re.IGNORECASE):
        return f'which is not a number that can be meant here; or quote it: "{text}"'
    if re.fullmatch(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?", text):
        return f'which YAML readers turn into a date object; quote it: "{text}"'
    return ""


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
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{message[:1].lower()}{message[1:]}{got}"


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


def _dotted(location: Location) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
