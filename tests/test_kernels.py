"""Kernel caches: one folder, every variable, and a name that follows what the kernels depend on and nothing else."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway import kernels
from slipway.documents import parse
from slipway.errors import DocumentError
from slipway.kernels import Caches, Compiled, cache_env, cache_key

CACHES = kernels.read(Path(__file__).resolve().parent.parent / "images" / "caches.yaml")
BASE = Compiled(
    engine="sglang",
    engine_version="0.5.18",
    image="sha256:" + "9" * 64,
    gpu_models=("h200",) * 8,
    checkpoints={"/models/Laguna-M.1": "poolside/Laguna-M.1@" + "a" * 40},
    argv=(
        *("sglang", "serve", "--model-path", "/models/Laguna-M.1", "--tp-size", "8"),
        *("--chunked-prefill-size", "8192", "--host", "0.0.0.0", "--port", "30000"),
    ),
    env={"HF_HUB_OFFLINE": "1", "SGLANG_HOST_IP": "192.0.2.1"},
)
VLLM = dataclasses.replace(
    BASE,
    engine="vllm",
    engine_version="0.25.1",
    argv=("/models/Laguna-M.1", "--speculative-config", '{"model":"/models/Laguna-M.1-DFlash"}', "--port", "8000"),
    checkpoints={**BASE.checkpoints, "/models/Laguna-M.1-DFlash": "poolside/Laguna-M.1-DFlash@" + "b" * 40},
    env={"VLLM_USE_DEEP_GEMM": "0", "CUDA_VISIBLE_DEVICES": "0"},
)


def key(compiled: Compiled, **changes: object) -> str:
    return cache_key(CACHES, dataclasses.replace(compiled, **changes))  # type: ignore[arg-type]


def test_the_key_is_a_readable_folder_name() -> None:
    assert re.fullmatch(r"sglang-0\.5\.18-h200-[0-9a-f]{12}", key(BASE))
    assert key(BASE, gpu_models=()).startswith("sglang-0.5.18-cpu-")
    assert key(BASE, gpu_models=("h200", "h100", "h200")).startswith("sglang-0.5.18-h100+h200-")


SAFE_RULE = {
    "SGLANG_CACHE_DIR",
    "SGLANG_DG_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "TILELANG_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "TVM_FFI_CACHE_DIR",
}


@pytest.mark.parametrize("version", ["0.5.14", "0.5.18", "0.5.23"])
def test_every_cache_of_sglang_lies_in_the_one_folder(version: str) -> None:
    env = cache_env(CACHES, "sglang", version, "/cache")
    assert env.keys() >= SAFE_RULE | {"SGLANG_JIT_CACHE_DIR"}
    assert ("SGLANG_CUTE_AOT_CACHE_DIR" in env) == (version == "0.5.23")
    assert all(value.startswith("/cache/") for value in env.values())
    assert len(set(env.values())) == len(env), "each has a folder of its own"


def test_every_cache_of_vllm_lies_in_the_one_folder_and_sglangs_variables_do_not_stand_there() -> None:
    env = cache_env(CACHES, "vllm", "0.25.1", ".slipway/caches/k")
    assert env.keys() >= (SAFE_RULE - {"SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR"}) | {
        "VLLM_CACHE_ROOT",
        "DG_JIT_CACHE_DIR",
    }
    assert not [name for name in env if name.startswith("SGLANG")]
    assert env["VLLM_CACHE_ROOT"] == ".slipway/caches/k/vllm"


def test_the_reference_engine_compiles_nothing() -> None:
    assert not kernels.compiles(CACHES, "reference")
    assert cache_env(CACHES, "reference", "0.1.0", "/cache") == {}


def replaced(argv: tuple[str, ...], flag: str, value: str) -> tuple[str, ...]:
    at = argv.index(flag)
    return (*argv[: at + 1], value, *argv[at + 2 :])


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "sha256:" + "8" * 64},
        {"engine_version": "0.5.19"},
        {"gpu_models": ("b200",) * 8},
        {"checkpoints": {"/models/Laguna-M.1": "poolside/Laguna-M.1@" + "c" * 40}},
        {"argv": replaced(BASE.argv, "--tp-size", "4")},
        {"argv": replaced(BASE.argv, "--chunked-prefill-size", "4096")},
        {"argv": (*BASE.argv, "--kv-cache-dtype", "fp8_e4m3")},
        {"argv": (*BASE.argv, "--quantization", "fp8")},
        {"argv": (*BASE.argv, "--speculative-algorithm", "DFLASH")},
        {"argv": (*BASE.argv, "--disaggregation-mode", "prefill")},
        {"argv": (*BASE.argv, "--a-flag-of-next-year")},
        {"env": {**BASE.env, "SGLANG_SHARED_EXPERT_TP1": "1"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_kernels_may_depend_on_changes_the_key(changes: dict[str, object]) -> None:
    assert key(BASE, **changes) != key(BASE)


@pytest.mark.parametrize(
    "changes",
    [
        {"argv": replaced(BASE.argv, "--port", "30001")},
        {"argv": replaced(BASE.argv, "--host", "127.0.0.1")},
        {"argv": (*BASE.argv, "--log-level", "debug")},
        {"argv": (*BASE.argv, "--log-level=debug", "--enable-metrics", "--enable-cache-report")},
        {"argv": (*BASE.argv, "--served-model-name", "laguna", "--reasoning-parser", "poolside_v1")},
        {
            "argv": (
                *BASE.argv,
                "--disaggregation-bootstrap-port",
                "8998",
                "--disaggregation-ib-device",
                "mlx5_0,mlx5_1",
            )
        },
        {"gpu_models": ("h200",) * 4},  # how many is said by the flags
        {"env": {**BASE.env, "SGLANG_HOST_IP": "192.0.2.2", "MC_FORCE_HCA": "1", "UCX_NET_DEVICES": "mlx5_0:1,lo"}},
        {"env": {**BASE.env, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_addresses_names_and_logs_do_not_change_the_key(changes: dict[str, object]) -> None:
    assert key(BASE, **changes) == key(BASE)


def test_vllm_follows_its_own_key() -> None:
    def with_env(**more: str) -> str:
        return key(VLLM, env={**VLLM.env, **more})

    assert with_env(VLLM_USE_DEEP_GEMM="1") != key(VLLM), "every VLLM_ variable feeds vLLM's own key"
    assert with_env(VLLM_SOMETHING_NEW="1") != key(VLLM)
    assert with_env(VLLM_LOGGING_LEVEL="DEBUG", CUDA_VISIBLE_DEVICES="1") == key(VLLM)
    assert key(VLLM, argv=(*VLLM.argv, "--gpu-memory-utilization", "0.8")) == key(VLLM)
    assert key(VLLM, argv=(*VLLM.argv, "--max-model-len", "4096")) != key(VLLM)


@given(st.sampled_from(["/models", "/srv/other", "weights/here"]), st.sampled_from(["/models", "/m"]))
def test_where_the_weights_lie_does_not_matter(one: str, other: str) -> None:
    def at(folder: str) -> str:
        paths = {path.replace("/models", folder): repo for path, repo in VLLM.checkpoints.items()}
        return key(VLLM, checkpoints=paths, argv=tuple(word.replace("/models", folder) for word in VLLM.argv))

    assert at(one) == at(other)


@given(
    st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,12}[a-z]", fullmatch=True), st.text("abc019", max_size=4), max_size=6)
)
def test_the_order_of_flags_does_not_matter(flags: dict[str, str]) -> None:
    words = [(f"--{name}", value) for name, value in flags.items()]
    forward, backward = (tuple(word for pair in pairs for word in pair) for pairs in (words, words[::-1]))
    assert key(BASE, argv=("sglang", "serve", *forward)) == key(BASE, argv=("sglang", "serve", *backward))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            "  - {name: A, engines: [vllm], folder: a, source: s}\n  - {name: A, engines: [vllm], folder: b, source: s}",
            "name A",
        ),
        (
            "  - {name: A, engines: [vllm], folder: a, source: s}\n  - {name: B, engines: [vllm], folder: a, source: s}",
            "folder a",
        ),
        ("  - {name: A, engines: [vllm], folder: ../a, source: s}", "a folder name"),
        ("  - {name: A, engines: [vllm], folder: a}", "source"),
    ],
)
def test_a_table_that_would_mix_caches_is_refused(rows: str, says: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse(f"schema: slipway/caches/v1\nvariables:\n{rows}\nkeys: []\n", Caches, "caches.yaml")
    assert says in str(caught.value)
