"""The user's commands, one module for each noun. Each command parses, calls one library function, and prints.

Libraries are imported inside the tasks, so that `invoke --list` does not wait for numpy, pydantic or matplotlib.
"""

from __future__ import annotations

import os
import sys

from invoke import Collection

from slipway import usage

# Invoke switches bytecode off for itself; without it every command would compile the libraries it loads.
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))

usage.mend_usage_errors()

from tasks import hosts, images, models, project, recipes, serving  # noqa: E402 -- after the two lines above, so that they are compiled

ns = Collection()
for module in (recipes, models, images, hosts, serving, project):
    for found in Collection.from_module(module).tasks.values():
        ns.add_task(found)
