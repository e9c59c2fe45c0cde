"""What `invoke models` shows and `invoke prune-models` removes: the models folder, tied to locks, recipes and stacks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from slipway import models, recipe, stacks
from slipway.checkpoints import gc
from slipway.checkpoints.shelf import shelf
from slipway.checkpoints.verify import LEVELS
from slipway.errors import MissingFile
from slipway.progress import Progress, human_bytes
from slipway.recipe import Recipe
from slipway.stacks import Checkout

Json = dict[str, Any]


def listing(checkout: Checkout, root: Path | None) -> list[Json]:
    """One entry per checkpoint in the models folder (default: the checkout's), with what uses it.

    `proved` says when it last passed each level, `used_by` which stacks and recipes name this revision, `locked` whether a lock
    of the checkout does.

    Raises: MissingFile when `root` is no folder, DiskFailure, DocumentError.
    """
    items = shelf(_models_folder(checkout, root))
    named = _named(checkout, [item.repo for item in items if item.repo])
    locked = {(lock.repo, lock.revision) for lock in models.locks_of(checkout)}
    meant = {name: stacks.recipe_of(checkout, name) for name in stacks.names(checkout)}
    entries = []
    for item in items:
        recipes = [
            found.id
            for found in named
            if (item.repo, item.revision)
            in {(checkpoint.repo, checkpoint.revision) for checkpoint in found.checkpoints}
        ]
        entries.append(
            {
                "names": list(item.names),
                "repo": item.repo,
                "revision": item.revision,
                "folder": str(item.folder),
                "files": item.files,
                "apparent_bytes": item.apparent_bytes,
                "shared_bytes": item.shared_bytes,
                "fetched_at": datetime.fromtimestamp(item.fetched_s, UTC).isoformat(timespec="seconds"),
                "proved": item.proved,
                "locked": (item.repo, item.revision) in locked,
                "used_by": {"stacks": [name for name, used in meant.items() if used in recipes], "recipes": recipes},
            }
        )
    return entries


def show(entries: Sequence[Json], console: Console) -> None:
    """Draw `entries` as a table."""
    if not entries:
        console.print("no checkpoints here; fetch some: invoke fetch-models")
        return
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("checkpoint", "revision", "linked", "size", "shared", "last proved", "used by"):
        folded = column in {"last proved", "used by"}
        table.add_column(column, overflow="fold", no_wrap=not folded, min_width=18 if folded else None)
    for entry in entries:
        used = entry["used_by"]
        count = len(used["recipes"])
        users = [*used["stacks"], *([f"{count} recipe{'s' if count > 1 else ''}"] if count else [])]
        table.add_row(
            entry["repo"] or f"{entry['names'][0]} (not Slipway's)",
            (entry["revision"] or "")[:8],
            "yes" if entry["names"] else "no",
            human_bytes(entry["apparent_bytes"]),
            human_bytes(entry["shared_bytes"]) if entry["shared_bytes"] else "-",
            _last_proved(entry["proved"]),
            "\n".join(users) or "-",
        )
    console.print(table)


def prune(
    checkout: Checkout, root: Path | None, *, keep: int, older_h: float, yes: bool, progress: Progress
) -> tuple[Json, str]:
    """What was removed from the models folder, or would be without `yes`, as JSON and as text.

    Raises: MissingFile when `root` is no folder, DiskFailure, UsageError.
    """
    place = _models_folder(checkout, root)
    found = gc.plan(place, keep_revisions=keep, older_s=older_h * 3600)
    done = gc.remove(place, found, progress=progress) if yes else found
    entries = [{"path": str(item.path), "bytes": item.bytes, "why": item.why} for item in done]
    size = sum(item.bytes for item in done)
    lines = [f"{item.path}: {human_bytes(item.bytes)}, {item.why}\n" for item in done]
    if yes:
        lines.append(f"removed {len(done)} things, {human_bytes(size)}\n")
    else:
        lines.append(
            f"would remove {len(done)} things, {human_bytes(size)}" + ("; add --yes to do it\n" if done else "\n")
        )
    return {"removed": yes, "bytes": size, "items": entries}, "".join(lines)


def _models_folder(checkout: Checkout, root: Path | None) -> Path:
    """The folder that is meant; the checkout's own need not be there yet, one that was named must."""
    if root is not None and not root.is_dir():
        problem = "is no folder" if root.exists() else "no such folder"
        raise MissingFile(f"--dest {root}", problem, "the models folder is looked at here", "check the path")
    return root or checkout.models


def _last_proved(proved: dict[str, str]) -> str:
    """When it was last proved at its strongest level, and since then by a weaker one."""
    known = sorted((when, LEVELS.index(level), level) for level, when in proved.items() if level in LEVELS)
    if not known:
        return "never"
    strongest = max(known, key=lambda entry: entry[1])
    latest = known[-1]
    shown = [strongest, *([latest] if latest[0] > strongest[0] else [])]
    return "\n".join(f"{when[:16].replace('T', ' ')} {level}" for when, _, level in shown)


def _named(checkout: Checkout, repos: Sequence[str]) -> list[Recipe]:
    """The recipes that name any of `repos`; files that do not are not parsed, since that takes seconds."""
    found: list[Recipe] = []
    for path in sorted(checkout.recipes.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        if any(repo in text for repo in repos):
            found += recipe.cells(recipe.read_file(path))
    return found
