"""A Dockerfile as instructions with exact positions: continuation lines, comments, heredocs, parser directives, flags.

Reading never fails. What cannot be read is kept as a fault, for the linter to refuse.
Source: the Dockerfile reference (docs.docker.com/reference/dockerfile) and what BuildKit 0.13 and 0.25 accept, 2026-12-01.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from slipway.images import dockerfile_words as words
from slipway.images.shell_words import heredocs

KEYWORDS = frozenset({
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL",
    "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
})  # fmt: skip
"""The instructions that are read. ONBUILD is none: it would act in images that nobody lints."""

_DIRECTIVE = re.compile(r"\s*#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*")
_CONTINUES = re.compile(r"(?:^|[^\\])\\[ \t]*$")
_STRANGE = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\xa0\u1680\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff\ufffd]"
)
"""Characters that some reader takes for a blank or a line's end, or that cannot be seen."""


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
    """The body of a `<<NAME`; `line` is that of its first line. `quoted`: nothing in it is replaced."""

    name: str
    body: str
    line: int
    quoted: bool

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.body))]

    def at(self, offset: int) -> Place:
        """Where the character at `offset` of the body stands in the file."""
        index = bisect_right(self._starts, offset) - 1
        return Place(self.line + index, offset - self._starts[index] + 1)


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
        index = max(bisect_right(self.pieces, offset, key=lambda piece: piece[0]) - 1, 0)
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


class _Reader:
    """Goes through the lines once; `_next` is the index of the next line."""

    def __init__(self, text: str) -> None:
        # Only these end a line for Docker; str.splitlines knows more, and would shift the line numbers.
        self._lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
        self._next = 0
        self._faults: list[Fault] = []

    def read(self) -> Dockerfile:
        comments = tuple(self._comments())
        instructions = tuple(self._instructions())
        return Dockerfile(comments, instructions, tuple(self._faults))

    def _comments(self) -> Iterator[Comment]:
        """Comments and blank lines before the first instruction."""
        while self._next < len(self._lines):
            line = self._lines[self._next]
            if line.strip() and not line.lstrip().startswith(("#", "//")):
                return
            self._next += 1
            match = _DIRECTIVE.fullmatch(line.replace("//", "#", 1) if line.lstrip().startswith("//") else line)
            if line.strip():
                place = Place(self._next, len(line) - len(line.lstrip()) + 1)
                key, value = (match[1].lower(), match[2]) if match else ("", "")
                # Which comments are directives differs between releases; with another escape, so does every line.
                if key == "escape" and value != "\\":
                    self._faults.append(Fault(place, f"the escape {value[:8]}"))
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
        # One backslash at the end continues a line; two are an escaped one.
        joined, pieces = "", []
        first = True
        while self._next < len(self._lines):
            line = self._lines[self._next]
            self._next += 1
            if not first and (not line.strip() or line.lstrip().startswith("#")):
                continue
            first = False
            continues = bool(_CONTINUES.search(line))
            pieces.append((len(joined), self._next, 1))
            joined += line.rstrip(" \t")[:-1] if continues else line
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
        if strange := _STRANGE.search(joined):
            self._faults.append(Fault(bare.at(strange.start()), f"the character U+{ord(strange[0]):04X}"))
        found: list[tuple[str, str, int]] = []
        marks: list[words.Mark] = []
        try:
            found, start = words.flags(joined, start)
            marks = words.marks(joined) if keyword in {"ADD", "COPY", "RUN"} else []
        except words.Unclear as unclear:
            self._faults.append(Fault(bare.place, str(unclear)))
        flags = tuple(Flag(*one) for one in found)
        read = Instruction(keyword, flags, joined, start, tuple(pieces))
        if keyword == "RUN" and read.json_words() is None and [*_shell_marks(read.text)] != marks:
            self._faults.append(Fault(bare.place, "a heredoc that the shell and the builder read in two ways"))
        return replace(read, heredocs=tuple(self._heredoc(read, mark) for mark in marks))

    def _heredoc(self, instruction: Instruction, mark: words.Mark) -> Heredoc:
        """The body that follows the line."""
        begin = self._next
        body: list[str] = []
        while self._next < len(self._lines):
            line = self._lines[self._next].rstrip("\r")
            self._next += 1
            if (line.lstrip("\t") if mark.dash else line) == mark.name:
                break
            body.append(line)
        else:
            self._faults.append(Fault(instruction.place, f"the heredoc <<{mark.name[:40]} has no end"))
        return Heredoc(mark.name, "\n".join(body), begin + 1, mark.quoted)


def _shell_marks(script: str) -> Iterator[words.Mark]:
    for kind, target in heredocs(script):
        yield words.Mark(target, kind == "<<-")
