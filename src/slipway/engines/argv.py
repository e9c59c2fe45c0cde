"""From the words of a command line to uses of flags, split as the engine's own parser would split them.

argparse: exact spelling, `--flag=value`, unique beginnings, negative numbers as values, `nargs`. vLLM's parser first rewrites
the words: `_` to `-`, `-O3`, and dotted JSON into one JSON argument at the end.
Source: CPython 3.12 `argparse.py`; vLLM 0.25.1 `utils/argparse_utils.py`, read 2026-11-30.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slipway.engines.schema import Flag, FlagSchema
from slipway.engines.values import human_number

Severity = Literal["refuse", "notice"]


@dataclass(frozen=True)
class Finding:
    """One thing to say about a command line: `refuse` means the engine would stop, or would not do what is written."""

    severity: Severity
    flag: str
    problem: str
    why: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return "; ".join([f"{self.flag}: {self.problem}", *filter(None, (self.why, self.remedy))])


@dataclass(frozen=True)
class Use:
    """One flag as it was given: the spelling that was written, the one that is meant, and the words it takes."""

    flag: Flag
    written: str
    meant: str
    words: tuple[str, ...]
    joined: bool

    @property
    def canonical(self) -> tuple[str, ...]:
        """The words of this use under the flag's canonical name."""
        off = self.flag.kind == "optional-switch" and self.meant.startswith("--no-")
        name = f"--no-{self.flag.name}" if off else f"--{self.flag.name}"
        return (f"{name}={self.words[0]}",) if self.joined else (name, *self.words)


@dataclass
class Reading:
    """What the words were read as, in order: uses of flags, and words that stand alone."""

    items: list[Use | str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def uses(self) -> list[Use]:
        """The uses alone."""
        return [item for item in self.items if isinstance(item, Use)]

    def refuse(self, flag: str, problem: str, why: str = "", remedy: str = "") -> None:
        """Note that the engine would refuse this."""
        self.findings.append(Finding("refuse", flag, problem, why, remedy))


HELP = Flag(name="help", aliases=("-h",), kind="switch")
Unclear = Callable[[str, tuple[str, ...]], Finding]


def read(words: Sequence[str], schema: FlagSchema, unclear: Unclear) -> Reading:
    """`words` without the entrypoint, split into uses.

    `unclear` gives the finding about a flag that does not exist, or that is short for more than one (the second argument).
    """
    reading = Reading()
    left = _exact(list(words), schema, reading)
    if schema.dialect == "vllm":
        left = _rewritten(left, reading)
    names = spellings(schema)
    kinds = [_kind(word, names) for word in left]
    if "--" in left:
        kinds[left.index("--") + 1 :] = [None] * (len(left) - left.index("--") - 1)
    at = 0
    while at < len(left):
        matched = kinds[at]
        if matched is None:
            reading.items += [] if left[at] == "--" else [left[at]]
            at += 1
            continue
        free = 0
        while at + 1 + free < len(left) and kinds[at + 1 + free] is None and left[at + 1 + free] != "--":
            free += 1
        at += 1 + _take(left[at], matched, left[at + 1 : at + 1 + free], (names, reading, unclear))
    return reading


def spellings(schema: FlagSchema) -> dict[str, Flag]:
    """Every word that argparse knows as a flag, `--help` included, with its flag."""
    flags = (*(flag for flag in schema.flags if not flag.exact), HELP)
    return {word: flag for flag in flags for word in flag.spellings}


@dataclass(frozen=True)
class _Match:
    """What a word that looks like a flag may mean, and the value joined to it."""

    candidates: tuple[str, ...]
    value: str | None


_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")


def _kind(word: str, names: Mapping[str, Flag]) -> _Match | None:
    """What argparse takes `word` for: a flag, with the spellings it may mean; None for a value."""
    if len(word) < 2 or word[0] != "-" or word == "--":
        return None
    if word in names:
        return _Match((word,), None)
    head, equals, joined = word.partition("=")
    if equals and head in names:
        return _Match((head,), joined)
    value = joined if equals else None
    found = [_Match((name,), value) for name in names if name.startswith(head)]
    if word[1] != "-":
        found += [_Match((name,), word[2:]) for name in names if name == word[:2]]
    if found:
        return _Match(tuple(name for match in found for name in match.candidates), found[0].value)
    return None if _NEGATIVE.fullmatch(word) or " " in word else _Match((), value)


Hands = tuple[Mapping[str, Flag], Reading, Unclear]


def _take(word: str, match: _Match, following: list[str], hands: Hands) -> int:
    """Note the flag that `word` means, and say how many of the `following` value words it takes."""
    names, reading, unclear = hands
    written = word.partition("=")[0]
    if len(match.candidates) != 1:
        reading.findings.append(unclear(written, match.candidates))
        return len(following)
    (meant,) = match.candidates
    flag = names[meant]
    if flag is HELP:
        reading.refuse(written, "prints the help and ends", "nothing would be served", "remove it")
        return 0
    if match.value is None:
        count = _count(flag, following)
        if count < 0:
            _missing(written, flag, following, reading)
            return len(following)
        reading.items.append(Use(flag, written, meant, tuple(following[:count]), joined=False))
        return count
    if flag.kind in {"switch", "optional-switch"}:
        off = "" if flag.kind == "switch" else f", --no-{flag.name} turns it off"
        reading.refuse(written, f"takes no value (got {match.value})", f"it is a switch{off}", "remove the value")
    elif isinstance(flag.nargs, int) and flag.nargs > 1:
        reading.refuse(written, f"needs {flag.nargs} values (got 1)", "", "write them as separate words")
    else:
        glued = not word.startswith("--") and "=" not in word  # -n4, which is -n 4 and no abbreviation
        reading.items.append(Use(flag, meant if glued else written, meant, (match.value,), joined=True))
    return 0


def _count(flag: Flag, following: list[str]) -> int:
    """How many of the words in a row the flag takes; -1 where they are too few."""
    if flag.kind in {"switch", "optional-switch"}:
        return 0
    if flag.nargs in {"*", "+"}:
        return -1 if flag.nargs == "+" and not following else len(following)
    if flag.nargs == "?":
        return min(1, len(following))
    needed = flag.nargs if isinstance(flag.nargs, int) else 1
    return needed if len(following) >= needed else -1


def _missing(written: str, flag: Flag, following: list[str], reading: Reading) -> None:
    needed = flag.nargs if isinstance(flag.nargs, int) else 1
    got = f"got {len(following)}" if following else "got nothing"
    problem = f"needs {needed} values ({got})" if needed > 1 else f"needs a value ({got})"
    why = "a word that begins with a dash is read as a flag"
    reading.refuse(written, problem, why, f"write {written}=VALUE where the value begins with a dash")


def _exact(words: list[str], schema: FlagSchema, reading: Reading) -> list[str]:
    """`words` less the flags that the engine takes out before argparse, by exact spelling."""
    exact = {f"--{flag.name}": flag for flag in schema.flags if flag.exact}
    left: list[str] = []
    at = 0
    while at < len(words):
        head, equals, joined = words[at].partition("=")
        flag = exact.get(head)
        at += 1
        if flag is None:
            left.append(words[at - 1])
        elif equals:
            reading.items.append(Use(flag, head, head, (joined,), joined=True))
        elif at < len(words):
            reading.items.append(Use(flag, head, head, (words[at],), joined=False))
            at += 1
        else:
            _missing(head, flag, [], reading)
    return left


def _rewritten(words: list[str], reading: Reading) -> list[str]:
    """`words` as vLLM's parser hands them to argparse."""
    dashed = _dashed(words)
    plain: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    at = 0
    while at < len(dashed):
        word = dashed[at]
        head, equals, joined = word.partition("=")
        at += 1
        if not word.startswith("-") or "." not in head:
            plain.append(word)
            continue
        if not equals:
            if at == len(dashed):
                reading.refuse(word, "needs a value (got nothing)", "vLLM reads a dot in a flag as a key of its JSON")
                break
            joined, at = dashed[at], at + 1
        name, *keys = head.removesuffix("+").split(".")
        if _NEGATIVE.fullmatch(head):
            why = "vLLM reads a word with a dash and a dot as a key of a JSON flag"
            reading.refuse(head, "is not read as a number", why, f"write it joined to its flag, as --flag={head}")
            continue
        value = joined.split(",") if head.endswith("+") else _json_or_word(joined)
        for key in _merged(dotted.setdefault(name, {}), _nested(keys, value)):
            reading.refuse(f"{name}.{key}", "is given twice", "the last would silently win", "remove one")
    return [*plain, *(word for name, value in dotted.items() for word in (name, json.dumps(value)))]


def _dashed(words: list[str]) -> list[str]:
    """`words` with dashes for underscores in flag names, up to the first dot, and with `-O3` in full."""
    out: list[str] = []
    for at, word in enumerate(words):
        head, equals, joined = word.partition("=")
        if word.startswith("--"):
            name, dot, keys = head.partition(".")
            out.append(f"{name.replace('_', '-')}{dot}{keys}{equals}{joined}")
        elif word.startswith("-O") and word != "-O":
            out += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
        elif word == "-O" and words[at + 1 : at + 2] and words[at + 1] in {"0", "1", "2", "3"}:
            out.append("--optimization-level")
        else:
            out.append(word)
    return out


def _json_or_word(word: str) -> Any:
    try:
        return json.loads(word)
    except (ValueError, RecursionError):
        return word if (number := human_number(word, "human-int")) is None else number


def _nested(keys: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(keys):
        value = {key: value}
    return value  # type: ignore[no-any-return]


def _merged(into: dict[str, Any], more: dict[str, Any]) -> list[str]:
    """Put `more` into `into` as vLLM does, lists growing; the dotted keys that were overwritten."""
    twice: list[str] = []
    for key, value in more.items():
        before = into.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            twice += [f"{key}.{inner}" for inner in _merged(before, value)]
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        else:
            twice += [key] if key in into else []
            into[key] = value
    return twice
