"""The flags of `vllm serve`: fields of the config dataclasses turned into arguments, as vLLM's `get_kwargs` derives them.

Source: vLLM 0.25.1, `engine/arg_utils.py` (`_compute_kwargs`, `EngineArgs.add_cli_args`) and `entrypoints/openai/cli_args.py`,
read 2026-11-30.
"""

from __future__ import annotations

import ast
from typing import Any

from slipway.engines.schema import Flag, Positional
from slipway.images.annotations import Hint, hints
from slipway.images.nested_fields import NestedFields, class_fields
from slipway.images.parser_calls import Found, ParserCalls, TypeTag, flag_of
from slipway.images.static_value import Ref, Scope, attribute, lineage, lookup, value
from slipway.images.wheel_source import Module, WheelSource

ENGINE = "vllm.engine.arg_utils"
FRONT = "vllm.entrypoints.openai.cli_args"
REGISTRIES = {
    "reasoning_parsers": ("vllm.reasoning", "_REASONING_PARSERS_TO_REGISTER"),
    "tool_parsers": ("vllm.tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
}
IN_REGISTRY = {"reasoning-parser": "reasoning_parsers", "tool-call-parser": "tool_parsers"}


def extract(source: WheelSource) -> Found:
    """The flags of `vllm serve`, the dataclasses behind its JSON flags, and its parsers.

    Raises: MissingFile, LockDrift.
    """
    engine, front = source.need(ENGINE), source.need(FRONT)
    nested = NestedFields()
    keywords = FieldKeywords(engine, nested)
    flags = [
        *_called(front, front.nodes["make_arg_parser"], keywords),
        *_frontend(front, keywords),
        *_called(engine, _method(engine, "EngineArgs", "add_cli_args"), keywords),
        *_called(engine, _method(engine, "AsyncEngineArgs", "add_cli_args"), keywords),
    ]
    registries = {name: _names(source, *where) for name, where in REGISTRIES.items()}
    flags = [
        flag.model_copy(update={"registry": IN_REGISTRY.get(flag.name)})
        if registries.get(IN_REGISTRY.get(flag.name, ""))
        else flag
        for flag in flags
    ]
    return Found(flags, nested.read, registries, Positional(becomes="model", place="anywhere"))


class FieldKeywords:
    """What `get_kwargs` gives for a config class: per field the keywords of `add_argument`."""

    def __init__(self, engine: Module, nested: NestedFields) -> None:
        self._nested = nested
        self._human = _human_numbers(engine.nodes["_compute_kwargs"])
        self._read: dict[str, dict[str, dict[str, Any]]] = {}

    def __call__(self, args: list[Any]) -> Any:
        """The keywords of every field of the class `args[0]`; each class once, so that later changes are seen."""
        (of,) = args
        assert isinstance(of, Ref)
        if of.name not in self._read:
            found = {}
            for statement, home in class_fields(of):
                name = ast.unparse(statement.target)
                members = hints(statement.annotation, home)
                found[name] = {**self._keywords(name, members), "default": _default(statement, home)}
            self._read[of.name] = found
        return self._read[of.name]

    def _keywords(self, name: str, members: list[Hint]) -> dict[str, Any]:
        """The same decisions in the same order as `_compute_kwargs`."""
        by_kind = {hint.kind: hint for hint in reversed(members)}
        optional = "none" in by_kind
        if "dataclass" in by_kind:
            inner = self._nested.name_of(by_kind["dataclass"].of)
            return {"type": TypeTag("json-human", optional), "nested": inner}
        if set(by_kind) == {"bool", "str", "none"}:
            return {"type": Ref("builtins.str"), "nargs": "?"}
        if "bool" in by_kind:
            return {"action": Ref("argparse.BooleanOptionalAction")}
        for kind in ("literal", "tuple", "list", "set"):
            if kind in by_kind:
                hint = by_kind[kind]
                return _literal(hint, by_kind, optional) if kind == "literal" else _collection(hint, optional)
        return {
            "type": TypeTag(self._scalar(name, by_kind), optional),
            "known": NestedFields.known(by_kind.get("enum")),
        }

    def _scalar(self, name: str, by_kind: dict[Any, Hint]) -> Any:
        foreign = bool(set(by_kind) & {"enum", "other"})
        if "int" in by_kind:
            return self._human.get(name, "int")
        if "float" in by_kind:
            return "float"
        if "dict" in by_kind:
            return "json-or-str" if "str" in by_kind or foreign else "json"
        return "str"


def _literal(hint: Hint, by_kind: dict[Any, Hint], optional: bool) -> dict[str, Any]:
    kind: Any = {int: "int", float: "float"}.get(type(hint.values[0]) if hint.values else str, "str")
    names = [*hint.values, *(["None"] if optional else [])]
    if "str" in by_kind:
        return {"type": TypeTag(kind, optional), "known": tuple(str(one) for one in hint.values)}
    return {"type": TypeTag(kind, optional), "choices": names}


def _collection(hint: Hint, optional: bool) -> dict[str, Any]:
    kinds = {item.kind for item in hint.items}
    literal = next((item for item in hint.items if item.kind == "literal"), None)
    if literal and len(kinds) == 1:
        return {**_literal(literal, {}, optional), "nargs": "+"}
    only = next(iter(kinds)) if len(kinds) == 1 else "str"
    kind: Any = only if only in {"int", "float"} else "str"
    return {"type": TypeTag(kind, optional), "nargs": "+"}


def _default(statement: ast.AnnAssign, home: Module) -> Any:
    """The default, also where it stands in `Field(default=...)`."""
    given = statement.value
    if isinstance(given, ast.Call):
        given = next((keyword.value for keyword in given.keywords if keyword.arg == "default"), None)
    return value(given, Scope(home)) if given is not None else None


def _human_numbers(function: ast.AST) -> dict[str, str]:
    """The int fields that take letters, read from the tests on `name` in `_compute_kwargs`."""
    found: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and ast.unparse(node.test.left) == "name":
            names = [c.value for c in ast.walk(node.test.comparators[0]) if isinstance(c, ast.Constant)]
            text = ast.unparse(node.body[0])
            kind = "human-int-auto" if text.endswith("human_readable_int_or_auto") else "human-int"
            if "human_readable_int" in text:
                found.update({str(name): kind for name in names})
    return found


def _called(module: Module, function: ast.AST, keywords: FieldKeywords) -> list[Flag]:
    calls = ParserCalls(Scope(module, natives={f"{ENGINE}.get_kwargs": keywords}))
    calls.read(function)
    return calls.flags


def _method(module: Module, holder: str, name: str) -> ast.AST:
    of = lookup(module, holder)
    assert isinstance(of, Ref)
    found = attribute(of, name)
    assert isinstance(found, Ref)
    assert found.node is not None
    return found.node


def _frontend(front: Module, keywords: FieldKeywords) -> list[Flag]:
    """The server's own flags: the fields of `FrontendArgs`, changed by each class's `_customize_cli_kwargs`."""
    of = lookup(front, "FrontendArgs")
    assert isinstance(of, Ref)
    given = keywords([of])
    for one in reversed(lineage(of)):
        body = one.node.body if isinstance(one.node, ast.ClassDef) else []
        for function in body:
            if isinstance(function, ast.FunctionDef) and function.name == "_customize_cli_kwargs":
                own = [s for s in function.body if "super()" not in ast.unparse(s)]
                assert one.module is not None
                calls = ParserCalls(Scope(one.module, {"frontend_kwargs": given}))
                calls.read(ast.FunctionDef(function.name, function.args, own, [], lineno=function.lineno))
    return [flag_of([f"--{name.replace('_', '-')}"], one) for name, one in given.items()]


def _names(source: WheelSource, module: str, name: str) -> tuple[str, ...]:
    found = lookup(source.need(module), name)
    return tuple(sorted(found)) if isinstance(found, dict) else ()
