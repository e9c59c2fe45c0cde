"""Pulumi's protocol messages without the rest of its SDK, which a plugin does not need and which takes longer to load than a run.

Import this first; then `from pulumi.runtime.proto import …` works as always.
"""

import importlib.util
import os
import sys
import types

# A fork of a process in which gRPC runs must leave gRPC alone: the child is another program a moment later.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def _without_code(name, folder):
    package = types.ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package


_spec = importlib.util.find_spec("pulumi")
assert _spec is not None, "the pulumi package is not installed"
_folder = next(iter(_spec.submodule_search_locations))
_without_code("pulumi", _folder)
_without_code("pulumi.runtime", os.path.join(_folder, "runtime"))
