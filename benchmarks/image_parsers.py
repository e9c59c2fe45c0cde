"""Whether the engine inside a built image accepts every shipped recipe's command line, and knows the flags of our schema.

    python benchmarks/image_parsers.py --engine vllm --image slipway/vllm-wheels:0.25.1 [--schema images/vllm/flags/0.25.1.json]

The engine's own parser is built inside the image, without a GPU: modules that need one to be imported are stood in for. Prints one
JSON document: how many command lines were accepted, each one that was refused with the parser's words, and the spellings that only one
of parser and schema has.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from slipway import book
from slipway.documents import read_json
from slipway.engines.schema import FlagSchema
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent

PROBE = '''
import argparse, contextlib, importlib.abc, importlib.machinery, importlib.metadata, io, json, sys, types

class Standin(types.ModuleType):
    """A module whose every attribute is a class that does nothing."""
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__call__": lambda *a, **k: None, "__init__": lambda *a, **k: None})

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names): self.names = names
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): return Standin(spec.name)
    def exec_module(self, module): pass

asked = json.load(sys.stdin)
if asked["engine"] == "vllm":
    real = importlib.metadata.version
    # vLLM chooses its platform by its own version's suffix; on none it cannot compute its defaults.
    importlib.metadata.version = lambda name: real(name) + ("+cpu" if name == "vllm" else "")
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    make = lambda: make_arg_parser(FlexibleArgumentParser())
elif asked["engine"] == "sglang":
    sys.meta_path.insert(0, Finder({"sgl_kernel", "torchcodec", "deep_gemm"}))
    from sglang.srt.server_args import ServerArgs
    def make():
        parser = argparse.ArgumentParser()
        ServerArgs.add_cli_args(parser)
        return parser
else:
    from sglang_router.router_args import RouterArgs
    def make():
        parser = argparse.ArgumentParser()
        RouterArgs.add_cli_args(parser, use_router_prefix=False)
        return parser

spellings = {text for action in make()._actions for text in action.option_strings}
if asked["engine"] == "sglang":
    from sglang.cli.serve import _extract_model_type_override
    # `sglang serve` takes this one away before its parser sees the words.
    if _extract_model_type_override(["--model-type", "llm", "--x"]) == ("llm", ["--x"]):
        spellings.add("--model-type")
refused = {}
for name, argv in asked["commands"].items():
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            make().parse_args(argv)
    except SystemExit:
        refused[name] = said.getvalue().strip().splitlines()[-1:]
print("ANSWER " + json.dumps({"refused": refused, "spellings": sorted(spellings)}))
'''


def commands(engine: str) -> dict[str, list[str]]:
    """Recipe and role → the words after the program, for every role that this parser reads."""
    found = {}
    checkout = Checkout(ROOT)
    for row in book.rows(checkout, {"model": None, "hardware": None, "quantization": None}):
        wanted = "sglang" if engine == "router" else engine
        if row["engine"] != wanted:
            continue
        for process in book.compiled(checkout, row["id"], None, None).processes:
            if (process.role == "router") == (engine == "router"):
                argv = list(process.argv)
                start = 0 if engine == "vllm" else next(at for at, word in enumerate(argv) if word.startswith("--"))
                found[f"{row['id']} {process.role}"] = argv[start:]
    return found


def ask(image: str, engine: str, network: str) -> dict[str, Any]:
    """What the parser inside `image` said."""
    asked = json.dumps({"engine": engine, "commands": commands(engine)})
    argv = (
        "docker",
        "run",
        "--rm",
        "--interactive",
        f"--network={network}",
        "--entrypoint",
        "python3",
        image,
        "-c",
        PROBE,
    )
    ran = subprocess.run(argv, input=asked, capture_output=True, text=True, check=False)
    answer = [line for line in ran.stdout.splitlines() if line.startswith("ANSWER ")]
    if not answer:
        sys.exit(f"{image}: the probe gave no answer (exit {ran.returncode}):\n{ran.stderr[-3000:]}")
    return dict(json.loads(answer[0].removeprefix("ANSWER ")))


def main() -> None:
    """Print the comparison; exit 1 when a command line was refused or the schema differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, choices=("sglang", "vllm", "router"))
    parser.add_argument("--image", required=True)
    parser.add_argument("--schema", type=Path)
    parser.add_argument("--network", default="none")
    given = parser.parse_args()
    said = ask(given.image, given.engine, given.network)
    document: dict[str, Any] = {
        "image": given.image,
        "commands": len(commands(given.engine)),
        "refused": said["refused"],
    }
    differs = False
    if given.schema:
        schema = read_json(given.schema, FlagSchema)
        ours = {spelling for flag in schema.flags for spelling in flag.spellings}
        theirs = set(said["spellings"]) - {"-h", "--help"}
        document |= {"only_in_the_parser": sorted(theirs - ours), "only_in_the_schema": sorted(ours - theirs)}
        differs = theirs != ours
    print(json.dumps(document, indent=2))
    sys.exit(1 if said["refused"] or differs else 0)


if __name__ == "__main__":
    main()
