"""Command lines that Invoke cannot parse.

Invoke itself ends with exit code 1 on them, and with a traceback on a number that is none; the contract says 2 and a
sentence. It stands apart from `cli` because it is loaded on every call and must not wait for anything else.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator

from invoke.exceptions import Exit, ParseError
from invoke.parser.parser import ParseMachine
from invoke.program import Program

from slipway.errors import UsageError


def mend_usage_errors() -> None:
    """Make every command line that Invoke cannot parse end with exit code 2 and a sentence, and every Ctrl-C with 130."""
    for name in ("parse_tasks", "parse_cleanup", "execute"):
        # Invoke reads these from the class; there is no hook for parse errors that plain `invoke` would also use.
        setattr(Program, name, _mended(getattr(Program, name)))
    name = "handle"
    setattr(ParseMachine, name, _keeping_flags_apart(getattr(ParseMachine, name)))


def _keeping_flags_apart(original: Callable[[ParseMachine, str], None]) -> Callable[[ParseMachine, str], None]:
    """Invoke takes any word for a value that a task still misses: in `build-image --help`, the engine `--help`."""

    def handle(machine: ParseMachine, token: str) -> None:
        if machine.initial is not None and machine.initial.flags["--help"].value:
            return  # what stands beside it does not matter
        task = machine.context
        known = task is None or token in task.flags or token in task.inverse_flags
        if known or machine.waiting_for_flag_value or not token.startswith("-") or not task.missing_positional_args:
            original(machine, token)
        elif token in ("--help", "-h"):
            # Help ends before anything is run, so what is missing needs a value only to get that far.
            for missing in task.missing_positional_args:
                missing.value = ""
            original(machine, token)
        else:
            machine.error(f"No idea what {token!r} is!")

    return handle


def _mended(original: Callable[[Program], None]) -> Callable[[Program], None]:
    def method(program: Program) -> None:
        with _usage(program):
            original(program)
            _refuse_dry(program)

    return method


@contextlib.contextmanager
def _usage(program: Program) -> Iterator[None]:
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a reader that has gone can still be caught
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would flush once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(code=0) from None
    except KeyboardInterrupt:
        raise Exit("interrupted", code=130) from None
    except ParseError as error:
        raise _ended(_explain(error, program)) from None
    except ValueError as error:
        number = re.search(r"invalid literal for int\(\) with base 10: (.+)", str(error))
        problem = f"a flag takes a whole number (got {number[1]})" if number else str(error)
        remedy = "`invoke --help TASK` lists the flags"
        raise _ended(UsageError("command line", problem, "numbers are written in digits", remedy)) from None


def _refuse_dry(program: Program) -> None:
    """Invoke's own `--dry` holds back only what goes through its shell, and hardly a command here does: it would really run."""
    if not program.args.dry.value:
        return
    given = "--dry" if "--dry" in program.argv else "-R"
    why = "it is Invoke's own, and would not keep a command from doing its work"
    able = any("--dry-run" in task.flags for task in program.tasks)
    task = next((task.name for task in program.tasks), "TASK")
    remedy = "did you mean --dry-run?" if able else f"`invoke --help {task}` lists the flags"
    raise _ended(UsageError("command line", f"--dry is not known here (got {given})", why, remedy))


def _ended(error: UsageError) -> Exit:
    """Invoke's own way to end, after the document that a script waits for."""
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps(error.as_json(), indent=2) + "\n")
    return Exit(str(error), code=error.exit_code)


def _explain(error: ParseError, program: Program) -> UsageError:
    text = str(error)
    context = error.context
    task = context.name if context is not None else None
    remedy = f"`invoke --help {task}` lists the flags" if task else "`invoke --help TASK` lists a task's flags"
    missing = re.search(r"did not receive required positional arguments: '([^']+)'", text)
    if missing and context is not None:
        flag = f"--{missing[1].replace('_', '-')}"
        known = context.flags.get(flag)
        return UsageError(str(task), f"{flag} is missing", (known.help if known else "") or "", remedy)
    empty = re.search(r"Flag <Argument: ([\w-]+).*> needed value and was not given one", text)
    if empty:
        return UsageError(str(task or "command line"), f"--{empty[1].replace('_', '-')} needs a value", "", remedy)
    unknown = re.search(r"No idea what '(.+)' is", text)
    if not unknown:
        return UsageError("command line", text[:1].lower() + text[1:], "", remedy)
    token = unknown.group(1)
    tasks = list(program.collection.task_names)
    flags = list(context.flags) if context is not None and task else []
    if unknown[1] == "help":
        meant = next((word for word in program.core.unparsed if word in tasks), None)
        shows = f"`invoke --help {meant}` shows its flags" if meant else "`invoke --list` shows the tasks"
        return UsageError("command line", "help is no task (got help)", "", shows)
    near = _near(token.partition("=")[0].replace("_", "-"), [*flags, *tasks])
    if token.startswith("-"):
        kind, where = "unknown flag", f"`invoke --help {task}`" if flags else "`invoke --list`"
    else:
        kind, where = "unknown task", "`invoke --list`"
    why = f"did you mean {near}?" if near else ""
    return UsageError("command line", f"{kind} (got {token})", why, f"{where} shows what there is")


def _near(given: str, known: list[str]) -> str | None:
    """Which of `known` is most like `given`, its words in any order: `image-build` is build-image."""

    def in_order(name: str) -> str:
        return "-".join(sorted(name.split("-")))

    sorted_names = {in_order(name): name for name in known}
    if in_order(given) in sorted_names:
        return sorted_names[in_order(given)]
    for close in difflib.get_close_matches(given, known, n=1):
        return close
    for close in difflib.get_close_matches(in_order(given), sorted_names, n=1, cutoff=0.8):
        return sorted_names[close]
    return None
