"""A Dockerfile as its linter sees it: stages, the value of every variable where it is used, and the commands of every RUN."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

from slipway.images.allowed import AllowedInputs
from slipway.images.dockerfile_reader import Dockerfile, Fault, Heredoc, Instruction, Place
from slipway.images.dockerfile_words import Unclear, split, substituted
from slipway.images.shell_texts import Command, Word
from slipway.images.shell_words import commands, exec_form, substituted_commands
from slipway.images.shell_wrappers import SHELLS

AUTOMATIC_ARGS = frozenset(
    f"{where}{what}" for where in ("TARGET", "BUILD") for what in ("PLATFORM", "OS", "OSVERSION", "ARCH", "VARIANT")
)
"""Set by the builder from the platform; declared with ARG but given by nobody. Their values are not known here."""

EPOCH_ARG = "SOURCE_DATE_EPOCH"


@dataclass(frozen=True)
class Step:
    """One instruction of a stage, with the variables as they are where it stands (None: not known here)."""

    instruction: Instruction
    values: Mapping[str, str | None]

    def value(self, text: str) -> str | None:
        """`text` with variables replaced; None when that cannot be known."""
        return substituted(text, self.values)


class _History:
    """The values of variables along a stage; one record of all of them, so that many lines stay quick."""

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[int, str | None]]] = {}

    def add(self, at: int, values: Iterator[tuple[str, str | None]]) -> None:
        """`values` hold after line `at`."""
        for name, value in values:
            self._known.setdefault(name, []).append((at, value))

    def before(self, at: int, name: str) -> tuple[str | None] | None:
        """The value of `name` where line `at` stands, in a tuple; None when it is not set."""
        record = self._known.get(name, [])
        index = bisect_left(record, at, key=lambda entry: entry[0])
        return (record[index - 1][1],) if index else None

    def names(self) -> Iterator[str]:
        """Every variable."""
        return iter(self._known)


class _Values(Mapping[str, str | None]):
    """The variables as they are where line `at` stands."""

    def __init__(self, history: _History, at: int) -> None:
        self._history, self._at = history, at

    def __getitem__(self, name: str) -> str | None:
        found = self._history.before(self._at, name)
        if found is None:
            raise KeyError(name)
        return found[0]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._history.names() if self._history.before(self._at, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Stage:
    """What stands between one FROM and the next. `base` is the image or stage named, None when it cannot be known."""

    index: int
    name: str
    base: str | None
    start: Step
    steps: tuple[Step, ...]
    parent: Stage | None = None


@dataclass(frozen=True)
class Run:
    """One command that a RUN runs, at its place in the file."""

    stage: Stage
    step: Step
    command: Command
    place: Place


@dataclass(frozen=True)
class Sheet:
    """All that the rules look at."""

    dockerfile: Dockerfile
    allowed: AllowedInputs
    before: tuple[Step, ...]
    stages: tuple[Stage, ...]
    runs: tuple[Run, ...]
    faults: tuple[Fault, ...] = field(default=())
    starts: tuple[Run, ...] = ()
    """What a container runs: CMD, ENTRYPOINT and HEALTHCHECK."""
    steered: frozenset[int] = frozenset()
    """The ids of the steps in which `"$@"` may be more than options."""

    def steps(self, *keywords: str) -> Iterator[tuple[Stage | None, Step]]:
        """Every instruction with one of `keywords`, in file order; the stage is None before the first FROM."""
        return ((stage, step) for stage, step in self._everything if step.instruction.keyword in keywords)

    @cached_property
    def _everything(self) -> tuple[tuple[Stage | None, Step], ...]:
        inside = ((stage, step) for stage in self.stages for step in (stage.start, *stage.steps))
        return (*((None, step) for step in self.before), *inside)

    @cached_property
    def brought(self) -> tuple[str, ...]:
        """Where ADD and COPY put things."""
        return tuple(
            step.instruction.text.split()[-1] for _, step in self.steps("ADD", "COPY") if step.instruction.text
        )

    def only_options(self, run: Run) -> bool:
        """Whether `"$@"` in the instruction of `run` can be options only."""
        return id(run.step) not in self.steered

    def stage_called(self, name: str, before: Stage | None) -> Stage | None:
        """The stage that `name` means, by name or number, for an instruction of `before`; None when it means none."""
        earlier = self.stages if before is None else self.stages[: before.index]
        for stage in earlier:
            if name.lower() == stage.name.lower() or name == str(stage.index):
                return stage
        return None


def sheet(dockerfile: Dockerfile, allowed: AllowedInputs) -> Sheet:
    """The sheet of `dockerfile` for a build with the lock's build arguments."""
    faults = list(dockerfile.faults)
    history = _History()
    before: list[Step] = []
    stages: list[Stage] = []
    groups: list[list[Instruction]] = [[]]
    for instruction in dockerfile.instructions:
        if instruction.keyword in {"ARG", "ENV"}:
            faults += _unclear(instruction)
        if instruction.keyword == "FROM":
            groups.append([])
        groups[-1].append(instruction)
    for at, instruction in enumerate(groups[0]):
        before.append(Step(instruction, _Values(history, at)))
        if instruction.keyword == "ARG":
            history.add(at, _arguments(instruction, _Values(history, at + 1), {}, allowed))
        else:
            faults.append(Fault(instruction.place, f"{instruction.keyword} stands before the first FROM"))
    outer = dict(_Values(history, len(groups[0])))
    for group in groups[1:]:
        stages.append(_stage(group, outer, stages, allowed))
    if not stages:
        faults.append(Fault(Place(1, 1), "there is no FROM"))
    mentions = _Mentions(dockerfile)
    runs = tuple(run for stage in stages for step in stage.steps for run in _runs(stage, step, mentions))
    starts = tuple(run for stage in stages for step in stage.steps for run in _starts(stage, step))
    steered = {id(run.step) for run in runs if _sets_words(run.command)}
    # Inside of a function `"$@"` is what it is called with.
    steered |= {
        id(step)
        for stage in stages
        for step in stage.steps
        if re.search(r"\(\s*\)|\bfunction\b", step.instruction.joined)
    }
    return Sheet(dockerfile, allowed, tuple(before), tuple(stages), runs, tuple(faults), starts, frozenset(steered))


def _sets_words(command: Command) -> bool:
    """Whether `"$@"` may be words of another kind than options after this: `set -- WORD`, `shift`, another shell."""
    if command.program in SHELLS | {"shift"}:
        return True
    words = iter(command.arguments if command.program == "set" else ())
    for word in words:
        if re.fullmatch(r"[-+][a-zA-Z]*o", word):
            next(words, "")
        elif not word.startswith(("-", "+")):
            return True
    return False


def declared(instruction: Instruction) -> list[tuple[str, str | None, int]]:
    """The names that an ARG or ENV declares: name, value as written or None, offset in the joined line; none when unclear."""
    try:
        found = split(instruction.joined[instruction.start :])
    except Unclear:
        return []
    names = [(word.partition("="), offset) for word, offset in found]
    return [
        # A name made of variables stays as it is written, for the linter to refuse.
        (
            (substituted(name, {}) or name) if "$" not in name else name,
            default if equals else None,
            instruction.start + offset,
        )
        for (name, equals, default), offset in names
    ]


def _unclear(instruction: Instruction) -> Iterator[Fault]:
    """A declaration that cannot be split, or a name that is made of variables."""
    names = declared(instruction)
    legacy = instruction.keyword == "ENV" and "=" not in instruction.text.split(" ")[0]
    for name, _, offset in names[:1] if legacy else names:
        if not re.fullmatch(r"[A-Za-z_][\w.-]*", name, re.ASCII):
            yield Fault(instruction.at(offset), f"the name {name[:40]}")
    if not names:
        yield Fault(instruction.place, f"the names of this {instruction.keyword}")


def _stage(
    group: list[Instruction], outer: Mapping[str, str | None], earlier: list[Stage], allowed: AllowedInputs
) -> Stage:
    start = Step(group[0], dict(outer))
    named = group[0].text.split()
    base = start.value(named[0]) if named else ""
    name = named[2] if len(named) == 3 and named[1].lower() == "as" else ""
    parent = next((stage for stage in earlier if base and stage.name.lower() == base.lower()), None)
    history = _History()
    steps = []
    for at, instruction in enumerate(group[1:]):
        steps.append(Step(instruction, _Values(history, at)))
        if instruction.keyword == "ARG":
            history.add(at, _arguments(instruction, steps[-1].values, outer, allowed))
        elif instruction.keyword == "ENV":
            history.add(at, _environment(instruction, steps[-1].values))
    return Stage(len(earlier), name, base, start, tuple(steps), parent)


def _arguments(
    instruction: Instruction, values: Mapping[str, str | None], outer: Mapping[str, str | None], allowed: AllowedInputs
) -> Iterator[tuple[str, str | None]]:
    for name, default, _ in declared(instruction):
        if name in allowed.build_args:
            yield name, allowed.build_args[name]
        elif name in AUTOMATIC_ARGS or name == EPOCH_ARG:
            yield name, None
        elif default is not None:
            yield name, substituted(default, values)
        else:
            yield name, outer.get(name, "")


def _environment(instruction: Instruction, values: Mapping[str, str | None]) -> Iterator[tuple[str, str | None]]:
    names = [(name, text) for name, text, _ in declared(instruction) if text is not None]
    first, _, rest = instruction.text.partition(" ")
    if "=" not in first:
        names = [(first, rest.strip())]
    for name, text in names:
        yield name, substituted(text or "", values)


def _starts(stage: Stage, step: Step) -> Iterator[Run]:
    instruction = step.instruction
    if instruction.keyword in {"CMD", "ENTRYPOINT", "HEALTHCHECK"}:
        text = re.sub(r"^CMD\s+", "", instruction.text, flags=re.IGNORECASE)
        argv = Instruction("CMD", (), text, 0, ()).json_words()
        for command in exec_form(argv) if argv is not None else commands(text):
            yield Run(stage, step, command, instruction.place)


_STARTUP = re.compile(
    r"(^|/)(\.?(bashrc|bash\.bashrc|bash_profile|bash_login|bash_logout|profile|zshrc|zshenv|zprofile|kshrc|cshrc|login|xinitrc)"
    r"|(site|user)customize\.py|\S+\.pth|\.gitconfig|gitconfig|ld\.so\.preload|crontab|rc\.local)$"
    r"|/(profile\.d|bashrc\.d|cron\.\w+|init\.d|hooks)/"
)
"""Files that some program reads by itself when it starts."""


class _Mentions:
    """How often each name stands in what is run: in RUN, CMD, ENTRYPOINT and HEALTHCHECK."""

    def __init__(self, dockerfile: Dockerfile) -> None:
        run = [
            one.text for one in dockerfile.instructions if one.keyword in {"RUN", "CMD", "ENTRYPOINT", "HEALTHCHECK"}
        ]
        self._count = Counter(name for text in run for name in _NAMES.findall(text))
        self._patterns = {found[1] or f"{found[2]}/*" for text in run for found in _PATTERNS.finditer(text)}

    def run_later(self, files: list[str], *, own: int) -> bool:
        """Whether one of `files` is named besides the `own` times where it is written."""
        for file in files:
            parts = [] if file.startswith("-") else _NAMES.findall(file.rpartition("/")[2])
            if _STARTUP.search(file) or (parts and all(self._count[part] > own for part in parts)):
                return True
            name = file.rpartition("/")[2]
            if any(fnmatchcase(name, pattern.rpartition("/")[2]) for pattern in self._patterns):
                return True
        return False


_NAMES = re.compile(r"[\w.-]+")
_PATTERNS = re.compile(
    r"(?<![\w./-])(?:(?:[a-z]*sh|python[\d.]*|perl|source|\.)\s+(?:-\S+\s+)*([^\s;&|()]*[*?\[][^\s;&|()]*)|run-parts\s+(?:-\S+\s+)*(\S+))"
)
"""A pattern in place of a script's name, or a folder of which every file is run."""


def _runs(stage: Stage, step: Step, mentions: _Mentions) -> Iterator[Run]:
    """The commands of a RUN, and those of a script that the Dockerfile writes, where it is run later."""
    instruction = step.instruction
    if instruction.keyword == "RUN":
        argv = instruction.json_words()
        if argv is not None:
            for command in exec_form(argv):
                yield Run(stage, step, command, instruction.at(instruction.start))
            return
        outer = commands(instruction.joined[instruction.start :])
        for command in outer:
            place = instruction.at(instruction.start + command.offset)
            yield Run(stage, step, command, place)
            for inner in _said(command, mentions):
                yield Run(stage, step, inner, place)
        # The marks are the shell's own, so each belongs to the command that has it, in order.
        owners = [command for command in outer for kind, _ in command.redirects if kind in {"<<", "<<-"}]
        for heredoc, owner in zip(instruction.heredocs, owners, strict=False):
            says = owner.program in {"cat", "tee"}
            if not says or mentions.run_later([*_written(owner), *owner.arguments], own=1):
                yield from _body(stage, step, heredoc, "" if says else owner.program)
            if owner.words and not heredoc.quoted:
                for command in substituted_commands(heredoc.body):
                    yield Run(stage, step, command, heredoc.at(command.offset))
    elif instruction.keyword in {"COPY", "ADD"} and instruction.heredocs:
        to = instruction.text.split()[-1]
        for heredoc in instruction.heredocs:
            file = f"{to}{heredoc.name}" if to.endswith("/") else to
            runs = heredoc.body.startswith("#!") or re.search(r"\.(sh|py|pl|rb)$|bin/", to)
            if runs or mentions.run_later([file], own=0):
                yield from _body(stage, step, heredoc, "")


def _written(command: Command) -> list[str]:
    """The files that redirects of the command write."""
    return [word.text for kind, word in command.redirects if ">" in kind]


def _said(command: Command, mentions: _Mentions) -> list[Command]:
    """The commands in what `echo` writes into a file that is run later."""
    files = _written(command) if command.program in {"echo", "printf"} else []
    return commands(" ".join(command.arguments)) if mentions.run_later(files, own=1) else []


def _body(stage: Stage, step: Step, heredoc: Heredoc, program: str) -> Iterator[Run]:
    """The commands in a heredoc's body. What no shell reads is looked at as the text of a program, too."""
    first = heredoc.body.split("\n", 1)[0]
    if first.startswith("#!"):
        named = [word.rpartition("/")[2] for word in first[2:].split() if not word.startswith("-")]
        program = next((word for word in named if word != "env"), "")
    if program not in SHELLS:
        code = (Word("python3", 0), Word("-c", 0), Word(heredoc.body, 0))
        yield Run(stage, step, Command(code, 0), Place(heredoc.line, 1))
    if program in SHELLS | {"", "make", "xargs"}:
        for command in commands(heredoc.body):
            yield Run(stage, step, command, heredoc.at(command.offset))
