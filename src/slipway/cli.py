"""What every task shares: one JSON document or one text on stdout, everything else on stderr, and the exit codes of `errors`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, Any, NoReturn

from rich.console import Console

from slipway import progress
from slipway.checkpoints.hub import masked
from slipway.errors import SlipwayError, UsageError, from_os_error
from slipway.progress import Progress

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it; 128 + 15 after SIGTERM."""

SECRETS = ("SLIPWAY_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "SLIPWAY_HUB_TOKEN")
"""Variables whose values are never printed, whoever echoes them."""


class Output:
    """Where a task leaves its result: at most one document, the result or the error."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.printed = False
        self.progress: Progress = progress.for_stream(sys.stderr)

    def result(self, value: Any, text: str) -> None:
        """Print `value` as JSON where `--json` was given, else `text`."""
        self.printed = True
        _write(_document(value) if self.as_json else text)

    def shown(self, value: Any, show: Callable[[Console], None]) -> None:
        """Print `value` as JSON where `--json` was given, else let `show` draw it: in colour on a terminal, plain elsewhere."""
        if self.as_json:
            self.result(value, "")
            return
        self.printed = True
        terminal = sys.stdout.isatty()
        # Tables need some width anywhere; a sentence with a path is for a search or a paste, and stays in one line.
        show(Console(file=sys.stdout, width=None if terminal else 110, soft_wrap=not terminal, highlight=False))
        sys.stdout.flush()


@contextlib.contextmanager
def command(as_json: bool) -> Iterator[Output]:
    """Run one task's body; every expected failure becomes a message on stderr and the exit code that the contract names."""
    _make_streams_usable()
    signal.signal(signal.SIGTERM, _terminated)
    signal.signal(signal.SIGHUP, _terminated)
    output = Output(as_json)
    try:
        yield output
    except SlipwayError as error:
        _fail(error, output)
    except KeyboardInterrupt:
        _end("interrupted; what this command started is stopped", INTERRUPTED, output)
    except _Terminated as ended:
        _end("ended by a signal; what this command started is stopped", ended.number, output)
    except BrokenPipeError:
        _drop_stdout()  # the reader (head, less) has seen enough
        raise SystemExit(0) from None
    except OSError as error:
        _fail(from_os_error(error, error.filename or "standard output", "writing"), output)
    except Exception as error:
        _fail_unexpectedly(error, output)


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


def _make_streams_usable() -> None:
    """A closed stream swallows what is written to it, and a character that the terminal lacks is escaped, not fatal."""
    for name in ("stdout", "stderr"):
        stream: IO[str] | None = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 (open to the end)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _write(text: str) -> None:
    sys.stdout.write(_without_secrets(text))
    sys.stdout.flush()


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        print(masked(_without_secrets(text)), file=sys.stderr, flush=True)


def _without_secrets(text: str) -> str:
    for name in SECRETS:
        value = os.environ.get(name, "").strip()
        if len(value) >= 6:
            text = re.sub(re.escape(value), "***", text, flags=re.IGNORECASE)
    return text


def _drop_stdout() -> None:
    """Python flushes stdout once more at exit, and would complain about it a second time."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: SlipwayError, output: Output) -> NoReturn:
    _tell(str(error))
    if output.as_json and not output.printed:
        try:
            _write(masked(_document(error.as_json())))
        except OSError:
            _drop_stdout()
    elif isinstance(error.__cause__, OSError):
        _drop_stdout()
    raise SystemExit(error.exit_code)


def _fail_unexpectedly(error: Exception, output: Output) -> NoReturn:
    """An error that nobody foresaw: one line for the user, the traceback in a file for the report."""
    with tempfile.NamedTemporaryFile("w", prefix="slipway-", suffix=".txt", delete=False) as file:
        traceback.print_exception(error, file=file)
    said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    problem = f"unexpected error ({said})"
    _fail(SlipwayError("slipway", problem, "this is a bug", f"please report it with {file.name}"), output)


def _end(said: str, code: int, output: Output) -> NoReturn:
    """A command that was told to end: under `--json` that is its document, unless its result was printed before."""
    _tell(said)
    if output.as_json and not output.printed:
        with contextlib.suppress(OSError):
            _write(_document({**SlipwayError("slipway", said).as_json(), "error": "Interrupted", "exit_code": code}))
    raise SystemExit(code) from None


def _document(value: Any) -> str:
    """`value` as JSON that stdout can carry: what its encoding lacks would be escaped as no JSON is."""
    utf8 = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
    return json.dumps(value, indent=2, ensure_ascii=not utf8) + "\n"


class _Terminated(SystemExit):
    """SIGTERM or SIGHUP has come; an exit, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = 128 + number


def _terminated(number: int, _: FrameType | None) -> NoReturn:
    raise _Terminated(number)
