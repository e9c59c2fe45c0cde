"""The embedded default: the tiny checkpoint made on this machine, and a local hub that serves it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slipway.errors import from_os_error
from slipway.reference import checkpoint
from slipway.reference.hub import Hub, serve

REPO = "slipway/Laguna-Tiny"
"""The repository that the embedded hub serves; no other hub has it."""


def make(root: Path) -> Path:
    """The folder of the embedded checkpoint below the hub's `root`, made there unless it exists; whole or not at all.

    Raises: DiskFailure.
    """
    folder = root / REPO
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix="making-", dir=root))
        try:
            checkpoint.generate(staging / "files")
            with contextlib.suppress(FileExistsError):  # somebody else was faster, with the same bytes
                (staging / "files").rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise from_os_error(error, folder, "making the embedded checkpoint") from error
    return folder


@contextlib.contextmanager
def hub(root: Path) -> Iterator[Hub]:
    """A local hub that serves the embedded checkpoint from `root` while the `with` block runs.

    Raises: DiskFailure.
    """
    make(root)
    with serve(root) as running:
        yield running
