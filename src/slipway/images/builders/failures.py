"""What a failed build means for the user: the builder's last lines as one error with the right exit code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from slipway.errors import (
    AuthFailure,
    CheckFailed,
    DiskFailure,
    IntegrityMismatch,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)

Made = Callable[[str, str], SlipwayError]
"""Place and what the builder said → the error."""

GONE = (
    "free space for the builder, for example with `docker buildx prune`, or name another folder for the archive; "
    "then run it again"
)

_KINDS: tuple[tuple[str, Made], ...] = (
    # The first that matches decides, so what is particular stands before what is general.
    (
        r"no space left on device|disk quota exceeded",
        lambda place, said: DiskFailure(place, f"no space left ({said})", "nothing half-written is left in use", GONE),
    ),
    (
        r"denied by policy|not allowed by policy",
        lambda place, said: CheckFailed(
            place,
            f"takes in what the lock does not name ({said})",
            "the builder itself refuses every other source",
            "lock it, or remove the line",
        ),
    ),
    (
        r"do not match the hashes|checksum mismatch|digest mismatch|failed digest verification",
        lambda place, said: IntegrityMismatch(
            place,
            f"a download is not what the lock says ({said})",
            "",
            "find out why it changed before you lock it anew",
        ),
    ),
    (
        r"permission denied while trying to connect|dial unix .*: permission denied",
        lambda place, said: AuthFailure(
            place,
            f"the Docker daemon refuses you ({said})",
            "its socket belongs to root and a group",
            "join that group",
        ),
    ),
    (
        r"no active sessions?\b|no active session for",
        lambda place, said: NetworkFailure(
            place, f"the builder lost its client ({said})", "seen after other builds were killed", "run it again"
        ),
    ),
    (
        r"cannot connect to the docker daemon|error during connect|error reading from server|transport is closing"
        r"|closing transport|connection reset by peer|code = unavailable|failed to get status|unexpected eof$",
        lambda place, said: NetworkFailure(
            place, f"the Docker daemon does not answer ({said})", "", "start it, or set DOCKER_HOST; then run it again"
        ),
    ),
    (
        r"failed to calculate checksum of ref|no such file or directory$",
        lambda place, said: UsageError(
            place, f"a file is not in the context ({said})", "the context holds what image.yaml lists", "list it there"
        ),
    ),
    (
        r"unauthorized|authorization failed|access denied|no basic auth|403 forbidden|401 ",
        lambda place, said: AuthFailure(place, f"a registry refused ({said})", "", "log in with `docker login`"),
    ),
    (
        r"manifest unknown|: not found$|name unknown",
        lambda place, said: MissingFile(place, f"an image is not there ({said})", "", "correct the lock or the mirror"),
    ),
    (
        r"failed to do request|failed to resolve source metadata|no such host|connection refused|i/o timeout"
        r"|tls: |certificate|temporary failure in name resolution|network bridge not found|pinging container registry",
        lambda place, said: NetworkFailure(
            place, f"a source did not answer ({said})", "", "check network, mirror and the secret `ca`"
        ),
    ),
    (
        r"parse error|unknown instruction|unknown flag|dockerfile.*(?:no such file|cannot be empty)|target stage",
        lambda place, said: UsageError(place, f"the builder cannot read it ({said})", "", "correct the Dockerfile"),
    ),
)

_RUN_FAILED = re.compile(r'did not complete successfully: exit code: (\d+)|building at STEP "RUN .*exit status (\d+)$')


def explain(place: str, said: str, output: Sequence[str], dockerfile: str) -> SlipwayError:
    """The error for a build of `place` that ended with the message `said` and, in its failed step, the lines `output`.

    `dockerfile` is where in the Dockerfile it happened, as `Dockerfile:3`, or `""`.
    """
    where = f"{place}, {dockerfile}" if dockerfile else place
    message = " ".join(said.split()) or "the builder said nothing"
    run = _RUN_FAILED.search(message)
    evidence = "\n".join(output) if run else message
    for pattern, made in _KINDS:
        # What a RUN prints is the program's own: only facts that no program says by accident are read out of it.
        if run and made not in _SURE:
            continue
        found = re.search(pattern, evidence, re.IGNORECASE | re.MULTILINE)
        if found:
            return made(where, _line_of(evidence, found) if run else _short(message))
    if run:
        code = run[1] or run[2]
        problem = f"a RUN ended with code {code}{' (usually killed for want of memory)' if code == '137' else ''}"
        return CheckFailed(where, problem, _last(output), "correct the line, or what it needs, and run it again")
    return CheckFailed(where, f"was not built ({_short(message)})", _last(output), "correct it and run it again")


_SURE = (_KINDS[0][1], _KINDS[2][1])


def _last(output: Sequence[str]) -> str:
    """The step's last lines as a part of an error: one a line, so that a log keeps its shape."""
    return "".join(["its last lines are\n", *(f"  | {line.rstrip()}\n" for line in output)]) if output else ""


def _line_of(text: str, found: re.Match[str]) -> str:
    start = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    return _short(text[start:] if end < 0 else text[start:end])


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else f"…{text[-300:]}"
