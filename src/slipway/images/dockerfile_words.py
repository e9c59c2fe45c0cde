"""Words as BuildKit splits them: heredoc marks, flags, and the words of an instruction with what stands in quotes kept together.

Where BuildKit's releases, or BuildKit and the shell, read a line in two ways, the line is a fault here and not a guess.
Source: moby/buildkit, frontend/dockerfile/parser and shell/lex.go, releases 0.11 to 0.25, read 2026-12-01.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

BARE_FLAGS = frozenset({"link", "parents", "keep-git-dir", "unpack"})
"""The flags that may stand without a value."""

_MARK = re.compile(
    r"\d*<<(?P<dash>-?)(?:'(?P<one>[\w.-]+)'|\"(?P<two>[\w.-]+)\"|(?P<plain>[A-Za-z_][\w.-]*))", re.ASCII
)
_PLAIN_BRACES = re.compile(r"\$\{\w+(?::[-+][\w./:@%+,-]*)?\}", re.ASCII)
_VARIABLE = re.compile(r"\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:[-+])(?P<word>[^{}\"'\\]*))?\}|(?P<other>.?))")


class Unclear(Exception):  # never shown: it becomes a fault of the linter
    """A line that is not read the same way by everybody."""


@dataclass(frozen=True)
class Mark:
    """A `<<NAME` or `<<-NAME`; with quotes around the name, the shell takes the body as it stands."""

    name: str
    dash: bool
    quoted: bool = field(default=False, compare=False)


def split(text: str) -> list[tuple[str, int]]:
    """The words of `text` as they stand, quotes and all, each with its offset. Raises: Unclear."""
    found: list[tuple[str, int]] = []
    begin, quote, at = -1, "", 0
    while at < len(text):
        char = text[at]
        if not quote and char in " \t":
            if begin >= 0:
                found.append((text[begin:at], begin))
            begin, at = -1, at + 1
            continue
        begin = at if begin < 0 else begin
        if char == "\\":
            if quote == "'":
                raise Unclear("a backslash in single quotes")
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        at += 1
    if quote:
        raise Unclear("a quote that is not closed")
    if begin >= 0:
        found.append((text[begin:], begin))
    return found


def marks(line: str) -> list[Mark]:
    """The heredoc marks in the line of an ADD, COPY or RUN. Raises: Unclear where it holds `<<` in another way."""
    if "<<" not in _bare(line):
        return []
    if _PLAIN_BRACES.sub("", line).count("${"):
        raise Unclear("a ${…} beside <<")
    found = []
    for word, _ in split(line):
        if "<<" not in _bare(word):
            continue
        match = _MARK.fullmatch(word)
        if match:
            found.append(Mark(match["one"] or match["two"] or match["plain"], bool(match["dash"]), not match["plain"]))
        # A word that begins with a quote is no mark to anybody, if all of it is quoted.
        elif not re.fullmatch(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", word):
            raise Unclear(f"a heredoc as {word[:40]}")
    return found


def _bare(text: str) -> str:
    return re.sub(r"[\"'\\]", "", text).replace("<<<", "")


def flags(line: str, start: int) -> tuple[list[tuple[str, str, int]], int]:
    """The flags from `start` on, as name, value without quotes and offset, and where the arguments begin. Raises: Unclear."""
    found: list[tuple[str, str, int]] = []
    at = start
    while line.startswith("--", at):
        begin, word, at = at, *_flag(line, at)
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"--[a-z][a-z-]*", name) or not (equals or name[2:] in BARE_FLAGS) or not word.isascii():
            raise Unclear(f"the flag {word[:40]}")
        found.append((name[2:], value, begin))
        while line[at : at + 1] in {" ", "\t"}:
            at += 1
    return found, at


def _flag(line: str, at: int) -> tuple[str, int]:
    """One flag without its quotes, and where it ends."""
    word, quote = "", ""
    while at < len(line):
        char = line[at]
        if not quote and char in " \t":
            break
        if char == "\\":
            at += 1
            word += line[at : at + 1]
        elif quote:
            word, quote = (word, "") if char == quote else (word + char, quote)
        elif char in "\"'":
            quote = char
        else:
            word += char
        at += 1
    if quote:
        raise Unclear("a quote that is not closed in a flag")
    return word, at


def substituted(text: str, values: Mapping[str, str | None]) -> str | None:
    """One word without its quotes, `$NAME`, `${NAME}`, `${NAME:-word}` and `${NAME:+word}` replaced; None when that is not known.

    A name that is missing in `values` is unset, and empty as in Docker; one that is None has a value that is not known here.
    """
    found: list[str] = []
    at, quoted = 0, False
    while at < len(text):
        char = text[at]
        if char == "'" and not quoted:
            end = text.find("'", at + 1)
            if end < 0:
                return None
            found.append(text[at + 1 : end])
            at = end + 1
        elif char == '"':
            quoted, at = not quoted, at + 1
        elif char == "\\":
            after = text[at + 1 : at + 2]
            found.append(f"\\{after}" if quoted and after not in {'"', "$", "\\"} else after)
            at += 2
        elif char == "$" and (match := _VARIABLE.match(text, at)):
            value = _value(match, values)
            if value is None:
                return None
            found.append(value)
            at = match.end()
        else:
            found.append(char)
            at += 1
    return None if quoted else "".join(found)


def _value(match: re.Match[str], values: Mapping[str, str | None]) -> str | None:
    name = match["plain"] or match["name"]
    if not name or (name in values and values[name] is None):
        return None
    found = values.get(name) or ""
    if match["how"] == ":-":
        return found or substituted(match["word"], values)
    if match["how"] == ":+":
        return substituted(match["word"], values) if found else ""
    return found
