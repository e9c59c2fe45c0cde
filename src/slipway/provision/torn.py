"""Files of a `file://` backend that a killed run left half-written.

Pulumi's file store replaces a state by renaming, which is whole or not at all; but it writes the attributes beside it in place, and
one that is cut off makes the state unreadable ("failed to load checkpoint: EOF"). Seen by killing runs; the attributes hold nothing
that is needed, a missing file is read as none.
Source: gocloud.dev/blob/fileblob (attrs.go) as Pulumi 3.274 has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipway.durable import write_durably
from slipway.errors import DiskFailure, from_os_error
from slipway.progress import Progress


def mend(folder: Path, stack: str, progress: Progress) -> int:
    """How many files of `stack` were mended; call it only while no run is alive.

    A torn attributes file is removed. A torn state, which only a power cut can leave, is replaced by the copy that Pulumi keeps of
    the state before it.

    Raises: DiskFailure.
    """
    mended = 0
    try:
        for file in _files(folder, stack):
            if file.suffix == ".attrs" and not _is_json(file):
                file.unlink()
            elif file.name == f"{stack}.json" and not _is_json(file) and _deployment(_backup(file)) is not None:
                write_durably(file, _backup(file).read_bytes(), mode=0o600)
                progress.note(f"  {file.name} was cut off; went back to the state before it")
            else:
                continue
            mended += 1
    except OSError as error:
        raise from_os_error(error, folder, "mending the state of a run that died") from error
    return mended


def refuse_damaged(folder: Path, stack: str) -> None:
    """Nothing where each state of `stack` is whole, or there never was one; Pulumi reads most damaged ones as empty.

    An empty state is what a new stack has, and what `pulumi stack rm` leaves: it is damage only beside a copy that knows more.

    Raises: DiskFailure that names the file and the newest copy that holds resources.
    """
    try:
        for file in _states(folder, stack):
            copy = _newest_copy(folder, file)
            problem = _damage(file, copy)
            if problem:
                raise _damaged(file, problem, copy)
    except OSError as error:
        raise from_os_error(error, folder, "reading the state") from error


def _damage(file: Path, copy: Path | None) -> str:
    """What is wrong with the state in `file`; empty where nothing is. `copy` is one that holds resources."""
    if _packed(file).exists() and not file.exists():
        return ""  # PULUMI_DIY_BACKEND_GZIP: cut off, it is refused by Pulumi itself
    if file.exists():
        if not _is_checkpoint(file):
            return "is no checkpoint (damaged)"
        if _deployment(file) is not None:
            return ""
    if copy is None:
        return ""
    return "has lost its resources" if file.exists() else "is missing"


def _damaged(file: Path, problem: str, copy: Path | None) -> DiskFailure:
    why = "Pulumi would take it for a new stack and make every host a second time"
    if copy is None:
        remedy = "bring back a copy of it; `invoke orphans` lists what runs after you have removed the file"
    else:
        remedy = f"the newest copy with resources is {copy}: copy it to {file}, then run the same command again"
    return DiskFailure(file, problem, why, remedy)


def _newest_copy(folder: Path, file: Path) -> Path | None:
    """The copy of the state in `file` that holds resources: Pulumi keeps the state before the last one, and one of each run."""
    if _resources(_backup(file)):
        return _backup(file)
    kept = folder / ".pulumi" / "history" / file.parent.relative_to(folder / ".pulumi" / "stacks") / file.stem
    # Only the newest: what an older run had may be gone on purpose.
    newest = max(kept.glob("*.checkpoint.json"), key=lambda one: one.name, default=None)
    return newest if newest is not None and _resources(newest) else None


def _states(folder: Path, stack: str) -> list[Path]:
    """The state files of `stack`, those included that are gone and have left a copy."""
    stacks, history = folder / ".pulumi" / "stacks", folder / ".pulumi" / "history"
    there = {file.with_name(f"{stack}.json") for file in stacks.glob(f"**/{stack}.json*")}
    had = {stacks / kept.parent.relative_to(history) / f"{stack}.json" for kept in history.glob(f"**/{stack}/")}
    return sorted(there | had)


def _backup(file: Path) -> Path:
    return file.with_name(f"{file.name}.bak")


def _packed(file: Path) -> Path:
    return file.with_name(f"{file.name}.gz")


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (ValueError, FileNotFoundError):
        return None


def _is_checkpoint(file: Path) -> bool:
    said = _read(file)
    return isinstance(said, dict) and isinstance(said.get("checkpoint"), dict) and "stack" in said["checkpoint"]


def _deployment(file: Path) -> dict[str, Any] | None:
    said = _read(file)["checkpoint"].get("latest") if _is_checkpoint(file) else None
    return said if isinstance(said, dict) else None


def _resources(file: Path) -> list[Any]:
    return [*((_deployment(file) or {}).get("resources") or [])]


def _files(folder: Path, stack: str) -> Iterator[Path]:
    for place in ("stacks", "locks", "history", "backups"):
        yield from sorted((folder / ".pulumi" / place).glob(f"**/{stack}*"))
        yield from sorted((folder / ".pulumi" / place).glob(f"**/{stack}/**/*.attrs"))
    yield from sorted((folder / ".pulumi").glob("*.attrs"))


def _is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except (ValueError, FileNotFoundError):
        return False
    return True
