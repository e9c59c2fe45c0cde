"""Which stack is meant, and what it names: a recipe, an inventory, and the folders where state is kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slipway import documents, inventory
from slipway.cloud.settings import StackConfig
from slipway.documents import Document
from slipway.documents.writer import write_text
from slipway.errors import DiskFailure, DocumentError, MissingFile, Problem, UsageError, from_os_error
from slipway.inventory import Inventory
from slipway.progress import Progress

OWNER_DIGITS = 12

NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")
"""What a stack may be called: what an inventory takes (Word), and Pulumi too."""


class StackFile(Document):
    """A Pulumi stack file; Slipway reads its own keys (`slipway:…`) and leaves Pulumi's to Pulumi."""

    config: dict[str, Any]
    encryptionsalt: str | None = None
    encryptedkey: str | None = None
    secretsprovider: str | None = None
    environment: Any = None


@dataclass(frozen=True)
class Unplaced(Problem):
    """A problem of values whose file is not at hand; `line` and `column` say nothing."""

    def __str__(self) -> str:
        return f"{self.file}: {self.path}{': ' if self.path else ''}{self.text}"


@dataclass(frozen=True)
class Checkout:
    """The folders of a checkout; everything that Slipway writes on its own lies below `.slipway/`."""

    root: Path

    @property
    def recipes(self) -> Path:
        return self.root / "recipes"

    @property
    def locks(self) -> Path:
        return self.root / "checkpoints"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def stacks(self) -> Path:
        return self.root / "stacks"

    @property
    def state(self) -> Path:
        return self.root / ".slipway"

    @property
    def models(self) -> Path:
        """Where `fetch-models` puts checkpoints unless told otherwise."""
        return self.state / "models"

    @property
    def reports(self) -> Path:
        """Where runs leave their reports, one folder each."""
        return self.state / "reports"

    def run_folder(self, stack: str) -> Path:
        """Where the processes of `stack` keep their records and logs."""
        return self.state / "run" / stack


@dataclass(frozen=True)
class Stack:
    """One stack: what runs, and where."""

    name: str
    recipe_id: str
    inventory: Inventory


def names(checkout: Checkout) -> tuple[str, ...]:
    """The stacks of the checkout, sorted.

    Raises: UsageError when the folder is no checkout.
    """
    if not checkout.stacks.is_dir():
        why = "recipes, stacks and locks are read from the checkout"
        raise UsageError(checkout.root, "is no Slipway checkout", why, "change into the checkout, or call its ./invoke")
    prefix, suffix = "Pulumi.", ".yaml"
    files = checkout.stacks.glob(f"{prefix}*{suffix}")
    return tuple(sorted(path.name.removeprefix(prefix).removesuffix(suffix) for path in files))


def choose(checkout: Checkout, stack: str | None) -> str:
    """The stack that is meant: the one given, else SLIPWAY_STACK, the selected one, or the only one with a saved inventory.

    Raises: UsageError with the list of stacks and the commands that choose one.
    """
    known = names(checkout)
    for source, name in (
        ("--stack", stack),
        ("SLIPWAY_STACK", os.environ.get("SLIPWAY_STACK")),
        ("the selected stack", _selected(checkout)),
    ):
        if name:
            if name not in known:
                why = f"known: {', '.join(known) or 'none'}"
                raise UsageError(
                    source, f"no such stack (got {name})", why, "add stacks/Pulumi.<stack>.yaml or choose one"
                )
            if not NAME.fullmatch(name):
                why = "its name goes into process and container names; lower-case letters, digits, dots and dashes are allowed"
                raise UsageError(source, f"no usable name (got {name})", why, "rename the stack's file")
            return name
    saved = [name for name in known if _inventory_file(checkout, name)]
    if len(saved) == 1:
        return saved[0]
    commands = "\n".join(f"  invoke select --stack {name}" for name in known)
    why = f"{len(saved)} stacks have a saved inventory, so none is meant by default"
    raise UsageError("--stack", "no stack chosen", why, f"give --stack, set SLIPWAY_STACK, or choose one:\n{commands}")


def select(checkout: Checkout, stack: str | None) -> str:
    """The name of `stack`, which is the chosen one from now on; without one, the stack that commands mean now.

    Raises: UsageError, DiskFailure.
    """
    name = choose(checkout, stack)
    if stack is None:
        return name
    try:
        checkout.state.mkdir(exist_ok=True)
        (checkout.state / "stack.tmp").write_text(f"{name}\n", encoding="utf-8")
        (checkout.state / "stack.tmp").replace(checkout.state / "stack")
    except OSError as error:
        raise from_os_error(error, checkout.state / "stack", "writing the choice") from error
    return name


def read(checkout: Checkout, name: str) -> Stack:
    """The stack called `name` with its inventory.

    Raises: DocumentError, UsageError when it has no inventory yet.
    """
    said = config(checkout, name)
    return Stack(name, said.recipe, hosts(checkout, name, said))


def hosts(checkout: Checkout, name: str, said: StackConfig) -> Inventory:
    """The inventory of the stack called `name`, whose settings are `said`: a hand-kept file first, then what the settings list,
    then the one saved from Pulumi's outputs.

    Raises: DocumentError, UsageError when there is none yet.
    """
    kept = _inventory_file(checkout, name)
    if said.nodes and (kept is None or kept.is_relative_to(checkout.state)):
        # What the settings list is newer than a copy that was once saved of it.
        return Inventory(schema_="slipway/inventory/v1", name=name, nodes=said.nodes)
    if kept:
        found = documents.read(kept, Inventory)
        if found.name != name:
            text = f"is the inventory of {found.name}, but the stack is called {name}; correct the name"
            raise DocumentError([Problem(str(kept), 1, 1, "name", text)])
        return found
    if said.hosts == "local":
        return inventory.this_machine(name, str(checkout.models.relative_to(checkout.root)))
    why = "its hosts are not known yet"
    remedy = (
        f"run `invoke inventory --stack {name}` after `pulumi up`, or write {checkout.stacks / 'inventory' / name}.yaml"
    )
    raise UsageError(f"stack {name}", "has no inventory", why, remedy)


def config(checkout: Checkout, name: str) -> StackConfig:
    """What the file of the stack called `name` says under Slipway's own keys.

    Raises: MissingFile, DocumentError.
    """
    path = checkout.stacks / f"Pulumi.{name}.yaml"
    values = documents.read(path, StackFile).config
    try:
        return parse_config(values, str(path))
    except DocumentError as error:
        raise DocumentError(_placed(error.problems, path)) from None


def owner(checkout: Checkout, name: str) -> str | None:
    """What tells the state of the stack called `name` from another state of that name: a digest of what its secrets are locked
    with, which is new for each `pulumi stack init` and moves with the state. None where the backend keeps it (Pulumi Cloud).

    Raises: MissingFile, DocumentError.
    """
    said = documents.read(checkout.stacks / f"Pulumi.{name}.yaml", StackFile)
    locked_with = said.encryptionsalt or said.encryptedkey
    return hashlib.sha256(locked_with.encode()).hexdigest()[:OWNER_DIGITS] if locked_with else None


def parse_config(values: Mapping[str, Any], place: str) -> StackConfig:
    """Slipway's own keys among the stack's `values`; `place` stands for the file in messages.

    Raises: DocumentError.
    """
    own = {key.removeprefix("slipway:"): value for key, value in values.items() if key.startswith("slipway:")}
    if "aws:region" in values:
        own["aws:region"] = values["aws:region"]
    # Read through the same reader as a file, so that a wrong key is reported with the same words; its lines are nobody's.
    try:
        return documents.parse(json.dumps(own), StackConfig, place)
    except DocumentError as error:
        raise DocumentError([Unplaced(**problem.__dict__) for problem in error.problems]) from None


def recipe_of(checkout: Checkout, name: str) -> str:
    """The recipe id of the stack called `name`, whether its hosts are known or not.

    Raises: DocumentError.
    """
    return config(checkout, name).recipe


def save_inventory(checkout: Checkout, stack: Stack) -> Path:
    """The file that holds the stack's inventory: a hand-kept one as it is, else the one saved now.

    Raises: DiskFailure.
    """
    by_hand = checkout.stacks / "inventory" / f"{stack.name}.yaml"
    if by_hand.is_file():
        return by_hand  # a copy would be used silently when the file is renamed later
    path = checkout.state / "inventory" / f"{stack.name}.yaml"
    text = write_text(stack.inventory.as_json())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise from_os_error(error, path, "saving the inventory") from error
    return path


def saved_inventory(checkout: Checkout, name: str, progress: Progress) -> Inventory | None:
    """The inventory that was saved for the stack called `name`; None where there is none, or one that cannot be read any more.

    Such a one is put aside, since somebody may have written device names into it.

    Raises: DiskFailure.
    """
    path = checkout.state / "inventory" / f"{name}.yaml"
    try:
        return documents.read(path, Inventory)
    except MissingFile:
        return None
    except DocumentError as error:
        aside = path.with_suffix(".yaml.bak")
        try:
            path.replace(aside)
        except OSError as failed:
            raise from_os_error(failed, path, "putting the old inventory aside") from failed
        progress.note(f"  {error}\n  put aside as {aside.name}; written anew")
        return None


def _placed(problems: Iterable[Problem], path: Path) -> list[Problem]:
    """The `problems` of Slipway's own keys, each at the place where its key (or what is nearest around it) stands in the file."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise from_os_error(error, path, "reading the stack's file") from error
    placed = []
    for problem in problems:
        key = problem.path if problem.path.startswith("aws:") or not problem.path else f"slipway:{problem.path}"
        mark = _mark(root, ["config", *filter(None, re.split(r"[.\[\]]", key))])
        placed.append(Problem(str(path), mark.line + 1, mark.column + 1, key, problem.text))
    return sorted(placed, key=lambda problem: (problem.line, problem.column))


def _mark(node: Any, parts: list[str]) -> Any:
    """Where the last of `parts` that is there stands below `node`: a key, or an item of a list."""
    mark = node.start_mark
    for part in parts:
        if isinstance(node, yaml.MappingNode):
            found = next(((key.start_mark, value) for key, value in node.value if key.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
            found = (node.value[int(part)].start_mark, node.value[int(part)])
        else:
            found = None
        if found is None:
            return mark
        mark, node = found
    return mark


def _selected(checkout: Checkout) -> str | None:
    try:
        return (checkout.state / "stack").read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DiskFailure(
            checkout.state / "stack", f"cannot be read ({error})", "", "run `invoke select` again"
        ) from error


def _inventory_file(checkout: Checkout, name: str) -> Path | None:
    """The hand-kept inventory where there is one, else the saved one."""
    for path in (checkout.stacks / "inventory" / f"{name}.yaml", checkout.state / "inventory" / f"{name}.yaml"):
        if path.is_file():
            return path
    return None
