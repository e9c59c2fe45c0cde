"""What apt and dpkg commands install and from where, and what is written to the places where package managers look."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from posixpath import join, normpath

from slipway.images.allowed import AllowedInputs
from slipway.images.dockerfile_locked import locked, mount_fields, mounts, secret
from slipway.images.dockerfile_stages import Run, Sheet, Step
from slipway.images.dockerfile_variables import assigned
from slipway.images.shell_texts import Command

_APT = frozenset({"apt", "apt-get", "aptitude"})
_VALUED = frozenset(
    {"-o", "-t", "-c", "-a", "-P", "--option", "--default-release", "--target-release", "--config-file"}
)
_UNSIGNED = re.compile(
    r"--(allow-unauthenticated|allow-insecure-repositories|no-allow-weak|force-yes).*|\[.*trusted=yes.*\]"
)
_SETTING = re.compile(
    r"(?:\b|(?<=-o))(dir|apt|acquire|dpkg|aptitude|pkgcachegen|binary)::([\w:/-]+)\s*=?\s*(\S*)", re.IGNORECASE
)
_PLAIN_SETTINGS = re.compile(
    r"acquire::(retries|languages|check-valid-until|queue-mode|(http|https)::(timeout|pipeline-depth)|gzipindexes)"
    r"|acquire::(http|https|ftp)::dl-limit|apt::(install-(recommends|suggests)|sandbox::user|get::assume-yes|get::show-.*)"
    r"|apt::(keep-downloaded-packages|color|cache-limit|autoremove::.*)|dpkg::(use-pty|progress-fancy|options:*)|apt::cache::.*",
    re.IGNORECASE,
)
"""Settings of apt that change neither where packages come from nor what else is run."""

_WRITERS = frozenset({
    "tee", "cp", "mv", "ln", "install", "dd", "rsync", "patch", "tar", "unzip", "truncate", "touch", "chmod", "mkdir", "link",
})  # fmt: skip
_READERS = frozenset({
    "cat", "ls", "grep", "egrep", "rm", "rmdir", "test", "[", "[[", "find", "stat", "head", "tail", "wc", "sha256sum", "md5sum",
    "diff", "cmp", "echo", "printf", "file", "awk", "cut", "sort", "du", "if", "for", "chown", "chmod", "mkdir", "apt-get", "apt",
})  # fmt: skip
_APT_PLACES = re.compile(
    r"/etc/apt(/|$)|(^|/)sources\.list|\.sources$|(^|/)apt/(sources|apt\.conf|preferences|trusted|keyrings|auth)"
    r"|/usr/share/keyrings|/etc/dpkg(/|$)"
)
_PYTHON_PLACES = re.compile(
    r"(^|/)(pip\.conf|pip\.ini|uv\.toml|\.pypirc|\.pydistutils\.cfg|distutils\.cfg)$|/run/secrets(/|$)"
    r"|/etc/(xdg/)?(pip|uv)(/|$)|(^|/)(\.config/|\.)(pip|uv)(/|$)"
)


def apt_unlocked(run: Run, sheet: Sheet) -> bool:
    """Whether apt installs anything but the exact versions of the lock, or upgrades what is there."""
    command = run.command
    if command.program == "dpkg" and re.search(
        r"(^| )(-[a-zA-Z]*i|--install|--unpack|-R|--recursive)\b", " ".join(command.arguments)
    ):
        return not _brought_in([word for word in command.arguments if not word.startswith("-")], run, sheet)
    if command.program not in _APT:
        return False
    plain, options = _split(command.arguments)
    if plain[:1] == ["$@"]:
        # `set -- OPTIONS`, and nothing else, may stand for options before the verb.
        if not sheet.only_options(run):
            return True
        plain = plain[1:]
    verb, named = (plain[0], plain[1:]) if plain else ("", [])
    if not re.fullmatch(r"[a-z-]*", verb):
        return True
    if verb in {"upgrade", "dist-upgrade", "full-upgrade", "safe-upgrade", "dselect-upgrade", "build-dep", "source"} | {
        "download", "reinstall", "satisfy",
    }:  # fmt: skip
        return True
    if verb != "install":
        return False
    lists = _from_list(command)
    kept = all(_locked_deb(word, run.step, sheet.allowed, options) for word in named)
    return (
        not kept or not (named or lists) or not all(locked(file, run.step, sheet.allowed.deb_lists) for file in lists)
    )


def _split(words: Sequence[str]) -> tuple[list[str], set[str]]:
    """Plain words, and the names of options."""
    plain: list[str] = []
    options: set[str] = set()
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            plain.append(word)
            continue
        name, equals, _ = word.partition("=")
        options.add(name)
        if not equals and name in _VALUED:
            next(rest, "")
    return plain, options


def _locked_deb(word: str, step: Step, allowed: AllowedInputs, options: set[str]) -> bool:
    found = re.fullmatch(r"(?:\$\(\s*(?:cat\s+|<\s*)|`cat\s+)([^\s)`]+)\s*[)`]", word)
    if found:
        return locked(found[1], step, allowed.deb_lists)
    if word.endswith(".deb"):
        # The file came in as a locked input; what it depends on must not be fetched besides.
        return word.startswith(("/", "./")) and "--no-download" in options
    return word in allowed.debs


def _from_list(command: Command) -> list[str]:
    """The list files that feed the packages: `xargs -a FILE apt-get install`, `xargs apt-get install < FILE`."""
    via = [word.text for word in command.via]
    if "xargs" not in {word.rpartition("/")[2] for word in via}:
        return []
    named = []
    for word, after in zip(via, [*via[1:], ""], strict=True):
        if found := re.fullmatch(r"(?:-[0rtxpo]*a|--a[a-z-]*=?)(.*)", word):
            named.append(found[1] or after)
    named += [target.text for kind, target in command.redirects if kind == "<"]
    return named or ["packages from a pipe"]


def _brought_in(files: Sequence[str], run: Run, sheet: Sheet) -> bool:
    """Whether all `files` stand where ADD, COPY or a bind mount of this RUN has put inputs of the lock."""
    places = [*sheet.brought]
    for flag in run.step.instruction.flags:
        fields = mount_fields(flag)
        found = fields.get("target") or fields.get("dst") or fields.get("destination")
        places += [found] if found and fields.get("type") != "cache" else []
    return all(
        ".." not in file
        and any(file.startswith(f"{place.rstrip('/')}/") or file == place for place in places if place != "/")
        for file in files
    )


def apt_source(run: Run, _: Sheet) -> bool:
    """Whether a package source, a key or a setting of apt is added."""
    command = run.command
    if command.program in {"apt-key", "add-apt-repository", "apt-add-repository", "extrepo", "apt-ftparchive"} or any(
        word.startswith("ppa:") for word in command.arguments
    ):
        return True
    if command.program in _APT:
        plain = {word.partition("=")[0] for word in command.arguments}
        if {"-c", "--config-file"} & plain or any(_UNSIGNED.fullmatch(word) for word in command.arguments):
            return True
    if any(name == "APT_CONFIG" for name, _ in assigned(command)):
        return True
    return any(_steers_apt(text, run.step) for text in _said(command)) or _writes(command, _APT_PLACES)


def _said(command: Command) -> Iterator[str]:
    """The words in which a setting of apt may stand; those of other languages use `::` for their own things."""
    if not re.match(
        r"(python|perl|ruby|php|node|gcc|g\+\+|c\+\+|clang|nvcc|cargo|rustc|cmake|make|grep|echo)", command.program
    ):
        yield from (word.text for word in (*command.via, *command.words))


def _steers_apt(text: str, step: Step) -> bool:
    """Whether a setting of apt is told that could name a source, or a program to run."""
    for group, name, value in _SETTING.findall(text):
        key = f"{group}::{name}".lower()
        own = key == "dir::etc::sourceparts" and value in {"-", "/dev/null"}
        from_secret = key in {"dir::etc::sourcelist", "dir::etc::sourceparts"} and secret(value, step)
        if not (own or from_secret or _PLAIN_SETTINGS.fullmatch(key)):
            return True
    return False


def _writes(command: Command, places: re.Pattern[str]) -> bool:
    """Whether the command writes at one of `places`, goes there, or is told of it without being known as a reader."""
    if any(places.search(word.text) for kind, word in command.redirects if ">" in kind):
        return True
    named = [word for word in command.arguments if places.search(word)]
    if command.program == "sed":
        in_place = any(re.match(r"-[a-zA-Z]*i|--in-place", word) for word in command.arguments)
        return bool(named) and (in_place or not all(word.startswith("/") for word in named))
    return bool(named) and command.program not in _READERS


def writes_python_settings(run: Run, _: Sheet) -> bool:
    """Whether a file is written in which pip or uv, or a RUN's own secrets, name an index."""
    command = run.command
    if any(_PYTHON_PLACES.search(word.text) for kind, word in command.redirects if ">" in kind):
        return True
    return command.program in _WRITERS and any(_PYTHON_PLACES.search(word) for word in command.arguments[-1:])


def placed(sheet: Sheet) -> Iterator[tuple[Step, str, bool]]:
    """Files that ADD and COPY put, and folders that WORKDIR enters, where a package manager looks; whether it is apt."""
    folders: dict[int, str] = {}
    for stage in sheet.stages:
        folder = folders.get(stage.parent.index, "/") if stage.parent else "/"
        for step in stage.steps:
            if step.instruction.keyword in {"ADD", "COPY", "WORKDIR"}:
                to, *names = _targets(step)
                target = join(folder, to)
                folder = target if step.instruction.keyword == "WORKDIR" else folder
                for file in [f"{target}{name}" for name in names] if target.endswith("/") else [target]:
                    if _APT_PLACES.search(file):
                        yield step, file, True
                    elif _PYTHON_PLACES.search(file):
                        yield step, file, False
            for mount in mounts(step) if step.instruction.keyword == "RUN" else ():
                over = normpath(mount.target or "x")
                if mount.kind != "secret" and (_APT_PLACES.search(over) or over in {"/", "/etc"}):
                    yield step, over, True
                elif mount.kind != "secret" and _PYTHON_PLACES.search(over):
                    yield step, over, False
        folders[stage.index] = folder


def _targets(step: Step) -> list[str]:
    """Where an ADD, COPY or WORKDIR leads, then the names of what it puts there."""
    words = step.instruction.json_words() or tuple(step.instruction.text.split())
    names = [heredoc.name for heredoc in step.instruction.heredocs] or [word.rpartition("/")[2] for word in words[:-1]]
    return [(step.value(words[-1]) if words else "") or "", *(names or [""])]
