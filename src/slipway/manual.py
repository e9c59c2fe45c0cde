"""What the documentation takes from the code: the recipe reference, the editor schemas, and marked blocks of other pages.

Nothing of it is written by hand, so it cannot drift; a test and `invoke docs --check` compare it with what is in git.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from slipway import book, fit, plan, recipe, rules
from slipway.cloud.settings import StackConfig
from slipway.documents import Matching
from slipway.errors import CheckFailed, from_os_error
from slipway.inventory import Inventory
from slipway.recipe import Recipe, RecipeFile
from slipway.stacks import Checkout

BLOCK = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PAGES_WITH_BLOCKS = ("README.md", "docs/recipes.md", "docs/benchmarks.md")
CHAMPION = "laguna-s-2.1.vllm/4x3090-int4-champion"


def pages(checkout: Checkout) -> dict[Path, str]:
    """Every generated file of the checkout with the text it should have.

    Raises: what reading the recipes raises; CheckFailed for a marked block that nothing generates.
    """
    texts = {
        checkout.root / "docs" / "recipe-reference.md": _reference(),
        checkout.recipes / "recipe.schema.json": _schema(RecipeFile),
        checkout.stacks / "inventory" / "inventory.schema.json": _schema(Inventory),
    }
    blocks = _blocks(checkout)
    for name in PAGES_WITH_BLOCKS:
        path = checkout.root / name
        texts[path] = _with_blocks(path, blocks)
    return texts


def write(checkout: Checkout) -> tuple[Path, ...]:
    """The files that changed when everything generated was written.

    Raises: DiskFailure.
    """
    changed = tuple(path for path, text in pages(checkout).items() if _content(path) != text)
    for path in changed:
        try:
            path.write_text(pages(checkout)[path], encoding="utf-8")
        except OSError as error:
            raise from_os_error(error, path, "writing documentation") from error
    return changed


def check(checkout: Checkout) -> None:
    """Nothing when every generated file is what the code says now.

    Raises: CheckFailed with the stale files.
    """
    stale = [str(path.relative_to(checkout.root)) for path, text in pages(checkout).items() if _content(path) != text]
    if stale:
        why = "they are generated from the models, the recipes and the rules"
        raise CheckFailed(
            "docs", f"{', '.join(stale)} differ from the code", why, "run `invoke docs` and commit the result"
        )


def _content(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _with_blocks(path: Path, blocks: dict[str, str]) -> str:
    """The page at `path` with every marked block filled."""

    def filled(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in blocks:
            why = f"known: {', '.join(blocks)}"
            raise CheckFailed(path, f"has a generated block called {name}", why, "correct the name")
        return f"{found[1]}{blocks[name]}{found[3]}"

    return BLOCK.sub(filled, path.read_text(encoding="utf-8"))


def _schema(model: type[BaseModel]) -> str:
    return json.dumps(model.model_json_schema(by_alias=True), indent=1, ensure_ascii=False) + "\n"


def _blocks(checkout: Checkout) -> dict[str, str]:
    recipes = recipe.read_book(checkout.recipes)
    champion = book.compiled(checkout, CHAMPION, checkout.stacks / "inventory" / "example-4x3090.yaml", None)
    return {
        "recipes": _recipe_table(recipes),
        "champion": f"```sh\n{plan.shell_text(champion)}```\n",
        "rules": _rule_table(),
        "largest-contexts": _context_table(checkout, recipes),
    }


def _recipe_table(recipes: tuple[Recipe, ...]) -> str:
    lines = ["| recipe | engine | topology | run on, by its source |", "|---|---|---|---|"]
    for item in recipes:
        verified = item.cell.verified
        where = f"{verified.on}{f', {verified.date}' if verified.date else ''}" if verified else "not run"
        lines.append(f"| `{item.id}` | {item.engine} {item.engine_version} | {item.cell.topology} | {where} |")
    return "\n".join(lines) + "\n"


def _rule_table() -> str:
    lines = ["| rule | severity | what it says | why | source |", "|---|---|---|---|---|"]
    for rule in rules.RULES:
        cells = (f"`{rule.id}`", rule.severity, rule.message, f"{rule.why}; {rule.remedy}", rule.source)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _context_table(checkout: Checkout, recipes: tuple[Recipe, ...]) -> str:
    lines = ["| recipe | weights, GiB per GPU | KV pool, GiB per GPU | context asked for | largest that fits |"]
    lines.append("|---|---|---|---|---|")
    for item in recipes:
        for figures in book.compiled(checkout, item.id, None, None).fit:
            weights, pool = figures.weights_bytes_per_gpu / fit.GIB, figures.kv_pool_bytes_per_gpu / fit.GIB
            context = f"{figures.context_tokens:,} | {figures.largest_context_tokens:,}"
            lines.append(f"| `{item.id}` {figures.role} | {weights:.2f} | {pool:.2f} | {context} |")
    return "\n".join(lines) + "\n"


def _reference() -> str:
    """Every key of a recipe file, an inventory and a stack file, table by table, in the order in which they are met."""
    parts = [
        "# Recipe, inventory and stack reference\n",
        "Generated from the models by `invoke docs`. Unknown keys are errors everywhere. For an editor that checks while",
        "you type, point it at `recipes/recipe.schema.json` and `stacks/inventory/inventory.schema.json`.\n",
    ]
    for title, model in (("Recipe file", RecipeFile), ("Inventory", Inventory), ("Stack file", StackConfig)):
        parts.append(f"## {title}\n")
        for inner in _models(model):
            parts += [f"### {inner.__name__}\n", f"{(inner.__doc__ or '').strip()}\n", *_rows(inner), ""]
    return "\n".join(parts).rstrip() + "\n"


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """`model` and the models inside it, each once, outer first."""
    waiting, seen = [model], set()
    while waiting:
        current = waiting.pop(0)
        if current in seen:
            continue
        seen.add(current)
        yield current
        for field in current.model_fields.values():
            waiting += [inner for inner in _inside(field.annotation) if inner not in seen]


def _inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _inside(argument)


def _rows(model: type[BaseModel]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        if field.is_required():
            default = "**required**"
        else:
            default = f"`{json.dumps(_plain(field.get_default(call_default_factory=True, validated_data={})))}`"
        words = next((extra.words for extra in field.metadata if isinstance(extra, Matching)), "")
        meaning = (field.description or words).replace("|", "\\|")
        yield f"| `{field.alias or name}` | {_type(field.annotation)} | {default} | {meaning} |"


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value


def _type(annotation: Any) -> str:
    """The type in the words of a YAML author."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(dict.fromkeys(_type(argument) for argument in arguments))
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in {list, tuple}:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"mapping to {_type(arguments[1])}"
    if annotation is type(None):
        return "null"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "anything"}
    return names.get(annotation) or f"[{annotation.__name__}](#{annotation.__name__.lower()})"
