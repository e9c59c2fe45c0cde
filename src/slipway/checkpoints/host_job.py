"""What a node does for `fetch-models --stack` and `verify-models --stack`: fetch from where it is told, serve what it has to
the other nodes, or hold what it has against the locks.

Sent to the node inside the bundle and started over ssh with the job on stdin, so that nothing is installed there and no token
stands in a command line. The pipe to stdin is the lifeline: when it ends, whoever asked is gone and the job ends too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from slipway.checkpoints import gateway, host_command, plain_lock, publish, records
from slipway.checkpoints.pins import silent
from slipway.checkpoints.verify import verify
from slipway.errors import MissingFile, SlipwayError, from_os_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slipway.checkpoints.pins import Pins


def main(job: dict[str, Any], folder: Path) -> int:
    """The exit code of `job`; `folder` is a temporary one for its lock files.

    `job` has `locks` (texts), `dest`, `env` (variables to set, or to unset where null), and `do`: `fetch` with `argv`,
    `serve` with `address`, or `verify` with `level` and `workers`.
    """
    for name, value in job["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    paths = []
    for number, text in enumerate(job["locks"]):
        paths.append(folder / f"{number}.lock.json")
        paths[-1].write_text(text, encoding="utf-8")
    if job["do"] == "serve":
        return _serve([plain_lock.read(path) for path in paths], Path(job["dest"]), job["address"])
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    locks, root = [plain_lock.read(path) for path in paths], Path(job["dest"])
    if job["do"] == "verify":
        return _verify(locks, root, job["level"], job["workers"])
    there = [publish.published(lock, root) is not None for lock in locks]
    words = [word for path in paths for word in ("--lock", str(path))]
    code = host_command.main([*words, "--dest", job["dest"], *job["argv"]])
    for lock, skipped in zip(locks, there) if code == 0 else ():  # noqa: B905 -- strict is newer than some hosts' Python
        records.remember_fetch(lock, root / lock.repo.split("/")[1], skipped=skipped, progress=silent)
    return code


def published_files(locks: Iterable[Pins], root: Path) -> gateway.Files:
    """What a gateway serves of `locks` out of the models folder `root`.

    Raises: MissingFile when one of them is not published there whole.
    """
    files: gateway.Files = {}
    for lock in locks:
        folder = publish.published(lock, root)
        if folder is None:
            raise MissingFile(
                root, f"{lock.repo}@{lock.revision} is not here, whole and untouched", "", "fetch it again"
            )
        for file in lock.files:
            files[lock.repo, lock.revision, file.path] = (file.size_bytes, partial(_opened, folder / file.path))
    return files


def _serve(locks: list[Pins], root: Path, address: str) -> int:
    """Serve until stdin ends; the address is the first line of stdout, as JSON."""
    try:
        with gateway.serve(published_files(locks, root), address) as url:
            print(json.dumps({"url": url}), flush=True)  # noqa: T201 -- this is a command
            _wait_for_end()
    except OSError as error:
        return _failed(from_os_error(error, address, "serving the checkpoint to the other nodes"))
    except SlipwayError as error:
        return _failed(error)
    return 0


def _verify(locks: Sequence[Pins], root: Path, level: str, workers: int) -> int:
    """One line of JSON per lock that agrees; the first that does not ends it with its error."""
    for lock in locks:
        folder = root / lock.repo.split("/")[1]
        try:
            done = verify(lock, folder, level=level, workers=workers)
        except SlipwayError as error:
            return _failed(error)
        entry = {"repo": lock.repo, "revision": lock.revision, "folder": str(folder), **vars(done)}
        print(json.dumps(entry), flush=True)  # noqa: T201 -- this is a command
    return 0


def _failed(error: SlipwayError) -> int:
    print(json.dumps(error.as_json()), flush=True)  # noqa: T201 -- this is a command
    return error.exit_code


@contextlib.contextmanager
def _opened(path: Path, start: int) -> Iterator[IO[bytes]]:
    with path.open("rb", buffering=0) as stream:
        stream.seek(start)
        yield stream


def _end_with_stdin() -> None:
    _wait_for_end()
    # To the main thread: it would sleep on if another one took the signal.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _wait_for_end() -> None:
    # Not through sys.stdin: an interpreter that ends while a thread holds its lock aborts.
    while os.read(0, 1 << 10):
        pass
