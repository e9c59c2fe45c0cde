"""From the `add_argument` calls in a wheel's text to flags: what argparse would make of the same words.

`ParserCalls` reads the body of a function that fills a parser, statement by statement. A call that stands where it does not
read (a loop, a helper) is an error and never a flag that is silently missing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipway.engines.schema import Choice, Flag, Kind, NestedField, Positional, ValueType
from slipway.errors import LockDrift
from slipway.images.static_value import UNKNOWN, Applied, Ref, Scope, value


@dataclass(frozen=True)
class TypeTag:
    """A value type that the caller has worked out already, in place of argparse's `type=`."""

    type: ValueType
    optional: bool = False


@dataclass(frozen=True)
class Found:
    """What a wheel says about its command line."""

    flags: list[Flag]
    nested: dict[str, dict[str, NestedField]] = field(default_factory=dict)
    registries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    positional: Positional | None = None


class ParserCalls:
    """Reads statements that fill an argparse parser; `flags` and `scope.local` grow as it goes."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.flags: list[Flag] = []

    def read(self, function: ast.AST) -> None:
        """Read the body of `function`. Raises: LockDrift when a call in it could not be read."""
        assert isinstance(function, ast.FunctionDef)
        self._unread = {id(node) for node in ast.walk(function) if _adds(node)}
        self._statements(function.body)
        if self._unread:
            lines = sorted(node.lineno for node in ast.walk(function) if id(node) in self._unread and _adds(node))  # type: ignore[attr-defined]
            raise self._drift(lines[0], "add_argument stands where the extractor does not read")

    def _statements(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.If):
                self._branch(statement)
            elif isinstance(statement, ast.Expr) and _adds(statement.value):
                assert isinstance(statement.value, ast.Call)
                self._unread.discard(id(statement.value))
                self._add(statement.value)
            elif isinstance(statement, ast.Assign):
                self._assign(statement.targets[0], value(statement.value, self.scope))
            elif isinstance(statement, ast.AugAssign):
                before, more = value(statement.target, self.scope), value(statement.value, self.scope)
                known = isinstance(before, list) and isinstance(more, list)
                self._assign(statement.target, before + more if known else UNKNOWN)
            elif isinstance(statement, ast.Delete):
                for target in statement.targets:
                    self._delete(target)
            elif isinstance(statement, ast.Expr):
                self._extend(statement.value)

    def _branch(self, statement: ast.If) -> None:
        test = value(statement.test, self.scope)
        known = isinstance(test, bool)
        taken = [statement.body if test else statement.orelse] if known else [statement.body, statement.orelse]
        for body in taken:
            self._statements(body)
        for left in [statement.body, statement.orelse] if known else []:
            self._unread -= {id(node) for inner in left for node in ast.walk(inner)}

    def _assign(self, target: ast.expr, found: Any) -> None:
        if isinstance(target, ast.Name):
            self.scope.local[target.id] = found
        elif isinstance(target, ast.Subscript):
            container, key = value(target.value, self.scope), value(target.slice, self.scope)
            if isinstance(container, dict) and isinstance(key, str):
                container[key] = found

    def _delete(self, target: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            container, key = value(target.value, self.scope), value(target.slice, self.scope)
            if isinstance(container, dict):
                container.pop(key, None)

    def _extend(self, call: ast.expr) -> None:
        """`choices.add(...)` on a local collection: with it, so that nothing accepted is refused."""
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
        ):
            name, before = call.func.value.id, value(call.func.value, self.scope)
            if call.func.attr in {"add", "append"} and isinstance(before, list) and call.args:
                more = value(call.args[0], self.scope)
                self.scope.local[name] = UNKNOWN if more is UNKNOWN else [*before, more]

    def _add(self, call: ast.Call) -> None:
        names = [value(arg, self.scope) for arg in call.args]
        keywords: dict[str, Any] = {}
        for keyword in call.keywords:
            found = value(keyword.value, self.scope)
            if keyword.arg:
                keywords[keyword.arg] = found
            elif isinstance(found, dict):
                keywords.update(found)
            else:
                raise self._drift(call.lineno, f"**{ast.unparse(keyword.value)} is not known")
        if not all(isinstance(name, str) for name in names) or not _followed(keywords):
            raise self._drift(call.lineno, "name, action or nargs of an argument is not known")
        if names[0].startswith("-"):
            self.flags.append(flag_of(names, keywords))

    def _drift(self, line: int, problem: str) -> LockDrift:
        return LockDrift(
            f"{self.scope.module.member}:{line}",
            problem,
            "a flag that is not read would be refused in every recipe",
            "teach the extractor this form",
        )


def flag_of(names: Sequence[str], keywords: Mapping[str, Any]) -> Flag:
    """The flag that `add_argument(*names, **keywords)` makes; keywords are as `static_value.value` gives them."""
    long = [name for name in names if name.startswith("--")] or list(names)
    action = keywords.get("action")
    nargs = _nargs(action, keywords)
    kind = _kind(action, nargs)
    kind_of_type, optional = value_type(keywords.get("type", Ref("builtins.str")))
    takes = kind not in {"switch", "optional-switch"}
    if takes and kind_of_type in {"json", "json-human", "json-or-str"} and nargs is None:
        kind = "json"
    message = keywords.get("error_message")
    return Flag(
        name=long[0].lstrip("-"),
        aliases=tuple(name for name in names if name != long[0]),
        kind=kind,
        type=kind_of_type if takes else "str",
        choices=choices_of(keywords.get("choices")) if takes else None,
        known=keywords.get("known") if takes else None,
        nargs=nargs if takes else None,
        optional=optional and takes,
        repeats=action in {"append", "extend", "count"},
        required=keywords.get("required") is True,
        default=_default(keywords.get("default")),
        nested=keywords.get("nested"),
        replaced_by=_successor(keywords.get("new_flag") or message, names),
        refused=message is not None,
    )


def value_type(found: Any) -> tuple[ValueType, bool]:
    """How `type=` reads a word, and whether an empty word or None is no value to it."""
    if isinstance(found, TypeTag):
        return found.type, found.optional
    if (
        isinstance(found, Applied)
        and found.function.rpartition(".")[2] in {"optional_type", "parse_type"}
        and found.args
    ):
        inner, optional = value_type(found.args[0])
        return inner, optional or found.function.endswith(".optional_type")
    if not isinstance(found, Ref):
        return "unknown", False
    if isinstance(found.node, ast.Lambda):
        return _LAMBDAS.get(found.name, "unknown"), False
    package, _, short = found.name.partition(".")[0], "", found.name.rpartition(".")[2]
    if short == "nullable_str":
        return "str", True
    return _TYPES.get((package, short), "unknown"), False


def choices_of(found: Any) -> tuple[Choice, ...] | None:
    """The accepted values in a stable order; None where they are not all known, so that nothing is refused."""
    if not isinstance(found, list | tuple | dict) or not found:
        return None
    if not all(item is None or isinstance(item, str | int | float) for item in found):
        return None
    numbers = sorted(item for item in set(found) if isinstance(item, int | float))
    return (*numbers, *sorted({item for item in found if isinstance(item, str)}), *([None] if None in found else []))


_SWITCHES = {"store_true", "store_false", "store_const", "append_const", "count", "help", "version"}
_LAMBDAS: dict[str, ValueType] = {
    "lambda s: s.lower().replace('-', '_')": "lower-snake",
    "lambda s: s.lower()": "lower",
}
_TYPES: dict[tuple[str, str], ValueType] = {
    ("builtins", "str"): "str",
    ("builtins", "int"): "int",
    ("builtins", "float"): "float",
    ("builtins", "lower"): "lower",
    ("json", "loads"): "json",
    ("vllm", "union_dict_and_str"): "json-or-str",
    ("vllm", "human_readable_int"): "human-int",
    ("vllm", "human_readable_int_or_auto"): "human-int-auto",
    ("sglang", "human_readable_int"): "human-int-si",
    ("sglang", "json_list_type"): "json",
    ("sglang", "parse_cuda_graph_config_arg"): "json",
    ("smg", "_non_negative_int"): "int",
}


def _adds(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"


def _followed(keywords: Mapping[str, Any]) -> bool:
    """Whether it is known how many words the argument takes."""
    action = keywords.get("action")
    known = action is None or isinstance(action, str) or action == Ref("argparse.BooleanOptionalAction")
    return (known or (isinstance(action, Ref) and action.node is not None)) and keywords.get("nargs") is not UNKNOWN


def _nargs(action: Any, keywords: Mapping[str, Any]) -> Any:
    """`nargs` as argparse will see it; 0 for an action that takes no word."""
    if action in _SWITCHES or action == Ref("argparse.BooleanOptionalAction"):
        return 0
    if "nargs" in keywords:
        return keywords["nargs"]
    return _own_nargs(action) if isinstance(action, Ref) else None


def _successor(said: Any, names: Sequence[str]) -> str | None:
    """The flag that a deprecation names: the first word of it that is a flag and not one of `names`."""
    words = re.findall(r"--[a-z0-9{},-]+", said) if isinstance(said, str) else []
    return next((word.rstrip(",") for word in words if word not in names), None)


def _own_nargs(action: Ref) -> Any:
    """The default of `nargs` in the constructor of an action class of the wheel; None where it has none."""
    for statement in action.node.body if isinstance(action.node, ast.ClassDef) else []:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            named = [*statement.args.args, *statement.args.kwonlyargs]
            defaults = [*statement.args.defaults, *statement.args.kw_defaults]
            for argument, default in zip(named[len(named) - len(defaults) :], defaults, strict=True):
                if argument.arg == "nargs" and isinstance(default, ast.Constant):
                    return default.value
    return None


def _kind(action: Any, nargs: Any) -> Kind:
    if action == Ref("argparse.BooleanOptionalAction"):
        return "optional-switch"
    if nargs == 0:
        return "switch"
    many = nargs in {"*", "+"} or isinstance(nargs, int) or action in {"append", "extend"}
    return "list" if many else "value"


def _default(found: Any) -> str | None:
    plain = found is not None and isinstance(found, str | int | float | list | tuple) and len(repr(found)) <= 60
    return None if not plain or UNKNOWN in (found if isinstance(found, list | tuple) else []) else repr(found)
