"""From YAML nodes to plain values: positions are kept, duplicate keys and silent conversions are refused."""

from __future__ import annotations

import re
from typing import Any

import yaml

from slipway.errors import DocumentError, Problem

MAX_VALUES = 100_000
"""Most values read, those behind aliases counted each time; a few lines of aliases can stand for billions."""

MAX_DEPTH = 60
"""Deepest nesting read; more is an attack or a mistake, and would exhaust the parser's recursion."""


Location = tuple[str | int, ...]


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml where PyYAML was built with it, as every wheel is: the recipe book is read ten times faster."""


class Reader:
    """Turns nodes into plain values, remembering where each stands and what must be refused."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self._values: dict[Location, yaml.Node] = {}
        self._keys: dict[Location, yaml.Node] = {}
        self._open: set[int] = set()
        self._count = 0

    def value(self, node: yaml.Node, at: Location) -> Any:
        self._values[at] = node
        self._count += 1
        if self._count > MAX_VALUES:
            text = f"stands for more than {MAX_VALUES} values; a document has fewer"
            raise DocumentError([Problem(self.name, 1, 1, "", text)])
        if len(at) > MAX_DEPTH or id(node) in self._open:
            self._refuse(node, at, f"is nested more than {MAX_DEPTH} levels deep or contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, at)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*at, index)) for index, item in enumerate(node.value)]
            return self._scalar(node, at) if isinstance(node, yaml.ScalarNode) else None
        finally:
            self._open.discard(id(node))

    def knows(self, at: Location) -> bool:
        """Whether something is written at `at`."""
        return at in self._values

    def problem(self, at: Location, text: str, *, key: bool = False) -> Problem:
        """The problem `text` at the nearest place that exists in the file; a missing key is reported at its parent."""
        node = (self._keys if key else self._values).get(at)
        while node is None and at:
            node = self._values.get(at[:-1])
            if node is None:
                at = at[:-1]
            else:
                break
        mark = (node or self._values[()]).start_mark
        return Problem(self.name, mark.line + 1, mark.column + 1, dotted(at), text)

    def _mapping(self, node: yaml.MappingNode, at: Location) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, yaml.Node] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, at, "has a key that is not a plain word")
                continue
            key = str(key_node.value)
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._refuse(key_node, at, "uses a merge key (<<); write the values where they belong")
                continue
            here = (*at, key)
            if key in first:
                line = first[key].start_mark.line + 1
                self._refuse(
                    key_node,
                    here,
                    f"stands twice in one mapping (first in line {line}) and the last would silently win; remove one",
                )
                continue
            first[key] = key_node
            self._keys[here] = key_node
            result[key] = self.value(value_node, here)
        return result

    def _scalar(self, node: yaml.ScalarNode, at: Location) -> Any:
        text = str(node.value)
        if not text.isprintable():
            self._refuse(node, at, "contains a control, line-break or invisible character; write it without")
            return None
        if node.style:  # quoted or a block; plain is None here and empty from libyaml
            return text
        if node.tag not in _TAGS:
            self._refuse(
                node, at, f"has the tag {node.tag}; only plain values are read; remove the tag or quote the value"
            )
            return None
        if text in {"", "~", "null"}:
            return None
        if text in {"true", "false"}:
            return text == "true"
        if _INTEGER.fullmatch(text):
            digits = len(text.removeprefix("-"))
            if digits > 18:
                self._refuse(node, at, f"got a number of {digits} digits; at most 18 are read")
                return None
            return int(text)
        if _DECIMAL.fullmatch(text):
            return float(text)
        advice = _silent_conversion(text)
        if advice:
            self._refuse(node, at, f"got {text}, {advice}")
            return None
        return text

    def _refuse(self, node: yaml.Node, at: Location, text: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(self.name, mark.line + 1, mark.column + 1, dotted(at), text))


_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "value")}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)\.[0-9]+")


def is_read_as_text(text: str) -> bool:
    """Whether `text`, without quotes, is read as itself."""
    number = _INTEGER.fullmatch(text) or _DECIMAL.fullmatch(text)
    return not (text in {"", "~", "null", "true", "false"} or number or _silent_conversion(text))


def _silent_conversion(text: str) -> str:
    """Why the plain scalar `text` is refused: what YAML readers would silently make of it; empty when it is harmless."""
    if text.lower() in {"on", "off", "yes", "no", "y", "n"}:
        meant = str(text.lower() in {"on", "yes", "y"}).lower()
        return f'which some YAML readers turn into {meant}; write true or false, or quote it: "{text}"'
    if text.lower() in {"true", "false", "null"}:
        return f'which is spelled {text.lower()} here; or quote it: "{text}"'
    if re.fullmatch(r"[-+]?0[0-9_]+", text):
        return f'which some YAML readers take as octal; write the decimal number without leading zeros, or quote it: "{text}"'
    if re.fullmatch(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9]*)?", text):
        return f'which YAML 1.1 readers turn into a base-60 number; quote it: "{text}"'
    if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text):
        return f'a number that YAML readers disagree on; write digits, as 100000 or 0.5, or quote it: "{text}"'
    if re.fullmatch(r"[-+]?(0[xob][0-9a-fA-F_]+|[0-9][0-9_]*_[0-9_]*)", text):
        return f'a number that YAML readers disagree on; write plain decimal digits, or quote it: "{text}"'
    if re.fullmatch(r"[-+]?\.(inf|nan)", text, re.IGNORECASE):
        return f'which is not a number that can be meant here; or quote it: "{text}"'
    if re.fullmatch(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?", text):
        return f'which YAML readers turn into a date object; quote it: "{text}"'
    return ""


def dotted(location: Location) -> str:
    """`location` as it is written in messages, as `cells[3].roles[0].tp`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
