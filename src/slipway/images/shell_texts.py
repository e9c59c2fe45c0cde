"""One command of a shell script, and its words that are scripts themselves: `sh -c TEXT`, `eval TEXT`, `trap TEXT` …"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from slipway.images.shell_wrappers import LOOSE, SHELLS, base_name

_TAKES_COMMAND = SHELLS | {"su", "script", "runuser", "sg", "capsh", "newgrp", "-c", "--command"}
"""Programs that run the text after `-c`; the last two are what is left of `flock FILE -c TEXT`."""
_WHOLE_TEXTS = LOOSE | {"parallel", "watch", "sem"}
"""Programs that hand a word with blanks to a shell."""
_ADDRESS = r"(?:\d+|\$|/(?:\\.|[^/\\])*/)"
_SED_RUNS = re.compile(
    rf"(?:^|[;{{}}\n])\s*(?:{_ADDRESS}(?:,(?:\+?\d+|{_ADDRESS}))?)?\s*!?\s*e(?:[ \t]+([^\n]*)|[;}}\n]|$)"
)
_SED_CHANGES = re.compile(r"s([^\w\s\\])((?:\\.|(?!\1)[^\\])*)\1((?:\\.|(?!\1)[^\\])*)\1([a-zA-Z0-9]*)", re.DOTALL)


@dataclass(frozen=True)
class Word:
    """One word without its quotes, where it begins, and the scripts in it (`$(…)`, backticks, `<(…)`) with their offsets."""

    text: str
    offset: int
    scripts: tuple[tuple[str, int], ...] = ()
    dynamic: bool = False
    """Whether the shell makes another word of it: variables, substitutions, braces, patterns."""


@dataclass(frozen=True)
class Command:
    """One simple command, wrappers taken off. `via` are the wrappers' own words, `within` the program that runs it as text."""

    words: tuple[Word, ...]
    offset: int
    reads_pipe: bool = False
    redirects: tuple[tuple[str, Word], ...] = ()
    via: tuple[Word, ...] = ()
    within: str = ""
    unreadable: str = ""

    @cached_property
    def program(self) -> str:
        """The program's name without its folder, or ""."""
        return base_name(self.words[0].text) if self.words else ""

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        """The words after the program."""
        return tuple(word.text for word in self.words[1:])


def texts_of(command: Command) -> Iterator[tuple[str, int]]:
    """The words of `command` that a shell reads, each with its offset."""
    yield from _wrapped_texts(command)
    program, arguments = command.program, command.arguments
    if program == "eval":
        yield " ".join(arguments[1:] if arguments[:1] == ("--",) else arguments), command.offset
    elif program == "trap":
        yield from ((text, command.offset) for text in [one for one in arguments if one not in {"--", "-"}][:1])
    elif program == "alias":
        yield from ((text.partition("=")[2], command.offset) for text in arguments)
    elif program in {"mapfile", "readarray", "complete", "compgen"}:
        yield from ((text, command.offset) for text in _values_of("-C", arguments))
    elif program == "sed":
        yield from ((text, command.offset) for text in sed_commands(arguments))
    elif program in _TAKES_COMMAND:
        yield from _command_texts(command)
    if program in {"su", "runuser"}:
        yield from ((text, command.offset) for text in _values_of("-s", arguments) if base_name(text) not in SHELLS)


def _wrapped_texts(command: Command) -> Iterator[tuple[str, int]]:
    """Texts among the words of wrappers: `env -S TEXT`, `PS4='$(…)'`, `parallel 'TEXT'`."""
    split = False
    # A wrapper keeps one word for the program, which `-STEXT` may be.
    for own in (*command.via, *command.words[:1]) if command.via else ():
        found = re.fullmatch(r"(?:-[a-zA-Z0]*?S|--split-string(?:=|$))(.*)", own.text, re.DOTALL)
        if split or (found and found[1]):
            yield (found[1] if found and not split else own.text), own.offset
        split = bool(found) and not (found and found[1])
    names = {base_name(own.text) for own in command.via}
    if names & _WHOLE_TEXTS or command.program in _WHOLE_TEXTS:
        yield from ((word.text, word.offset) for word in command.words if " " in word.text)


def _command_texts(command: Command) -> Iterator[tuple[str, int]]:
    takes_text = command.program in {"-c", "--command"}
    skip = False
    for word in command.words[1:]:
        if skip:
            skip = False
        elif takes_text and not word.text.startswith(("-", "+")):
            yield word.text, word.offset
            break
        else:
            skip = bool(re.fullmatch(r"[-+][a-zA-Z]*[oO]", word.text)) and command.program in SHELLS
            takes_text = takes_text or bool(re.fullmatch(r"-[a-zA-Z]*c|--command|-Command", word.text))
        if found := re.fullmatch(r"--command=(.*)", word.text, re.DOTALL):
            yield found[1], word.offset
    for kind, word in command.redirects:
        if kind == "<<<":
            yield word.text, word.offset


def _values_of(option: str, arguments: tuple[str, ...]) -> Iterator[str]:
    """The values of a short option, attached or as the next word."""
    for index, word in enumerate(arguments):
        if word == option:
            yield from arguments[index + 1 : index + 2]
        elif word.startswith(option):
            yield word.removeprefix(option)


def placeholders(command: Command) -> list[str]:
    """What `xargs` puts its input in place of: `{}`, or the value of -I."""
    via = [word.text for word in command.via]
    named = [
        *_values_of("-I", tuple(via)),
        *(word.removeprefix("--replace=") for word in via if word.startswith("--rep")),
    ]
    return [name for name in ("{}", *named) if name]


def sed_commands(arguments: tuple[str, ...]) -> Iterator[str]:
    """What a sed script runs by `e TEXT`; "" where it runs what it reads, by `e` alone or `s/…/…/e`."""
    for text in arguments:
        script = re.sub(r"^(-[nEruzs]*e|--expression=)", "", text)
        changes = list(_SED_CHANGES.finditer(script))
        if any("e" in change[4] for change in changes):
            yield ""
        yield from (found[1] or "" for found in _SED_RUNS.finditer(_SED_CHANGES.sub("s", script)))
