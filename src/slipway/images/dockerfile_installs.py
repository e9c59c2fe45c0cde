"""What single commands of a RUN bring in from outside: which are installs or downloads, and which of them keep to the lock."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slipway.images.allowed import COMMIT, AllowedInputs
from slipway.images.dockerfile_stages import Run, Sheet
from slipway.images.shell_texts import Command
from slipway.images.shell_wrappers import SHELLS

FETCHERS = frozenset({
    "curl", "wget", "aria2c", "axel", "lynx", "fetch", "http", "https", "lwp-request", "ftp", "sftp", "scp",
    "rsync", "svn", "hg", "nc", "ncat", "netcat", "socat", "telnet", "ssh", "tftp", "w3m", "links", "elinks", "hf",
    "huggingface-cli", "modelscope", "playwright", "aws", "gsutil", "gcloud", "s5cmd", "rclone", "gh", "apt-helper",
})  # fmt: skip
_SCRIPTED = re.compile(r"python[\d.]*|perl[\d.]*|ruby[\d.]*|node|nodejs|php[\d.]*|lua[\d.]*|Rscript")
_NETWORK_CODE = re.compile(
    r"[a-z]+://|\burl(open|retrieve|lib\d?)\b|\b(requests|httpx|aiohttp|pycurl|socket|subprocess|ctypes|pip|ensurepip|pty)\b"
    r"|\bhttp\.client\b|\bos\.(system|popen|exec\w*|spawn\w*|posix_spawn\w*)\b|\bpopen\b|\bsystem\b|\b(HTTP|LWP|Net|IO)::"
    r"|\bTCPSocket\b|open-uri|net/http|\bfetch\(|\bexec\b|\beval\b|__import__|import_module|child_process"
    r"|/dev/(tcp|udp)/|/inet/|\bcurl\b|\bwget\b",
    re.IGNORECASE,
)
_SOCKET = re.compile(r"/dev/(tcp|udp)/|/inet/(tcp|udp)/")
_REMOTE = re.compile(r"\b(https?|ftp|ssh|git)://(?!(localhost|127\.0\.0\.1|\[::1\])[:/])", re.IGNORECASE)
_PACKAGES = frozenset({"apt", "apt-get", "aptitude", "dpkg", "pip", "pip3", "npm"})
"""Programs whose words are names of packages; they have their own rules."""
_ONLY_SAY = frozenset({
    "", "echo", "printf", "test", "[", "export", "declare", "readonly", "local", "set", "unset", "grep", "sed", "git", "eval",
    "su", "trap", "script", "uv", "apt-key", "add-apt-repository",
})  # fmt: skip
"""Programs that may be told a URL: they fetch nothing by it, or are judged by their own rule."""

INDEX_VARIABLES = frozenset({
    "PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE", "PIP_REQUIREMENT", "PIP_CONSTRAINT", "UV_INDEX_URL",
    "UV_DEFAULT_INDEX", "UV_FIND_LINKS", "UV_CONFIG_FILE",
})  # fmt: skip
"""Not for ENV and ARG: an index of your own comes in as a build secret, and leaves no trace."""

HIDING_VARIABLES = frozenset({
    "BASH_ENV", "ENV", "PROMPT_COMMAND", "LD_PRELOAD", "PYTHONSTARTUP", "GIT_SSH_COMMAND", "GIT_SSH", "GIT_ASKPASS",
})  # fmt: skip
"""Variables that make a program run something which is not in the line."""

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
    """Whether the command fetches by itself, is told a URL, or is inline code that could fetch."""
    command = run.command
    texts = (*command.arguments, *(word.text for _, word in command.redirects))
    wrapped = {word.rpartition("/")[2] for word in command.arguments} if command.via else set()
    if command.program in FETCHERS or (
        wrapped & FETCHERS and command.program not in (_ONLY_SAY | _PACKAGES | {"rm"}) - {""}
    ):
        # Its help, version or absence is no download.
        return not set(command.arguments) & {"--version", "--help"}
    if command.program == "openssl" and {"s_client", "ocsp", "s_time"} & set(command.arguments):
        return True
    if any(_SOCKET.search(text) for text in texts) and command.program not in {"echo", "printf", *SHELLS}:
        return True
    if re.fullmatch(r"[gmn]?awk", command.program):
        return any(re.search(r"\bsystem\s*\(|getline", text) for text in texts)
    told = any(_REMOTE.search(text) for text in command.arguments)
    if told and command.program not in _ONLY_SAY | SHELLS and not python_words(command):
        return True
    inline = any(re.match(r"-[a-zA-Z]*[ceErM]", word) for word in command.arguments)
    inline = inline and bool(_SCRIPTED.fullmatch(command.program) or command.program == "make")
    return inline and not python_words(command) and any(_NETWORK_CODE.search(word) for word in command.arguments)


def python_words(command: Command) -> tuple[str, ...]:
    """The words of `pip …` or `uv pip …`, "pip" first, however pip was called; empty for another command."""
    words = (command.program, *command.arguments)
    if re.fullmatch(r"(python|pypy)[\d.]*", words[0]):
        words = _module(words[1:])
    if re.fullmatch(r"pip[\d.]*", words[0]):
        return ("pip", *words[1:])
    return ("uv", *words[1:]) if words[0] == "uv" else ()


def _module(arguments: Sequence[str]) -> tuple[str, ...]:
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
    """Whether the command installs or fetches Python packages."""
    words = python_words(command)
    plain = [word for word in words if not word.startswith("-")]
    if plain[:1] == ["pip"]:
        return bool({"install", "download", "wheel"} & set(plain[1:2]) or {"install", "download", "wheel"} & set(plain))
    if plain[:1] == ["uv"]:
        given = set(plain[1:])
        if "pip" in given:
            return bool({"install", "sync"} & given)
        seeded = "venv" in given and "--seed" in words
        return seeded or bool({"sync", "add", "tool", "run", "x", "python", "lock", "self", "build"} & given)
    if "--upgrade-deps" in command.arguments:
        return True
    return command.program in {"pipx", "uvx", "poetry", "easy_install"} or "setup.py" in command.arguments


def python_unlocked(run: Run, sheet: Sheet) -> bool:
    """Whether a Python install takes anything but a locked requirements file with hashes, or local paths without an index."""
    words = python_words(run.command)
    if not is_python_install(run.command):
        return False
    if not words:
        # setup.py, `venv --upgrade-deps`; other managers have their own rule.
        return bool({"setup.py", "--upgrade-deps"} & set(run.command.arguments))
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
        made = {lock.rpartition("/")[2] for lock in locks} & _written(sheet)
        return not hashed or bool(named or made) or not all(_listed(lock, sheet.allowed.python_locks) for lock in locks)
    local = all(
        word.startswith(("/", "./", ".")) for word in [*named, *(v for n, v in options if n in {"-e", "--editable"})]
    )
    return not (local and (named or {"-e", "--editable"} & names) and {"--no-index", "--offline"} & names)


def _written(sheet: Sheet) -> set[str]:
    """The names of files that the Dockerfile itself writes: none of them is a file of the lock."""
    found = [word.text for run in sheet.runs for kind, word in run.command.redirects if ">" in kind]
    for run in sheet.runs:
        if run.command.program in {"tee", "cp", "mv", "ln", "install", "sed", "dd"}:
            found += run.command.arguments[-1:]
    found += [step.instruction.text.split()[-1] for _, step in sheet.steps("COPY", "ADD") if step.instruction.heredocs]
    return {name.rpartition("/")[2] for name in found}


def apt_unlocked(run: Run, sheet: Sheet) -> bool:
    """Whether apt installs anything but the exact versions of the lock, or upgrades what is there."""
    command = run.command
    if command.program == "dpkg" and re.search(
        r"(^| )(-[a-zA-Z]*i|--install|--unpack|-R|--recursive)\b", " ".join(command.arguments)
    ):
        return not _brought_in([word for word in command.arguments if not word.startswith("-")], run, sheet)
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


def _brought_in(files: Sequence[str], run: Run, sheet: Sheet) -> bool:
    """Whether all `files` stand where ADD, COPY or a bind mount of this RUN has put inputs of the lock."""
    places = [step.instruction.text.split()[-1] for _, step in sheet.steps("ADD", "COPY")]
    for flag in run.step.instruction.flags:
        found = re.search(r"(?:^|,)(?:target|dst|destination)=([^,]+)", flag.value)
        places += [found[1]] if found and "type=cache" not in flag.value else []
    return all(
        ".." not in file
        and any(file.startswith(f"{place.rstrip('/')}/") or file == place for place in places if place != "/")
        for file in files
    )


def apt_source(run: Run, _: Sheet) -> bool:
    """Whether a package source or a key is added."""
    command = run.command
    if command.program in {"apt-key", "add-apt-repository", "apt-add-repository", "extrepo"} or any(
        word.startswith("ppa:") for word in command.arguments
    ):
        return True
    written = [word.text for kind, word in command.redirects if ">" in kind]
    if command.program in {"tee", "cp", "mv", "ln", "install", "sed", "dd"}:
        written += command.arguments
    return any(
        re.search(
            r"(^|/)sources\.list|\.sources$|/etc/apt/(trusted\.gpg|keyrings|preferences)|/usr/share/keyrings", word
        )
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
    # An alias or a transport of `-c` runs whatever it says.
    if any(
        name in {"-c", "--config-env", "--exec-path"} and re.match(r"alias\.|core\.|.*!", value)
        for name, value in options
    ):
        return False
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
    "--git-dir", "--work-tree", "--namespace", "--directory", "--project", "--timeout", "--retries",
    "--proxy", "--trusted-host", "--progress-bar",
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
