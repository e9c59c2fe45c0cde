"""A builder's process: started as an argument list, read line by line, and ended with its children whatever happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from slipway.errors import CheckFailed, MissingFile, from_os_error
from slipway.images import turns

_WORK = "work-"

GRACE_S = 10
"""How long a builder may take to cancel its build after it was asked to."""


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes | Path | None,
    take: Callable[[str], None],
) -> int:
    """The exit code of `argv`, once it ended; `take` gets each line of its stdout and stderr, in order.

    On Ctrl-C, SIGTERM or any error in `take` the process group is asked to end, then killed, and waited for.

    Raises: MissingFile when there is no such program; CheckFailed when a signal from elsewhere ended it.
    """
    with _input(stdin) as source:
        try:
            process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # A group of its own: a terminal's Ctrl-C reaches it through us, once, and all of it can be ended.
                start_new_session=True,
            )
        except OSError as error:
            raise from_os_error(error, argv[0], "starting the builder") from error
        with process:
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    take(line)
                code = process.wait()
            except BaseException:
                _end(process)
                raise
    if code < 0:
        name = signal.Signals(-code).name
        raise CheckFailed(argv[0], f"was ended by {name}", "usually for want of memory, or by hand", "run it again")
    return code


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it is moved there when the block ends well, and removed otherwise.

    Raises: SlipwayError when the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(path)
    except OSError as error:
        raise from_os_error(error, path, "writing the image") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def working(parent: Path) -> Iterator[Path]:
    """A folder below `parent` for this run alone, gone when the block ends; those of runs that were killed go first.

    Whose run is alive is told by a lock on the folder, which ends with its process and knows no reused process ids.

    Raises: SlipwayError when the folder cannot be written.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with turns.locked(parent):
            _sweep(parent)
            folder = Path(tempfile.mkdtemp(prefix=_WORK, dir=parent))
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise from_os_error(error, parent, "making a folder to work in") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def require_files(secrets: Mapping[str, Path]) -> None:
    """Nothing when each secret's file is there; a builder would only say that some mount failed.

    Raises: MissingFile.
    """
    for name, path in sorted(secrets.items()):
        if not path.is_file():
            raise MissingFile(
                path, f"no such file for the build secret `{name}`", "", "correct the path, or leave it out"
            )


def _sweep(parent: Path) -> None:
    """What killed runs have left in `parent` is gone; what cannot be removed is the next run's business."""
    for folder in parent.glob(f"{_WORK}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # gone meanwhile, or no folder of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass  # its run is alive
        finally:
            os.close(descriptor)


@contextmanager
def _input(stdin: bytes | Path | None) -> Iterator[IO[bytes] | int]:
    if stdin is None:
        yield subprocess.DEVNULL
    elif isinstance(stdin, Path):
        try:
            with stdin.open("rb") as source:
                yield source
        except OSError as error:
            raise from_os_error(error, stdin, "reading the context") from error
    else:
        # A file and not a pipe: nobody has to write while the output is read.
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            yield source


def _end(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            break
    # Children that outlive their parent (buildah's, in RUN) are in the same group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
