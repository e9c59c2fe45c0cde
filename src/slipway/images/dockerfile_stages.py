"""A Dockerfile as its linter sees it: stages, the value of every variable where it is used, and the commands of every RUN."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slipway.images.allowed import AllowedInputs
from slipway.images.dockerfile_reader import Dockerfile, Fault, Heredoc, Instruction, Place
from slipway.images.dockerfile_words import Unclear, split, substituted
from slipway.images.shell_texts import Command, Word
from slipway.images.shell_words import commands, exec_form
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

    def steps(self, *keywords: str) -> Iterator[tuple[Stage | None, Step]]:
        """Every instruction with one of `keywords`, in file order; the stage is None before the first FROM."""
        everything: list[tuple[Stage | None, Step]] = [(None, step) for step in self.before]
        for stage in self.stages:
            everything += [(stage, stage.start), *((stage, step) for step in stage.steps)]
        return ((stage, step) for stage, step in everything if step.instruction.keyword in keywords)

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
    outer: dict[str, str | None] = {}
    before: list[Step] = []
    stages: list[Stage] = []
    groups: list[list[Instruction]] = [[]]
    for instruction in dockerfile.instructions:
        if instruction.keyword in {"ARG", "ENV"}:
            faults += _unclear(instruction)
        if instruction.keyword == "FROM":
            groups.append([])
        groups[-1].append(instruction)
    for instruction in groups[0]:
        before.append(Step(instruction, dict(outer)))
        if instruction.keyword == "ARG":
            outer.update(_arguments(instruction, outer, {}, allowed))
        else:
            faults.append(Fault(instruction.place, f"{instruction.keyword} stands before the first FROM"))
    for group in groups[1:]:
        stages.append(_stage(group, outer, stages, allowed))
    if not stages:
        faults.append(Fault(Place(1, 1), "there is no FROM"))
    texts = [
        (one, one.text) for one in dockerfile.instructions if one.keyword in {"RUN", "CMD", "ENTRYPOINT", "HEALTHCHECK"}
    ]
    runs = tuple(
        run
        for stage in stages
        for step in stage.steps
        for run in _runs(stage, step, "\n".join(text for one, text in texts if one is not step.instruction))
    )
    starts = tuple(run for stage in stages for step in stage.steps for run in _starts(stage, step))
    return Sheet(dockerfile, allowed, tuple(before), tuple(stages), runs, tuple(faults), starts)


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
    values: dict[str, str | None] = {}
    steps = []
    for instruction in group[1:]:
        steps.append(Step(instruction, dict(values)))
        if instruction.keyword == "ARG":
            values.update(_arguments(instruction, values, outer, allowed))
        elif instruction.keyword == "ENV":
            values.update(_environment(instruction, values))
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


def _runs(stage: Stage, step: Step, rest: str) -> Iterator[Run]:
    """The commands of a RUN, and of a copied heredoc; `rest` is the text of all that may run the latter."""
    instruction = step.instruction
    if instruction.keyword == "RUN":
        argv = instruction.json_words()
        if argv is not None:
            for command in exec_form(argv):
                yield Run(stage, step, command, instruction.at(instruction.start))
            return
        outer = commands(instruction.joined[instruction.start :])
        for command in outer:
            yield Run(stage, step, command, instruction.at(instruction.start + command.offset))
        # The marks are the shell's own, so each belongs to the command that has it, in order.
        owners = [command for command in outer for kind, _ in command.redirects if kind in {"<<", "<<-"}]
        for heredoc, owner in zip(instruction.heredocs, owners, strict=False):
            written = [word.text for kind, word in owner.redirects if ">" in kind] + [*owner.arguments]
            says = owner.program in {"cat", "tee"}
            if not says or _run_later(written, rest):
                yield from _body(stage, step, heredoc, "" if says else owner.program)
    elif instruction.keyword in {"COPY", "ADD"} and instruction.heredocs:
        to = instruction.text.split()[-1]
        names = [heredoc.name for heredoc in instruction.heredocs] if to.endswith("/") else [to]
        for heredoc in instruction.heredocs:
            runs = heredoc.body.startswith("#!") or re.search(r"\.(sh|py|pl|rb)$|bin/", to)
            if runs or _run_later(names, rest):
                yield from _body(stage, step, heredoc, "")


def _run_later(files: list[str], text: str) -> bool:
    """Whether a file of one of these names is named in `text`."""
    names = {file.rpartition("/")[2] for file in files if not file.startswith("-")} - {""}
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text) for name in names)


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
            up_to = heredoc.body[: command.offset]
            place = Place(heredoc.line + up_to.count("\n"), len(up_to) - up_to.rfind("\n"))
            yield Run(stage, step, command, place)
