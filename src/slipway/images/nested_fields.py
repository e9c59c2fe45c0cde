"""The keys of JSON-valued flags: the fields of the dataclasses behind them, with types and choices where the text tells."""

from __future__ import annotations

import ast
from typing import Any

from slipway.engines.schema import NestedField, NestedType
from slipway.images.annotations import Hint, hints, is_dataclass
from slipway.images.parser_calls import choices_of
from slipway.images.static_value import Ref, Scope, lineage, members, value
from slipway.images.wheel_source import Module


class NestedFields:
    """Dataclasses met so far, by class name; `read` maps each to its fields."""

    def __init__(self) -> None:
        self.read: dict[str, dict[str, NestedField]] = {}

    def name_of(self, of: Ref | None) -> str | None:
        """The name under which the fields of the dataclass `of` stand in `read`; None where it takes keys of any name."""
        if of is None or not _closed(of):
            return None
        name = of.name.rpartition(".")[2]
        if name not in self.read:
            self.read[name] = {}  # a dataclass may hold itself
            free = _rewritten(of)
            self.read[name] = {
                ast.unparse(statement.target): self._field(statement, home, free)
                for statement, home in class_fields(of)
                if not _kept_inside(statement)
            }
        return name

    @staticmethod
    def known(hint: Hint | None) -> tuple[str, ...] | None:
        """The names of an enum's members, with the values that are words; None for an enum of numbers."""
        found = members(hint.of) if hint and hint.of else []
        if not found or any(isinstance(one.value, int) for one in found):
            return None
        words = [one.value for one in found if isinstance(one.value, str) and one.value and "." not in one.value]
        return tuple(sorted({*(one.name for one in found), *words}))

    def _field(self, statement: ast.AnnAssign, home: Module, free: set[str]) -> NestedField:
        present = [hint for hint in hints(statement.annotation, home) if hint.kind != "none"]
        free_form = {hint.kind for hint in present} & {"dict", "other"}
        inner = None if free_form else next((self.name_of(h.of) for h in present if h.kind == "dataclass"), None)
        enum = next((hint for hint in present if hint.kind == "enum"), None)
        if {ast.unparse(statement.target), "*"} & free or len(present) != 1:
            # A validator runs before the type is looked at, or several types are accepted: only names are known.
            return NestedField(known=self.known(enum), nested=inner)
        (only,) = present
        if only.kind == "literal":
            kind = _TYPES.get({int: "int", str: "str"}.get(type(only.values[0]) if only.values else None, "other"))  # type: ignore[arg-type]
            return NestedField(type=kind or "unknown", choices=choices_of(list(only.values)))
        if only.kind == "dataclass":
            return NestedField(type="dict", nested=inner)
        return NestedField(type=_TYPES.get(only.kind, "unknown"), known=self.known(enum))


def class_fields(of: Ref) -> list[tuple[ast.AnnAssign, Module]]:
    """The dataclass fields of `of`, inherited ones first, each with the module that its annotation stands in."""
    found: dict[str, tuple[ast.AnnAssign, Module]] = {}
    for one in reversed([one for one in lineage(of) if is_dataclass(one)]):
        for statement in one.node.body if isinstance(one.node, ast.ClassDef) else []:
            if (
                isinstance(statement, ast.AnnAssign)
                and "ClassVar" not in ast.unparse(statement.annotation)
                and one.module
            ):
                found[ast.unparse(statement.target)] = (statement, one.module)
    return list(found.values())


_TYPES: dict[str, NestedType] = {
    "int": "int",
    "float": "float",
    "str": "str",
    "bool": "bool",
    "list": "list",
    "dict": "dict",
}


def _kept_inside(statement: ast.AnnAssign) -> bool:
    """Whether the field is no argument of the class: `field(init=False)`."""
    keywords: list[Any] = statement.value.keywords if isinstance(statement.value, ast.Call) else []
    return any(keyword.arg == "init" and ast.unparse(keyword.value) == "False" for keyword in keywords)


def _rewritten(of: Ref) -> set[str]:
    """The fields that a validator may change or accept before their type is checked; `*` for all."""
    early = [call for call in _calls(of, "field_validator") if _mode(call) != "'after'"]
    return {str(arg.value) if isinstance(arg, ast.Constant) else "*" for call in early for arg in call.args}


def _closed(of: Ref) -> bool:
    """Whether the class refuses keys that are none of its fields: pydantic's `extra="forbid"`, seen as the last word."""
    assert isinstance(of.node, ast.ClassDef)
    assert of.module is not None
    texts = [ast.unparse(decorator) for decorator in of.node.decorator_list]
    for decorator in of.node.decorator_list:
        made_by = value(decorator.func if isinstance(decorator, ast.Call) else decorator, Scope(of.module))
        if isinstance(made_by, Ref) and made_by.node is not None:
            texts.append(ast.unparse(made_by.node))
    rewrites = any(_mode(call) != "'after'" for call in _calls(of, "model_validator"))
    return not rewrites and any("extra='forbid'" in said for said in texts)


def _calls(of: Ref, name: str) -> list[ast.Call]:
    nodes = ast.walk(of.node) if of.node else ()
    return [n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func).rpartition(".")[2] == name]


def _mode(call: ast.Call) -> str:
    return next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == "mode"), "'after'")
