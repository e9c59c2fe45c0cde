"""Command lines that Invoke cannot parse.

Invoke itself ends with exit code 1 on them, and with a traceback on a number that is none; the contract says 2 and a
sentence. It stands apart from `cli` because it is loaded on every call and must not wait for anything else.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterator

from invoke.exceptions import Exit, ParseError
from invoke.program import Program

from slipway.errors import UsageError


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
