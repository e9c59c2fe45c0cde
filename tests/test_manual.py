"""Generated documentation says what the code says now, and every command in the pages exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slipway import manual
from slipway.errors import CheckFailed
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_generated_documentation_agrees_with_the_code() -> None:
    manual.check(Checkout(ROOT))


def copied(tmp_path: Path) -> Checkout:
    for name in ("docs", "recipes", "stacks", "checkpoints", "images"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    return Checkout(tmp_path)


def test_a_stale_page_is_named_and_written_again(tmp_path: Path) -> None:
    checkout = copied(tmp_path)
    recipe = checkout.recipes / "laguna-tiny.reference.yaml"
    recipe.write_text(recipe.read_text().replace("id: laptop", "id: desktop"))
    with pytest.raises(CheckFailed, match=r"README\.md"):
        manual.check(checkout)
    assert checkout.root / "README.md" in manual.write(checkout)
    assert "laguna-tiny.reference/desktop" in (checkout.root / "README.md").read_text()
    assert manual.write(checkout) == ()


def test_a_block_that_nothing_generates_is_refused(tmp_path: Path) -> None:
    checkout = copied(tmp_path)
    page = checkout.root / "README.md"
    page.write_text(page.read_text().replace("generated: recipes", "generated: recipies"))
    with pytest.raises(CheckFailed, match="a generated block called recipies"):
        manual.check(checkout)


def tasks() -> dict[str, set[str]]:
    """Each task with its flags, as Invoke knows them."""
    script = (
        "import json, tasks; from invoke import Collection\n"
        "c = Collection.from_module(tasks)\n"
        "print(json.dumps({n: [f for a in c[n].get_arguments() for f in a.names] for n in c.task_names}))"
    )
    ran = subprocess.run((sys.executable, "-c", script), cwd=ROOT, capture_output=True, text=True, check=True)
    return {name: set(flags) for name, flags in json.loads(ran.stdout).items()}


def test_every_command_in_the_pages_exists_with_its_flags() -> None:
    known = tasks()
    seen = 0
    for page in PAGES:
        for command in re.findall(r"(?:\./)?invoke ([a-z][^`\n|]*)", page.read_text()):
            words = [word for word in shlex.split(command.partition("#")[0].replace("…", ""), posix=True) if word]
            if words[0] not in known:
                assert page.name in {"CHANGELOG.md"} or words[0] in FUTURE, f"{page}: invoke {command}"
                continue
            seen += 1
            for word in words[1:]:
                if word.startswith("--"):
                    assert word[2:] in known[words[0]], f"{page}: invoke {command}: {word}"
    assert seen > 20


FUTURE = {"build-image"}
"""Commands that pages name as coming; each must vanish from here when it exists."""


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_yaml_in_the_pages_is_yaml() -> None:
    for page in PAGES:
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
            assert yaml.safe_load(block)


def test_the_editor_schema_accepts_every_shipped_recipe() -> None:
    schema = json.loads((ROOT / "recipes" / "recipe.schema.json").read_text())
    allowed = schema["properties"].keys()
    for path in (ROOT / "recipes").glob("*.yaml"):
        assert yaml.safe_load(path.read_text()).keys() <= allowed
    assert schema["additionalProperties"] is False
