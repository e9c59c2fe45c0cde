"""The commands in a shell script, wherever they hide: pipelines, substitutions, `sh -c`, `eval`, wrappers such as `sudo`.

Read for linting only: quotes are removed, variables stay as they are written, and nothing that is read makes it fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from slipway.images.shell_texts import Command, Word, placeholders, texts_of
from slipway.images.shell_wrappers import ASSIGNMENT, LOOSE, base_name, own_words, wrapper

_BLANK = " \t"
_META = " \t\n;&|<>()"
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&?|;&|[;&|\n()]")
_REDIRECT = re.compile(r"&>>?|<<<|<<-?|>>|>\||>&|<&|<>|[<>]")
_KEYWORDS = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}"}
_OPENING = {"if", "while", "until", "for", "case", "select", "{"}
_CLOSING = {"fi", "done", "esac", "}"}
_EXPANDS = re.compile(r"\$[\w{(@*#?!$'\"-]")
_MAX_DEPTH = 12
_MAX_LOOSE = 40


def commands(script: str) -> list[Command]:
    """Every command in `script`, in the order they stand, those inside other commands after the one that holds them."""
    return list(_commands(script, 0, None, "", 0))


def heredocs(script: str) -> list[tuple[str, str]]:
    """The heredocs of `script` as the shell sees them: `<<` or `<<-`, and the name without quotes."""
    return [
        (value, word.text) for kind, value, word in _tokens(script) if kind == "redirect" and value in {"<<", "<<-"}
    ]


def substituted_commands(text: str) -> list[Command]:
    """The commands that the shell runs in the body of a heredoc, to put what they print in their place."""
    found: list[Command] = []
    for script, at in _inside_braces(text, 0, len(text)):
        first = at - (2 if text[at - 2 : at] == "$(" else 1)
        escapes = 0
        while first > escapes and text[first - escapes - 1] == "\\":
            escapes += 1
        if escapes % 2 == 0:
            found += _commands(script, at, None, "", 1)
    return found


def exec_form(argv: tuple[str, ...]) -> list[Command]:
    """The commands of an exec form: the words themselves, and what they run in turn. All offsets are 0."""
    return list(_unwrapped([Word(word, 0) for word in argv], Command((), 0), 0))


def _commands(
    script: str, base: int, fixed: int | None, within: str, depth: int, *, piped: bool = False
) -> Iterator[Command]:
    """`base` is added to offsets; where the script was quoted text, `fixed` replaces them. `piped`: all of it reads a pipe."""
    if depth > _MAX_DEPTH:
        yield Command((), fixed if fixed is not None else base, within=within, unreadable="commands nested too deep")
        return

    def offset(at: int) -> int:
        return base + at if fixed is None else fixed

    gathered: list[Word] = []
    redirects: list[tuple[str, Word]] = []
    groups = _Groups(piped, [("", True)] if piped else [])
    cases = _Cases()
    for kind, value, word in _tokens(script):
        if kind == "word":
            gathered.append(
                replace(
                    word, offset=offset(word.offset), scripts=tuple((inner, offset(at)) for inner, at in word.scripts)
                )
            )
            continue
        if kind == "redirect":
            target = Word(word.text, offset(word.offset), tuple((inner, offset(at)) for inner, at in word.scripts))
            redirects.append((value, target))
            continue
        texts = [one.text for one in gathered]
        pattern = cases.is_pattern(texts, value)
        if pattern:
            # What it substitutes is run, the rest is not.
            gathered.insert(0, Word("case", offset(word.offset)))
        frame = Command((), offset(word.offset), groups.reads_pipe, tuple(redirects), within=within)
        yield from _one(gathered, frame, fixed, depth)
        if not pattern:
            # What parts the patterns of a `case` is no pipe.
            operator = ";" if texts[:1] == ["case"] and value == "|" else value
            groups.after(texts, operator, empty=not gathered and not redirects)
        cases.after(texts, value)
        gathered, redirects = [], []


@dataclass
class _Cases:
    """Whether the next words are a pattern of a `case`, and no command."""

    _expected: bool = False

    def is_pattern(self, words: list[str], operator: str) -> bool:
        """Whether `words` before `operator` are one."""
        return self._expected and operator in {"|", "(", ")"} and words[:1] != ["esac"]

    def after(self, words: list[str], operator: str) -> None:
        """Take in what stands before `operator`."""
        if self.is_pattern(words, operator):
            self._expected = operator != ")"
            return
        first = operator == "|" and words[:1] == ["case"]
        self._expected = first or operator in {";;", ";&", ";;&"} or (self._expected and operator == "\n" and not words)


@dataclass
class _Groups:
    """Whether the next command reads a pipe: its own, or that of the `( … )`, `{ … }` or loop that it stands in."""

    reads_pipe: bool = False
    _open: list[tuple[str, bool]] = field(default_factory=list)

    def after(self, words: list[str], operator: str, *, empty: bool) -> None:
        """Take in a finished command and the operator behind it."""
        for word in words:
            if word in _OPENING:
                self._open.append((word, self.reads_pipe))
            elif word in _CLOSING and self._open and self._open[-1][0] != "(":
                self._open.pop()
            if word not in _KEYWORDS:
                break
        if operator == "(":
            self._open.append(("(", self.reads_pipe))
            return
        if operator == ")" and self._open and self._open[-1][0] == "(":
            self._open.pop()
        if operator in {"|", "|&"}:
            self.reads_pipe = True
        elif not (empty and operator == "\n"):
            self.reads_pipe = bool(self._open) and self._open[-1][1]


def _one(gathered: list[Word], frame: Command, fixed: int | None, depth: int) -> Iterator[Command]:
    """A finished command, then what its substitutions run."""
    found = list(_unwrapped(gathered, frame, depth))
    yield from found
    name = found[0].program if found else ""
    for word in (*gathered, *(target for _, target in frame.redirects)):
        for inner, at in word.scripts:
            yield from _commands(inner, at, fixed, name, depth + 1, piped=word.text.startswith(">("))


def _unwrapped(gathered: list[Word], frame: Command, depth: int) -> Iterator[Command]:
    """The command itself, without keywords, assignments and wrappers; then what it is told to run as text."""
    texts = [word.text for word in gathered]
    at = 0
    while at < len(texts) and (texts[at] in _KEYWORDS or ASSIGNMENT.fullmatch(texts[at])):
        at += 1
    while at < len(texts) and (own := own_words(texts, at)):
        at += own
        while at < len(texts) - 1 and texts[at] in _KEYWORDS:
            at += 1
    rest, via = gathered[at:], gathered[:at]
    if not rest and not frame.redirects and not any(ASSIGNMENT.fullmatch(word.text) for word in via):
        return
    place = (rest or via)[0].offset if rest or via else frame.offset
    command = replace(frame, words=tuple(rest), offset=place, via=tuple(via))
    command = replace(command, unreadable=_unclear(command))
    yield command
    inner = list(_loose(command)) if command.program in LOOSE else []
    yield from inner
    # A text that several of them may run is read once.
    for text, place in dict.fromkeys(text for one in (command, *inner) for text in texts_of(one)):
        yield from _commands(text, place, place, command.within, depth + 1, piped=command.reads_pipe)
    if command.program == "find":
        for part in _executed(rest):
            yield from _unwrapped(part, Command((), part[0].offset, command.reads_pipe, within="find"), depth)


def _loose(command: Command) -> Iterator[Command]:
    """What a program may run of whose words it is not known which are its own: each of them, to the end."""
    for index, word in enumerate(command.words[1:_MAX_LOOSE], start=1):
        if not word.text.startswith("-") and word.text not in LOOSE:
            yield replace(command, words=command.words[index:], offset=word.offset, via=(), redirects=())


def _executed(words: list[Word]) -> Iterator[list[Word]]:
    """What `find` runs: the words between -exec and its `;` or `+`."""
    begin = -1
    for index, word in enumerate(words):
        opens = word.text in {"-exec", "-execdir", "-ok", "-okdir"}
        if opens or word.text == ";" or (word.text == "+" and words[index - 1].text == "{}"):
            if 0 <= begin < index:
                yield words[begin:index]
            begin = index + 1 if opens else -1
    if 0 <= begin < len(words):
        yield words[begin:]


def _unclear(command: Command) -> str:
    """Why it cannot be told what the command runs, "" when it can."""
    rest = command.words
    if not rest:
        return ""
    name = rest[0].text
    repeated = command.within == "find" or any(base_name(word.text) in {"xargs", "parallel"} for word in command.via)
    # The rest of the command comes from a pipe or from file names.
    made = repeated and (any(one in name for one in placeholders(command)) or (len(rest) == 1 and bool(wrapper(name))))
    if rest[0].dynamic or made:
        return f"a program that is decided when it runs: {name[:40]}"
    inner = (script for word in rest for script, _ in word.scripts)
    return "a case inside $(…)" if any(re.search(r"\bcase\b", script) for script in inner) else ""


def _tokens(script: str) -> Iterator[tuple[str, str, Word]]:
    """Words, redirects with their target, and operators; the last is always the operator "end"."""
    at = 0
    while at < len(script):
        char = script[at]
        if char in _BLANK:
            at += 1
        elif char == "\\" and script[at + 1 : at + 2] == "\n":
            at += 2
        elif char == "#":
            while at < len(script) and script[at] != "\n":
                at += 1
        elif script[at : at + 2] not in {"<(", ">("} and (found := _REDIRECT.match(script, at)):
            at = found.end()
            while at < len(script) and script[at] in _BLANK:
                at += 1
            word, at = _word(script, at)
            yield "redirect", found[0], word
        elif found := _OPERATOR.match(script, at):
            yield "operator", found[0], Word("", at)
            at = found.end()
        else:
            word, end = _word(script, at)
            # Digits right before a redirect are a file descriptor, no word.
            if not (word.text.isdigit() and script[end : end + 1] in {"<", ">"}):
                yield "word", "", word
            at = max(end, at + 1)
    yield "operator", "end", Word("", len(script))


def _word(script: str, start: int) -> tuple[Word, int]:
    """The word that begins at `start`, and where it ends."""
    text, scripts = list[str](), list[tuple[str, int]]()
    at, quoted, dynamic = start, False, False
    while at < len(script):
        char = script[at]
        opens = script[at : at + 2]
        dynamic = dynamic or char == "`" or bool(_EXPANDS.match(script, at)) or (not quoted and char in "*?{[")
        if char == "\\":
            # Inside double quotes a backslash before another character stays.
            text.append("" if script[at + 1 : at + 2] == "\n" else script[at + 1 : at + 2])
            at += 2
        elif char == '"':
            quoted, at = not quoted, at + 1
        elif char == "'" and not quoted:
            end = script.find("'", at + 1)
            end = len(script) if end < 0 else end
            text.append(script[at + 1 : end])
            at = end + 1
        elif char == "`":
            end = script.find("`", at + 1)
            end = len(script) if end < 0 else end
            scripts.append((script[at + 1 : end], at + 1))
            text.append(script[at : end + 1])
            at = end + 1
        elif opens == "$(" or (opens in {"<(", ">("} and not quoted):
            end = _closing(script, at + 2, ")")
            scripts.append((script[at + 2 : end], at + 2))
            text.append(script[at : end + 1])
            at = end + 1
        elif opens == "${":
            end = _closing(script, at + 2, "}")
            scripts += _inside_braces(script, at + 2, end)
            text.append(script[at : end + 1])
            at = end + 1
        elif char in _META and not quoted:
            break
        else:
            text.append(char)
            at += 1
    # `{` alone is a keyword, and a pattern before `)` belongs to a `case`.
    whole = "".join(text)
    pattern = script[at : at + 1] == ")" and not scripts and "$" not in whole
    return Word(whole, start, tuple(scripts), dynamic and not pattern and whole not in {"{", "{}", "[", "[["}), at


def _inside_braces(script: str, start: int, end: int) -> Iterator[tuple[str, int]]:
    """The substitutions in the default of a `${NAME:-…}`."""
    at = start
    while found := re.compile(r"\$\(|`").search(script, at, end):
        close = _closing(script, found.end(), ")") if found[0] == "$(" else script.find("`", found.end(), end)
        close = end if close < 0 else min(close, end)
        yield script[found.end() : close], found.end()
        at = close + 1


def _closing(script: str, at: int, close: str) -> int:
    """Where the bracket that was opened before `at` is closed; the end of the script when it is not."""
    open_ones = [close]
    while at < len(script):
        char, opens, top = script[at], script[at : at + 2], open_ones[-1]
        if char == "\\" or opens in {"$(", "${"}:
            open_ones += {"$(": [")"], "${": ["}"]}.get(opens, [])
            at += 1
        elif char == "'" and top != '"':
            end = script.find("'", at + 1)
            at = end if end > 0 else at
        elif char == top:
            open_ones.pop()
            if not open_ones:
                return at
        elif char == '"':
            open_ones.append(char)
        elif char == "#" and top == ")" and script[at - 1] in _META:
            end = script.find("\n", at)
            at = end if end > 0 else len(script)
        elif (char, top) in {("(", ")"), ("{", "}")}:
            open_ones.append(top)
        at += 1
    return len(script)
