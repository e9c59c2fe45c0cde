"""What single commands of a RUN bring in from outside: which are installs or downloads, and which of them keep to the lock."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipway.images.allowed import COMMIT, AllowedInputs
from slipway.images.dockerfile_stages import Run, Sheet
from slipway.images.shell_words import SHELLS, Command

FETCHERS = frozenset({
    "curl", "wget", "aria2c", "axel", "lynx", "fetch", "http", "https", "lwp-request", "ftp", "sftp", "scp",
    "rsync", "svn", "hg",
})  # fmt: skip
_SCRIPTED = re.compile(r"python[\d.]*|perl[\d.]*|ruby[\d.]*|node|nodejs|php[\d.]*|lua[\d.]*|Rscript")
_NETWORK_CODE = re.compile(
    r"https?://|\burl(open|retrieve|lib)\b|\brequests\b|\bhttpx\b|\bsocket\b|\bsubprocess\b|\bos\.system\b|\bpip\b"
)

MIXING_OPTIONS = frozenset({"--extra-index-url", "--index-strategy", "--trusted-host", "--allow-insecure-host"})
MIXING_VARIABLES = frozenset({
    "PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_STRATEGY", "PIP_TRUSTED_HOST",
    "UV_INSECURE_HOST",
})  # fmt: skip

_MANAGERS: dict[str, frozenset[str]] = {
    # program → its words that install; an empty set: every use of it.
    "npm": frozenset({"install", "i", "add", "ci", "exec", "install-test", "update"}),
    "npx": frozenset(), "yarn": frozenset(), "pnpm": frozenset(), "bun": frozenset(), "bunx": frozenset(),
    "corepack": frozenset(),
    "gem": frozenset({"install", "update"}),
    "go": frozenset({"install", "get"}),
    "conda": frozenset(), "mamba": frozenset(), "micromamba": frozenset(),
    "apk": frozenset({"add", "upgrade"}),
    "yum": frozenset(), "dnf": frozenset(), "microdnf": frozenset(), "zypper": frozenset(), "pacman": frozenset(),
    "snap": frozenset(), "flatpak": frozenset(), "brew": frozenset(), "nix-env": frozenset(),
    "cpan": frozenset(), "cpanm": frozenset(), "luarocks": frozenset(),
    "pipx": frozenset(), "poetry": frozenset(), "pdm": frozenset(), "easy_install": frozenset(), "uvx": frozenset(),
    "docker": frozenset(), "skopeo": frozenset(), "oras": frozenset(), "crane": frozenset(),
}  # fmt: skip


class _Interpreters:
    """The programs that run a script which they are given: shells, and languages with a version in the name."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name in SHELLS or bool(_SCRIPTED.fullmatch(name)))


INTERPRETERS = _Interpreters()


def names_script(command: Command) -> bool:
    """Whether an interpreter is told what to run by its arguments, so that its stdin is data."""
    options = [word for word in command.arguments if word.startswith("-") and word != "-"]
    others = [word for word in command.arguments if not word.startswith("-")]
    # `sh -s -- args` and `python3 -` read the script from stdin though arguments follow.
    reads_stdin = "-" in command.arguments or (
        command.program in SHELLS and any(re.fullmatch(r"-[a-z]*s", word) for word in options)
    )
    return not reads_stdin and bool(others or any(re.match(r"-[a-zA-Z]*[cem]$", word) for word in options))


def downloads(run: Run, _: Sheet) -> bool:
    """Whether the command fetches by itself, or is inline code that could."""
    command = run.command
    if command.program in FETCHERS:
        # Its help, version or absence is no download.
        return not set(command.arguments) & {"--version", "--help"}
    inline = _SCRIPTED.fullmatch(command.program) and any(
        re.fullmatch(r"-[a-zA-Z]*[ce]", word) for word in command.arguments
    )
    return bool(inline and any(_NETWORK_CODE.search(word) for word in command.arguments))


def python_words(command: Command) -> tuple[str, ...]:
    """The words of `pip …` or `uv pip …`, "pip" first, however pip was called; empty for another command."""
    words = (command.program, *command.arguments)
    if re.fullmatch(r"python[\d.]*", words[0]) and "-m" in words:
        words = words[words.index("-m") + 1 :] or ("",)
    if re.fullmatch(r"pip[\d.]*", words[0]):
        return ("pip", *words[1:])
    return ("uv", *words[1:]) if words[0] == "uv" else ()


def is_python_install(command: Command) -> bool:
    """Whether the command installs or fetches Python packages."""
    words = python_words(command)
    plain = [word for word in words if not word.startswith("-")]
    if plain[:1] == ["pip"]:
        return bool({"install", "download", "wheel"} & set(plain[1:2]) or {"install", "download", "wheel"} & set(plain))
    if plain[:1] == ["uv"]:
        return ("pip" in plain and bool({"install", "sync"} & set(plain))) or bool(
            {"sync", "add", "tool", "run", "x"} & set(plain[1:2])
        )
    return command.program in {"pipx", "uvx", "poetry", "easy_install"} or "setup.py" in command.arguments


def python_unlocked(run: Run, sheet: Sheet) -> bool:
    """Whether a Python install takes anything but a locked requirements file with hashes, or local paths without an index."""
    words = python_words(run.command)
    if not words or not is_python_install(run.command):
        return "setup.py" in run.command.arguments
    plain, options = _split(words[1:])
    locks = [value for name, value in options if name in {"-r", "--requirement", "--requirements"}]
    if words[0] == "uv" and plain[:1] == ["sync"]:
        frozen = {"--locked", "--frozen"} & {name for name, _ in options}
        return not frozen or not _listed("uv.lock", sheet.allowed.python_locks)
    verbs = [word for word in plain if word in {"install", "sync", "download", "wheel"}]
    named = plain[plain.index(verbs[0]) + 1 :] if verbs else plain
    if verbs[:1] == ["sync"]:
        locks, named = [*locks, *named], []
    names = {name for name, _ in options}
    remote = any(
        name in {"-f", "--find-links", "-e", "--editable", "-c", "--constraint"} and "://" in value
        for name, value in options
    )
    if remote or any("://" in word for word in named):
        return True
    if locks:
        hashed = "--require-hashes" in names and "--no-require-hashes" not in names
        return not hashed or bool(named) or not all(_listed(lock, sheet.allowed.python_locks) for lock in locks)
    local = all(
        word.startswith(("/", "./", ".")) for word in [*named, *(v for n, v in options if n in {"-e", "--editable"})]
    )
    return not (local and (named or {"-e", "--editable"} & names) and {"--no-index", "--offline"} & names)


def apt_unlocked(run: Run, sheet: Sheet) -> bool:
    """Whether apt installs anything but the exact versions of the lock, or upgrades what is there."""
    command = run.command
    if command.program not in {"apt", "apt-get", "aptitude"}:
        return False
    plain, options = _split(command.arguments)
    verb, named = (plain[0], plain[1:]) if plain else ("", [])
    if verb in {"upgrade", "dist-upgrade", "full-upgrade", "build-dep", "source", "download", "reinstall", "satisfy"}:
        return True
    if verb != "install":
        return False
    names = {name for name, _ in options}
    return not all(_locked_deb(word, sheet.allowed, names) for word in [*named, *_from_list(command)]) or not (
        named or _from_list(command)
    )


def apt_source(run: Run, _: Sheet) -> bool:
    """Whether a package source or a key is added."""
    command = run.command
    if command.program in {"apt-key", "add-apt-repository", "apt-add-repository", "extrepo"} or any(
        word.startswith("ppa:") for word in command.arguments
    ):
        return True
    written = [word.text for kind, word in command.redirects if ">" in kind]
    written += command.arguments if command.program == "tee" else ()
    return any(
        re.match(r"/etc/apt/(sources\.list|trusted\.gpg|keyrings|preferences)|/usr/share/keyrings", word)
        for word in written
    )


def other_manager(run: Run, _: Sheet) -> bool:
    """Whether another package manager installs something."""
    command = run.command
    words = set(command.arguments)
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


def pinned_git(command: Command, allowed: AllowedInputs) -> bool:
    """Whether a git command fetches nothing, or exactly a commit of the lock from the repository of the lock."""
    plain, options = _split(command.arguments)
    verb = plain[0] if plain else ""
    if verb in {"pull", "submodule", "svn", "lfs", "archive"} or (verb == "remote" and "update" in plain):
        return False
    if verb == "clone":
        revision = next((value for name, value in options if name == "--revision"), "")
        return bool(plain[1:]) and bool(COMMIT.fullmatch(revision)) and allowed.allows_commit(plain[1], revision)
    if verb in {"fetch", "fetch-pack", "ls-remote"}:
        return len(plain) == 3 and bool(COMMIT.fullmatch(plain[2])) and allowed.allows_commit(plain[1], plain[2])
    return True


_WITH_VALUE = frozenset({
    "-r", "-c", "-e", "-f", "-i", "-t", "-d", "-o", "-C", "--requirement", "--requirements", "--constraint",
    "--constraints", "--editable", "--find-links", "--index-url", "--target", "--python", "--prefix", "--root",
    "--cert", "--cache-dir", "--default-index", "--index", "--extra-index-url", "--index-strategy", "--only-binary",
    "--no-binary", "--platform", "--python-version", "--implementation", "--abi", "--option", "--default-release",
    "--target-release", "--revision", "--depth", "--branch", "-b", "--link-mode", "--src", "--report", "--log",
    "--timeout", "--retries", "--proxy", "--trusted-host", "--progress-bar",
})  # fmt: skip


def _split(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Plain words, and options with their values ("" where they take none)."""
    plain: list[str] = []
    options: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            plain.append(word)
            continue
        name, equals, value = word.partition("=")
        if (
            not word.startswith("--")
            and len(word) > 2
            and word[:2] in {"-r", "-c", "-e", "-f"}
            and word[1:] not in {"force"}
        ):
            name, equals, value = word[:2], "=", word[2:]
        if not equals and name in _WITH_VALUE and rest:
            value = rest.pop(0)
        options.append((name, value))
    return plain, options


def _listed(path: str, files: Sequence[str]) -> bool:
    """Whether `path` is one of the lock's `files`; inside the image only its last part is the same."""
    return any(path == name or path.rpartition("/")[2] == name.rpartition("/")[2] for name in files)


def _locked_deb(word: str, allowed: AllowedInputs, options: set[str]) -> bool:
    found = re.fullmatch(r"(?:\$\(\s*(?:cat\s+|<\s*)|`cat\s+)([^\s)`]+)\s*[)`]", word)
    if found:
        return _listed(found[1], allowed.deb_lists)
    if word.endswith(".deb"):
        # The file came in as a locked input; what it depends on must not be fetched besides.
        return word.startswith(("/", "./")) and "--no-download" in options
    return word in allowed.debs or _listed(word, allowed.deb_lists)


def _from_list(command: Command) -> list[str]:
    """The list files that feed the packages: `xargs -a FILE apt-get install`, `xargs apt-get install < FILE`."""
    via = [word.text for word in command.via]
    if "xargs" not in {word.rpartition("/")[2] for word in via}:
        return []
    named = [via[index + 1] for index, word in enumerate(via[:-1]) if word in {"-a", "--arg-file"}]
    named += [word.removeprefix("--arg-file=") for word in via if word.startswith("--arg-file=")]
    named += [target.text for kind, target in command.redirects if kind == "<"]
    return named or ["packages from a pipe"]
