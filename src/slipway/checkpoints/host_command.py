"""The fetcher as a command of its own, for hosts without Slipway: what `bundle` makes a zipapp of.

One JSON document per lock on stdout, notes on stderr, and the exit codes of `slipway.errors`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from slipway.checkpoints import io_choice, plain_lock
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import hub_from_environment
from slipway.checkpoints.pins import silent
from slipway.errors import SlipwayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code, once everything asked for was fetched or something failed."""
    given = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, _stop)
    try:
        hub = hub_from_environment()
        for lock in [plain_lock.read(path) for path in given.lock]:
            result = fetch(
                lock,
                given.dest,
                hub=hub,
                workers=given.workers,
                progress=silent if given.quiet else _Notes(),
                sources=given.source,
                io=given.io,
                adopt=given.adopt,
            )
            entry = {"repo": lock.repo, "revision": lock.revision, **vars(result), "folder": str(result.folder)}
            _print(entry)
    except SlipwayError as error:
        _print(error.as_json())
        print(error, file=sys.stderr)  # noqa: T201 -- this is a command
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; what was proved so far is kept for the next fetch", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    return 0


class _Notes:
    """Prints notes; a bar would only spoil a log."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 -- this is a command

    @contextmanager
    def track(self, label: str, total: int | None = None, unit: str = "bytes") -> Iterator[Callable[[int], None]]:
        self.note(f"{label}: {total} {unit}")
        yield lambda _: None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fetch", description="Fetch locked checkpoints, proved byte by byte.")
    parser.add_argument("--lock", type=Path, action="append", required=True, help="lock file; may be given again")
    parser.add_argument("--dest", type=Path, required=True, help="models folder")
    parser.add_argument(
        "--source", action="append", default=[], help="server to ask instead of the hub; `hub` is the hub"
    )
    parser.add_argument("--workers", type=int, default=4, help="files fetched at a time")
    parser.add_argument("--io", choices=io_choice.CHOICES, default="", help="how files are written")
    parser.add_argument("--adopt", action="store_true", help="take over right files of a plain folder at DEST/<name>")
    parser.add_argument("--quiet", action="store_true", help="no notes on stderr")
    return parser


def _print(entry: dict[str, Any]) -> None:
    print(json.dumps(entry, ensure_ascii=False), flush=True)  # noqa: T201 -- this is a command


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
