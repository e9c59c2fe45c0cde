"""Whether the engine would accept a flag's value: numbers with letters, choices, JSON and its keys."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter, ValidationError

from slipway.engines.schema import Choice, Flag, FlagSchema, NestedField


@dataclass(frozen=True)
class Objection:
    """Why a value is not accepted; `hard` where the engine would stop, else it may know more than the schema."""

    problem: str
    why: str = ""
    remedy: str = ""
    hard: bool = True
    at: str = ""
    """The dotted key inside a JSON value."""


def objections(flag: Flag, word: str, schema: FlagSchema) -> Iterator[Objection]:
    """What stands against `word` as a value of `flag`; nothing where the schema does not know."""
    if flag.optional and word in {"", "None"}:
        return
    try:
        value = converted(flag, word)
    except ValueError as error:
        yield Objection(f"is not {_KINDS[flag.type]} (got {word})", str(error))
        return
    if flag.type == "unknown":
        return
    if flag.choices is not None and value not in flag.choices:
        yield Objection(f"does not take {word}", f"allowed: {_listed(flag.choices)}", meant(word, flag.choices))
    yield from _unheard_of(flag.known, value)
    if flag.nested and flag.kind == "json":
        yield from _object(value, schema, flag.nested, "", hard=True)


def converted(flag: Flag, word: str) -> Any:
    """`word` as the engine's parser reads it.

    Raises: ValueError that says what is wrong.
    """
    kind = flag.type
    if kind in {"int", "float"}:
        return _number(kind, word)
    if kind in {"human-int", "human-int-auto", "human-int-si"}:
        return _human(kind, word)
    if kind == "lower":
        return word.lower()
    if kind == "lower-snake":
        return word.lower().replace("-", "_")
    if kind in {"json", "json-human"} or (kind == "json-or-str" and re.fullmatch(r"(?s)\s*{.*}\s*", word)):
        return _json(_spelled_out(word) if kind == "json-human" else word)
    return word


def canonical(flag: Flag, word: str) -> str:
    """`word` with letters of a human number worked out; every other word as it is."""
    number = human_number(word, flag.type) if flag.type.startswith("human-int") else None
    return word if number is None else str(number)


def human_number(word: str, kind: str) -> int | None:
    """The number that `word` writes with a letter, `auto` included; None for a plain number and for anything else."""
    text = word.strip()
    if kind == "human-int-auto" and text.lower() == "auto":
        return -1
    units = _SI if kind == "human-int-si" else _LETTERS
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|[kKmMgGtT])", text, re.ASCII)
    if not found or found[2] not in units:
        return None
    unit = units[found[2]]
    if "." in found[1] and unit % 1000:
        return None
    return (
        int(Decimal(found[1]) * unit)
        if kind == "human-int-si"
        else int(float(found[1]) * unit)
        if unit % 1024
        else int(found[1]) * unit
    )


def meant(word: str, names: Iterable[Choice]) -> str:
    """`did you mean X?`, or nothing where no name is near."""
    near = difflib.get_close_matches(word.lower(), {str(name).lower(): name for name in names}, n=1, cutoff=0.6)
    by_lower = {str(name).lower(): str(name) for name in names} if near else {}
    return f"did you mean {by_lower[near[0]]}?" if near else ""


_LETTERS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "json": "JSON",
    "json-human": "JSON",
    "json-or-str": "JSON",
    "human-int": "a whole number",
    "human-int-auto": "a whole number",
    "human-int-si": "a whole number",
}
_READ_AS: dict[str, TypeAdapter[Any]] = {
    "int": TypeAdapter(int),
    "float": TypeAdapter(float),
    "str": TypeAdapter(str),
    "bool": TypeAdapter(bool),
    "list": TypeAdapter(list),
    "dict": TypeAdapter(dict),
}
"""vLLM reads the keys of its JSON with pydantic, so pydantic itself says what each type accepts."""


def _number(kind: str, word: str) -> int | float:
    try:
        return int(word) if kind == "int" else float(word)
    except ValueError:
        raise ValueError("digits are allowed" + (" and a decimal point" if kind == "float" else "")) from None


def _human(kind: str, word: str) -> int:
    letters = human_number(word, kind)
    if letters is not None:
        return letters
    try:
        return int(word)
    except ValueError:
        units = _SI if kind == "human-int-si" else _LETTERS
        auto = ", or auto" if kind == "human-int-auto" else ""
        known = ", ".join(units)
        raise ValueError(f"digits, then one of {known} is allowed{auto}; fractions only with powers of 1000") from None


def _json(word: str) -> Any:
    try:
        return json.loads(word)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"{error}; keys and words need double quotes") from None


def _spelled_out(word: str) -> str:
    """JSON text with the letters of bare numbers worked out, words in quotes left alone."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', word)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(
            r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda m: str(human_number(m[0], "human-int") or m[0]), parts[at]
        )
    return "".join(parts)


def _object(value: Any, schema: FlagSchema, name: str, at: str, *, hard: bool) -> Iterator[Objection]:
    """What stands against `value` as the JSON object called `name`; `hard` is off where a validator may rewrite it."""
    fields = schema.nested.get(name)
    if fields is None or value is None:
        return
    if not isinstance(value, dict):
        if hard:
            yield Objection(
                f"must be a JSON object (got {json.dumps(value)[:40]})", f"known keys: {', '.join(fields)}", at=at
            )
        return
    for key, item in value.items():
        inner = f"{at}.{key}" if at else str(key)
        if key not in fields:
            remedy = meant(key, fields) or f"known: {', '.join(fields)}"
            yield Objection(f"no such key in {name}", "", remedy, hard, inner)
        elif item is not None:
            yield from _field(item, fields[key], schema, inner, hard)


def _field(item: Any, field: NestedField, schema: FlagSchema, at: str, hard: bool) -> Iterator[Objection]:
    if field.type in _READ_AS:
        try:
            _READ_AS[field.type].validate_python(item)
        except ValidationError:
            yield Objection(f"is not of type {field.type} (got {json.dumps(item)[:40]})", hard=hard, at=at)
            return
    if field.choices is not None and item not in field.choices:
        remedy = meant(str(item), field.choices)
        yield Objection(
            f"does not take {json.dumps(item)[:40]}", f"allowed: {_listed(field.choices)}", remedy, hard, at
        )
    for objection in _unheard_of(field.known, item):
        yield Objection(objection.problem, objection.why, objection.remedy, hard=False, at=at)
    if field.nested:
        yield from _object(item, schema, field.nested, at, hard=hard and field.type == "dict")


def _unheard_of(known: tuple[str, ...] | None, value: Any) -> Iterator[Objection]:
    if known is not None and isinstance(value, str) and value.lower() not in {"auto", *map(str.lower, known)}:
        why = "this version ships no such name; it accepts the word and looks it up later"
        yield Objection(
            f"{value} is not a name it ships", why, meant(value, known) or f"shipped: {_listed(known)}", False
        )


def _listed(choices: Iterable[Choice]) -> str:
    return ", ".join(str(choice) for choice in choices)
