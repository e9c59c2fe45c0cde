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

from slipway.errors import from_os_error
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
            elif file.name == f"{stack}.json" and not _is_json(file) and _is_json(file.with_name(f"{file.name}.bak")):
                file.write_bytes(file.with_name(f"{file.name}.bak").read_bytes())
                progress.note(f"  {file.name} was cut off; went back to the state before it")
            else:
                continue
            mended += 1
    except OSError as error:
        raise from_os_error(error, folder, "mending the state of a run that died") from error
    return mended


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
