"""A Dockerfile as instructions with exact positions: continuation lines, comments, heredocs, parser directives, flags.

Reading never fails. What cannot be read is kept as a fault, for the linter to refuse.
Source: the Dockerfile reference (docs.docker.com/reference/dockerfile) and what BuildKit 0.13 and 0.25 accept, 2026-12-01.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KEYWORDS = frozenset({
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL",
    "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
})  # fmt: skip
"""The instructions that are read. ONBUILD is none: it would act in images that nobody lints."""

_DIRECTIVE = re.compile(r"\s*#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*")
_HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")
_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=((?:\"[^\"]*\"|\S)*))?(?=\s|$)")
_VARIABLE = re.compile(
    r"\\(?P<escaped>.)|\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:[-+])(?P<word>[^{}]*))?\}|(?P<other>.?))"
)


@dataclass(frozen=True)
class Place:
    """A line and a column, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Fault:
    """What could not be read, and where."""

    place: Place
    text: str


@dataclass(frozen=True)
class Comment:
    """A comment above the first instruction, where parser directives may stand; `key` is "" where it has no `key=value`."""

    place: Place
    text: str
    key: str = ""
    value: str = ""


@dataclass(frozen=True)
class Flag:
    """A `--name=value` of an instruction, with its offset in the instruction's line."""

    name: str
    value: str
    offset: int


@dataclass(frozen=True)
class Heredoc:
    """The body of a `<<NAME`; `line` is that of its first line."""

    name: str
    body: str
    line: int


@dataclass(frozen=True)
class Instruction:
    """One instruction, continuation lines joined. `text` is what follows the keyword and the flags.

    Offsets count in `joined`, the whole joined line; `text` starts at `start`.
    """

    keyword: str
    flags: tuple[Flag, ...]
    joined: str
    start: int
    pieces: tuple[tuple[int, int, int], ...]
    heredocs: tuple[Heredoc, ...] = ()

    @property
    def text(self) -> str:
        """The arguments."""
        return self.joined[self.start :].strip()

    @property
    def place(self) -> Place:
        """Where the keyword stands."""
        return self.at(len(self.joined) - len(self.joined.lstrip()))

    def at(self, offset: int) -> Place:
        """Where the character at `offset` of `joined` stands in the file."""
        index = max(bisect_right([piece[0] for piece in self.pieces], offset) - 1, 0)
        begin, line, column = self.pieces[index]
        return Place(line, column + max(offset - begin, 0))

    def flag(self, name: str) -> Flag | None:
        """The flag called `name`, if it is given."""
        return next((flag for flag in self.flags if flag.name == name), None)

    def json_words(self) -> tuple[str, ...] | None:
        """The arguments of the exec form `["a", "b"]`; None for the shell form."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except (ValueError, RecursionError):
            return None
        return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


@dataclass(frozen=True)
class Dockerfile:
    """What a Dockerfile says, in file order."""

    comments: tuple[Comment, ...]
    instructions: tuple[Instruction, ...]
    faults: tuple[Fault, ...]


def read(text: str) -> Dockerfile:
    """The Dockerfile that `text` is; never fails."""
    return _Reader(text).read()


def substituted(text: str, values: Mapping[str, str | None]) -> str | None:
    """`text` with `$NAME`, `${NAME}`, `${NAME:-word}` and `${NAME:+word}` replaced; None when that cannot be known.

    A name that is missing in `values` is unset, and empty as in Docker; one that is None has a value that is not known here.
    """
    unknown = False

    def value(match: re.Match[str]) -> str:
        nonlocal unknown
        if match["escaped"] is not None:
            return match["escaped"]
        name = match["plain"] or match["name"]
        if not name or (name in values and values[name] is None):
            unknown = True
            return ""
        found = values.get(name) or ""
        if match["how"] == ":-":
            return found or substituted(match["word"], values) or ""
        if match["how"] == ":+":
            return (substituted(match["word"], values) or "") if found else ""
        return found

    result = _VARIABLE.sub(value, text)
    return None if unknown else result


class _Reader:
    """Goes through the lines once; `_next` is the index of the next line."""

    def __init__(self, text: str) -> None:
        # Only these end a line for Docker; str.splitlines knows more, and would shift the line numbers.
        self._lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
        self._next = 0
        self._escape = "\\"
        self._faults: list[Fault] = []

    def read(self) -> Dockerfile:
        comments = tuple(self._comments())
        instructions = tuple(self._instructions())
        return Dockerfile(comments, instructions, tuple(self._faults))

    def _comments(self) -> Iterator[Comment]:
        """Comments and blank lines before the first instruction; directives end at the first line that is none."""
        in_directives = True
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.strip() and not line.lstrip().startswith(("#", "//")):
                return
            self._next += 1
            match = _DIRECTIVE.fullmatch(line.replace("//", "#", 1) if line.lstrip().startswith("//") else line)
            in_directives = in_directives and match is not None
            if line.strip():
                place = Place(self._next, len(line) - len(line.lstrip()) + 1)
                key, value = (match[1].lower(), match[2]) if match else ("", "")
                if key == "escape" and in_directives and value in {"\\", "`"}:
                    self._escape = value
                yield Comment(place, line.strip(), key, value)

    def _instructions(self) -> Iterator[Instruction]:
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if not line.strip() or line.lstrip().startswith("#"):
                self._next += 1
                continue
            instruction = self._instruction(*self._joined())
            if instruction:
                yield instruction

    def _joined(self) -> tuple[str, list[tuple[int, int, int]]]:
        """The next logical line, and where each of its pieces begins: offset, line, column."""
        # One escape at the end continues a line; two are an escaped escape.
        mark = re.escape(self._escape)
        ends = re.compile(rf"(?:^|[^{mark}]){mark}[ \t]*$")
        joined, pieces = "", []
        first = True
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            if not first and (not line.strip() or line.lstrip().startswith("#")):
                continue
            first = False
            continues = bool(ends.search(line))
            pieces.append((len(joined), self._next, 1))
            joined += line.rstrip(" \t")[: -len(self._escape)] if continues else line
            if not continues:
                break
        return joined, pieces

    def _instruction(self, joined: str, pieces: list[tuple[int, int, int]]) -> Instruction | None:
        match = re.match(r"\s*(\S+)\s*", joined)
        keyword = match[1].upper() if match else ""
        start = match.end() if match else 0
        bare = Instruction(keyword, (), joined, start, tuple(pieces))
        if keyword not in KEYWORDS:
            self._faults.append(Fault(bare.place, f"the instruction {keyword[:40]} is not read"))
            return None
        flags: list[Flag] = []
        while found := _FLAG.match(joined, start):
            flags.append(Flag(found[1], (found[2] or "").strip('"'), start))
            start = found.end() + len(joined[found.end() :]) - len(joined[found.end() :].lstrip())
        heredocs = tuple(self._heredocs(bare)) if keyword in {"ADD", "COPY", "RUN"} else ()
        return Instruction(keyword, tuple(flags), joined, start, tuple(pieces), heredocs)

    def _heredocs(self, instruction: Instruction) -> Iterator[Heredoc]:
        """The bodies that follow the line, one for each `<<NAME` word in it, in order."""
        for word in re.findall(r"(?:\"[^\"]*\"|'[^']*'|\S)+", instruction.joined[instruction.start :]):
            match = _HEREDOC.fullmatch(word)
            if not match:
                continue
            name = re.sub(r"[\"'\\]", "", match[2])
            begin = self._next
            body: list[str] = []
            while self._next < len(self._lines):
                line = self._lines[self._next]
                self._next += 1
                if (line.lstrip("\t") if match[1] else line) == name:
                    break
                body.append(line)
            else:
                self._faults.append(Fault(instruction.place, f"the heredoc <<{name[:40]} has no end"))
            yield Heredoc(name, "\n".join(body), begin + 1)
