"""Compiles every module of a folder, each folder in a process of its own, so that a .pyc depends on the files beside it at most.

    python3 bytecode.py FOLDER

A compiler that has seen other files writes other bytes: a string that is interned already makes a frozenset of constants a new
object, which is then written twice (CPython 3.13.5; filelock's `_process.py` after a file that has the word "android", seen
2026-12-01 with workers that take files as they come). What is forked here has seen none, and takes its files in one order.

The .pyc are checked by hash of the source. Those that a package brought are removed before: they may be checked by time, which
the image's exporter changes, or not at all. Files that are no Python of this version, as templates are, are passed over.
Run inside of images while they are built: standard library only.
"""

from __future__ import annotations

import gc
import os
import py_compile
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

HASH_SEED = "0"
CACHE = "__pycache__"


def compile_all(folder: Path, workers: int) -> None:
    """Nothing; all modules below `folder` are compiled, `workers` folders at a time.

    Raises: OSError where a folder cannot be read or a process not be started, ChildProcessError where one did not end well.
    """
    gc.freeze()  # a collector that runs in the forked ones would copy every page
    running = 0
    for parent, names, files in os.walk(folder, onerror=_raise):
        names.sort()
        modules = sorted(name for name in files if name.endswith(".py"))
        _remove_bytecode(Path(parent), names, set(modules))
        if not modules:
            continue
        if running == workers:
            _ended()
            running -= 1
        if os.fork() == 0:
            _compile([f"{parent}/{name}" for name in modules])
        running += 1
    for _ in range(running):
        _ended()


def _raise(error: OSError) -> None:
    raise error


def _remove_bytecode(parent: Path, names: list[str], modules: set[str]) -> None:
    """No .pyc is left for a module; one beside no source is the module itself, and stays."""
    old = [parent / f"{name}c" for name in modules]
    if CACHE in names:
        names.remove(CACHE)
        old += (parent / CACHE).iterdir()
    for path in old:
        if path.suffix == ".pyc" and (path.is_file() or path.is_symlink()):
            path.unlink()


def _compile(paths: list[str]) -> None:
    """Does not return."""
    code = 1
    try:
        warnings.simplefilter("ignore")
        for path in paths:
            # What they raise for is no Python of this version.
            with suppress(py_compile.PyCompileError, ValueError, RecursionError, OverflowError):
                py_compile.compile(path, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        code = 0
    except OSError as error:
        print(f"bytecode.py: {error}", file=sys.stderr)  # noqa: T201 -- this is a command
    except BaseException:  # noqa: BLE001 -- a forked process must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _ended() -> None:
    pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise ChildProcessError(f"process {pid}, which compiled a folder, ended with {code}")


def main(folder: str) -> None:
    """What the module says."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # The order of sets is random otherwise, and set before the interpreter starts.
        again = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": HASH_SEED})  # noqa: S606 -- this program
    try:
        compile_all(Path(folder), len(os.sched_getaffinity(0)))
    except OSError as error:
        sys.exit(f"bytecode.py: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
