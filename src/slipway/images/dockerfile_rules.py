"""The rules of the Dockerfile linter, as a table: what is looked for, and what the user is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slipway.errors import UsageError
from slipway.images import dockerfile_apt as apt
from slipway.images import dockerfile_fetches as fetches
from slipway.images import dockerfile_installs as installs
from slipway.images import dockerfile_python as python
from slipway.images import dockerfile_variables as variables
from slipway.images import image_name
from slipway.images.allowed import COMMIT, Download, pinned
from slipway.images.dockerfile_locked import mount_fields
from slipway.images.dockerfile_reader import Place
from slipway.images.dockerfile_stages import AUTOMATIC_ARGS, EPOCH_ARG, Run, Sheet, Stage, Step, declared
from slipway.images.image_gates import plain_uid
from slipway.images.shell_wrappers import SHELLS


@dataclass(frozen=True)
class Finding:
    """One place where a rule is broken; `got` is what stands there."""

    place: Place
    got: str


@dataclass(frozen=True)
class Rule:
    """`check` finds every breach; the text is `message (got …); why; remedy`."""

    id: str
    check: Callable[[Sheet], Iterator[Finding]]
    message: str
    why: str
    remedy: str


_SHELL = re.compile(r"(/usr)?/bin/(sh|bash|dash) ((-[eux]+|-[eux]*o pipefail) )*-[eux]*c")
"""The forms of SHELL: a known shell, options that only make it stricter, and the script last."""


def _syntax(sheet: Sheet) -> Iterator[Finding]:
    for comment in sheet.dockerfile.comments:
        # BuildKit also takes the frontend from a `//` comment, below a `#!` line, and from JSON; anything alike is refused.
        if re.match(r"(#|//)\W*syntax\b\W*[=:]", comment.text, re.IGNORECASE):
            yield Finding(comment.place, comment.text)
    for instruction in sheet.dockerfile.instructions:
        if instruction.keyword == "ARG":
            for name, _, offset in declared(instruction):
                if name == "BUILDKIT_SYNTAX":
                    yield Finding(instruction.at(offset), name)


def _unreadable(sheet: Sheet) -> Iterator[Finding]:
    for fault in sheet.faults:
        yield Finding(fault.place, fault.text)
    for run in sheet.runs:
        if run.command.unreadable:
            yield Finding(run.place, run.command.unreadable)
        for name, value in variables.assigned(run.command):
            if variables.hides(name) or not re.fullmatch(r"\w+", name):
                yield Finding(run.place, name if value is None else f"{name}={value}")
        for own in run.command.words:
            name, equals, _ = own.text.partition("=")
            if equals and variables.hides(name):
                yield Finding(run.place, own.text)
    for _, step in sheet.steps("ENV", "ARG"):
        for name, _, offset in declared(step.instruction):
            if variables.hides(name):
                yield Finding(step.instruction.at(offset), name)
    for _, step in sheet.steps("SHELL"):
        text = " ".join(step.instruction.json_words() or ("",))
        if not _SHELL.fullmatch(text):
            yield Finding(step.instruction.place, f"SHELL {text}")


@dataclass(frozen=True)
class _ImageUse:
    place: Place
    text: str
    resolved: str | None
    stage: Stage | None


def _image_uses(sheet: Sheet) -> Iterator[_ImageUse]:
    """Every place that takes files from an image which is neither a stage nor `scratch`."""
    for stage in sheet.stages:
        words = stage.start.instruction.text.split()
        if stage.parent is None and stage.base != "scratch":
            at = stage.start.instruction.start
            yield _ImageUse(stage.start.instruction.at(at), words[0] if words else "", stage.base, stage)
    for current, step in sheet.steps("COPY", "ADD", "RUN"):
        for flag in step.instruction.flags:
            name = flag.value if flag.name == "from" else mount_fields(flag).get("from", "")
            resolved = step.value(name)
            if name and (resolved is None or sheet.stage_called(resolved, current) is None):
                yield _ImageUse(step.instruction.at(flag.offset), name, resolved, current)


def _unpinned_image(sheet: Sheet) -> Iterator[Finding]:
    for use in _image_uses(sheet):
        name = _pinned_name(use)
        if name is None:
            yield Finding(use.place, use.text if use.resolved in {None, use.text} else f"{use.text} = {use.resolved}")


def _unlocked_image(sheet: Sheet) -> Iterator[Finding]:
    for use in _image_uses(sheet):
        name = _pinned_name(use)
        if name is not None and name not in sheet.allowed.image_names():
            yield Finding(use.place, use.resolved or "")


def _pinned_name(use: _ImageUse) -> str | None:
    """`registry/repository@sha256:…` of an image that is used by digest, None of any other."""
    try:
        name = image_name.parse(use.resolved or "")
    except UsageError:
        return None
    return pinned(name) if name.digest else None


def _git_url(given: str) -> bool:
    """Whether ADD takes `given` for a git repository. Source: moby/buildkit, util/gitutil, read 2026-12-01."""
    url = given.lower()
    bare = re.split("[#?]", url, maxsplit=1)[0]
    if url.startswith(("git://", "ssh://", "git@", "github.com/")):
        return True
    return bare.endswith(".git") and (
        url.startswith(("http://", "https://")) or bool(re.match(r"[\w.-]+@[\w.-]+:", url))
    )


def _added(sheet: Sheet) -> Iterator[tuple[Step, str, str | None]]:
    """The sources of every ADD and COPY: step, as written, with variables replaced."""
    for _, step in sheet.steps("ADD", "COPY"):
        words = step.instruction.json_words() or tuple(step.instruction.text.split())
        for word in words[:-1]:
            yield step, word, step.value(word)


def _git(sheet: Sheet) -> Iterator[Finding]:
    for step, text, resolved in _added(sheet):
        if resolved and _git_url(resolved):
            url, _, fragment = resolved.partition("#")
            commit = fragment.partition(":")[0]
            if "?" in url or not COMMIT.fullmatch(commit) or not sheet.allowed.allows_commit(url, commit):
                yield Finding(step.instruction.at(step.instruction.joined.find(text)), resolved)
    for run in sheet.runs:
        if installs.is_git(run.command) and not installs.pinned_git(run.command, sheet.allowed):
            yield Finding(run.place, " ".join((run.command.program, *run.command.arguments)))


def _add_checksum(sheet: Sheet) -> Iterator[Finding]:
    for step, text, resolved in _added(sheet):
        place = step.instruction.at(step.instruction.joined.find(text))
        if resolved is None:
            yield Finding(place, text)
        elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", resolved) and not _git_url(resolved):
            flag = step.instruction.flag("checksum")
            checksum = (step.value(flag.value) or "") if flag else ""
            if (
                Download(resolved, checksum.removeprefix("sha256:")) not in sheet.allowed.downloads
                or ":" not in checksum
            ):
                yield Finding(place, f"{resolved} {checksum}".strip())


def _pipe_to_shell(sheet: Sheet) -> Iterator[Finding]:
    for run in (*sheet.runs, *sheet.starts):
        command = run.command
        inside = command.within in SHELLS | {"eval", "source", "."} and command.program in fetches.FETCHERS
        if fetches.runs_what_it_reads(command) or inside:
            yield Finding(run.place, " ".join((command.program, *command.arguments)))


def _each(test: Callable[[Run, Sheet], bool]) -> Callable[[Sheet], Iterator[Finding]]:
    """A check that judges every command of every RUN on its own."""

    def check(sheet: Sheet) -> Iterator[Finding]:
        for run in sheet.runs:
            if test(run, sheet):
                yield Finding(run.place, " ".join((run.command.program, *run.command.arguments)))

    return check


def _python_index(sheet: Sheet) -> Iterator[Finding]:
    for run in sheet.runs:
        for option in python.index_options(run):
            yield Finding(run.place, option)
        for name, value in variables.assigned(run.command):
            if variables.steers_python(name, value, run.step):
                yield Finding(run.place, name if value is None else f"{name}={value}")
        if apt.writes_python_settings(run, sheet):
            yield Finding(run.place, " ".join((run.command.program, *run.command.arguments)))
    for _, step in sheet.steps("ENV", "ARG"):
        for name, value, offset in declared(step.instruction):
            locked = name in sheet.allowed.build_args and not variables.is_index(name)
            if variables.steers_python(name, value, step) and not locked:
                yield Finding(step.instruction.at(offset), f"{name}={value or ''}")
    yield from (Finding(step.instruction.place, to) for step, to, for_apt in apt.placed(sheet) if not for_apt)


def _apt_source(sheet: Sheet) -> Iterator[Finding]:
    yield from _each(apt.apt_source)(sheet)
    for _, step in sheet.steps("ENV", "ARG"):
        for name, value, offset in declared(step.instruction):
            if name == "APT_CONFIG":
                yield Finding(step.instruction.at(offset), f"{name}={value or ''}")
    yield from (Finding(step.instruction.place, to) for step, to, for_apt in apt.placed(sheet) if for_apt)


def _insecure(sheet: Sheet) -> Iterator[Finding]:
    for _, step in sheet.steps("RUN"):
        flag = step.instruction.flag("security")
        if flag and flag.value != "sandbox":
            yield Finding(step.instruction.at(flag.offset), f"--security={flag.value}")


def _unlocked_arg(sheet: Sheet) -> Iterator[Finding]:
    known = {
        *sheet.allowed.build_args,
        *AUTOMATIC_ARGS,
        EPOCH_ARG,
        "BUILDKIT_SYNTAX",
    }
    for _, step in sheet.steps("ARG"):
        for name, value, offset in declared(step.instruction):
            if name not in known and not variables.steers_python(name, value, step):
                yield Finding(step.instruction.at(offset), name)


def _root(sheet: Sheet) -> Iterator[Finding]:
    if not sheet.stages:
        return
    stage: Stage | None = sheet.stages[-1]
    last = sheet.stages[-1].start.instruction
    while stage:
        for step in reversed(stage.steps):
            if step.instruction.keyword == "USER":
                # A name says nothing: any may stand for uid 0 in /etc/passwd, and `+0` and `00` are 0 as well.
                user = step.value(step.instruction.text) or ""
                uid, colon, group = user.partition(":")
                if not plain_uid(uid) or (colon and not re.fullmatch(r"0|[1-9][0-9]{0,9}", group)):
                    yield Finding(step.instruction.place, f"USER {step.instruction.text}")
                return
        stage = stage.parent
    yield Finding(last.place, "no USER in the final stage")


def _epoch(sheet: Sheet) -> Iterator[Finding]:
    for run in sheet.runs:
        if python.is_python_install(run.command) and EPOCH_ARG not in run.step.values:
            yield Finding(run.place, " ".join((run.command.program, *run.command.arguments)))


_LOCK = "name it in image.yaml, run `invoke lock-image`, and use what the lock says"

RULES: tuple[Rule, ...] = (
    Rule(
        "syntax-directive",
        _syntax,
        "a frontend is named",
        "it is pulled from a registry and pinned by nobody",
        "remove the line",
    ),
    Rule(
        "unreadable",
        _unreadable,
        "cannot be checked",
        "only what the linter reads can be held to the lock",
        "write it plainly",
    ),
    Rule(
        "image-unpinned",
        _unpinned_image,
        "an image without a digest",
        "a tag may name another image tomorrow",
        "write name@sha256:… as in the lock",
    ),
    Rule(
        "image-not-locked",
        _unlocked_image,
        "an image that the lock does not name",
        "only locked inputs may be used",
        _LOCK,
    ),
    Rule(
        "pipe-to-shell",
        _pipe_to_shell,
        "a script is piped into an interpreter",
        "what it says is decided by a server at build time",
        "ADD it with --checksum, then run the file",
    ),
    Rule(
        "download-in-run",
        _each(fetches.downloads),
        "a download inside RUN",
        "no lock and no source policy sees it",
        "use ADD --checksum=sha256:… with a URL of the lock",
    ),
    Rule(
        "python-unlocked",
        _each(python.python_unlocked),
        "a Python install outside the lock",
        "the same request installs other versions months later",
        "install with --require-hashes -r and a file of the read-only bind mount of `locked`, nothing else",
    ),
    Rule(
        "python-index",
        _python_index,
        "Python packages from another or more than one index",
        "whoever owns the name on either index decides what is installed",
        "lock with one index, and take it from the build secret pip-conf",
    ),
    Rule(
        "git-unlocked",
        _git,
        "a git source that is no locked commit",
        "branches and tags move",
        "ADD url#<commit of the lock>, or take the source archive from the context",
    ),
    Rule(
        "add-unlocked",
        _add_checksum,
        "a URL without its locked checksum",
        "what a URL gives changes without notice",
        "ADD --checksum=sha256:… with URL and checksum of the lock",
    ),
    Rule(
        "apt-unlocked",
        _each(apt.apt_unlocked),
        "Debian packages without locked versions",
        "the archive moves on every day",
        "write name=version as in the lock, or install the list of the read-only bind mount of `locked`",
    ),
    Rule(
        "apt-source",
        _apt_source,
        "another package source, key or setting of apt",
        "what it gives is outside of the lock",
        "take the packages as locked downloads; a mirror comes in as the build secret apt-sources",
    ),
    Rule(
        "package-manager",
        _each(installs.other_manager),
        "a package manager without a lock here",
        "its packages are pinned by nobody",
        "take what is needed as locked downloads or wheels",
    ),
    Rule(
        "rustup",
        _each(installs.rustup),
        "a Rust toolchain from rustup",
        "channels move, and the installer is a script from a server",
        "take the toolchain as a locked download or Debian package",
    ),
    Rule(
        "insecure-run",
        _insecure,
        "a RUN with the host's rights",
        "a build must not be able to change its host",
        "remove --security",
    ),
    Rule(
        "arg-unlocked",
        _unlocked_arg,
        "a build argument that the lock does not name",
        "whoever builds could change the image with it",
        _LOCK,
    ),
    Rule(
        "user-root",
        _root,
        "the image runs as root, or as a user that is not told by number",
        "an engine needs no rights over its host, and any name may be one for uid 0",
        "end the final stage with USER and a plain uid above 0, as `USER 65532`",
    ),
    Rule(
        "epoch-missing",
        _epoch,
        "Python packages are installed without SOURCE_DATE_EPOCH",
        "their .pyc files go stale when the export rewrites timestamps, and every start compiles again",
        "write `ARG SOURCE_DATE_EPOCH` above it in the same stage",
    ),
)
"""Every rule, in the order in which problems of one place are reported."""
