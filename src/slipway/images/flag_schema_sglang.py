"""The flags of SGLang: fields `name: A[type, Arg(...)]` turned into arguments, and the few that are added by hand.

Up to 0.5.18 the fields stand in `ServerArgs` itself, later in the classes listed as `_INPUT_NAMESPACES`.
Source: sglang 0.5.14 to 0.5.23, `srt/server_args.py` and `srt/arg_groups/arg_utils.py`, read 2026-11-30.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from slipway.engines.schema import Flag, NestedField, Positional
from slipway.errors import LockDrift
from slipway.images.annotations import Hint, hints
from slipway.images.parser_calls import Found, ParserCalls, flag_of
from slipway.images.static_value import UNKNOWN, Applied, Ref, Scope, attribute, lookup, value
from slipway.images.wheel_source import Module, WheelSource

SERVER = "sglang.srt.server_args"
GRAPHS = "sglang.srt.model_executor.cuda_graph_config"
SERVE = "sglang.cli.serve"


def extract(source: WheelSource) -> Found:
    """The flags of `sglang serve` for language models.

    Raises: MissingFile, LockDrift.
    """
    server = source.need(SERVER)
    arguments = lookup(server, "ServerArgs")
    holders = lookup(server, "_INPUT_NAMESPACES")
    classes = holders if isinstance(holders, list) else [arguments]
    flags = [flag for one in classes for flag in _fields(one)]
    function = attribute(_of_class(server), "add_cli_args")
    assert isinstance(function, Ref)
    assert function.node is not None
    calls = ParserCalls(Scope(server, {}))
    calls.read(function.node)
    serve = source.module(SERVE)
    flags = [*flags, *calls.flags, *_before_argparse(serve)]
    registries = {
        registry: tuple(str(choice) for choice in flag.choices if choice != "auto")
        for flag in flags
        for registry in [{"reasoning-parser": "reasoning_parsers", "tool-call-parser": "tool_parsers"}.get(flag.name)]
        if registry and flag.choices
    }
    first = serve is not None and "_normalize_positional_model_path" in serve.nodes
    positional = Positional(becomes="model-path", place="first") if first else None
    return Found(flags, _graph_config(source.module(GRAPHS)), registries, positional)


def _of_class(server: Module) -> Ref:
    """`ServerArgs` as its class statement says; a later assignment may rebuild it from the same statement."""
    node = next(s for s in server.tree.body if isinstance(s, ast.ClassDef) and s.name == "ServerArgs")
    return Ref(f"{server.name}.ServerArgs", server, node)


def _fields(holder: Any) -> Iterator[Flag]:
    if not isinstance(holder, Ref) or not isinstance(holder.node, ast.ClassDef) or holder.module is None:
        raise LockDrift(SERVER, f"a class of flags is not known ({holder})", "", "teach the extractor this form")
    scope = Scope(holder.module, inside=holder)
    named = [s for s in holder.node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
    # A field that is declared twice is one field, as in a dataclass: the last declaration counts.
    for statement in {ast.unparse(statement.target): statement for statement in named}.values():
        annotation = statement.annotation
        if isinstance(annotation, ast.Subscript) and value(annotation.value, scope) == Ref("typing.Annotated"):
            assert isinstance(annotation.slice, ast.Tuple)
            flag = _field(statement, annotation.slice.elts, scope)
            if flag:
                yield flag


def _field(statement: ast.AnnAssign, parts: list[ast.expr], scope: Scope) -> Flag | None:
    """The flag of one field, as `add_cli_args_from_dataclass` derives it; None where the field has no command line."""
    assert isinstance(statement.target, ast.Name)
    given = next((meta for part in parts[1:] if (meta := _meta(value(part, scope))) is not None), None)
    if given is None or given.get("no_cli") is True:
        return None
    names = [given.get("cli_name") or "--" + statement.target.id.replace("_", "-"), *(given.get("aliases") or [])]
    default = value(statement.value, scope) if statement.value else None
    keywords: dict[str, Any] = {"default": default, "required": statement.value is None}
    if given.get("action") is not None:
        more = given.get("action_kwargs") or {}
        return flag_of(names, {**keywords, "action": given["action"], **more, "required": False})
    members = hints(parts[0], scope.module)
    inner = [hint for hint in members if hint.kind != "none"]
    return flag_of(names, {**keywords, **_derived(inner, given)})


def _derived(inner: list[Hint], given: dict[str, Any]) -> dict[str, Any]:
    parser = given.get("type_parser")
    only = inner[0] if len(inner) == 1 else Hint("other")
    out: dict[str, Any] = {"choices": given.get("choices")}
    if only.kind == "literal":
        out["choices"] = given.get("choices") or list(only.values)
        out["type"] = parser or _scalar(only.values[0])
    elif only.kind == "list" and parser is None:
        out |= {"type": _builtin(only.items[0].kind if only.items else "str"), "nargs": given.get("nargs") or "+"}
    elif only.kind == "bool":
        return {"action": "store_true"}
    else:
        out["type"] = parser or _builtin(only.kind)
        if given.get("nargs"):
            out["nargs"] = given["nargs"]
    if isinstance(parser, Ref) and parser.name.endswith(".parse_cuda_graph_config_arg"):
        out["nested"] = "CudaGraphConfig"
    return out


def _meta(found: Any) -> dict[str, Any] | None:
    """The keywords of `Arg(...)`, none for a bare help text; None for anything else, such as the namespace marker."""
    if isinstance(found, str):
        return {}
    if isinstance(found, Applied) and found.function.endswith(".arg_utils.Arg"):
        return dict(found.keywords)
    return None


def _scalar(first: Any) -> Ref:
    return _builtin({int: "int", float: "float"}.get(type(first), "str"))


def _builtin(kind: str) -> Ref:
    """Anything but int and float is read as a plain word."""
    return Ref(f"builtins.{kind if kind in {'int', 'float'} else 'str'}")


def _before_argparse(serve: Module | None) -> list[Flag]:
    """`--model-type` of `sglang serve`, taken out of argv by exact spelling before argparse reads the rest."""
    taken = serve is not None and "_extract_model_type_override" in serve.nodes
    return [Flag(name="model-type", exact=True, default="'auto'")] if taken else []


def _graph_config(graphs: Module | None) -> dict[str, dict[str, NestedField]]:
    """The keys that `--cuda-graph-config` takes per phase."""
    allowed = lookup(graphs, "ALLOWED_KEYS_PER_PHASE") if graphs else UNKNOWN
    if not isinstance(allowed, dict) or not all(isinstance(keys, list | tuple) for keys in allowed.values()):
        return {}
    phases = {phase: f"CudaGraphConfig.{phase}" for phase in allowed}
    inner = {phases[phase]: {key: NestedField() for key in keys} for phase, keys in allowed.items()}
    return {
        "CudaGraphConfig": {phase: NestedField(type="dict", nested=name) for phase, name in phases.items()},
        **inner,
    }
