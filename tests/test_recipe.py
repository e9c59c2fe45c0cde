"""Recipes: every shipped file loads, ids find their cell, and a wrong one is refused with its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slipway import recipe
from slipway.errors import DocumentError, MissingFile, UsageError

BOOK = Path(__file__).resolve().parent.parent / "recipes"
TINY = BOOK / "laguna-tiny.reference.yaml"


def test_every_shipped_recipe_loads_and_is_found_by_its_id() -> None:
    recipes = recipe.read_book(BOOK)
    assert {
        "laguna-m.1.sglang/h200-bf16",
        "laguna-s-2.1.vllm/4x3090-int4-champion",
        "laguna-tiny.reference/laptop",
    } <= {item.id for item in recipes}
    for item in recipes:
        assert recipe.find(BOOK, item.id) == item


def test_a_near_miss_is_named() -> None:
    with pytest.raises(UsageError, match=r"did you mean laguna-m\.1\.sglang/h200-bf16"):
        recipe.find(BOOK, "laguna-m1.sglang/h200-bf16")


@pytest.mark.parametrize("wrong", ["", "/", "../recipes/laguna-tiny.reference/laptop", "laguna-tiny.reference", "x/y"])
def test_an_id_that_names_nothing_is_a_usage_error(wrong: str) -> None:
    with pytest.raises(UsageError, match="no such recipe"):
        recipe.find(BOOK, wrong)


def test_the_drafter_comes_after_its_target() -> None:
    champion = recipe.find(BOOK, "laguna-s-2.1.vllm/4x3090-int4-champion")
    assert [checkpoint.name for checkpoint in champion.checkpoints] == ["Laguna-S-2.1-INT4", "Laguna-S-2.1-DFlash-INT4"]


def test_a_file_whose_name_disagrees_with_its_content_is_refused(tmp_path: Path) -> None:
    shutil.copy(TINY, tmp_path / "laguna-tiny.vllm.yaml")
    with pytest.raises(DocumentError, match=r"its name must be laguna-tiny\.reference\.yaml"):
        recipe.read_book(tmp_path)


def test_two_cells_with_one_id_are_refused(tmp_path: Path) -> None:
    text = TINY.read_text()
    cell = text.partition("cells:\n")[2]
    (tmp_path / TINY.name).write_text(text + cell)
    with pytest.raises(DocumentError, match="two cells have the id laptop"):
        recipe.read_book(tmp_path)


def test_two_roles_of_a_kind_are_refused(tmp_path: Path) -> None:
    text = TINY.read_text()
    role = text.rpartition("roles:\n")[2]
    (tmp_path / TINY.name).write_text(text + role)
    with pytest.raises(DocumentError, match="each role stands once in a cell"):
        recipe.read_book(tmp_path)


def test_the_problems_of_all_files_are_reported_together(tmp_path: Path) -> None:
    for name in ("a.b.yaml", "c.d.yaml"):
        (tmp_path / name).write_text("schema: slipway/recipe/v1\nmodle: x\n")
    with pytest.raises(DocumentError) as caught:
        recipe.read_book(tmp_path)
    files = {Path(problem.file).name for problem in caught.value.problems}
    assert files == {"a.b.yaml", "c.d.yaml"}
    assert "did you mean model?" in str(caught.value)


def test_an_empty_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no recipe file"):
        recipe.read_book(tmp_path)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        recipe.read_file(tmp_path / "x.y.yaml")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("revision: ", "revision: main # ", "must be a commit of 40 hex digits"),
        ("port: 8421", "port: 70000", "less than or equal to 65535"),
        ("port: 8421", "port: 8421\n        bind: my host", "must be "),
        ("image: null", "image: vllm openai", "must be "),
        ("dress: vllm", "--dress: vllm", "must be "),
        ("repo: slipway/Laguna-Tiny", "repo: ../Laguna-Tiny", "must be "),
        ("thinking: false", "", "is missing and has no default"),
        ('engine_version: "0.1.0"', "engine_version: 0.1", "valid string"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = TINY.read_text()
    assert old in text
    (tmp_path / TINY.name).write_text(text.replace(old, new, 1))
    with pytest.raises(DocumentError, match=said):
        recipe.read_book(tmp_path)


def test_defaults_are_written_into_every_cell_and_a_cells_own_key_wins() -> None:
    book = recipe.read_file(BOOK / "laguna-m.1.sglang.yaml")
    names = {cell.id: cell.served_name for cell in book.cells}
    assert names["h200-bf16"] == "poolside/Laguna-M.1"
    assert names["h200-fp8"] == "poolside/Laguna-M.1-FP8"


def test_a_mistake_in_the_defaults_is_reported_once_where_it_stands(tmp_path: Path) -> None:
    name = "laguna-m.1.sglang.yaml"
    text = (BOOK / name).read_text().replace("  thinking: null", "  thinking: maybe", 1)
    (tmp_path / name).write_text(text)
    line = next(number for number, said in enumerate(text.splitlines(), 1) if "thinking: maybe" in said)
    with pytest.raises(DocumentError) as caught:
        recipe.read_book(tmp_path)
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [(line, "defaults.thinking")]


def test_prefill_decode_and_transfer_stand_together(tmp_path: Path) -> None:
    name = "laguna-m.1.sglang.yaml"
    text = (BOOK / name).read_text().replace("      - name: decode", "      - name: server", 1)
    (tmp_path / name).write_text(text)
    with pytest.raises(DocumentError, match="stand together or not at all"):
        recipe.read_book(tmp_path)
