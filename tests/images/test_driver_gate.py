"""The driver gate: what cannot run is refused with its remedy, what may run is a warning, and versions compare as numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.documents import parse
from slipway.errors import DocumentError
from slipway.images import driver_gate
from slipway.images.driver_gate import CudaDrivers, Verdict, check, problem
from slipway.images.spec import Cuda

ROOT = Path(__file__).resolve().parents[2]
FACTS = driver_gate.read(ROOT / "images" / "cuda-drivers.yaml", ROOT / "stacks" / "data" / "gpus.yaml")
PLAIN = {version: Cuda(version=version) for version in ("12.9", "13.0", "13.2", "13.9", "14.0")}
WITH_COMPAT = {version: Cuda(version=version, forward_compatibility=True) for version in PLAIN}

drivers = st.tuples(st.integers(400, 700), st.integers(0, 300), st.integers(0, 99)).map(
    lambda parts: ".".join(str(part) for part in parts)
)


@pytest.mark.parametrize(
    ("cuda", "driver", "gpu", "severity"),
    [
        (WITH_COMPAT["13.0"], "580.159.04", "h200", None),  # run on an H200, 2026-11-30
        (WITH_COMPAT["13.0"], "580.65.06", "rtx-3090", None),
        (WITH_COMPAT["13.0"], "580.65.05", "rtx-3090", "refuse"),
        (WITH_COMPAT["13.2"], "580.159.03", "rtx-3090", "refuse"),  # club-3090 issue 633: error 804
        (WITH_COMPAT["13.2"], "580.159.03", "NVIDIA GeForce RTX 3060", "refuse"),
        (WITH_COMPAT["13.2"], "595.45.04", "rtx-3090", None),
        (PLAIN["13.2"], "580.126.09", "h100", "warn"),  # nvbandwidth issue 61: PTX refused, error 222
        (PLAIN["13.2"], "580.126.09", "rtx-3090", "warn"),
        (WITH_COMPAT["13.2"], "580.126.09", "h100", "warn"),
        (WITH_COMPAT["13.0"], "570.124.06", "h200", "warn"),  # dstack pull request 4007
        (WITH_COMPAT["13.0"], "570.124.06", "rtx-pro-6000", "warn"),
        (WITH_COMPAT["13.0"], "570.124.06", "a-model-of-next-year", "warn"),
        (WITH_COMPAT["13.0"], "570.124.06", "rtx-3090", "refuse"),
        (WITH_COMPAT["13.0"], "525.60.13", "h100", "refuse"),
        (PLAIN["13.0"], "570.124.06", "h200", "refuse"),
        (PLAIN["12.9"], "580.95.05", "rtx-3090", None),
        (PLAIN["12.9"], "535.54.03", "rtx-3090", "warn"),
        (PLAIN["13.9"], "650.10.01", "h200", "warn"),
        (PLAIN["13.9"], "580.95.05", "h200", "warn"),
        (WITH_COMPAT["13.9"], "580.95.05", "rtx-3090", "refuse"),
        (PLAIN["14.0"], "650.10.01", "h200", "warn"),
    ],
)
def test_what_was_seen_and_published_is_what_the_gate_says(
    cuda: Cuda, driver: str, gpu: str, severity: str | None
) -> None:
    verdict = check(cuda, driver, [gpu], FACTS)
    assert (verdict.severity if verdict else None) == severity
    assert (problem(cuda, driver, [gpu], FACTS) is not None) == (severity == "refuse")


def refusal(cuda: Cuda, driver: str, gpu: str) -> Verdict:
    verdict = check(cuda, driver, [gpu], FACTS)
    assert verdict is not None
    return verdict


def test_the_refusal_names_both_versions_and_both_ways_out() -> None:
    text = str(refusal(WITH_COMPAT["13.2"], "580.159.03", "rtx-3090"))
    assert "driver 580.159.03 is older than CUDA 13.2, which came with 595.45.04" in text
    assert "error 804" in text
    assert text.endswith("upgrade the driver to 595.45.04 or newer, or choose an image of CUDA 13.0 or older")


def test_a_driver_older_than_the_table_is_only_told_to_be_upgraded() -> None:
    assert refusal(PLAIN["12.9"], "470.82.01", "a100").remedy == "upgrade the driver to 525.60.13 or newer"


def test_a_cuda_after_the_end_of_the_table_is_compared_with_its_end() -> None:
    assert "came with at least 610.43.02" in refusal(PLAIN["13.9"], "580.95.05", "h200").problem
    assert "not known" in refusal(PLAIN["13.9"], "650.10.01", "h200").problem


def test_one_geforce_among_the_gpus_decides() -> None:
    assert problem(WITH_COMPAT["13.0"], "570.26", ["h200", "rtx-3090"], FACTS)
    assert not problem(WITH_COMPAT["13.0"], "570.26", ["h200", "h200"], FACTS)


@given(st.sampled_from(sorted(PLAIN)), drivers, drivers, st.sampled_from(["h200", "rtx-3090", "gb10"]), st.booleans())
def test_a_newer_driver_never_makes_it_worse(cuda: str, one: str, other: str, gpu: str, compat: bool) -> None:
    older, newer = sorted((one, other), key=lambda text: [int(part) for part in text.split(".")])
    weight = {None: 0, "warn": 1, "refuse": 2}
    spec = (WITH_COMPAT if compat else PLAIN)[cuda]
    before, after = (check(spec, driver, [gpu], FACTS) for driver in (older, newer))
    assert weight[after.severity if after else None] <= weight[before.severity if before else None]


@given(drivers, st.sampled_from(["12.9", "13.0", "13.2"]))
def test_geforce_is_never_let_off_by_compatibility_libraries(driver: str, cuda: str) -> None:
    weight = {None: 0, "warn": 1, "refuse": 2}
    without, having = (check(spec[cuda], driver, ["rtx-3090"], FACTS) for spec in (PLAIN, WITH_COMPAT))
    assert weight[having.severity if having else None] >= weight[without.severity if without else None]


@given(drivers)
def test_a_two_part_version_equals_the_same_with_a_zero(driver: str) -> None:
    two = driver.rpartition(".")[0]
    assert FACTS.newest_cuda(two) == FACTS.newest_cuda(f"{two}.0")


def test_parts_compare_as_numbers_not_as_text() -> None:
    assert check(PLAIN["13.0"], "580.159.04", ["h200"], FACTS) is None, "159 is more than 65"
    assert FACTS.newest_cuda("580.9.1") == "12.9", "9 is less than 65"


def test_the_minimum_of_each_major_is_the_driver_of_its_first_release() -> None:
    for major in FACTS.drivers.majors:
        first = next(row for row in FACTS.drivers.releases if row.cuda == f"{major.major}.0")
        assert first.driver == major.minimum


def test_the_table_is_in_order_so_that_no_row_is_a_slip() -> None:
    rows = [tuple(int(part) for part in row.driver.split(".")) for row in FACTS.drivers.releases]
    assert rows == sorted(rows)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('releases:\n  - {cuda: "13.0", driver: "580.65.06", source: memory}', "has no memory"),
        ('releases:\n  - {cuda: "13.0", driver: "580", source: a}', "an NVIDIA driver in quotes"),
        (
            'releases:\n  - {cuda: "13.0", driver: "580.1", source: a}\n  - {cuda: "13.0", driver: "581.1", source: a}',
            "twice",
        ),
    ],
)
def test_a_row_without_source_or_with_nonsense_is_refused(text: str, says: str) -> None:
    head = 'schema: slipway/cuda-drivers/v1\nsources:\n  - {name: a, url: u, date: "2026-12-01"}\n'
    head += 'majors:\n  - {major: 13, minimum: "580.65.06", source: a, forward_from_branch: null}\n'
    with pytest.raises(DocumentError, match=says):
        parse(head + text, CudaDrivers, "cuda-drivers.yaml")
