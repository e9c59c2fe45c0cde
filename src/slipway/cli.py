"""What every task shares: one JSON document or one text on stdout, everything else on stderr, and the exit codes of `errors`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console

from slipway import progress
from slipway.errors import SlipwayError, UsageError, from_os_error
from slipway.progress import Progress

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it; 128 + 15 after SIGTERM."""


class Output:
    """Where a task leaves its result."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.progress: Progress = progress.for_stream(sys.stderr)

    def result(self, value: Any, text: str) -> None:
        """Print `value` as JSON where `--json` was given, else `text`."""
        shown = json.dumps(value, indent=2, ensure_ascii=False) + "\n" if self.as_json else text
        sys.stdout.write(shown)
        sys.stdout.flush()

    def shown(self, value: Any, show: Callable[[Console], None]) -> None:
        """Print `value` as JSON where `--json` was given, else let `show` draw it: in colour on a terminal, plain elsewhere."""
        if self.as_json:
            self.result(value, "")
            return
        width = None if sys.stdout.isatty() else 110
        show(Console(file=sys.stdout, width=width, highlight=False))


@contextlib.contextmanager
def command(as_json: bool) -> Iterator[Output]:
    """Run one task's body; every expected failure becomes a message on stderr and the exit code that the contract names."""
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    try:
        yield Output(as_json)
    except SlipwayError as error:
        _fail(error, as_json)
    except KeyboardInterrupt:
        print("interrupted; what this command started is stopped", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python would complain again when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        _fail(from_os_error(error, error.filename or "system", "working"), as_json)
    except Exception as error:
        _fail_unexpectedly(error)


def confirmation(yes: bool) -> Callable[[str], bool] | None:
    """How a command asks before it changes something: None after `--yes`, else a question on the terminal.

    Raises: UsageError where there is no terminal to ask at; before anything was done.
    """
    if yes:
        return None
    if not sys.stdin.isatty():
        raise UsageError("--yes", "is missing", "there is no terminal to ask at", "give --yes to do it without asking")
    return _ask


def _ask(question: str) -> bool:
    """Whether the user answers yes; nothing but the whole word counts."""
    print(f"{question} [yes/no] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() == "yes"


def _fail(error: SlipwayError, as_json: bool) -> NoReturn:
    if as_json:
        sys.stdout.write(json.dumps(error.as_json(), indent=2) + "\n")
    print(error, file=sys.stderr)
    raise SystemExit(error.exit_code)


def _fail_unexpectedly(error: Exception) -> NoReturn:
    """An error that nobody foresaw: one line for the user, the traceback in a file for the report."""
    with tempfile.NamedTemporaryFile("w", prefix="slipway-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    print(f"slipway: unexpected error ({said}); this is a bug; please report it with {file.name}", file=sys.stderr)
    raise SystemExit(1) from None


def _terminated(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
