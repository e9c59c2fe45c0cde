"""What an expression in a wheel's text stands for, worked out without importing or running anything.

`value` follows constants, lists, dicts, enum members and class attributes across the wheel's modules. Whatever it does not
follow is UNKNOWN; a caller must then leave the fact open instead of guessing it.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slipway.images.wheel_source import Module


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
"""The answer where the text alone does not tell."""


@dataclass(frozen=True)
class Ref:
    """A name that is not data: a class, function or module, by its dotted name; with its text where the wheel has it."""

    name: str
    module: Module | None = field(default=None, compare=False, repr=False)
    node: ast.AST | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Applied:
    """A call that was not followed: the function and its arguments."""

    function: str
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class Member:
    """One member of an enum."""

    name: str
    value: Any


@dataclass(frozen=True)
class LiteralType:
    """`Literal[...]`, flattened."""

    values: tuple[Any, ...]


Native = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: its module, the names set so far, the class around it, and functions known by heart."""

    module: Module
    local: dict[str, Any] = field(default_factory=dict)
    inside: Ref | None = None
    natives: Mapping[str, Native] = field(default_factory=dict)


def lookup(module: Module, name: str) -> Any:
    """What the top-level `name` of `module` is."""
    if name not in module.known:
        module.known[name] = UNKNOWN  # a name that needs itself stays unknown
        module.known[name] = _find(module, name)
    return module.known[name]


def imported(module: Module, home: str, attribute_name: str) -> Any:
    """What `from home import attribute_name` gives in `module`; `import home` where the second name is empty."""
    origin = module.source.module(home)
    if not attribute_name:
        return Ref(home, origin)
    if origin is None:
        return Ref(f"{home}.{attribute_name}")
    if attribute_name in origin.nodes or attribute_name in origin.imports:
        return lookup(origin, attribute_name)
    below = f"{home}.{attribute_name}"
    return Ref(below, module.source.module(below))


def value(node: ast.AST | None, scope: Scope) -> Any:
    """What the expression `node` is in `scope`: data, Ref, Applied, Member, LiteralType or UNKNOWN."""
    reader = _READERS.get(type(node))
    return UNKNOWN if reader is None else reader(node, scope)


def bases(of: Ref) -> Iterator[Ref]:
    """The classes that the class `of` inherits from directly."""
    if isinstance(of.node, ast.ClassDef) and of.module:
        for base in of.node.bases:
            found = value(base, Scope(of.module))
            if isinstance(found, Ref):
                yield found


def lineage(of: Ref) -> list[Ref]:
    """`of` and the classes it inherits from, nearest first, each once."""
    found = [of]
    for base in bases(of):
        found += [one for one in lineage(base) if one not in found]
    return found


def is_enum(of: Ref) -> bool:
    """Whether the class `of` is an enum."""
    return any(one.name.startswith("enum.") for one in lineage(of))


def members(of: Ref) -> list[Member]:
    """The members of the enum `of`, in order."""
    body = of.node.body if isinstance(of.node, ast.ClassDef) else []
    names = [t.id for s in body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)]
    return [Member(name, attribute(of, name)) for name in names if not name.startswith("_")]


def attribute(of: Ref, name: str, *, nested: bool = False) -> Any:
    """The class attribute `name` of the class `of`, looked up in what it inherits too."""
    for one in lineage(of):
        for statement in one.node.body if isinstance(one.node, ast.ClassDef) else []:
            if isinstance(statement, ast.FunctionDef) and statement.name == name:
                return Ref(f"{one.name}.{name}", one.module, statement)
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets) and one.module:
                return value(getattr(statement, "value", None), Scope(one.module, inside=None if nested else one))
    return UNKNOWN


def _find(module: Module, name: str) -> Any:
    node = module.nodes.get(name)
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return Ref(f"{module.name}.{name}", module, node)
    if isinstance(node, ast.expr):
        return _with_additions(module, name, value(node, Scope(module)))
    if name in module.imports:
        return imported(module, *module.imports[name])
    return Ref(f"builtins.{name}") if hasattr(builtins, name) else UNKNOWN


def _with_additions(module: Module, name: str, found: Any) -> Any:
    """A collection that later lines extend: with everything they may add, so that nothing accepted is refused."""
    for added in module.additions.get(name, []):
        more = value(added, Scope(module))
        items = more if isinstance(more, list | tuple) else [more]
        if not isinstance(found, list | tuple):
            return UNKNOWN
        found = [*found, *items]
    return found


def _name(node: ast.Name, scope: Scope) -> Any:
    if node.id in scope.local:
        return scope.local[node.id]
    if scope.inside:
        found = attribute(scope.inside, node.id, nested=True)
        if found is not UNKNOWN:
            return found
    return lookup(scope.module, node.id)


def _attribute(node: ast.Attribute, scope: Scope) -> Any:
    base = value(node.value, scope)
    if isinstance(base, Member):
        return {"name": base.name, "value": base.value}.get(node.attr, UNKNOWN)
    if not isinstance(base, Ref):
        return UNKNOWN
    if isinstance(base.node, ast.ClassDef):
        found = attribute(base, node.attr)
        return Member(node.attr, found) if found is not UNKNOWN and is_enum(base) else found
    if base.module and base.node is None:
        return lookup(base.module, node.attr)
    return Ref(f"{base.name}.{node.attr}")


def _call(node: ast.Call, scope: Scope) -> Any:
    args = [value(arg, scope) for arg in node.args]
    keywords = {keyword.arg: value(keyword.value, scope) for keyword in node.keywords if keyword.arg}
    if isinstance(node.func, ast.Attribute):
        base = value(node.func.value, scope)
        if isinstance(base, str | dict) and not any(arg is UNKNOWN for arg in args):
            return _method(base, node.func.attr, args)
    function = value(node.func, scope)
    if not isinstance(function, Ref):
        return UNKNOWN
    if function.name in scope.natives:
        return scope.natives[function.name](args)
    if function.name in _COLLECTIONS and len(args) == 1:
        items = _items(args[0])
        return UNKNOWN if items is None else _COLLECTIONS[function.name](items)
    if function.name == "typing.get_args" and args and isinstance(args[0], LiteralType):
        return args[0].values
    if function.name == "itertools.permutations" and args:
        items, size = _items(args[0]), keywords.get("r", args[1] if len(args) > 1 else None)
        return UNKNOWN if items is None or not isinstance(size, int) else list(itertools.permutations(items, size))
    if isinstance(function.node, ast.FunctionDef) and function.module and not node.args and not node.keywords:
        return _returned(function, function.node, scope)
    return Applied(function.name, tuple(args), keywords)


def _method(base: str | dict[Any, Any], name: str, args: list[Any]) -> Any:
    if isinstance(base, dict):
        return list(getattr(base, name)()) if name in {"keys", "values"} and not args else UNKNOWN
    if name == "join" and args:
        items = _items(args[0])
        return base.join(items) if items is not None and all(isinstance(i, str) for i in items) else UNKNOWN
    usual = name in {"lower", "upper", "strip", "replace"} and all(isinstance(arg, str) for arg in args)
    return getattr(base, name)(*args) if usual else UNKNOWN


def _returned(function: Ref, node: ast.FunctionDef, scope: Scope) -> Any:
    """What a function without arguments returns at its end: earlier returns are shortcuts for what is loaded already."""
    assert function.module
    local: dict[str, Any] = {}
    for statement in node.body:
        for name, (home, attr) in function.module.bound_by(statement).items():
            local[name] = imported(function.module, home, attr)
    last = node.body[-1]
    inner = Scope(function.module, local, natives=scope.natives)
    return value(last.value, inner) if isinstance(last, ast.Return) else UNKNOWN


def _items(found: Any) -> list[Any] | None:
    """`found` as a list where it can be gone through."""
    if isinstance(found, Ref) and is_enum(found):
        return list(members(found))
    return list(found) if isinstance(found, list | tuple | set | frozenset | dict) else None


def _sequence(node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
    out: list[Any] = []
    for element in node.elts:
        inner = element.value if isinstance(element, ast.Starred) else element
        found = value(inner, scope)
        items = _items(found) if isinstance(element, ast.Starred) else [found]
        if items is None:
            return UNKNOWN
        out += items
    return {ast.List: list, ast.Tuple: tuple, ast.Set: list}[type(node)](out)


def _dict(node: ast.Dict, scope: Scope) -> Any:
    out: dict[Any, Any] = {}
    for key, item in zip(node.keys, node.values, strict=True):
        found = value(item, scope)
        if key is None:
            if not isinstance(found, dict):
                return UNKNOWN
            out.update(found)
            continue
        name = value(key, scope)
        if not isinstance(name, str | int | Member):
            return UNKNOWN
        out[name] = found
    return out


def _listed(node: ast.ListComp, scope: Scope) -> Any:
    (first, *rest) = node.generators
    items = _items(value(first.iter, scope))
    if items is None or rest or first.ifs or not isinstance(first.target, ast.Name):
        return UNKNOWN
    name = first.target.id
    return [value(node.elt, replace(scope, local={**scope.local, name: item})) for item in items]


def _joined(node: ast.JoinedStr, scope: Scope) -> Any:
    parts = [value(v.value if isinstance(v, ast.FormattedValue) else v, scope) for v in node.values]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else UNKNOWN


def _binary(node: ast.BinOp, scope: Scope) -> Any:
    left, right = value(node.left, scope), value(node.right, scope)
    same = isinstance(left, list | tuple | str) and type(left) is type(right)
    return left + right if isinstance(node.op, ast.Add) and same else UNKNOWN


def _unary(node: ast.UnaryOp, scope: Scope) -> Any:
    found = value(node.operand, scope)
    if isinstance(node.op, ast.USub) and isinstance(found, int | float):
        return -found
    return not found if isinstance(node.op, ast.Not) and isinstance(found, bool) else UNKNOWN


def _choice(node: ast.IfExp, scope: Scope) -> Any:
    test = value(node.test, scope)
    return value(node.body if test else node.orelse, scope) if isinstance(test, bool) else UNKNOWN


def _compared(node: ast.Compare, scope: Scope) -> Any:
    left, right = value(node.left, scope), value(node.comparators[0], scope)
    if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn) and isinstance(right, dict | list | tuple):
        return UNKNOWN if left is UNKNOWN else (left in right) == isinstance(node.ops[0], ast.In)
    return UNKNOWN


def _subscript(node: ast.Subscript, scope: Scope) -> Any:
    base = value(node.value, scope)
    if base == Ref("typing.Literal"):
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        found = [value(item, scope) for item in items]
        return LiteralType(tuple(x for one in found for x in (one.values if isinstance(one, LiteralType) else [one])))
    key = value(node.slice, scope)
    return base.get(key, UNKNOWN) if isinstance(base, dict) and isinstance(key, str | int | Member) else UNKNOWN


_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "builtins.list": list,
    "builtins.tuple": tuple,
    "builtins.set": list,
    "builtins.frozenset": list,
    "builtins.sorted": lambda items: sorted(items, key=str),
}
_READERS: dict[type, Callable[[Any, Scope], Any]] = {
    ast.Constant: lambda node, scope: node.value,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.ListComp: _listed,
    ast.JoinedStr: _joined,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.IfExp: _choice,
    ast.Compare: _compared,
    ast.Subscript: _subscript,
    ast.Lambda: lambda node, scope: Ref(ast.unparse(node), scope.module, node),
}
