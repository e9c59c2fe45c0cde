"""The commands in a shell script, wherever they hide: pipelines, substitutions, `sh -c`, `eval`, wrappers such as `sudo`.

Read for linting only: quotes are removed, variables stay as they are written, and nothing that is read makes it fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "busybox-sh"})

_BLANK = " \t"
_META = " \t\n;&|<>()"
_OPERATOR = re.compile(r"&&|\|\||\|&|;;&?|;&|[;&|\n()]")
_REDIRECT = re.compile(r"&>>?|<<<|<<-?|>>|>\||>&|<&|<>|[<>]")
_KEYWORDS = {"if", "then", "else", "elif", "fi", "do", "done", "while", "until", "!", "{", "}"}
_ASSIGNMENT = re.compile(r"\w+\+?=.*", re.DOTALL)
_EXPANDS = re.compile(r"\$[\w{(@*#?!$'\"-]")
_MAX_DEPTH = 12

# Programs that run the program named after them, with how many words of their own come before it.
_WRAPPERS = {
    "sudo": 0, "doas": 0, "env": 0, "exec": 0, "command": 0, "builtin": 0, "nohup": 0, "nice": 0, "ionice": 0, "time": 0,
    "xargs": 0, "stdbuf": 0, "eatmydata": 0, "setpriv": 0, "unshare": 0, "setsid": 0, "busybox": 0,
    "coproc": 0, "strace": 0, "ltrace": 0, "parallel": 0, "watch": 0, "fakeroot": 0, "setarch": 0, "linux64": 0, "function": 1,
    "taskset": 1, "chrt": 1, "runuser": 1, "ld.so": 0, "ld-linux-x86-64.so.2": 0, "ld-linux-aarch64.so.1": 0,
    "timeout": 1, "gosu": 1, "su-exec": 1, "chroot": 1, "flock": 1,
}  # fmt: skip
_OPTIONS_WITH_VALUE = frozenset({
    "-u", "-g", "-a", "-n", "-I", "-P", "-L", "-s", "-k", "-C", "-d", "--arg-file", "--user", "--max-args",
    "--signal",
})  # fmt: skip


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

    @property
    def program(self) -> str:
        """The program's name without its folder, or ""."""
        return self.words[0].text.rpartition("/")[2] if self.words else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words after the program."""
        return tuple(word.text for word in self.words[1:])


def commands(script: str) -> list[Command]:
    """Every command in `script`, in the order they stand, those inside other commands after the one that holds them."""
    return list(_commands(script, 0, None, "", 0))


def heredocs(script: str) -> list[tuple[str, str]]:
    """The heredocs of `script` as the shell sees them: `<<` or `<<-`, and the name without quotes."""
    return [
        (value, word.text) for kind, value, word in _tokens(script) if kind == "redirect" and value in {"<<", "<<-"}
    ]


def exec_form(argv: tuple[str, ...]) -> list[Command]:
    """The commands of an exec form: the words themselves, and what they run in turn. All offsets are 0."""
    return list(_unwrapped([Word(word, 0) for word in argv], Command((), 0), 0))


def _commands(script: str, base: int, fixed: int | None, within: str, depth: int) -> Iterator[Command]:
    """`base` is added to offsets; where the script was quoted text, `fixed` replaces them."""
    if depth > _MAX_DEPTH:
        yield Command((), fixed if fixed is not None else base, within=within, unreadable="commands nested too deep")
        return

    def offset(at: int) -> int:
        return base + at if fixed is None else fixed

    gathered: list[Word] = []
    redirects: list[tuple[str, Word]] = []
    reads_pipe = False
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
        frame = Command((), offset(word.offset), reads_pipe, tuple(redirects), within=within)
        yield from _one(gathered, frame, fixed, depth)
        if gathered or redirects or value not in {"(", "\n"}:
            # `{`, `(` and keywords pass the pipe on to the first command inside.
            reads_pipe = value in {"|", "|&"} or (reads_pipe and value == "(")
        gathered, redirects = [], []


def _one(gathered: list[Word], frame: Command, fixed: int | None, depth: int) -> Iterator[Command]:
    """A finished command, then what its substitutions run."""
    found = list(_unwrapped(gathered, frame, depth))
    yield from found
    name = found[0].program if found else ""
    for word in (*gathered, *(target for _, target in frame.redirects)):
        for inner, at in word.scripts:
            yield from _commands(inner, at, fixed, name, depth + 1)


def _unwrapped(gathered: list[Word], frame: Command, depth: int) -> Iterator[Command]:
    """The command itself, without keywords, assignments and wrappers; then what it is told to run as text."""
    rest, via = list(gathered), []
    while rest and (rest[0].text in _KEYWORDS or _ASSIGNMENT.fullmatch(rest[0].text)):
        via.append(rest.pop(0))
    while len(rest) > 1 and (name := rest[0].text.rpartition("/")[2]) in _WRAPPERS:
        own = _WRAPPERS[name]
        via.append(rest.pop(0))
        while len(rest) > 1 and (rest[0].text.startswith("-") or _ASSIGNMENT.fullmatch(rest[0].text)):
            via.append(rest.pop(0))
            if via[-1].text in _OPTIONS_WITH_VALUE and len(rest) > 1:
                via.append(rest.pop(0))
        for _ in range(own):
            if len(rest) > 1:
                via.append(rest.pop(0))
        while len(rest) > 1 and rest[0].text in _KEYWORDS:
            via.append(rest.pop(0))
    if not rest and not frame.redirects:
        return
    command = Command(
        tuple(rest),
        rest[0].offset if rest else frame.offset,
        frame.reads_pipe,
        frame.redirects,
        tuple(via),
        frame.within,
        _unclear(rest),
    )
    yield command
    for text, at in _texts(command):
        yield from _commands(text, at, at, command.within, depth + 1)
    for index, word in enumerate(rest):
        if command.program == "find" and word.text in {"-exec", "-execdir", "-ok"}:
            yield from _unwrapped(rest[index + 1 :], Command((), word.offset, within="find"), depth)


def _unclear(rest: list[Word]) -> str:
    """Why it cannot be told what the command runs, "" when it can."""
    if rest and rest[0].dynamic:
        return f"a program that is decided when it runs: {rest[0].text[:40]}"
    inner = (script for word in rest for script, _ in word.scripts)
    return "a case inside $(…)" if any(re.search(r"\bcase\b", script) for script in inner) else ""


def _texts(command: Command) -> Iterator[tuple[str, int]]:
    """Words of a command that are scripts themselves: `sh -ec TEXT`, `su -c TEXT`, `eval WORDS`, `sh <<< TEXT`."""
    if command.program == "eval":
        yield " ".join(command.arguments), command.offset
    for own in command.via:
        if own.text.startswith(("-S", "--split-string=")) and len(own.text) > 2:
            yield own.text.removeprefix("-S").removeprefix("--split-string="), own.offset
    if command.via and any(own.text in {"-S", "--split-string"} for own in command.via) and command.words:
        yield command.words[0].text, command.offset
    if command.program == "trap" and command.arguments:
        yield command.arguments[0], command.offset
    if command.program not in SHELLS | {"su", "script", "runuser"}:
        return
    takes_text = False
    for word in command.words[1:]:
        if takes_text and not word.text.startswith("-"):
            yield word.text, word.offset
            break
        takes_text = takes_text or bool(re.fullmatch(r"-[a-zA-Z]*c|--command", word.text))
    for kind, word in command.redirects:
        if kind == "<<<":
            yield word.text, word.offset


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
        dynamic = dynamic or char == "`" or bool(_EXPANDS.match(script, at)) or (not quoted and char in "*?{")
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
    return Word(whole, start, tuple(scripts), dynamic and not pattern and whole not in {"{", "{}"}), at


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
