"""Plans: the exact processes, the same on every machine, and the printed text is the command itself."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway import documents, kernels, plan, recipe
from slipway.engines import schema
from slipway.errors import PlanRefused, UsageError
from slipway.images import catalogue
from slipway.inventory import Gpu, Inventory, Node, RdmaDevice, Runtime
from slipway.plan import Plan
from slipway.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = {engine: schema.read_all(ROOT / "images", engine) for engine in ("vllm", "sglang", "router")}
DATA = (
    SCHEMAS,
    catalogue.read(ROOT / "images", ROOT / "stacks" / "data" / "gpus.yaml"),
    kernels.read(ROOT / "images" / "caches.yaml"),
)
"""What the checkout says beside recipes, inventories and locks."""
GOLDEN = Path(__file__).resolve().parent / "data" / "plans"
CHAMPION = "laguna-s-2.1.vllm/4x3090-int4-champion"
INVENTORIES = {
    CHAMPION: "example-4x3090",
    "laguna-m.1.sglang/h200-bf16-pd-mooncake": "example-2x8h200-infiniband",
}
"""Recipes that are planned on a shipped inventory; the others on a synthetic one."""

IDS = [item.id for item in recipe.read_book(ROOT / "recipes")]
WHOLE = (CHAMPION, "laguna-m.1.sglang/h200-bf16-pd-mooncake", "laguna-tiny.reference/laptop")
"""Recipes whose plan is golden as JSON too."""


def compiled(recipe_id: str, inventory: str | None = None) -> Plan:
    hosts = documents.read(ROOT / "stacks" / "inventory" / f"{inventory}.yaml", Inventory) if inventory else None
    return plan.compile_plan(recipe.find(ROOT / "recipes", recipe_id), hosts, {}, *DATA)


def texts_of(recipe_id: str) -> dict[str, str]:
    made = compiled(recipe_id, INVENTORIES.get(recipe_id))
    name = recipe_id.replace("/", "-")
    texts = {f"{name}.sh": plan.shell_text(made)}
    if recipe_id in WHOLE:
        texts[f"{name}.json"] = json.dumps(made.as_json(), indent=1) + "\n"
    return texts


@pytest.mark.parametrize("recipe_id", IDS)
def test_the_plan_is_the_golden_one(recipe_id: str) -> None:
    """Rewrite with `python tests/test_plan.py`, and read the difference."""
    for file, text in texts_of(recipe_id).items():
        assert (GOLDEN / file).read_text() == text, f"tests/data/plans/{file} differs from what is compiled now"


def test_no_golden_plan_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {name for recipe_id in IDS for name in texts_of(recipe_id)}


def test_the_champion_is_the_sources_command() -> None:
    """Source: launch.sh at 06592b74; the order of flags is free, JSON arguments are equal as JSON."""
    (process,) = compiled(CHAMPION, "example-4x3090").processes
    source = shlex.split(
        """/root/.cache/huggingface/Laguna-S-2.1-INT4 --trust-remote-code --tensor-parallel-size 4 --pipeline-parallel-size 1
        --max-model-len 204800 --gpu-memory-utilization 0.87 --max-num-seqs 4 --max-num-batched-tokens 2048
        --enable-auto-tool-choice --tool-call-parser poolside_v1 --reasoning-parser poolside_v1 --moe-backend marlin
        --disable-custom-all-reduce --speculative-config
        '{"model":"/root/.cache/huggingface/Laguna-S-2.1-DFlash-INT4","num_speculative_tokens":7,"method":"dflash"}'
        --served-model-name laguna --default-chat-template-kwargs '{"enable_thinking":true}' --host 0.0.0.0 --port 8000"""
    )
    assert options(process.argv) == options(tuple(source))
    assert process.argv[0] == source[0]
    wanted = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "VLLM_ENABLE_CUDA_COMPATIBILITY": "0", "VLLM_USE_DEEP_GEMM": "0"}
    assert wanted.items() <= process.env.items()
    assert (process.ipc, process.shm_size_bytes) == ("host", 16 << 30)
    assert [(port.host, port.container) for port in process.ports] == [(8080, 8000)]
    assert process.image is not None
    assert process.image.startswith("vllm/vllm-openai:v0.25.1@sha256:")


def options(argv: tuple[str, ...]) -> dict[str, object]:
    """Flags with their values, JSON read as JSON."""
    found: dict[str, object] = {}
    for index, word in enumerate(argv):
        if word.startswith("--"):
            following = argv[index + 1] if index + 1 < len(argv) else "--"
            value: object = True if following.startswith("--") else following
            found[word] = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    return found


def as_a_shell_reads(text: str) -> tuple[str, ...]:
    """The words that a POSIX shell passes on when `text` is pasted into it."""
    program = "docker() { printf '%s\\0' docker \"$@\"; }\nenv() { printf '%s\\0' env \"$@\"; }\n"
    program += "python() { printf '%s\\0' python \"$@\"; }\n"
    ran = subprocess.run(("sh", "-c", program + text), capture_output=True, check=True)
    return tuple(ran.stdout.decode().split("\0")[:-1])


@pytest.mark.parametrize("recipe_id", WHOLE)
def test_the_printed_text_is_the_commands_when_pasted(recipe_id: str) -> None:
    made = compiled(recipe_id, INVENTORIES.get(recipe_id))
    words: list[str] = []
    for process in made.processes:
        words += plan.docker_argv(process) if process.runtime == "docker" else process.argv
    assert as_a_shell_reads(plan.shell_text(made)) == tuple(words)


def with_role(item: Recipe, **changes: object) -> Recipe:
    role = item.cell.roles[0].model_copy(update=changes)
    return item.model_copy(update={"cell": item.cell.model_copy(update={"roles": [role]})})


@settings(max_examples=40)
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
def test_no_value_escapes_its_quotes(value: str) -> None:
    item = recipe.find(ROOT / "recipes", CHAMPION)
    item = with_role(item, flags={**item.cell.roles[0].flags, "chat-template": value})
    made = plan.compile_plan(item, None, {}, *DATA)
    assert as_a_shell_reads(plan.shell_text(made)) == plan.docker_argv(made.processes[0])


def test_the_digest_follows_what_runs_and_nothing_else() -> None:
    item = recipe.find(ROOT / "recipes", CHAMPION)
    base = plan.compile_plan(item, None, {}, *DATA).deployment_digest
    assert base == plan.compile_plan(item, None, {}, *DATA).deployment_digest
    assert base != plan.compile_plan(with_role(item, context_tokens=131072), None, {}, *DATA).deployment_digest
    lock = {f"{item.cell.checkpoint.repo}@{item.cell.checkpoint.revision}": "sha256:" + "0" * 64}
    assert base != plan.compile_plan(item, None, lock, *DATA).deployment_digest


def test_a_locked_pair_is_not_warned_about() -> None:
    item = recipe.find(ROOT / "recipes", CHAMPION)
    locks = {f"{checkpoint.repo}@{checkpoint.revision}": "sha256:" + "1" * 64 for checkpoint in item.checkpoints}
    warned = {warning.rule for warning in plan.compile_plan(item, None, locks, *DATA).warnings}
    assert "checkpoint-unlocked" not in warned
    assert "checkpoint-unlocked" in {warning.rule for warning in plan.compile_plan(item, None, {}, *DATA).warnings}


def eight_h200(runtime: Runtime) -> Inventory:
    gpus = [Gpu(model="h200", memory_gib=140) for _ in range(8)]
    return Inventory(
        schema_="slipway/inventory/v1",
        name="big",
        runtime=runtime,
        nodes=[Node(name="n1", address="192.0.2.1", gpus=gpus)],
    )


def test_a_part_of_a_node_is_named_by_device() -> None:
    item = recipe.find(ROOT / "recipes", "laguna-s-2.1.vllm/2xh200-fp8")
    words = plan.docker_argv(plan.compile_plan(item, eight_h200("docker"), {}, *DATA).processes[0])
    assert words[words.index("--gpus") + 1] == '"device=0,1"'


def test_a_process_on_gpus_sees_only_its_own() -> None:
    item = recipe.find(ROOT / "recipes", "laguna-s-2.1.vllm/2xh200-fp8")
    made = plan.compile_plan(item, eight_h200("process"), {}, *DATA)
    assert made.processes[0].env["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert as_a_shell_reads(plan.shell_text(made))[:2] == ("env", "HF_HUB_OFFLINE=1")
    with pytest.raises(UsageError, match="has no image"):
        plan.docker_argv(made.processes[0])


PD = "laguna-m.1.sglang/h200-bf16-pd-mooncake"


def words_of(made: Plan, role: str) -> list[str]:
    (process,) = [process for process in made.processes if process.role == role]
    return list(process.argv)


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_each_role_pins_the_devices_of_its_own_host() -> None:
    made = compiled(PD, "example-2x8h200-infiniband")
    ours = after(words_of(made, "prefill"), "--disaggregation-ib-device").split(",")
    theirs = after(words_of(made, "decode"), "--disaggregation-ib-device").split(",")
    assert ours == ["mlx5_0", "mlx5_1", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"]
    assert theirs[0] == "ibp12s0"
    assert len(theirs) == 8
    assert made.transfer is not None
    assert made.transfer.seconds < 0.3


def test_the_bootstrap_port_comes_from_one_place() -> None:
    made = compiled(PD, "example-2x8h200-infiniband")
    assert after(words_of(made, "prefill"), "--disaggregation-bootstrap-port") == "8998"
    assert "--disaggregation-bootstrap-port" not in words_of(made, "decode")
    router = words_of(made, "router")
    at = router.index("--prefill")
    assert router[at : at + 3] == ["--prefill", "http://192.0.2.41:30000", "8998"]
    assert after(router, "--decode") == "http://192.0.2.42:30001"
    assert made.processes[2].after == (made.processes[0].name, made.processes[1].name)


def test_an_efa_fabric_brings_its_own_image_and_protocol() -> None:
    made = compiled(PD, "example-2xp5en-efa")
    for process in made.processes[:2]:
        assert process.image == "build:sglang-efa"
        assert process.env["MOONCAKE_PROTOCOL"] == "efa"
        assert "MC_FORCE_HCA" not in process.env
        assert after(list(process.argv), "--disaggregation-ib-device").startswith("rdmap85s0,")
    on_infiniband = compiled(PD, "example-2x8h200-infiniband").processes[0]
    assert "MOONCAKE_PROTOCOL" not in on_infiniband.env
    assert on_infiniband.env["MC_FORCE_HCA"] == "1"


def inventory_with(name: str, node: int, **changes: object) -> Inventory:
    hosts = documents.read(ROOT / "stacks" / "inventory" / f"{name}.yaml", Inventory)
    nodes = list(hosts.nodes)
    nodes[node] = nodes[node].model_copy(update=changes)
    return hosts.model_copy(update={"nodes": nodes})


@pytest.mark.parametrize(
    ("hosts", "rule"),
    [
        (inventory_with("example-2x8h200-infiniband", 1, rdma_devices=[]), "rdma-devices-unpinned"),
        (
            inventory_with(
                "example-2x8h200-infiniband", 1, rdma_devices=[RdmaDevice(name="mlx5_0", rate_gbps=400)] * 4
            ),
            "rdma-devices-unequal",
        ),
        (
            inventory_with("example-2xp5en-efa", 0, rdma_devices=[RdmaDevice(name="mlx5_0", rate_gbps=400)] * 16),
            "efa-has-no-mlx5",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fabric_that_cannot_work_is_refused_before_anything_starts(hosts: Inventory, rule: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        plan.compile_plan(recipe.find(ROOT / "recipes", PD), hosts, {}, *DATA)
    assert caught.value.rule == rule


def test_a_flag_the_pinned_engine_does_not_know_is_refused_with_the_near_one() -> None:
    item = recipe.find(ROOT / "recipes", "laguna-m.1.sglang/h200-bf16")
    with pytest.raises(PlanRefused, match="did you mean --disaggregation-decode-polling-interval") as caught:
        wrong = with_role(item, flags={**item.cell.roles[0].flags, "disagregation-decode-polling-interval": 1})
        plan.compile_plan(wrong, None, {}, *DATA)
    assert caught.value.rule == "flag-refused"


def test_an_abbreviation_is_written_out_and_said() -> None:
    item = recipe.find(ROOT / "recipes", CHAMPION)
    flags = {
        ("max-num-s" if name == "max-num-seqs" else name): value for name, value in item.cell.roles[0].flags.items()
    }
    made = plan.compile_plan(with_role(item, flags=flags), None, {}, *DATA)
    assert "--max-num-seqs" in made.processes[0].argv
    assert any(warning.rule == "flag-notice" and "max-num-seqs" in warning.message for warning in made.warnings)


def test_without_the_list_of_the_pinned_version_there_is_no_plan() -> None:
    with pytest.raises(PlanRefused, match=r"no flag schema of vllm 0\.25\.1"):
        plan.compile_plan(recipe.find(ROOT / "recipes", CHAMPION), None, {}, {}, *DATA[1:])


def test_taking_a_flag_from_the_list_refuses_exactly_the_recipes_that_use_it() -> None:
    vllm = SCHEMAS["vllm"]["0.25.1"]
    less = vllm.model_copy(update={"flags": tuple(flag for flag in vllm.flags if flag.name != "moe-backend")})
    schemas = {**SCHEMAS, "vllm": {"0.25.1": less}}
    refused, using = set(), set()
    for item in recipe.read_book(ROOT / "recipes"):
        if any("moe-backend" in role.flags for role in item.cell.roles):
            using.add(item.id)
        try:
            plan.compile_plan(item, None, {}, schemas, *DATA[1:])
        except PlanRefused:
            refused.add(item.id)
    assert using
    assert refused == using


def test_changes_name_the_place_and_both_values() -> None:
    item = recipe.find(ROOT / "recipes", CHAMPION)
    old, new = (
        plan.compile_plan(item, None, {}, *DATA),
        plan.compile_plan(with_role(item, context_tokens=131072), None, {}, *DATA),
    )
    assert plan.changes(old, new) == ('processes[0].argv.--max-model-len: "204800" -> "131072"',)
    assert plan.changes(old, old) == ()


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"tp": 8}, "placement-gpus"),
        ({"flags": {"tensor-parallel-size": 4}}, "typed-flag-spelled-twice"),
        ({"gpu_memory_fraction": 0.9}, "dflash-memory-headroom"),
        ({"gpu_memory_fraction": None}, "dflash-memory-headroom"),
    ],
)
def test_a_plan_that_cannot_run_is_refused_by_its_rule(change: dict[str, object], rule: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        plan.compile_plan(with_role(recipe.find(ROOT / "recipes", CHAMPION), **change), None, {}, *DATA)
    assert caught.value.rule == rule
    assert rule in str(caught.value)
    assert caught.value.as_json()["rule"] == rule


def test_changing_one_flag_of_a_recipe_changes_exactly_its_plan(tmp_path: Path) -> None:
    book = tmp_path / "recipes"
    shutil.copytree(ROOT / "recipes", book)
    path = book / "laguna-s-2.1.vllm.yaml"
    path.write_text(path.read_text().replace("max-num-seqs: 4 #", "max-num-seqs: 3 #", 1))
    before = {item.id: item for item in recipe.read_book(ROOT / "recipes")}
    changed = {
        item.id
        for item in recipe.read_book(book)
        if plan.compile_plan(item, None, {}, *DATA) != plan.compile_plan(before[item.id], None, {}, *DATA)
    }
    assert changed == {CHAMPION}


if __name__ == "__main__":
    for old in GOLDEN.iterdir():
        old.unlink()
    for each in IDS:
        for file, text in texts_of(each).items():
            (GOLDEN / file).write_text(text)
