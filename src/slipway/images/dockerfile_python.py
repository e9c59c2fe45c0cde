"""What `pip` and `uv` commands install, and whether all of it comes from a requirements file of the lock.

Options are known by name: one that is not can name another source, or another package, in a way that is not judged here.
Source: pip 25.3 and uv 0.9, their --help, read 2026-12-01.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from slipway.images.dockerfile_locked import locked, secret_value
from slipway.images.dockerfile_stages import Run, Sheet
from slipway.images.shell_texts import Command
from slipway.images.shell_wrappers import names

# Flags, and options with a value, that change neither where packages come from nor which.
_FLAGS = names(
    "-q -v -n -h -V -I -U --quiet --verbose --help --version --upgrade --ignore-installed --no-deps --require-hashes --no-index "
    "--no-build-isolation --no-compile --compile --user --no-user --break-system-packages --force-reinstall --no-clean "
    "--no-warn-script-location --no-warn-conflicts --no-cache-dir --no-input --no-color --isolated --prefer-binary "
    "--disable-pip-version-check --no-python-version-warning --require-virtualenv --ignore-requires-python --dry-run "
    "--check-build-dependencies --debug --system --no-build --offline --compile-bytecode --no-progress --reinstall --strict "
    "--exact --no-config --native-tls --system-certs --no-sources --no-cache --no-python-downloads --allow-empty-requirements "
    "--verify-hashes --refresh --managed-python --no-managed-python --seed --clear --relocatable --system-site-packages"
)
_VALUED = names(
    "-r -t -d -w -e -C -p --requirement --requirements --only-binary --no-binary --target --prefix --root --python "
    "--cache-dir --progress-bar --root-user-action --cert --client-cert --timeout --retries --upgrade-strategy --platform "
    "--python-version --python-platform --implementation --abi --dest --src --report --log --wheel-dir --editable "
    "--config-settings --config-setting --link-mode --color --directory --project --reinstall-package --upgrade-package "
    "--no-build-isolation-package --prompt -c -b --constraint --constraints --build-constraint --build-constraints"
)
_INDEX = names(
    "-i -f --index-url --pypi-url --extra-index-url --find-links --trusted-host --index --default-index --index-strategy "
    "--allow-insecure-host --torch-backend"
)
_REQUIREMENTS = {"-r", "--requirement", "--requirements"}
_CONSTRAINTS = {"-c", "-b", "--constraint", "--constraints", "--build-constraint", "--build-constraints"}
_EDITABLE = {"-e", "--editable"}
_PYTHON = r"(python|pypy)[\d.]*[a-z]?"
_INSTALLING_MODULES = names(
    "pipx poetry pdm hatch flit pipenv piptools conda cibuildwheel tox nox maturin easy_install"
)
_RUN_MODULES = names(
    "runpy cProfile profile trace pdb coverage debugpy viztracer scalene pyinstrument memory_profiler line_profiler kernprof "
    "torch multiprocessing"
)
"""Modules that run the module named after them."""


@dataclass(frozen=True)
class _Given:
    """The words of a pip or uv command: plain ones, and options by name with their values ("" where they take none)."""

    plain: tuple[str, ...]
    options: tuple[tuple[str, str], ...]

    def values(self, names: set[str]) -> list[str]:
        return [value for name, value in self.options if name in names]

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.options)


def python_words(command: Command) -> tuple[str, ...]:
    """The words of `pip …` or `uv …`, "pip" or "uv" first, however it was called; empty for another command."""
    words: tuple[str, ...] = (command.program, *command.arguments)
    if re.fullmatch(_PYTHON, words[0]):
        words = module_words(words[1:])
        if words[0].partition(".")[0] in _RUN_MODULES:
            found = (index for index, word in enumerate(words) if index and _is_pip(word.rpartition("/")[2]))
            words = words[next(found, 0) :]
    if _is_pip(words[0]):
        return ("pip", *words[1:])
    return ("uv", *words[1:]) if words[0] == "uv" else ()


def _is_pip(name: str) -> bool:
    return bool(re.fullmatch(r"pip-?[\d.]*|pip(\.[_a-z]\w*)+", name))


def module_words(arguments: Sequence[str]) -> tuple[str, ...]:
    """The module or file that Python runs, by its last name, and its arguments: `-m pip`, `-mpip`, `-Im pip`, `/x/pip`."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        short = re.fullmatch(r"-([A-Za-z]*?)([mcWX])(.*)", word, re.DOTALL) if not word.startswith("--") else None
        if short and short[2] == "c":
            return ("",)
        if short and short[2] == "m":
            named = [short[3], *rest] if short[3] else rest
            return (named[0].removesuffix(".__main__"), *named[1:]) if named else ("",)
        if short and not short[3] and rest:
            rest.pop(0)
        elif not word.startswith("-"):
            file = word.removesuffix("/__main__.py").removesuffix("/")
            return (file.rpartition("/")[2], *rest)
    return ("",)


def is_python_install(command: Command) -> bool:
    """Whether the command installs, fetches or resolves Python packages."""
    words = python_words(command)
    plain = [word for word in words if not word.startswith("-")]
    if plain[:1] == ["pip"]:
        return bool({"install", "download", "wheel", "lock"} & set(plain))
    if plain[:1] == ["uv"]:
        given = set(plain[1:])
        if "pip" in given:
            return bool({"install", "sync", "compile"} & given)
        if "venv" in given:
            return "--seed" in words or not _own_pythons(words)
        return bool({"sync", "add", "tool", "run", "x", "python", "lock", "self", "build"} & given)
    if "--upgrade-deps" in command.arguments:
        return True
    return command.program in {"pipx", "uvx", "poetry", "easy_install"} or _builds(command)


def _builds(command: Command) -> bool:
    """Whether a project is built by its setup.py, or by a module that fetches what it is built with."""
    if any(word.rpartition("/")[2] == "setup.py" for word in (command.program, *command.arguments)):
        return True
    if not re.fullmatch(_PYTHON, command.program):
        return False
    module = module_words(command.arguments)[0]
    if module == "build":
        return not {"-n", "--no-isolation"} & set(command.arguments)
    return module.partition(".")[0] in _INSTALLING_MODULES


def _own_pythons(words: tuple[str, ...]) -> bool:
    """Whether each --python of uv is a path; of anything else uv fetches one."""
    given = _given(words)
    return words[0] != "uv" or all("/" in value for value in given.values({"-p", "--python"}))


def python_unlocked(run: Run, sheet: Sheet) -> bool:
    """Whether a Python install takes anything but a locked requirements file with hashes, or local paths without an index."""
    words = python_words(run.command)
    if not is_python_install(run.command):
        return False
    if not words:
        # setup.py, `venv --upgrade-deps`; other managers have their own rule.
        return "--upgrade-deps" in run.command.arguments or _builds(run.command)
    given = _given(words)
    verbs = [word for word in given.plain if word in {"install", "sync", "download", "wheel"}]
    if not verbs or (words[0] == "uv" and "pip" not in given.plain):
        return True
    if not all(_known(name) for name, _ in given.options) or not _own_pythons(words):
        return True
    locks, named = given.values(_REQUIREMENTS), list(given.plain[given.plain.index(verbs[0]) + 1 :])
    if verbs[0] == "sync":
        locks, named = [*locks, *named], []
    if not all(locked(file, run.step, sheet.allowed.python_locks) for file in (*locks, *given.values(_CONSTRAINTS))):
        return True
    if locks:
        return not given.has("--require-hashes") or bool(named or given.values(_EDITABLE))
    named += given.values(_EDITABLE)
    local = bool(named) and all(word.startswith(("/", "./", ".")) and "://" not in word for word in named)
    return not local or not given.has("--no-index", "--offline")


def _known(name: str) -> bool:
    return name in _FLAGS or name in _VALUED or is_index_option(name)


def is_index_option(name: str) -> bool:
    """Whether the option says from where packages come; pip takes the first letters of an option for it."""
    if name in _INDEX:
        return True
    if not name.startswith("--") or len(name) < 4 or name in _FLAGS or name in _VALUED:
        return False
    return any(option.startswith(name) for option in _INDEX)


def index_options(run: Run) -> list[str]:
    """The options of a pip or uv command that name an index or a folder of packages of the Dockerfile's own."""
    words = python_words(run.command)
    if not words:
        return []
    given = _given(words)
    if given.plain[:1] == ("config",) and {"set", "edit"} & set(given.plain):
        return [" ".join(words)]
    alone = given.has("--no-index", "--offline")
    return [
        name
        for name, value in given.options
        if is_index_option(name)
        and not secret_value(value, run.step)
        # A folder that is the only source is a local path like any other.
        and not (name in {"-f", "--find-links"} and alone and value.startswith("/"))
    ]


def _given(words: tuple[str, ...]) -> _Given:
    plain: list[str] = []
    options: list[tuple[str, str]] = []
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word == "-":
            plain.append(word)
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            if not equals and (name in _VALUED or is_index_option(name)):
                value = next(rest, "")
            options.append((name, value))
        else:
            # Letters in one word: the first that takes a value takes what follows it.
            for index, letter in enumerate(word[1:], start=2):
                if f"-{letter}" in _VALUED or f"-{letter}" in _INDEX:
                    options.append((f"-{letter}", word[index:].removeprefix("=") or next(rest, "")))
                    break
                options.append((f"-{letter}", ""))
    return _Given(tuple(plain), tuple(options))
