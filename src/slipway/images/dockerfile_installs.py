"""What single commands of a RUN bring in by git and by package managers other than pip, uv and apt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from slipway.images.allowed import COMMIT, AllowedInputs
from slipway.images.dockerfile_stages import Run, Sheet
from slipway.images.shell_texts import Command
from slipway.images.shell_wrappers import names

_MANAGERS: dict[str, frozenset[str]] = {
    # program → its words that install; an empty set: every use of it.
    "npx": frozenset(), "yarn": frozenset(), "pnpm": frozenset(), "bun": frozenset(), "bunx": frozenset(),
    "corepack": frozenset(), "nala": frozenset(), "apt-fast": frozenset(), "gdebi": frozenset(), "tasksel": frozenset(),
    "go": frozenset({"install", "get"}),
    "conda": frozenset(), "mamba": frozenset(), "micromamba": frozenset(),
    "apk": frozenset({"add", "upgrade"}),
    "yum": frozenset(), "dnf": frozenset(), "microdnf": frozenset(), "zypper": frozenset(), "pacman": frozenset(),
    "snap": frozenset(), "flatpak": frozenset(), "brew": frozenset(), "nix-env": frozenset(),
    "cpan": frozenset(), "cpanm": frozenset(), "luarocks": frozenset(),
    "pipx": frozenset(), "poetry": frozenset(), "pdm": frozenset(), "easy_install": frozenset(), "uvx": frozenset(),
    "pipenv": frozenset(), "hatch": frozenset(), "tox": frozenset(), "nox": frozenset(), "pip-sync": frozenset(),
    "pip-compile": frozenset(), "pyproject-build": frozenset(), "rye": frozenset(), "pixi": frozenset(),
    "pyenv": frozenset({"install"}), "deno": frozenset({"install", "add", "cache"}),
    "bundle": frozenset({"install", "update", "add"}), "composer": frozenset({"install", "update", "require"}),
    "mvn": frozenset(), "gradle": frozenset(), "opam": frozenset(), "cabal": frozenset(), "mix": frozenset(),
    "conan": frozenset(), "vcpkg": frozenset(), "spack": frozenset(), "guix": frozenset(), "nix": frozenset(),
    "nix-shell": frozenset(), "asdf": frozenset(), "mise": frozenset(), "nvm": frozenset(), "fnm": frozenset(),
    "podman": frozenset(), "buildah": frozenset(), "nerdctl": frozenset(), "regctl": frozenset(),
    "docker": frozenset(), "skopeo": frozenset(), "oras": frozenset(), "crane": frozenset(),
}  # fmt: skip

_HARMLESS: dict[str, frozenset[str]] = {
    # program → the words of it that install nothing: it has too many others, and takes parts of them.
    "npm": names(
        "run run-script config get set list ls ll la pack prune test start stop restart root prefix bin cache help pkg uninstall "
        "version whoami ping doctor"
    ),
    "gem": names("list env environment which contents specification build help check cleanup uninstall"),
}

_GIT_LOCAL = names(
    "add am apply blame branch cat-file check-attr check-ignore check-ref-format checkout cherry cherry-pick clean commit "
    "commit-tree config count-objects describe diff diff-files diff-index diff-tree for-each-ref format-patch fsck gc grep "
    "hash-object help init init-db log ls-files ls-tree merge merge-base mktag mktree mv name-rev notes pack-refs prune "
    "read-tree rebase reflog remote repack reset restore rev-list rev-parse revert rm show show-ref shortlog sparse-checkout "
    "stash status switch symbolic-ref tag unpack-objects update-index update-ref var verify-commit verify-pack verify-tag "
    "version whatchanged worktree write-tree"
)
"""What git does without a network. A word that it does not know runs an alias, or a program of that name."""
_GIT_SETTINGS = re.compile(
    r"(user|author|committer|color|advice|commit|tag|pack|gc|index|i18n|log|apply|am)\.\w+|init\.defaultbranch|safe\.directory"
    r"|core\.(autocrlf|eol|filemode|symlinks|compression|abbrev|quotepath)|(http|https)\.(ssl(cainfo|verify)|postbuffer)",
    re.IGNORECASE,
)
"""Settings of git that run nothing and send it nowhere else."""


def other_manager(run: Run, _: Sheet) -> bool:
    """Whether another package manager installs something."""
    command = run.command
    words = set(command.arguments)
    if command.program in _HARMLESS:
        valued = {"--prefix", "-C", "--workspace", "-w", "--loglevel", "--cache", "--userconfig"}
        before = ("", *command.arguments)
        plain = [word for last, word in pairwise(before) if not word.startswith("-") and last not in valued]
        return bool(plain) and plain[0] not in _HARMLESS[command.program]
    if command.program == "go" and any("@" in word for word in words):
        return True
    if command.program in _MANAGERS:
        verbs = _MANAGERS[command.program]
        return not verbs or bool(verbs & words)
    if command.program == "cargo":
        building = bool({"build", "fetch", "b", "check", "test", "run", "rustc"} & words)
        return "install" in words or (building and not {"--locked", "--frozen"} & words)
    return False


def rustup(run: Run, _: Sheet) -> bool:
    """Whether rustup is used, by whatever name its installer has."""
    return bool(re.fullmatch(r"rustup(-init)?(\.sh)?", run.command.program))


def is_git(command: Command) -> bool:
    """Whether the command is git, or a part of it by its own name."""
    return command.program == "git" or command.program.startswith("git-")


def pinned_git(command: Command, allowed: AllowedInputs) -> bool:
    """Whether a git command fetches nothing, or exactly a commit of the lock from the repository of the lock."""
    arguments = command.arguments
    if command.program != "git":
        arguments = (command.program.removeprefix("git-"), *arguments)
    own, verb, words = _git_words(arguments)
    # An alias or a transport of `-c` runs whatever it says.
    if any(name in {"--config-env", "--exec-path"} and value for name, value in own):
        return False
    if not all(_GIT_SETTINGS.fullmatch(value.partition("=")[0]) for name, value in own if name == "-c"):
        return False
    plain, options = _split(words)
    names = {name for name, _ in options}
    if verb == "clone":
        revision = next((value for name, value in options if name == "--revision"), "")
        runs = {"-c", "-u", "--config", "--upload-pack", "--recurse-submodules", "--recursive", "--template"} & names
        known = bool(plain) and bool(COMMIT.fullmatch(revision)) and allowed.allows_commit(plain[0], revision)
        return known and not runs
    if verb in {"fetch", "fetch-pack", "ls-remote"}:
        return len(plain) == 2 and bool(COMMIT.fullmatch(plain[1])) and allowed.allows_commit(plain[0], plain[1])
    if "--recurse-submodules" in names or (verb == "rebase" and {"-x", "--exec"} & names):
        return False
    if verb == "remote":
        return "update" not in plain and not any(re.fullmatch(r"-[a-z]*f[a-z]*|--fetch", name) for name in names)
    if verb == "config":
        return _harmless_settings(words)
    return not verb or verb in _GIT_LOCAL


def _git_words(arguments: Sequence[str]) -> tuple[list[tuple[str, str]], str, list[str]]:
    """Git's own options with their values, its verb, and the words after that."""
    own: list[tuple[str, str]] = []
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if not equals and name in _GIT_VALUED and rest:
            value = rest.pop(0)
        own.append((name, value))
    return own, rest[0] if rest else "", rest[1:]


def _harmless_settings(words: Sequence[str]) -> bool:
    if {"--get", "--get-all", "--get-regexp", "--list", "-l", "--unset", "--unset-all"} & set(words) or words[:1] == [
        "list"
    ]:
        return True
    plain = [word for word in _split(words)[0] if word not in {"set", "get", "unset"}]
    reads = len(plain) == 1 or words[:1] == ["get"]
    return "-e" not in words and "--edit" not in words and (reads or bool(plain and _GIT_SETTINGS.fullmatch(plain[0])))


_GIT_VALUED = frozenset(
    {"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env", "--attr-source"}
)
_WITH_VALUE = frozenset({
    "-b", "-o", "-c", "-u", "-j", "-f", "--branch", "--depth", "--revision", "--origin", "--reference", "--config", "--upload-pack",
    "--template", "--separate-git-dir", "--jobs", "--filter", "--shallow-since", "--file", "--blob", "--type", "--default", "-x",
    "--exec", "--deepen", "--negotiation-tip", "--refmap", "--server-option", "-t", "-m",
})  # fmt: skip


def _split(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Plain words, and options with their values ("" where they take none)."""
    plain: list[str] = []
    options: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word == "-":
            plain.append(word)
            continue
        name, equals, value = word.partition("=")
        if not equals and name in _WITH_VALUE:
            value = next(rest, "")
        options.append((name, value))
    return plain, options
