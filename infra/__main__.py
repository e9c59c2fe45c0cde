"""The Pulumi program: from a stack's settings to hosts, and to the one output, an inventory.

Pulumi runs this folder (`main: infra/`) and puts it first on the module path, so siblings are imported by their plain names;
`slipway` comes from the virtual environment or from src/. Nothing is decided here: see program.py.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "src")]

import program  # noqa: E402 (the lines above make it importable)

program.run()
