"""Flag schemas read out of wheels: small ones written here in both engines' styles, the shipped files, and real wheels."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slipway import documents
from slipway.engines import schema
from slipway.engines.schema import Flag, FlagSchema, NestedField
from slipway.errors import DiskFailure, IntegrityMismatch, LockDrift, MissingFile
from slipway.images import flag_schema
from slipway.images.static_value import UNKNOWN, lookup
from slipway.images.wheel_source import WheelSource

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "images"
WHEELS = os.environ.get("SLIPWAY_WHEELS")
"""A folder with the published wheels; read before the tests' clean environment."""

SGLANG_COMMON = {
    "sglang/srt/arg_groups/arg_utils.py": """
        from typing import Annotated
        A = Annotated
        class Arg: ...
        class NS: ...
    """,
    "sglang/srt/utils/common.py": """
        def human_readable_int(value): ...
        def nullable_str(value): ...
        def json_list_type(value): ...
    """,
    "sglang/srt/parser/names.py": """
        class ReasoningParser:
            DetectorMap: dict = {"poolside_v1": object, "qwen3": object}
    """,
    "sglang/srt/modes.py": """
        from enum import IntEnum
        class Mode(IntEnum):
            NONE = 0
            ALL = 1
    """,
    "sglang/srt/graphs.py": """
        class Backend:
            FULL = "full"
            OFF = "disabled"
            ALL = (FULL, OFF)
    """,
    "sglang/srt/model_executor/cuda_graph_config.py": """
        from sglang.srt.graphs import Backend
        class Phase:
            DECODE = "decode"
        ALLOWED_KEYS_PER_PHASE = {Phase.DECODE: ("backend", "max_bs")}
        def parse_cuda_graph_config_arg(raw): ...
    """,
    "sglang/srt/actions.py": """
        import argparse
        class DeprecatedAction(argparse.Action):
            def __init__(self, option_strings, dest, error_message=None, nargs=0, **kwargs): ...
        class DeprecatedAlias(argparse.Action):
            def __init__(self, option_strings, dest, new_flag=None, **kwargs): ...
    """,
}
HEAD = """
        from __future__ import annotations
        import argparse
        import json
        from typing import Dict, List, Literal, Optional, Union
        from sglang.srt.actions import DeprecatedAction, DeprecatedAlias
        from sglang.srt.arg_groups.arg_utils import NS, A, Arg
        from sglang.srt.graphs import Backend
        from sglang.srt.model_executor.cuda_graph_config import parse_cuda_graph_config_arg
        from sglang.srt.modes import Mode
        from sglang.srt.parser.names import ReasoningParser
        from sglang.srt.utils.common import human_readable_int, json_list_type, nullable_str
        FORMATS = ["auto", "dummy"]
        if something():
            FORMATS.append("extra")
        MADE = list_from_elsewhere()
        GROWN = ["auto"]
        GROWN.extend(MADE)
"""
FIELDS = """
            model_path: A[str, Arg(help="h", aliases=["--model"]), NS("model")]
            tp_size: A[int, Arg(help="h", aliases=["--tensor-parallel-size"])] = 1
            trust_remote_code: A[bool, "help"] = False
            context_length: A[Optional[int], Arg(help="h", type_parser=human_readable_int)] = None
            ratio: A[Optional[float], "h"] = 0.5
            load_format: A[str, Arg(help="h", choices=FORMATS)] = "auto"
            grown_format: A[str, Arg(help="h", choices=GROWN)] = "auto"
            open_format: A[str, Arg(help="h", choices=MADE)] = "auto"
            gemm: A[str, Arg(help="h", cli_name="--fp8-gemm-backend", choices=["a"])] = "a"
            role: A[Literal["null", "prefill"], "h"] = "null"
            bits: A[Literal[1, 2], "h"] = 1
            phase: A[Optional[str], Arg(help="h", choices=Backend.ALL)] = None
            sizes: A[Optional[List[int]], "h"] = None
            names: A[List[str], Arg(help="h", nargs="*")] = None
            labels: A[Optional[Dict[str, str]], Arg(help="h", type_parser=json.loads)] = None
            limits: A[Optional[Union[str, Dict]], "h"] = None
            hooks: A[Optional[List[str]], Arg(help="h", type_parser=json_list_type)] = None
            dtype: A[Optional[str], Arg(help="h", type_parser=nullable_str)] = None
            parsed: A[Optional[str], Arg(help="h", type_parser=lambda s: s[1:], choices=["x"])] = None
            twin: A[Optional[bool], Arg(help="h", action=argparse.BooleanOptionalAction)] = None
            graphs: A[Optional[dict], Arg(help="h", type_parser=parse_cuda_graph_config_arg)] = None
            hidden: A[bool, Arg(no_cli=True)] = False
            marked: A[bool, NS("model")] = False
            plain: int = 3
            tp_size: A[int, Arg(help="again", aliases=["--tensor-parallel-size"])] = 2
"""
BY_HAND = """
            @staticmethod
            def add_cli_args(parser):
                add_cli_args_from_dataclass(parser, ServerArgs)
                choices = list(ReasoningParser.DetectorMap.keys())
                parser.add_argument("--reasoning-parser", type=str, choices=["auto"] + choices)
                parser.add_argument("--mode", choices=[m.name.lower() for m in Mode])
                parser.add_argument("--config", type=str)
                parser.add_argument("--old", action=DeprecatedAction, error_message="--old is gone. Use --tp-size.")
                parser.add_argument("--older", type=int, nargs="+", action=DeprecatedAlias, new_flag="--sizes")
                sampling = set(FORMATS)
                if env():
                    sampling.add("oracle")
                parser.add_argument("--sampling", choices=sampling)
                parser.add_argument("positional")
"""
SGLANG_ONE_CLASS = {
    **SGLANG_COMMON,
    "sglang/srt/server_args.py": HEAD + "        class ServerArgs:" + FIELDS + BY_HAND,
    "sglang/cli/serve.py": """
        def _extract_model_type_override(argv): ...
        def _normalize_positional_model_path(argv): ...
    """,
}
SGLANG_NAMESPACES = {
    **SGLANG_COMMON,
    "sglang/srt/fields.py": HEAD + "        class Model:" + FIELDS,
    "sglang/srt/server_args.py": HEAD
    + "        from sglang.srt.fields import Model\n        class ServerArgs:"
    + BY_HAND
    + """
        _INPUT_NAMESPACES = [Model]
        ServerArgs = rebuilt(ServerArgs)
""",
}
VLLM = {
    "vllm/config/utils.py": """
        def config(cls=None, *, config=None):
            return dataclass(cls, config=ConfigDict(extra="forbid"))
    """,
    "vllm/config/__init__.py": "from vllm.config.model import Inner, ModelConfig, Spec\nfrom vllm.config.utils import config",
    "vllm/config/kinds.py": """
        import enum
        from typing import Literal
        Base = Literal["a", "b"]
        Method = Literal["dflash", Base]
        class Backend(enum.Enum):
            FLASH = "x.y.Flash"
            WORD = "word"
        class Level(enum.IntEnum):
            LOW = 0
    """,
    "vllm/config/model.py": """
        from typing import TYPE_CHECKING, Any, ClassVar, Literal
        import torch
        from dataclasses import dataclass, field
        from pydantic import Field, SkipValidation, field_validator, model_validator
        from vllm.config.kinds import Backend, Level, Method
        from vllm.config.utils import config
        if TYPE_CHECKING:
            from somewhere import Formats
        else:
            Formats = str

        @config
        class Inner:
            size: int = 1
            made: int = field(default=0, init=False)
            KIND: ClassVar[int] = 3

        @dataclass
        class Loose:
            size: int = 1

        @config
        class Early:
            size: int = 1
            @model_validator(mode="before")
            def anything(cls, value): ...

        @config
        class Spec:
            method: Method | None = None
            tokens: int = Field(default=None, gt=0)
            rates: list[float] | None = None
            inner: Inner | None = None
            backend: Backend | None = None
            rewritten: Literal["x"] = "x"
            either: int | str = 1
            either_way: dict[str, Any] | Inner | None = None
            target: SkipValidation[Inner] = None
            loose: Loose | None = None
            early: Early | None = None
            @field_validator("rewritten", mode="before")
            def change(cls, value): ...
            @field_validator("tokens", mode="after")
            def look(cls, value): ...

        @config
        class ModelConfig:
            model: str = "m"
            max_model_len: int = Field(default=None, ge=-1)
            bytes_: int | None = None
            seed: int = 0
            dtype: Literal["auto", "half"] | torch.dtype = "auto"
            mode: Literal["x", "y"] | str = "x"
            rank: Literal[1, 8] = 1
            loads: Literal["lazy"] | None = None
            quick: bool = False
            token: bool | str | None = None
            names: str | list[str] | None = None
            sizes: list[int] | None = None
            traces: list[Literal["m", "w"]] | None = None
            limit: dict[str, int] = field(default_factory=dict)
            override: dict[str, Any] | str | None = None
            loose_path: str | None = None
            formats: str | Formats = "auto"
            backend: Backend | None = None
            level: Level = Level.LOW
            spec: Spec | None = None
            moe: Literal["marlin", "a_b"] = "marlin"
            gib: float | None = None
    """,
    "vllm/engine/arg_utils.py": """
        import argparse
        import json
        from itertools import permutations
        from typing import get_args
        from vllm.config import ModelConfig
        from vllm.config.kinds import Base
        def optional_type(t): ...
        def _compute_kwargs(cls):
            for field in fields(cls):
                if name == "max_model_len":
                    kwargs[name]["type"] = human_readable_int_or_auto
                elif name in ("bytes_", "other"):
                    kwargs[name]["type"] = human_readable_int
        def get_kwargs(cls): ...
        class EngineArgs:
            @staticmethod
            def add_cli_args(parser):
                kw = get_kwargs(ModelConfig)
                group = parser.add_argument_group(title="x")
                if not ("serve" in sys.argv[1:]):
                    group.add_argument("--model", **kw["model"])
                group.add_argument("--max-model-len", **kw["max_model_len"])
                group.add_argument("--bytes", **kw["bytes_"])
                group.add_argument("--seed", "-s", **{**kw["seed"], "default": None})
                group.add_argument("--dtype", **kw["dtype"])
                group.add_argument("--mode", **kw["mode"])
                group.add_argument("--rank", **kw["rank"])
                group.add_argument("--loads", **kw["loads"])
                group.add_argument("--quick", "-qk", **kw["quick"])
                group.add_argument("--token", **kw["token"])
                group.add_argument("--names", **kw["names"])
                group.add_argument("--sizes", **kw["sizes"])
                kw["traces"]["choices"] += [",".join(p) for p in permutations(get_args(Base), r=2)]
                group.add_argument("--traces", **kw["traces"])
                group.add_argument("--limit", **kw["limit"])
                group.add_argument("--override", **kw["override"])
                group.add_argument("--formats", **kw["formats"])
                group.add_argument("--backend", **kw["backend"])
                group.add_argument("--level", **kw["level"])
                kw["spec"]["type"] = optional_type(json.loads)
                group.add_argument("--speculative-config", "-sc", **kw["spec"])
                moe = kw["moe"]
                moe["type"] = lambda s: s.lower().replace("-", "_")
                group.add_argument("--moe", **moe)
                group.add_argument("--gib", **kw["gib"])
                group.add_argument("--ids", type=lambda s: s.split(","))
                group.add_argument("--chosen", choices=["p", "q"])
        class AsyncEngineArgs(EngineArgs):
            @staticmethod
            def add_cli_args(parser):
                parser = EngineArgs.add_cli_args(parser)
                parser.add_argument("--log", action=argparse.BooleanOptionalAction, default=True)
    """,
    "vllm/entrypoints/openai/cli_args.py": """
        import json
        from vllm.config import config
        from vllm.engine.arg_utils import AsyncEngineArgs, optional_type
        @config
        class BaseFrontendArgs:
            tool_call_parser: str | None = None
            kwargs_: dict | None = None
            origins: list[str] = None
            @classmethod
            def _customize_cli_kwargs(cls, frontend_kwargs):
                frontend_kwargs["kwargs_"]["type"] = json.loads
                return frontend_kwargs
            @classmethod
            def add_cli_args(cls, parser):
                for key, value in get_kwargs(cls).items():
                    parser.add_argument(f"--{key}", **value)
        @config
        class FrontendArgs(BaseFrontendArgs):
            port: int = 8000
            middleware: list[str] = None
            @classmethod
            def _customize_cli_kwargs(cls, frontend_kwargs):
                frontend_kwargs = super()._customize_cli_kwargs(frontend_kwargs)
                frontend_kwargs["origins"]["type"] = json.loads
                del frontend_kwargs["origins"]["nargs"]
                frontend_kwargs["middleware"]["action"] = "append"
                if "nargs" in frontend_kwargs["middleware"]:
                    del frontend_kwargs["middleware"]["nargs"]
                return frontend_kwargs
        def make_arg_parser(parser):
            parser.add_argument("model_tag", nargs="?")
            parser.add_argument("--headless", action="store_true", default=False)
            parser = FrontendArgs.add_cli_args(parser)
            return parser
    """,
    "vllm/reasoning/__init__.py": """_REASONING_PARSERS_TO_REGISTER = {"poolside_v1": ("f", "C")}""",
    "vllm/tool_parsers/__init__.py": """_TOOL_PARSERS_TO_REGISTER = {"poolside_v1": ("f", "C"), "hermes": ("f", "C")}""",
}
ROUTER = {
    "sglang_router/router_args.py": """
        from sglang_router.rs import parsers
        POLICIES = ["a", "b"]
        class RouterArgs:
            port: int = 30000
            @staticmethod
            def add_cli_args(parser, use_router_prefix=False, exclude_host_port=False):
                prefix = "router-" if use_router_prefix else ""
                group = parser.add_argument_group("x", "y")
                if not exclude_host_port:
                    group.add_argument("--port", type=int, default=RouterArgs.port)
                if use_router_prefix:
                    group.add_argument("--router-only", action="store_true")
                group.add_argument(f"--{prefix}policy", choices=[*POLICIES, "c"])
                group.add_argument(f"--{prefix}prefill", nargs="+", action="append")
                group.add_argument(f"--{prefix}decode", nargs=1, action="append", metavar=("URL",))
                found = parsers()
                group.add_argument(f"--{prefix}tool-call-parser", choices=found)
                group.add_argument(f"--{prefix}lower", type=str.lower, default=None)
    """,
}


def wheel(folder: Path, name: str, members: dict[str, str]) -> Path:
    """A wheel with these members, their text shifted to the left."""
    path = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            lines = [line[8:] if line.startswith(" " * 8) else line for line in text.splitlines()]
            archive.writestr(member, "\n".join(lines))
    return path


def flags_of(found: FlagSchema) -> dict[str, Flag]:
    return {flag.name: flag for flag in found.flags}


@pytest.mark.parametrize("style", [SGLANG_ONE_CLASS, SGLANG_NAMESPACES], ids=["one class", "namespaces"])
def test_sglang_fields_become_the_flags_that_argparse_would_get(tmp_path: Path, style: dict[str, str]) -> None:
    found = flag_schema.extract("sglang", "0.1", wheel(tmp_path, "sglang-0.1", style))
    flags = flags_of(found)
    assert flags["model-path"] == Flag(name="model-path", aliases=("--model",), required=True)
    assert flags["tp-size"] == Flag(name="tp-size", aliases=("--tensor-parallel-size",), type="int", default="2")
    assert flags["trust-remote-code"] == Flag(name="trust-remote-code", kind="switch", default="False")
    assert flags["context-length"].type == "human-int-si"
    assert (flags["ratio"].type, flags["ratio"].default) == ("float", "0.5")
    assert flags["load-format"].choices == ("auto", "dummy", "extra"), "a value that may be added later is not refused"
    assert flags["open-format"].choices is None, "choices that the text does not tell stay open"
    assert flags["grown-format"].choices is None
    assert flags["fp8-gemm-backend"].choices == ("a",)
    assert flags["role"].choices == ("null", "prefill")
    assert (flags["bits"].type, flags["bits"].choices) == ("int", (1, 2))
    assert flags["phase"].choices == ("disabled", "full")
    assert (flags["sizes"].kind, flags["sizes"].nargs, flags["sizes"].type) == ("list", "+", "int")
    assert (flags["names"].kind, flags["names"].nargs, flags["names"].type) == ("list", "*", "str")
    assert (flags["labels"].kind, flags["labels"].type) == ("json", "json")
    assert (flags["limits"].kind, flags["limits"].type) == ("value", "str")
    assert flags["hooks"].type == "json"
    assert flags["dtype"].optional
    assert flags["parsed"].type == "unknown"
    assert flags["twin"].spellings == ("--twin", "--no-twin")
    assert flags["graphs"].nested == "CudaGraphConfig"
    assert found.nested["CudaGraphConfig.decode"] == {"backend": NestedField(), "max_bs": NestedField()}
    assert not {"hidden", "marked", "plain", "positional"} & set(flags)


def test_sglang_flags_that_are_added_by_hand(tmp_path: Path) -> None:
    found = flag_schema.extract("sglang", "0.1", wheel(tmp_path, "sglang-0.1", SGLANG_ONE_CLASS))
    flags = flags_of(found)
    assert flags["reasoning-parser"].choices == ("auto", "poolside_v1", "qwen3")
    assert found.registries == {"reasoning_parsers": ("poolside_v1", "qwen3")}
    assert flags["mode"].choices == ("all", "none")
    assert flags["sampling"].choices == ("auto", "dummy", "extra", "oracle")
    old, older = flags["old"], flags["older"]
    assert (old.kind, old.refused, old.replaced_by) == ("switch", True, "--tp-size")
    assert (older.kind, older.nargs, older.refused, older.replaced_by) == ("list", "+", False, "--sizes")
    assert flags["model-type"].exact
    assert found.positional is not None
    assert (found.positional.becomes, found.positional.place) == ("model-path", "first")
    later = flag_schema.extract("sglang", "0.1", wheel(tmp_path, "sglang-0.1", SGLANG_NAMESPACES))
    assert later.positional is None
    assert "model-type" not in flags_of(later)


def test_vllm_fields_become_the_flags_that_argparse_would_get(tmp_path: Path) -> None:
    found = flag_schema.extract("vllm", "0.1", wheel(tmp_path, "vllm-0.1", VLLM))
    flags = flags_of(found)
    expected = [
        Flag(name="model", default="'m'"),
        Flag(name="max-model-len", type="human-int-auto"),
        Flag(name="bytes", type="human-int", optional=True),
        Flag(name="seed", aliases=("-s",), type="int"),
        Flag(name="dtype", choices=("auto", "half"), default="'auto'"),
        Flag(name="mode", known=("x", "y"), default="'x'"),
        Flag(name="rank", type="int", choices=(1, 8), default="1"),
        Flag(name="loads", choices=("None", "lazy"), optional=True),
        Flag(name="quick", aliases=("-qk",), kind="optional-switch", default="False"),
        Flag(name="token", nargs="?"),
        Flag(name="names", kind="list", nargs="+", optional=True),
        Flag(name="sizes", kind="list", nargs="+", type="int", optional=True),
        Flag(name="traces", kind="list", nargs="+", choices=("None", "a,b", "b,a", "m", "w"), optional=True),
        Flag(name="limit", kind="json", type="json"),
        Flag(name="override", kind="json", type="json-or-str", optional=True),
        Flag(name="formats", default="'auto'"),
        Flag(name="backend", known=("FLASH", "WORD", "word"), optional=True),
        Flag(name="level"),
        Flag(name="speculative-config", aliases=("-sc",), kind="json", type="json", optional=True, nested="Spec"),
        Flag(name="moe", type="lower-snake", choices=("a_b", "marlin"), default="'marlin'"),
        Flag(name="gib", type="float", optional=True),
        Flag(name="ids", type="unknown"),
        Flag(name="chosen", choices=("p", "q")),
        Flag(name="log", kind="optional-switch", default="True"),
        Flag(name="tool-call-parser", optional=True, registry="tool_parsers"),
        Flag(name="kwargs-", kind="json", type="json"),
        Flag(name="origins", kind="json", type="json"),
        Flag(name="middleware", kind="list", repeats=True),
        Flag(name="port", type="int", default="8000"),
        Flag(name="headless", kind="switch", default="False"),
    ]
    assert flags == {flag.name: flag for flag in expected}
    assert found.registries == {"reasoning_parsers": ("poolside_v1",), "tool_parsers": ("hermes", "poolside_v1")}


def test_keys_of_json_flags_are_only_as_strict_as_the_text_tells(tmp_path: Path) -> None:
    found = flag_schema.extract("vllm", "0.1", wheel(tmp_path, "vllm-0.1", VLLM))
    assert found.nested == {
        "Inner": {"size": NestedField(type="int")},
        "Spec": {
            "backend": NestedField(known=("FLASH", "WORD", "word")),
            "early": NestedField(type="dict"),
            "either": NestedField(),
            "either_way": NestedField(),
            "inner": NestedField(type="dict", nested="Inner"),
            "loose": NestedField(type="dict"),
            "method": NestedField(type="str", choices=("a", "b", "dflash")),
            "rates": NestedField(type="list"),
            "rewritten": NestedField(),
            "target": NestedField(),
            "tokens": NestedField(type="int"),
        },
    }


def test_router_flags_without_the_prefix(tmp_path: Path) -> None:
    flags = flags_of(flag_schema.extract("router", "0.1", wheel(tmp_path, "sglang_router-0.1", ROUTER)))
    assert set(flags) == {"port", "policy", "prefill", "decode", "tool-call-parser", "lower"}
    assert flags["port"].default == "30000"
    assert flags["policy"].choices == ("a", "b", "c")
    assert (flags["prefill"].nargs, flags["prefill"].repeats) == ("+", True)
    assert (flags["decode"].kind, flags["decode"].nargs) == ("list", 1)
    assert flags["tool-call-parser"].choices is None
    assert flags["lower"].type == "lower"


def test_names_stand_for_what_the_running_engine_would_see(tmp_path: Path) -> None:
    text = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            OnlyForCheckers = ["a"]
            Both = ["a"]
        else:
            from pkg.other import Both
        Bound = ["a"]
        from pkg.other import Bound
        Itself = [*Itself]
        try:
            Tried = {"k": -1}
        except ImportError:
            Tried = None
        Picked = "a" if True else "b"
        Text = f"x-{'y'.upper()}"
        Sum = ("a",) + ("b",)
        Mixed = ["a"] + unknown
    """
    path = wheel(
        tmp_path, "pkg-0.1", {"pkg/__init__.py": "", "pkg/one.py": text, "pkg/other.py": 'Both = Bound = ["b"]'}
    )
    module = WheelSource(path).need("pkg.one")
    found = {name: lookup(module, name) for name in ("Both", "Bound", "Tried", "Picked", "Text", "Sum")}
    assert found == {
        "Both": ["b"],
        "Bound": ["b"],
        "Tried": {"k": -1},
        "Picked": "a",
        "Text": "x-Y",
        "Sum": ("a", "b"),
    }
    assert {lookup(module, name) for name in ("OnlyForCheckers", "Itself", "Mixed", "Nowhere")} == {UNKNOWN}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("for name in names():\n                    group.add_argument(name)", "where the extractor does not read"),
        ('group.add_argument("--x", **made())', "is not known"),
        ("group.add_argument(name_of(3))", "action or nargs of an argument is not known"),
        ('group.add_argument("--x", action=pick())', "action or nargs of an argument is not known"),
        ('group.add_argument("--x", action=parsers())', "action or nargs of an argument is not known"),
        ('group.add_argument("--x", action=parsers)', "action or nargs of an argument is not known"),
        ('group.add_argument("--x", nargs=pick())', "action or nargs of an argument is not known"),
        ('group.add_argument("--policy")', "registers --policy twice"),
    ],
)
def test_a_form_that_is_not_read_is_an_error_and_no_missing_flag(tmp_path: Path, line: str, problem: str) -> None:
    text = ROUTER["sglang_router/router_args.py"].replace("found = parsers()", line)
    path = wheel(tmp_path, "sglang_router-0.1", {"sglang_router/router_args.py": text})
    with pytest.raises(LockDrift, match=problem):
        flag_schema.extract("router", "0.1", path)


def test_the_wheel_must_be_that_of_the_version(tmp_path: Path) -> None:
    path = wheel(tmp_path, "sglang_router-0.1", ROUTER)
    with pytest.raises(LockDrift, match=r"not the wheel of version 0\.2"):
        flag_schema.extract("router", "0.2", path)
    with pytest.raises(MissingFile, match=r"has no module vllm\.engine\.arg_utils"):
        flag_schema.extract("vllm", "0.1", path)
    with pytest.raises(MissingFile, match="no such file"):
        flag_schema.extract("router", "0.1", tmp_path / "gone-0.1-x.whl")
    broken = tmp_path / "sglang_router-0.3-x.whl"
    broken.write_bytes(b"no zip")
    with pytest.raises(IntegrityMismatch, match="is not a wheel"):
        flag_schema.extract("router", "0.3", broken)


def test_the_command_writes_a_file_that_reads_back_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wheel(tmp_path, "vllm-0.1", VLLM)
    out = schema.place(tmp_path / "images", "vllm", "0.1")
    words = ["--engine", "vllm", "--version", "0.1", "--wheel", str(path), "--out", str(out)]
    assert flag_schema.main(words) == 0
    assert capsys.readouterr().err == f"{out}: 30 flags in 35 spellings\n"
    made = flag_schema.extract("vllm", "0.1", path)
    assert schema.read(tmp_path / "images", "vllm", "0.1") == made
    first = out.read_bytes()
    assert flag_schema.main(words) == 0
    assert out.read_bytes() == first, "the same wheel gives the same bytes"
    assert [file.name for file in out.parent.iterdir()] == ["0.1.json"], "nothing half-written is left"


def test_the_command_stops_with_the_errors_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wheel(tmp_path, "sglang_router-0.1", ROUTER)
    given = ["--engine", "router", "--version", "0.1", "--wheel"]
    assert flag_schema.main([*given, "gone-0.1-x.whl", "--out", str(tmp_path / "x")]) == MissingFile.exit_code
    assert "no such file" in capsys.readouterr().err
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert flag_schema.main([*given, str(path), "--out", str(blocked / "below.json")]) == DiskFailure.exit_code


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    path, out = wheel(tmp_path, "sglang_router-0.1", ROUTER), tmp_path / "out.json"
    given = ["--engine", "router", "--version", "0.1", "--wheel", str(path), "--out", str(out)]
    run = [sys.executable, "-m", "slipway.images.flag_schema", *given]
    done = subprocess.run(run, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "src")})
    assert done.returncode == 0, done.stderr
    assert documents.read_json(out, FlagSchema).engine == "router"


SHIPPED = sorted(IMAGES.glob("*/flags/*.json"))
COUNTS = {
    # What the engines' own parsers registered: vLLM's and the routers' with their types, SGLang's with --model-type besides.
    ("vllm", "0.25.1"): (270, 364),
    ("sglang", "0.5.14"): (420 + 1, 433 + 1),
    ("sglang", "0.5.16"): (460 + 1, 476 + 1),
    ("sglang", "0.5.18"): (488 + 1, 506 + 1),
    ("sglang", "0.5.23"): (531 + 1, 559 + 1),
    ("router", "0.3.2"): (98, 98),
    ("smg", "1.13.0"): (212, 221),
}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_shipped_schemas_are_as_the_extractor_writes_them(path: Path) -> None:
    found = documents.read_json(path, FlagSchema)
    assert path == schema.place(IMAGES, found.engine, found.version)
    assert flag_schema.text(found) == path.read_text(), "written by hand? the extractor writes these files"
    assert path.stat().st_size < 300_000
    spellings = [word for flag in found.flags for word in flag.spellings]
    assert (len(found.flags), len(spellings)) == COUNTS[found.engine, found.version]
    assert {flag.nested for flag in found.flags if flag.nested} <= set(found.nested)
    assert {flag.registry for flag in found.flags if flag.registry} <= set(found.registries)


def test_every_engine_version_in_use_has_its_schema() -> None:
    assert {(path.parts[-3], path.stem) for path in SHIPPED} == set(COUNTS)


@pytest.mark.skipif(not WHEELS, reason="SLIPWAY_WHEELS names no folder with the published wheels")
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_the_published_wheel_gives_the_shipped_schema(path: Path) -> None:
    shipped = documents.read_json(path, FlagSchema)
    source = Path(WHEELS or "") / shipped.wheel.file
    if not source.is_file():
        pytest.skip(f"{source.name} is not in SLIPWAY_WHEELS")
    assert flag_schema.extract(shipped.engine, shipped.version, source) == shipped
