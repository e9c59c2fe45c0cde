"""Command lines against the shipped flag schemas: what real engines accepted passes, what they refuse is refused."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slipway import kernels, plan, recipe
from slipway.engines import argv as words_of
from slipway.engines import check, schema, values
from slipway.engines.check import Checked, check_argv
from slipway.engines.schema import Flag, FlagSchema, WheelFile
from slipway.errors import DocumentError, MissingFile
from slipway.images import catalogue

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "images"
ACCEPTED = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "flags" / "accepted.jsonl").read_text().splitlines()
]
"""Commands of the SGLang cookbook, the vLLM recipes, the public 4x3090 recipe, and of runs of the real engines."""
SCHEMAS = {
    (engine, version): schema.read(IMAGES, engine, version)
    for engine in ("vllm", "sglang", "router", "smg")
    for version in schema.versions(IMAGES, engine)
}
BY_ENGINE = {engine: schema.read_all(IMAGES, engine) for engine in ("vllm", "sglang", "router")}
DATA = (
    BY_ENGINE,
    catalogue.read(ROOT / "images", ROOT / "stacks" / "data" / "gpus.yaml"),
    kernels.read(ROOT / "images" / "caches.yaml"),
)
"""What the checkout says beside recipes, inventories and locks."""
VLLM, SGLANG = SCHEMAS["vllm", "0.25.1"], SCHEMAS["sglang", "0.5.18"]


def others(of: FlagSchema) -> dict[str, FlagSchema]:
    return schema.read_others(IMAGES, of.engine, of.version)


def checked(command: str, against: FlagSchema) -> Checked:
    return check_argv(shlex.split(command), against, others(against))


def refusals(command: str, against: FlagSchema) -> list[str]:
    return [str(finding) for finding in checked(command, against).refusals]


def only(command: str, against: FlagSchema) -> str:
    (finding,) = checked(command, against).refusals
    return str(finding)


CASES = [(entry, version) for entry in ACCEPTED for version in entry["versions"]]


@pytest.mark.parametrize(("entry", "version"), CASES, ids=[f"{e['id']}-{v}" for e, v in CASES])
def test_what_a_real_engine_accepted_is_not_refused(entry: dict[str, Any], version: str) -> None:
    result = checked(entry["command"], SCHEMAS[entry["engine"], version])
    assert [str(finding) for finding in result.refusals] == []
    for finding in result.findings:
        assert finding.problem.startswith(("is short for --tp-size", "is deprecated")), str(finding)


def test_every_shipped_recipe_is_accepted_by_its_engine_version() -> None:
    seen = 0
    for one in recipe.read_book(ROOT / "recipes"):
        if one.engine == "reference":
            continue
        for process in plan.compile_plan(one, None, {}, *DATA).processes:
            if process.role != "router":
                result = check_argv(process.argv, schema.read(IMAGES, one.engine, one.engine_version))
                assert [str(finding) for finding in result.findings] == [], one.id
                assert result.argv == process.argv, "the adapters write canonical names"
                seen += 1
    assert seen >= 2


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_without_one_flag_exactly_the_commands_that_use_it_are_refused(engine: str) -> None:
    """A shortened schema turns red where it must and nowhere else."""
    whole = VLLM if engine == "vllm" else SGLANG
    commands = [e["command"] for e in ACCEPTED if e["engine"] == engine and whole.version in e["versions"]]
    uses = {c: frozenset(use.flag.name for use in read(c, whole).uses) for c in commands}
    commands = list({uses[command]: command for command in commands}.values())
    uses = {command: uses[command] for command in commands}
    for name in sorted(frozenset().union(*uses.values())):
        short = whole.model_copy(update={"flags": tuple(flag for flag in whole.flags if flag.name != name)})
        # With the whole schema as another version, a lost flag is not taken for the beginning of a longer one.
        refused = {c for c in commands if check_argv(shlex.split(c), short, {"0.0.1": whole}).refusals}
        assert refused == {c for c in commands if name in uses[c]}, name


def read(command: str, against: FlagSchema) -> words_of.Reading:
    given = shlex.split(command)
    start = check.entrypoint(given, against)
    return words_of.read(given[start:], against, lambda word, may: pytest.fail(f"{word} {may}"))


class TestNames:
    def test_an_abbreviation_is_accepted_and_written_in_full(self) -> None:
        result = checked("sglang serve --model-path X --tp 8", SGLANG)
        (finding,) = result.findings
        assert (finding.severity, finding.flag) == ("notice", "--tp")
        assert "short for --tp-size" in finding.problem
        assert result.argv == ("sglang", "serve", "--model-path", "X", "--tp-size", "8")
        assert checked("--model-path X --tp=8", SGLANG).argv[-1] == "--tp-size=8"

    def test_an_ambiguous_abbreviation_names_the_candidates(self) -> None:
        said = only("X --data-parallel-r 2", VLLM)
        assert "--data-parallel-rank, --data-parallel-rpc-port" in said
        assert "write one in full" in said

    def test_aliases_and_short_forms_become_the_canonical_name(self) -> None:
        result = checked("X -tp 4 -q fp8 -n2 -asc=1", VLLM)
        assert result.findings == ()
        wanted = "X --tensor-parallel-size 4 --quantization fp8 --nnodes=2 --api-server-count=1"
        assert result.argv == tuple(wanted.split())
        assert checked("--model X --ep 8 --tensor-parallel-size 2", SGLANG).argv[-4:] == (
            *("--ep-size", "8"),
            *("--tp-size", "2"),
        )

    def test_a_typing_error_gets_the_nearest_flag(self) -> None:
        said = only("--model-path X --disagregation-mode prefill", SGLANG)
        assert said == "--disagregation-mode: no such flag in sglang 0.5.18; did you mean --disaggregation-mode?"

    def test_underscores_are_vllms_only(self) -> None:
        assert checked("X --max_num_seqs 4", VLLM).argv == ("X", "--max-num-seqs", "4")
        assert "did you mean --page-size?" in only("--model-path X --page_size 1", SGLANG)

    def test_what_vllm_dropped_is_refused(self) -> None:
        assert only("X --swap-space 4", VLLM).startswith("--swap-space: no such flag in vllm 0.25.1")
        assert only("X --disable-log-requests", VLLM).startswith("--disable-log-requests: no such flag")

    def test_a_flag_of_other_versions_says_which(self) -> None:
        said = only("--model-path X --cuda-graph-max-bs 8", SCHEMAS["sglang", "0.5.23"])
        assert "known in 0.5.14, 0.5.16 and 0.5.18, gone in 0.5.23" in said
        assert said.endswith("use --cuda-graph-max-bs-decode")
        gone = only("--model-path X --torchao-config int4wo", SCHEMAS["sglang", "0.5.23"])
        assert "gone in 0.5.23" in gone
        assert "known in 0.5.23, not yet in 0.5.14" in only(
            "--model-path X --enable-amd-monokernel", SCHEMAS["sglang", "0.5.14"]
        )

    def test_an_abbreviation_that_is_a_flag_of_its_own_elsewhere_is_refused(self) -> None:
        now = SGLANG.model_copy(
            update={"flags": (*(f for f in SGLANG.flags if f.name != "tp-size"), Flag(name="tp-size-new", type="int"))}
        )
        result = check_argv(["--model-path", "X", "--tp-size", "8"], now, {"0.5.14": SCHEMAS["sglang", "0.5.14"]})
        (finding,) = result.findings
        assert finding.severity == "refuse", "argparse would take it, and do something else"
        assert finding.why == "a flag of its own is known in 0.5.14, gone in 0.5.18"
        assert finding.remedy == "use --tp-size-new if that is meant"

    def test_deprecated_flags_are_noticed_and_removed_ones_refused(self) -> None:
        (finding,) = checked("--model-path X --cuda-graph-max-bs 8", SGLANG).findings
        assert (finding.severity, finding.remedy) == ("notice", "use --cuda-graph-max-bs-decode")
        said = only("--model-path X --enable-expert-distribution-metrics", SGLANG)
        assert "is refused by this version; use --expert-balancedness-report-mode" in said

    def test_help_is_no_way_to_serve(self) -> None:
        assert "prints the help" in only("X --help", VLLM)
        assert "prints the help" in only("X -h", VLLM)


class TestSwitches:
    def test_only_switches_with_a_twin_have_one(self) -> None:
        assert refusals("X --no-enable-prefix-caching", VLLM) == []
        assert checked("X --no-enable-pref", VLLM).argv == ("X", "--no-enable-prefix-caching")
        assert "no such flag" in only("--model-path X --no-trust-remote-code", SGLANG)

    def test_a_switch_takes_no_value(self) -> None:
        said = only("X --enable-prefix-caching=true", VLLM)
        assert "takes no value (got true)" in said
        assert "--no-enable-prefix-caching turns it off" in said
        (stray,) = refusals("X --enforce-eager true", VLLM)
        assert stray.startswith("true: stands without a flag")
        assert "takes no value" in only("--model-path X --trust-remote-code=1", SGLANG)


class TestValues:
    @pytest.mark.parametrize(
        ("word", "number"),
        [("200K", "204800"), ("200k", "200000"), ("1M", "1048576"), ("25.6k", "25600"), ("auto", "-1"), ("-1", "-1")],
    )
    def test_human_numbers_of_vllm(self, word: str, number: str) -> None:
        result = checked(f"X --max-model-len {word}", VLLM)
        assert result.refusals == ()
        assert result.argv[-1] == number
        assert len(result.findings) == (word != number)

    def test_human_numbers_differ_between_engines(self) -> None:
        assert checked("--model-path X --context-length 1M", SGLANG).argv[-1] == "1000000"
        assert checked("--model-path X --context-length 1Ki", SGLANG).argv[-1] == "1024"
        assert "is not a whole number (got 1K)" in only("--model-path X --context-length 1K", SGLANG)
        assert "is not a whole number (got 1.5K)" in only("X --max-model-len 1.5K", VLLM)
        assert "is not a whole number (got auto)" in only("X --max-num-batched-tokens auto", VLLM)
        assert "is not a whole number (got 4K)" in only("X --max-num-seqs 4K", VLLM)

    def test_numbers(self) -> None:
        assert "is not a number (got much)" in only("X --gpu-memory-utilization much", VLLM)
        assert refusals("X --gpu-memory-utilization .9 --watermark 1e-3", VLLM) == []
        assert "is not a whole number (got 8.0)" in only("--model-path X --tp-size 8.0", SGLANG)

    def test_choices_have_a_nearest_name(self) -> None:
        said = only("X --kv-cache-dtype fp8_e4m4", VLLM)
        assert "allowed: auto, bfloat16" in said
        assert said.endswith("did you mean fp8_e4m3?")
        assert "does not take 3" in only("X --max-lora-rank 3", VLLM)
        assert refusals("X --max-lora-rank 16 --moe-backend FLASHINFER-CUTLASS", VLLM) == []
        assert refusals("X --safetensors-load-strategy None", VLLM) == []

    def test_a_choice_of_another_version_says_so(self) -> None:
        (choice,) = {*(SCHEMAS["sglang", "0.5.23"].flag("load-format") or pytest.fail()).choices} & {"expert_pack"}
        said = only(f"--model-path X --load-format {choice}", SGLANG)
        assert "known in 0.5.23, not yet in 0.5.18" in said

    def test_missing_values(self) -> None:
        assert "needs a value (got nothing)" in only("X --max-num-seqs --enforce-eager", VLLM)
        assert "needs a value (got nothing)" in only("X --served-model-name", VLLM)
        assert "needs a value (got nothing)" in only("--model-path X --model-type", SGLANG)
        assert refusals("X --hf-token --enforce-eager", VLLM) == []

    def test_lists_take_every_word_up_to_the_next_flag(self) -> None:
        assert refusals("X --served-model-name a b c --port 1", VLLM) == []
        assert "is not a whole number (got x)" in only("X --cudagraph-capture-sizes 1 2 x", VLLM)
        assert (
            refusals("--prefill http://a 1 --prefill http://b none --decode http://c", SCHEMAS["router", "0.3.2"]) == []
        )

    def test_parsers_come_from_the_registries(self) -> None:
        said = only("X --reasoning-parser poolside_v2", VLLM)
        assert said.endswith("did you mean poolside_v1?")
        assert "no parser of this version" in only("X --tool-call-parser poolside", VLLM)
        result = checked("X --tool-call-parser mine --tool-parser-plugin mine.py", VLLM)
        assert [finding.severity for finding in result.findings] == ["notice"]
        assert "did you mean poolside_v1?" in only("--model-path X --reasoning-parser poolside_v2", SGLANG)

    def test_a_name_that_is_only_looked_up_later_is_a_notice(self) -> None:
        (finding,) = checked("X --attention-backend FLASH_ATN", VLLM).findings
        assert (finding.severity, finding.remedy) == ("notice", "did you mean FLASH_ATTN?")
        assert checked("X --attention-backend flash_attn --mamba-backend auto", VLLM).findings == ()


class TestJson:
    def spec(self, config: object) -> str:
        return f"X --speculative-config {shlex.quote(json.dumps(config))}"

    def test_keys_types_and_choices_of_json_flags(self) -> None:
        assert refusals(self.spec({"model": "d", "num_speculative_tokens": 7, "method": "dflash"}), VLLM) == []
        assert "--speculative-config.methd: no such key" in only(self.spec({"methd": "dflash"}), VLLM)
        assert only(self.spec({"methd": "dflash"}), VLLM).endswith("did you mean method?")
        assert "did you mean dflash?" in only(self.spec({"method": "dflsh"}), VLLM)
        assert "is not of type int" in only(self.spec({"num_speculative_tokens": "seven"}), VLLM)
        assert refusals(self.spec({"num_speculative_tokens": "7", "quantization": 3}), VLLM) == []
        assert "must be a JSON object" in only(self.spec([1]), VLLM)
        assert refusals("X --speculative-config None", VLLM) == []

    def test_nested_objects_are_followed(self) -> None:
        loading = {"draft_load_config": {"load_fromat": "dummy"}}
        (finding,) = checked(self.spec(loading), VLLM).findings
        assert finding.flag == "--speculative-config.draft_load_config.load_fromat"
        assert "did you mean load_format?" in str(finding)
        said = only("""--model-path X --cuda-graph-config '{"decode":{"max_b":8}}'""", SGLANG)
        assert "--cuda-graph-config.decode.max_b: no such key" in said

    def test_what_a_validator_may_rewrite_is_only_a_notice(self) -> None:
        (finding,) = checked("""X -cc '{"pass_config":{"fuse_x":true}}'""", VLLM).findings
        assert (finding.severity, finding.flag) == ("notice", "--compilation-config.pass_config.fuse_x")
        (finding,) = checked("""X -ac '{"backend":"FLASH_ATN"}'""", VLLM).findings
        assert (finding.severity, finding.remedy) == ("notice", "did you mean FLASH_ATTN?")

    def test_text_that_is_not_json(self) -> None:
        said = only("X --default-chat-template-kwargs {enable_thinking:true}", VLLM)
        assert "is not JSON" in said
        assert "double quotes" in said
        assert refusals("X --hf-overrides my.module", VLLM) == []
        assert "is not JSON" in only("X --hf-overrides {x}", VLLM)
        assert refusals("""X --kv-transfer-config '{"kv_buffer_size": 80m, "kv_ip": "80m"}'""", VLLM) == []
        assert "is not JSON" in only("""X --speculative-config '{"num_speculative_tokens": 1k}'""", VLLM)
        assert "too deep" in only(f"X --additional-config '{{\"a\":{'[' * 100_000}}}'", VLLM)

    def test_dotted_keys_become_one_json_argument(self) -> None:
        words = "X --speculative-config.method dflash --speculative_config.num_speculative_tokens=7 --enforce-eager"
        result = checked(words, VLLM)
        assert result.findings == ()
        assert result.argv[:3] == ("X", "--enforce-eager", "--speculative-config")
        assert json.loads(result.argv[3]) == {"method": "dflash", "num_speculative_tokens": 7}
        assert json.loads(checked("X -cc.mode 3 -cc.custom_ops+ +a,-b", VLLM).argv[-1]) == {
            "mode": 3,
            "custom_ops": ["+a", "-b"],
        }
        lists = checked("X -cc.cudagraph_capture_sizes+ 1 -cc.cudagraph_capture_sizes+=2,4", VLLM).argv[-1]
        assert json.loads(lists) == {"cudagraph_capture_sizes": ["1", "2", "4"]}
        assert json.loads(checked("X --kv-transfer-config.kv_buffer_size 1k", VLLM).argv[-1]) == {
            "kv_buffer_size": 1000
        }

    def test_dotted_keys_that_go_wrong(self) -> None:
        assert "--speculative-config.methd: no such key" in only("X --speculative-config.methd dflash", VLLM)
        assert "is given twice" in only("X -cc.mode 3 -cc.mode 2", VLLM)
        assert "is given twice" in only("X -cc.pass_config.enable_sp true -cc.pass_config.enable_sp false", VLLM)
        assert "needs a value" in only("X -cc.mode", VLLM)
        (lost,) = refusals("""X --speculative-config '{"model":"d"}' --speculative-config.method dflash""", VLLM)
        assert "the last would silently win" in lost

    def test_a_negative_fraction_is_a_trap_of_vllms_parser(self) -> None:
        assert any("is not read as a number" in one for one in refusals("X --watermark -0.5 --port 1", VLLM))
        assert refusals("X --watermark=-0.5", VLLM) == []

    def test_optimization_levels(self) -> None:
        for words in ("-O3", "-O=3", "-O 3"):
            assert checked(f"X {words}", VLLM).argv == ("X", "--optimization-level", "3")


class TestWords:
    def test_the_model_of_vllm(self) -> None:
        assert refusals("vllm serve X --port 1", VLLM) == []
        assert refusals("python3.12 -m vllm.entrypoints.openai.api_server --port 1 X", VLLM) == []
        (notice,) = checked("--model X", VLLM).findings
        assert notice.severity == "notice"
        assert "takes one model" in only("X --model Y", VLLM)
        assert "stands without the model" in only("--served-model-name a --port 1 X", VLLM)
        assert "Y: stands without a flag" in only("X --port 1 Y", VLLM)

    def test_the_model_of_sglang(self) -> None:
        assert checked("sglang serve X --tp-size 8", SGLANG).argv[2:4] == ("--model-path", "X")
        assert "stands without a flag" in "".join(refusals("sglang serve --tp-size 8 X", SGLANG))
        assert only("sglang serve --tp-size 8", SGLANG).startswith("--model-path: is missing")
        assert refusals("sglang serve --config file.yaml", SGLANG) == []
        assert "stands without a flag" in "".join(refusals("python -m sglang.launch_server X", SGLANG))
        assert "no such flag" in only("python -m sglang.launch_server --model-path X --model-type llm", SGLANG)
        assert refusals("sglang serve X --model-type=llm", SGLANG) == []
        assert refusals("sglang serve X --model-type llm", SGLANG) == []
        assert "stands without a flag" in "".join(refusals("sglang serve X", SCHEMAS["sglang", "0.5.14"]))

    def test_a_flag_given_twice(self) -> None:
        said = only("X --max-num-seqs 4 -tp 2 --max_num_seqs=8", VLLM)
        assert said.startswith("--max-num-seqs: is given 2 times (4, then 8); the last would silently win")
        (same,) = checked("X -tp 2 --tensor-parallel-size 2", VLLM).findings
        assert same.severity == "notice"
        assert "is given 2 times" in only("X --enforce-eager --no-enforce-eager", VLLM)
        assert refusals("X --middleware a --middleware b", VLLM) == []

    def test_words_after_two_dashes_are_no_flags(self) -> None:
        assert [w.partition(":")[0] for w in refusals("X --port 1 -- --tp", VLLM)] == ["--tp"]
        assert "needs a value" in only("X --port --", VLLM)

    def test_findings_say_what_why_and_what_to_do(self) -> None:
        for words in (
            "X --nope 1",
            "X --max-num-seqs",
            "X --data-par 1",
            "X Y",
            "X --kv-cache-dtype no",
            "X -tp 1 -tp 2",
        ):
            for finding in checked(words, VLLM).refusals:
                assert finding.problem
                assert finding.why or finding.remedy
                assert str(finding).startswith(f"{finding.flag}: {finding.problem}")
        with pytest.raises(dataclasses.FrozenInstanceError):
            checked("X --nope", VLLM).findings[0].flag = "x"  # type: ignore[misc]


class TestFiles:
    def test_a_missing_schema_names_the_command_that_writes_it(self) -> None:
        with pytest.raises(
            MissingFile, match=r"schemas here: 0\.25\.1; .*--engine vllm --version 9\.9\.9 --wheel FILE"
        ):
            schema.read(IMAGES, "vllm", "9.9.9")

    def test_a_broken_schema_is_refused(self, tmp_path: Path) -> None:
        path = schema.place(tmp_path, "vllm", "1.0.0")
        path.parent.mkdir(parents=True)
        path.write_text('{"schema": "slipway/flags/v2"}')
        with pytest.raises(DocumentError):
            schema.read(tmp_path, "vllm", "1.0.0")

    def test_reading_all_and_checking_sixty_commands_is_quick(self) -> None:
        """The budget is a second; three are allowed so that a busy machine does not decide."""
        started = time.perf_counter()
        read_again = {(e, v): schema.read(IMAGES, e, v) for e, v in SCHEMAS}  # type: ignore[arg-type]
        for entry in (ACCEPTED * 2)[:60]:
            check_argv(shlex.split(entry["command"]), read_again[entry["engine"], entry["versions"][-1]])
        assert time.perf_counter() - started < 3


# Properties: nothing raises, everything valid passes, and argparse itself agrees.

SAMPLE = FlagSchema(
    schema_="slipway/flags/v1",
    engine="router",
    version="1",
    wheel=WheelFile(file="x-1.whl", sha256="0" * 64),
    dialect="argparse",
    positional=None,
    flags=(
        Flag(name="alpha", aliases=("-a",), type="int"),
        Flag(name="alpha-beta", aliases=("--gamma",)),
        Flag(name="beta", kind="switch"),
        Flag(name="beta-off", kind="optional-switch", aliases=("--boff",)),
        Flag(name="choice", choices=("a", "b", "-c")),
        Flag(name="delta", kind="list", nargs="+", type="float"),
        Flag(name="delta-any", kind="list", nargs="*", choices=("x", "y")),
        Flag(name="epsilon", nargs="?"),
        Flag(name="pair", kind="list", nargs=2, type="int"),
        Flag(name="one", kind="list", nargs=1, repeats=True),
        Flag(name="json", kind="json", type="json"),
    ),
    nested={},
    registries={},
)


class Refused(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def argparse_of(of: FlagSchema) -> Parser:
    """The real argparse parser that the flags describe."""
    parser = Parser(add_help=False)
    for flag in of.flags:
        if flag.exact:
            continue
        keywords: dict[str, Any] = {"dest": flag.name, "default": None}
        if flag.kind == "switch":
            keywords["action"] = "store_true"
        elif flag.kind == "optional-switch":
            keywords["action"] = argparse.BooleanOptionalAction
        else:
            keywords |= {"type": lambda word, flag=flag: values.converted(flag, word), "nargs": flag.nargs}
            keywords |= {"choices": flag.choices} if flag.choices and flag.type != "unknown" else {}
            keywords |= {"action": "append"} if flag.repeats else {}
        parser.add_argument(f"--{flag.name}", *flag.aliases, **keywords)
    return parser


PARSERS = {id(one): argparse_of(one) for one in (SAMPLE, SGLANG, SCHEMAS["smg", "1.13.0"])}
VALUES = st.sampled_from(
    ["1", "-1", "-0.5", "a", "x", "-c", "{}", '{"a": 1}', "1.5", "", "a b", "--", "-", "0", "auto"]
)


@st.composite
def words(draw: st.DrawFn, of: FlagSchema) -> list[str]:
    """Flags in full, cut short, misspelled, joined or not, and values between them."""
    spelled = st.sampled_from(sorted(word for flag in of.flags if not flag.exact for word in flag.spellings))
    out: list[str] = []
    for _ in range(draw(st.integers(0, 6))):
        word = draw(spelled)
        if word.startswith("--"):
            word = word[: draw(st.sampled_from([len(word), len(word), len(word) - 1, len(word) - 3]))]
            word += draw(st.sampled_from(["", "", "", "", "z"]))
        if word.startswith("--") and len(word) > 2 and draw(st.integers(0, 3)) == 0:
            # A joined `--` is dropped by some Python versions and kept by others.
            out.append(f"{word}={draw(VALUES.filter(lambda value: value != '--'))}")
        else:
            out += [word, *draw(st.lists(VALUES, max_size=2))]
    return out


@pytest.mark.parametrize("of", [SAMPLE, SGLANG, SCHEMAS["smg", "1.13.0"]], ids=["sample", "sglang", "smg"])
def test_argparse_itself_agrees(of: FlagSchema) -> None:
    """The same words, the same verdict; and the canonical words give argparse the same values."""
    parser = PARSERS[id(of)]
    bare = of.model_copy(
        update={
            "flags": tuple(f.model_copy(update={"required": False, "refused": False, "nested": None}) for f in of.flags)
        }
        | {"positional": None, "registries": {}}
    )

    @settings(max_examples=250 if of is SAMPLE else 50, deadline=None)
    @given(words(of))
    def agree(given_words: list[str]) -> None:
        # Our own help flag is not registered there, and a word glued to a short one differs between Python versions.
        assume(
            not any(
                "--help".startswith(w) or w.startswith("-h") for w in given_words if w.startswith("-") and len(w) > 1
            )
        )
        result = check_argv(given_words, bare)
        ours = [f for f in result.refusals if "silently win" not in f.why]
        try:
            theirs = parser.parse_args(given_words)
        except Refused as refused:
            assert ours, f"argparse refuses: {refused}"
            return
        assert ours == []
        assert parser.parse_args(list(result.argv)) == theirs

    agree()


def valid_words(of: FlagSchema) -> st.SearchStrategy[list[str]]:
    """Each flag of a selection once, under any spelling, with values that it takes."""

    def value_for(flag: Flag) -> st.SearchStrategy[str]:
        if flag.choices and flag.type != "unknown":
            return st.sampled_from([str(choice) for choice in flag.choices if choice is not None])
        if flag.registry:
            return st.sampled_from(of.registries[flag.registry])
        kinds = {"int": "7", "float": "0.5", "human-int": "4K", "human-int-auto": "auto", "human-int-si": "4Ki"}
        empty = "None" if flag.optional else "{}"
        return st.just(kinds.get(flag.type, empty if flag.type.startswith("json") else "word"))

    def use(flag: Flag) -> st.SearchStrategy[list[str]]:
        name = st.sampled_from(flag.spellings).map(lambda word: [word])
        if flag.kind in {"switch", "optional-switch"}:
            return name
        count = flag.nargs if isinstance(flag.nargs, int) else 1
        return st.tuples(name, st.lists(value_for(flag), min_size=count, max_size=count)).map(lambda x: x[0] + x[1])

    usable = [f for f in of.flags if not f.refused and f.name not in {"model", "model-path", "config", "model-type"}]
    several = st.lists(st.sampled_from(usable), unique_by=lambda f: f.name, max_size=12)
    model = ["X"] if of.dialect == "vllm" else ["--model-path", "X"] if of.engine == "sglang" else []
    return several.flatmap(lambda flags: st.tuples(*map(use, flags))).map(
        lambda uses: [*model, *(w for u in uses for w in u)]
    )


@pytest.mark.parametrize(
    "of", [VLLM, SGLANG, SCHEMAS["sglang", "0.5.23"], SCHEMAS["smg", "1.13.0"]], ids=lambda s: s.engine
)
def test_what_the_schema_allows_is_accepted(of: FlagSchema) -> None:
    @settings(max_examples=40, deadline=None)
    @given(valid_words(of))
    def accepted(given_words: list[str]) -> None:
        result = check_argv(given_words, of)
        assert [str(finding) for finding in result.refusals] == []
        again = check_argv(result.argv, of)
        assert again.refusals == ()
        assert again.argv == result.argv, "canonical words stay as they are"

    accepted()


@pytest.mark.parametrize("of", [VLLM, SGLANG], ids=lambda s: s.engine)
def test_no_words_make_the_checker_raise(of: FlagSchema) -> None:
    fragments = st.sampled_from(
        ["--", "-", "--tp", "-tp=", "-cc.", "-cc.a.b+", "--config.x=", "-O", "-O=", "{", "=", ".", "[1]", "--=", "-.5"]
    )
    anything = st.lists(st.one_of(fragments, st.text(max_size=12), words(of).map(lambda w: "".join(w[:2]))), max_size=8)

    @settings(max_examples=30, deadline=None)
    @given(anything)
    def quiet(given_words: list[str]) -> None:
        result = check_argv(given_words, of, {"0.0.1": of})
        assert all(isinstance(word, str) for word in result.argv)
        assert all(str(finding) for finding in result.findings)

    quiet()
