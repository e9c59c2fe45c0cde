"""Whether the pinned engine version would accept a command line, decided without the engine.

It mirrors the engine's own parser on the schema of that version, and is stricter in one thing: a flag that is given twice with
different values is refused, because the last would silently win.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

from slipway.engines import argv as words_of
from slipway.engines import values
from slipway.engines.argv import Finding, Reading, Use
from slipway.engines.schema import FlagSchema, release

Others = Mapping[str, FlagSchema]
NO_OTHERS: Others = MappingProxyType({})
SCRIPTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "vllm": (("vllm", "serve"),),
    "sglang": (("sglang", "serve"),),
    "router": (("sglang-router", "launch"), ("smg", "launch"), ("amg", "launch")),
    "smg": (("smg", "launch"),),
}
MODULES = {
    "vllm": ("vllm.entrypoints.openai.api_server",),
    "sglang": ("sglang.launch_server",),
    "router": ("sglang_router.launch_router",),
    "smg": ("smg.launch_router",),
}
"""How each engine is started; what stands in front of the flags."""
PLUGINS = {"reasoning-parser": "reasoning-parser-plugin", "tool-call-parser": "tool-parser-plugin"}


@dataclass(frozen=True)
class Checked:
    """What was found, and the same command line with every flag under its canonical name."""

    findings: tuple[Finding, ...]
    argv: tuple[str, ...]

    @property
    def refusals(self) -> tuple[Finding, ...]:
        """The findings that the engine would stop at."""
        return tuple(finding for finding in self.findings if finding.severity == "refuse")


def check_argv(argv: Sequence[str], schema: FlagSchema, elsewhere: Others = NO_OTHERS) -> Checked:
    """The findings about `argv` on the engine of `schema`; `elsewhere` are its other versions, for messages.

    `argv` may begin with the engine's entrypoint. Pure, and never raises on any words.
    """
    start = entrypoint(argv, schema)
    head, given = tuple(argv[:start]), argv[start:]
    if head[:2] and head[1:2] == ("-m",) and schema.engine == "sglang":
        # The module goes straight to argparse; only the script takes a bare model and --model-type.
        flags = tuple(flag for flag in schema.flags if not flag.exact)
        schema = schema.model_copy(update={"flags": flags, "positional": None})
    reading = words_of.read(given, schema, lambda word, may: _unclear(word, may, (schema, elsewhere)))
    body = _standing_alone(reading, schema, first=bool(given) and not given[0].startswith("-"))
    findings = [*reading.findings, *_uses(reading, schema, elsewhere), *_together(reading, schema, body)]
    if schema.dialect == "vllm":
        findings += _vllm_model(reading, leading=not given[:1] or given[0].startswith("-"))
    return Checked(tuple(findings), (*head, *body))


def entrypoint(argv: Sequence[str], schema: FlagSchema) -> int:
    """How many words of `argv` start the engine, before its flags: 0 where the image's entrypoint does it."""
    scripts, modules = SCRIPTS[schema.engine], MODULES[schema.engine]
    if len(argv) >= 3 and PurePath(argv[0]).name.startswith("python") and argv[1] == "-m" and argv[2] in modules:
        return 3
    named = (PurePath(argv[0]).name, *argv[1:2]) if argv else ()
    return 2 if named in scripts else 0


def _standing_alone(reading: Reading, schema: FlagSchema, *, first: bool) -> list[str]:
    """The canonical words; words without a flag are refused, but for the model where the engine takes one."""
    free = schema.positional is not None and (schema.positional.place == "anywhere" or first)
    body: list[str] = []
    for item in reading.items:
        if isinstance(item, Use):
            body += _canonical(item)
        elif free and schema.positional:
            free = False
            body += [item] if schema.positional.place == "anywhere" else [f"--{schema.positional.becomes}", item]
        else:
            body.append(item)
            why = "the engine's parser does not know what it belongs to"
            reading.refuse(item, "stands without a flag", why, "write the flag in front of it, or remove it")
    return body


def _canonical(use: Use) -> tuple[str, ...]:
    worked_out = tuple(values.canonical(use.flag, word) for word in use.words)
    return Use(use.flag, use.written, use.meant, worked_out, use.joined).canonical


def _uses(reading: Reading, schema: FlagSchema, elsewhere: Others) -> Iterator[Finding]:
    """What is to be said about each flag by itself."""
    given = {use.flag.name for use in reading.uses}
    for use in reading.uses:
        flag = use.flag
        if use.written != use.meant:
            yield _abbreviated(use, schema, elsewhere)
        if flag.refused or flag.replaced_by:
            instead = f"use {flag.replaced_by}" if flag.replaced_by else "remove it"
            state = "is refused by this version" if flag.refused else "is deprecated in this version"
            yield Finding("refuse" if flag.refused else "notice", f"--{flag.name}", state, "", instead)
        for word in use.words:
            yield from _value(use, word, schema, elsewhere)
            if flag.registry and word:
                yield from _registered(use, word, schema, PLUGINS.get(flag.name) in given)


def _abbreviated(use: Use, schema: FlagSchema, elsewhere: Others) -> Finding:
    """An abbreviation is fine, unless another version has a flag of just that name: then that flag was meant."""
    own, heir = _history(use.written, schema, elsewhere)
    problem = f"is short for {use.meant}"
    if own:
        why = f"a flag of its own is {_known_in(own, schema.version)}"
        return Finding("refuse", use.written, problem, why, f"use {heir or use.meant} if that is meant")
    why = "a later version may add a flag with the same beginning"
    return Finding("notice", use.written, problem, why, f"written as --{use.flag.name}")


def _value(use: Use, word: str, schema: FlagSchema, elsewhere: Others) -> Iterator[Finding]:
    flag = use.flag
    for objection in values.objections(flag, word, schema):
        place = f"--{flag.name}.{objection.at}" if objection.at else f"--{flag.name}"
        why = objection.why
        if flag.choices is not None and not objection.at:
            others = [v for v, other in elsewhere.items() if (f := other.flag(flag.name)) and word in (f.choices or ())]
            why = "; ".join(filter(None, (why, _known_in(others, schema.version))))
        yield Finding("refuse" if objection.hard else "notice", place, objection.problem, why, objection.remedy)
    worked_out = values.canonical(flag, word)
    if worked_out != word:
        why = "k is 1000 and K is 1024" if flag.type != "human-int-si" else "k is 1000 and Ki is 1024"
        yield Finding("notice", f"--{flag.name}", f"{word} is {worked_out}", why, "written as the plain number")


def _registered(use: Use, word: str, schema: FlagSchema, plugin: bool) -> Iterator[Finding]:
    known = schema.registries.get(use.flag.registry or "")
    if known and word not in known:
        remedy = values.meant(word, known) or f"known: {', '.join(known)}"
        if plugin:
            why = f"--{PLUGINS[use.flag.name]} may register it"
            yield Finding("notice", f"--{use.flag.name}", f"{word} is no parser of this version", why, remedy)
        else:
            why = "the engine accepts the word and fails later"
            yield Finding("refuse", f"--{use.flag.name}", f"{word} is no parser of this version", why, remedy)


def _together(reading: Reading, schema: FlagSchema, body: Sequence[str]) -> Iterator[Finding]:
    """What is to be said about the flags as a whole: given twice, or missing."""
    by_name: dict[str, list[Use]] = {}
    for use in reading.uses:
        by_name.setdefault(use.flag.name, []).append(use)
    for name, uses in by_name.items():
        if len(uses) > 1 and not uses[0].flag.repeats:
            said = [" ".join(use.canonical[1:] if not use.joined else use.words) or use.meant for use in uses]
            same = len({(use.canonical[0].partition("=")[0], *use.words) for use in uses}) == 1
            why = "the value is the same" if same else "the last would silently win"
            problem = f"is given {len(uses)} times ({', then '.join(said)})"
            yield Finding("notice" if same else "refuse", f"--{name}", problem, why, "keep one")
    if "config" in by_name:
        return
    for flag in schema.flags:
        if flag.required and flag.name not in by_name and f"--{flag.name}" not in body:
            yield Finding("refuse", f"--{flag.name}", "is missing", "this engine cannot start without it", "add it")


def _vllm_model(reading: Reading, *, leading: bool) -> Iterator[Finding]:
    """What `vllm serve` says about where the model stands; `leading`: a flag leads the words."""
    bare = [item for item in reading.items if isinstance(item, str)]
    written = {use.written for use in reading.uses}  # vLLM looks for these words before it knows abbreviations
    if "--model" in written and bare:
        problem = f"is given besides the bare word {bare[0]}"
        yield Finding("refuse", "--model", problem, "`vllm serve` takes one model", "remove one")
    elif "--model" in written:
        why = "`vllm serve` wants the model as its first word and will drop the flag"
        yield Finding("notice", "--model", "is deprecated for `vllm serve`", why, "write the model as the first word")
    elif leading and "--served-model-name" in written and "--config" not in written:
        why = "`vllm serve` refuses --served-model-name unless the model is its first word"
        yield Finding(
            "refuse", "--served-model-name", "stands without the model in front", why, "write the model first"
        )


def _unclear(word: str, may: tuple[str, ...], versions: tuple[FlagSchema, Others]) -> Finding:
    """The finding about a flag that this version does not have, or that is short for all of `may`."""
    schema, elsewhere = versions
    names = words_of.spellings(schema)
    found, heir = _history(word, schema, elsewhere)
    why = _known_in(found, schema.version)
    if may:
        why = "; ".join(filter(None, (f"it may mean {', '.join(sorted(may))}", why)))
        remedy = f"use {heir}" if heir else "write one in full"
        return Finding("refuse", word, "is short for more than one flag", why, remedy)
    remedy = f"use {heir}" if heir else values.meant(word, names) or "remove it"
    return Finding("refuse", word, f"no such flag in {schema.engine} {schema.version}", why, remedy)


def _history(word: str, schema: FlagSchema, elsewhere: Others) -> tuple[list[str], str]:
    """The other versions that have the flag `word`, and the flag of this version that took its place where they say so."""
    here = words_of.spellings(schema)
    flags = {version: words_of.spellings(other).get(word) for version, other in elsewhere.items()}
    heirs = [flag.replaced_by for flag in flags.values() if flag and flag.replaced_by in here]
    return [version for version, flag in flags.items() if flag], str(heirs[-1]) if heirs else ""


def _known_in(found: Sequence[str], version: str) -> str:
    """`known in A and B, gone in C`; nothing where no other version knows it."""
    if not found:
        return ""
    ordered = sorted(found, key=release)
    listed = " and ".join(filter(None, [", ".join(ordered[:-1]), ordered[-1]]))
    now = "not yet in" if release(ordered[0]) > release(version) else "gone in"
    return f"known in {listed}, {now} {version}"
