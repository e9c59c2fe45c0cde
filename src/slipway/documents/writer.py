"""Plain values as YAML that `read` gives back as they are: whatever it would refuse or convert stands in quotes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import yaml

from slipway.documents.reader import is_read_as_text

_WIDTH = 120


class _Dumper(yaml.SafeDumper):
    """Its readers agree on every scalar; PyYAML's own dumper leaves `0b1f` and `1e5` plain, which some take for numbers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    style = None if is_read_as_text(value) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _number(dumper: _Dumper, value: float) -> yaml.ScalarNode:
    digits = format(Decimal(repr(value)), "f")
    return dumper.represent_scalar("tag:yaml.org,2002:float", digits if "." in digits else f"{digits}.0")


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _number)


def write_text(value: Any, *, sort_keys: bool = False) -> str:
    """`value` (mappings with text as keys, lists, text, finite numbers, booleans, null) as YAML: equal for equal values."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=sort_keys, width=_WIDTH, allow_unicode=True)
