"""What a check of a folder finds wrong, gathered over all files and raised as one error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.errors import DiskFailure, IntegrityMismatch, MissingFile

if TYPE_CHECKING:
    from collections.abc import Iterable

_WHY = {
    "missing": "every file of the lock and every shard of the index must be there",
    "mismatch": "the bytes are not those that were published",
    "disk": "the file could not be read",
}
_REMEDY = {
    "missing": "invoke fetch-models; only what is missing is downloaded",
    "mismatch": "invoke fetch-models; only the damaged files are downloaded",
    "disk": "check owner, permissions and the disk",
}


@dataclass(frozen=True, order=True)
class Finding:
    """One thing wrong with the file `path` (relative to the folder); `kind` is missing, mismatch or disk."""

    path: str
    text: str
    kind: str = "mismatch"


def refuse(folder: Path, findings: Iterable[Finding], why: str = "", remedy: str = "") -> None:
    """Nothing when there are no findings; all of them are named, one per line.

    Raises: DiskFailure if a file could not be read, else IntegrityMismatch, else MissingFile when nothing but absence was found.
    """
    found = sorted(set(findings))
    if not found:
        return
    kinds = {finding.kind for finding in found}
    kind = next(kind for kind in ("disk", "mismatch", "missing") if kind in kinds)
    error = {"disk": DiskFailure, "mismatch": IntegrityMismatch, "missing": MissingFile}[kind]
    if len(found) == 1:
        raise error(folder / found[0].path, found[0].text, why or _WHY[kind], remedy or _REMEDY[kind])
    lines = "".join(f"\n  {finding.path}: {finding.text}" for finding in found)
    raise error(folder, f"{len(found)} files are wrong{lines}\n", why or _WHY[kind], remedy or _REMEDY[kind])
