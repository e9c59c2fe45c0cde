"""The variables that a command sets, and those that change what other programs run or install."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipway.images.dockerfile_locked import secret, secret_value
from slipway.images.dockerfile_stages import Step
from slipway.images.shell_texts import Command
from slipway.images.shell_wrappers import names

_HIDING = re.compile(
    r"BASH_ENV|ENV|PROMPT_COMMAND|PS4|LD_PRELOAD|LD_AUDIT|PYTHONSTARTUP|PYTHONHOME|PERL5OPT|PERL5DB|RUBYOPT|NODE_OPTIONS"
    r"|GIT_SSH_COMMAND|GIT_SSH|GIT_ASKPASS|SSH_ASKPASS|GIT_CONFIG(_\w+)?|GIT_EXEC_PATH|GIT_PROXY_COMMAND|GIT_EXTERNAL_DIFF"
    r"|GIT_EDITOR|GIT_PAGER|GIT_SEQUENCE_EDITOR|GIT_TEMPLATE_DIR|BASH_FUNC_.*|JAVA_TOOL_OPTIONS|MAKEFLAGS|LESSOPEN"
)
"""Variables that make a program run something which is not in the line."""

_MIXING = frozenset({
    "PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_STRATEGY", "PIP_TRUSTED_HOST", "UV_INSECURE_HOST",
})  # fmt: skip
_INDEX = frozenset({"PIP_INDEX_URL", "PIP_PYPI_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"})
_CONFIG = frozenset({"PIP_CONFIG_FILE", "UV_CONFIG_FILE"})
_PLAIN = {
    f"PIP_{name}"
    for name in names(
        "CERT CLIENT_CERT ROOT_USER_ACTION BREAK_SYSTEM_PACKAGES NO_CACHE_DIR CACHE_DIR DISABLE_PIP_VERSION_CHECK NO_INPUT "
        "NO_COLOR PROGRESS_BAR QUIET VERBOSE NO_INDEX NO_DEPS ONLY_BINARY NO_BUILD_ISOLATION NO_COMPILE COMPILE TARGET PREFIX "
        "ROOT USER DEFAULT_TIMEOUT TIMEOUT RETRIES NO_WARN_SCRIPT_LOCATION REQUIRE_VIRTUALENV LOG"
    )
} | {
    f"UV_{name}"
    for name in names(
        "CACHE_DIR LINK_MODE HTTP_TIMEOUT HTTP_RETRIES REQUEST_TIMEOUT NO_PROGRESS NO_CONFIG SYSTEM_PYTHON COMPILE_BYTECODE "
        "OFFLINE REQUIRE_HASHES NO_CACHE NATIVE_TLS SYSTEM_CERTS BREAK_SYSTEM_PACKAGES PROJECT_ENVIRONMENT "
        "CONCURRENT_DOWNLOADS CONCURRENT_BUILDS CONCURRENT_INSTALLS PYTHON_DOWNLOADS PYTHON_PREFERENCE NO_BUILD "
        "NO_BUILD_ISOLATION VENV_CLEAR NO_PYTHON_DOWNLOADS"
    )
}
"""Settings of pip and uv that change neither where packages come from nor which."""

_DECLARES = frozenset({"export", "declare", "typeset", "readonly", "local"})
_NAME = re.compile(r"[A-Za-z_]\w*")
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?=")


def assigned(command: Command) -> Iterator[tuple[str, str | None]]:
    """Every variable that `command` sets, and its value; None where that comes from elsewhere.

    Names that are made when the command runs (`export "$X"`) are given as they are written.
    """
    for own in command.via:
        if found := re.match(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=(.*)", own.text, re.DOTALL):
            yield found[1], found[2]
    words = command.arguments
    plain = [word for word in words if not word.startswith("-")]
    if command.program in _DECLARES:
        for word in plain:
            name, equals, value = word.partition("=")
            if equals or not _NAME.fullmatch(name):
                yield name.removesuffix("+"), value if equals else None
    elif command.program in {"read", "mapfile", "readarray", "getopts"}:
        # Other words are values of options.
        yield from ((word, None) for word in plain if "$" in word or _NAME.fullmatch(word))
    elif command.program in {"for", "select"}:
        yield from ((word, None) for word in plain[:1])
    elif command.program in {"printf", "wait"}:
        yield from (
            (name, None)
            for flag in ("-v", "-p")
            for index, word in enumerate(words)
            if word.startswith(flag)
            for name in ([word[2:]] if word[2:] else words[index + 1 : index + 2])
        )
    elif command.program == "let":
        yield from ((word.partition("=")[0], None) for word in plain)
    for each in (*command.via, *command.words):
        yield from ((name, None) for name in _DEFAULT.findall(each.text))


def hides(name: str) -> bool:
    """Whether the variable makes a program run something that is not in the line."""
    return bool(_HIDING.fullmatch(name))


def steers_python(name: str, value: str | None, step: Step) -> bool:
    """Whether the variable says from where, or what, pip or uv install, by other means than a build secret of this RUN."""
    if not name.startswith(("PIP_", "UV_")) or name in _PLAIN:
        return False
    if name in _CONFIG:
        return value is None or (value != "/dev/null" and not secret(value, step))
    if name in _INDEX:
        return value is None or (value != "" and not secret_value(value, step))
    if name == "UV_PYTHON":
        # Anything but a path may be fetched.
        return "/" not in (value or "")
    return True


def is_index(name: str) -> bool:
    """Whether the variable names an index or a file that may name one."""
    return name in _MIXING | _INDEX | _CONFIG
