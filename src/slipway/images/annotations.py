"""Type annotations in a wheel's text, opened: unions, Literals and aliases followed to what they are made of."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, Literal

from slipway.images.static_value import LiteralType, Ref, Scope, is_enum, lineage, value
from slipway.images.wheel_source import Module

HintKind = Literal[
    "none", "str", "int", "float", "bool", "literal", "list", "tuple", "set", "dict", "dataclass", "enum", "other"
]


@dataclass(frozen=True)
class Hint:
    """One member of an annotation: its kind, a Literal's values, a collection's items, the class of a dataclass or enum."""

    kind: HintKind
    values: tuple[Any, ...] = ()
    items: tuple[Hint, ...] = ()
    of: Ref | None = None


def hints(node: ast.AST, module: Module) -> list[Hint]:
    """The members of the annotation `node` that stands in `module`, unions and aliases opened."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return hints(ast.parse(node.value, mode="eval").body, module)
        return [Hint("none")]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*hints(node.left, module), *hints(node.right, module)]
    if isinstance(node, ast.Subscript):
        return _subscript(node, module)
    if isinstance(node, ast.Name):
        alias = module.alias(node.id)
        if alias:
            return hints(alias[1], alias[0])
    return [_plain(value(node, Scope(module)))]


def is_dataclass(of: Ref) -> bool:
    """Whether the class is decorated as a dataclass, or with vLLM's `config`, which makes one."""
    decorators = of.node.decorator_list if isinstance(of.node, ast.ClassDef) else []
    names = {ast.unparse(one.func if isinstance(one, ast.Call) else one).rpartition(".")[2] for one in decorators}
    return bool(names & {"dataclass", "config"})


def _subscript(node: ast.Subscript, module: Module) -> list[Hint]:
    base = value(node.value, Scope(module))
    parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    name = base.name if isinstance(base, Ref) else ""
    short = name.rpartition(".")[2].lower()
    if short == "literal":
        found = value(node, Scope(module))
        return [Hint("literal", values=found.values if isinstance(found, LiteralType) else ())]
    if short in {"union", "optional"}:
        members = [hint for part in parts for hint in hints(part, module)]
        return [*members, Hint("none")] if short == "optional" else members
    if short == "annotated":
        # A function in the metadata may turn other values into this type before it is looked at.
        called = any(isinstance(part, ast.Call) and ast.unparse(part.func) != "Field" for part in parts[1:])
        return [*hints(parts[0], module), *([Hint("other")] if called else [])]
    if name in _COLLECTIONS:
        items = tuple(hint for part in parts if not _ellipsis(part) for hint in hints(part, module))
        return [Hint(_COLLECTIONS[name], items=items)]
    return [Hint("other")]


def _plain(found: Any) -> Hint:
    if found is None:
        return Hint("none")
    if not isinstance(found, Ref):
        return Hint("literal", values=found.values) if isinstance(found, LiteralType) else Hint("other")
    if found.name in _SCALARS:
        return Hint(_SCALARS[found.name])
    if found.name in _COLLECTIONS:
        return Hint(_COLLECTIONS[found.name])
    if isinstance(found.node, ast.ClassDef):
        if is_enum(found):
            return Hint("enum", of=found)
        if any(is_dataclass(one) for one in lineage(found)):
            return Hint("dataclass", of=found)
    return Hint("other")


def _ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


_SCALARS: dict[str, HintKind] = {f"builtins.{kind}": kind for kind in ("str", "int", "float", "bool")}
_COLLECTIONS: dict[str, HintKind] = {
    **{f"builtins.{kind}": kind for kind in ("list", "tuple", "set", "dict")},
    **{f"typing.{kind.title()}": kind for kind in ("list", "tuple", "set", "dict")},
}
