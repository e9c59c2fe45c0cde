"""The house: imports go down only, rooms have names, and nothing is imported inside a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "slipway"

ORDER = [
    # From the bottom up; a room may import what stands in an earlier line. Table of the design, decisions 001 to 009.
    {"errors"},
    {"durable", "network"},
    {"progress"},
    {"documents"},
    {"recipe"},
    {"inventory"},
    {"engines"},
    {"rules", "fit", "images", "kernels"},
    {"placement"},
    {"plan"},
    {"cloud"},
    {"checkpoints"},
    {"reference"},
    {"stacks", "hosts"},
    {"host_setup"},
    {"sse"},
    {"endpoint"},
    {"launch", "gates", "bench"},
    {"steps"},
    {"report"},
    {"book", "models"},
    {"serving", "evidence", "mirrors", "spread", "holdings"},
    {"usage", "cli"},
    {"preview"},
    {"provision"},
    {"demo", "manual"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}

NEVER = {"pulumi", "pulumi_aws"}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The dotted names that a module imports, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path: Path) -> None:
    here = room(path)
    for name, line in imported(ast.parse(path.read_text())):
        parts = name.split(".")
        assert parts[0] not in NEVER, f"{path}:{line}: slipway never imports {parts[0]}"
        if parts[0] != "slipway" or len(parts) < 2 or parts[1] == "__version__" or parts[1] == here:
            continue
        assert parts[1] in RANK, f"{path}:{line}: {parts[1]} is in no line of the order"
        assert RANK[parts[1]] < RANK[here], f"{path}:{line}: {here} must not import {parts[1]}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_imported_inside_a_function(path: Path) -> None:
    for outer in ast.walk(ast.parse(path.read_text())):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [node.lineno for node in ast.walk(outer) if isinstance(node, ast.Import | ast.ImportFrom)]
            assert not inner, f"{path}:{inner[0]}: import inside {outer.name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_stay_liveable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, f"{path}:{node.lineno}: {node.name} is too long"


def test_every_room_stands_in_the_order() -> None:
    assert {room(path) for path in modules()} <= set(RANK)
