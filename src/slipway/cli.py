"""What every task shares: one JSON document or one text on stdout, everything else on stderr, and the exit codes of `errors`.

Invoke itself ends with exit code 1 on a command line it cannot parse, and with a traceback on a number that is none; the
contract says 2 and a sentence. `mend_usage_errors` puts that right for plain `invoke` and for the wrapper alike.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from invoke.exceptions import Exit, ParseError
from invoke.program import Program

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


def mend_usage_errors() -> None:
    """Make every command line that Invoke cannot parse end with exit code 2 and a sentence that says what was meant."""
    parse = Program.parse_tasks
    clean = Program.parse_cleanup

    def parse_tasks(program: Program) -> None:
        with _usage(program):
            parse(program)

    def parse_cleanup(program: Program) -> None:
        with _usage(program):
            clean(program)

    # Invoke reads these two from the class; there is no hook for parse errors that plain `invoke` would also use.
    setattr(Program, "parse_tasks", parse_tasks)  # noqa: B010
    setattr(Program, "parse_cleanup", parse_cleanup)  # noqa: B010


@contextlib.contextmanager
def _usage(program: Program) -> Iterator[None]:
    try:
        yield
    except ParseError as error:
        raise Exit(str(_explain(error, program)), code=2) from None
    except ValueError as error:
        raise Exit(
            f"command line: {error}; numbers are written in digits; `invoke --help TASK` lists the flags", code=2
        ) from None


def _explain(error: ParseError, program: Program) -> UsageError:
    text = str(error)
    unknown = re.search(r"No idea what '(.+)' is", text)
    if not unknown:
        return UsageError("command line", text[:1].lower() + text[1:], "", "`invoke --help TASK` lists a task's flags")
    token = unknown.group(1)
    context = error.context
    tasks = list(program.collection.task_names)
    task = context.name if context is not None else None
    flags = list(context.flags) if context is not None and task else []
    near = difflib.get_close_matches(token.partition("=")[0].replace("_", "-"), [*flags, *tasks], n=1)
    if token.startswith("-"):
        kind, where = "unknown flag", f"`invoke --help {task}`" if flags else "`invoke --list`"
    else:
        kind, where = "unknown task", "`invoke --list`"
    why = f"did you mean {near[0]}?" if near else ""
    return UsageError("command line", f"{kind} (got {token})", why, f"{where} shows what there is")


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
