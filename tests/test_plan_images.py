"""What a plan says about images: the driver that must run them, those that must be built, and where their kernels are kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from slipway import documents, kernels, plan, recipe
from slipway.engines import schema
from slipway.errors import PlanRefused
from slipway.images import catalogue
from slipway.images.catalogue import Catalogue
from slipway.images.lock import ImageLock, LockedBase, Result
from slipway.inventory import Inventory
from slipway.plan import Plan, Process
from slipway.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = {engine: schema.read_all(ROOT / "images", engine) for engine in ("vllm", "sglang", "router")}
IMAGES = catalogue.read(ROOT / "images", ROOT / "stacks" / "data" / "gpus.yaml")
CACHES = kernels.read(ROOT / "images" / "caches.yaml")
CHAMPION = recipe.find(ROOT / "recipes", "laguna-s-2.1.vllm/4x3090-int4-champion")
PD = recipe.find(ROOT / "recipes", "laguna-m.1.sglang/h200-bf16-pd-mooncake")


def hosts(name: str, driver: str | None = None, **changes: object) -> Inventory:
    """A shipped inventory whose nodes all have `driver`."""
    shipped = documents.read(ROOT / "stacks" / "inventory" / f"{name}.yaml", Inventory)
    nodes = [node.model_copy(update={"driver": driver}) for node in shipped.nodes]
    return shipped.model_copy(update={"nodes": nodes, **changes})


def compiled(item: Recipe, inventory: Inventory | None = None, images: Catalogue = IMAGES) -> Plan:
    return plan.compile_plan(item, inventory, {}, SCHEMAS, images, CACHES)


def rules_of(made: Plan) -> dict[str, str]:
    return {warning.rule: warning.message for warning in made.warnings}


def test_a_driver_that_cannot_run_the_image_is_refused_with_all_four_facts() -> None:
    with pytest.raises(PlanRefused) as caught:
        compiled(CHAMPION, hosts("example-4x3090", "570.124.06"))
    assert caught.value.rule == "driver-too-old"
    text = str(caught.value)
    for fact in ("node workstation", "driver 570.124.06", "CUDA 13.0", "580.65.06", "vllm/vllm-openai:v0.25.1", "12.8"):
        assert fact in text


def test_a_driver_that_may_run_it_is_warned_about_and_a_new_one_is_not() -> None:
    found = rules_of(compiled(PD, hosts("example-2x8h200-infiniband", "570.124.06")))
    assert (
        "node decode-1: driver 570.124.06 is older than CUDA 13.0 needs (580.65.06)" in found["driver-older-than-cuda"]
    )
    found = rules_of(compiled(PD, hosts("example-2x8h200-infiniband", "580.159.04")))
    assert not [rule for rule in found if rule.startswith("driver")]


def test_a_driver_that_nobody_wrote_down_is_said_once_a_node() -> None:
    made = compiled(PD, hosts("example-2x8h200-infiniband"))
    said = [warning.message for warning in made.warnings if warning.rule == "driver-unknown"]
    assert len(said) == 2
    assert "nvidia-smi --query-gpu=driver_version" in said[0]
    assert not [rule for rule in rules_of(compiled(PD)) if rule.startswith("driver")], "no host, no driver"


def test_plain_processes_are_not_compared_with_an_image() -> None:
    made = compiled(CHAMPION, hosts("example-4x3090", "470.82.01", runtime="process"))
    assert not [rule for rule in rules_of(made) if rule.startswith(("driver", "image"))]


def test_an_image_that_nothing_describes_is_said_to_be_unchecked() -> None:
    cell = CHAMPION.cell.model_copy(update={"image": "registry.example/mine:1@sha256:" + "5" * 64})
    found = rules_of(compiled(CHAMPION.model_copy(update={"cell": cell}), hosts("example-4x3090", "470.82.01")))
    assert "registry.example/mine:1" in found["image-cuda-unknown"]


def with_efa_image(item: Recipe, image: str) -> Recipe:
    assert item.cell.transfer is not None
    fabrics = {"efa": item.cell.transfer.fabrics["efa"].model_copy(update={"image": image})}
    transfer = item.cell.transfer.model_copy(update={"fabrics": fabrics})
    return item.model_copy(update={"cell": item.cell.model_copy(update={"transfer": transfer})})


def test_an_image_that_cannot_be_built_is_refused_with_those_that_can() -> None:
    with pytest.raises(PlanRefused, match="build:sglang-efa") as caught:
        compiled(with_efa_image(PD, "build:sglang-eaf"), hosts("example-2xp5en-efa"))
    assert caught.value.rule == "image-unknown"


def with_lock(lock: ImageLock | None) -> Catalogue:
    """The shipped images, with another lock of sglang's efa variant."""
    image = IMAGES.of("build:sglang-efa")
    known = [dataclasses.replace(found, lock=lock) if found == image else found for found in IMAGES.images]
    return dataclasses.replace(IMAGES, images=tuple(known))


def built(number: int) -> Catalogue:
    """The shipped images, with sglang's efa variant built."""
    image = IMAGES.of("build:sglang-efa")
    assert image is not None
    made = f"sha256:{number:064x}"
    locked = ImageLock(
        schema_="slipway/image-lock/v1",
        engine="sglang",
        variant="efa",
        engine_version=image.variant.engine_version,
        spec_digest=made,
        platform="linux/amd64",
        base=LockedBase(ref="debian:trixie-slim@sha256:" + "1" * 64),
        dockerfile_sha256="2" * 64,
        context_sha256="3" * 64,
        args={},
        entrypoint=["/usr/bin/env"],
        epoch=1,
        cuda=image.cuda,
        gpu_architectures=[],
        flag_schema=None,
        cache_folder="/kernels",
        results=[
            Result(
                builder="buildkit",
                version="1",
                config_digest=made,
                diff_ids=[made],
                manifest_digest=made,
                compression="zstd",
                size_bytes=1,
            )
        ],
    )
    return with_lock(locked)


def test_what_must_be_built_is_said_with_the_commands_until_it_is() -> None:
    where = hosts("example-2xp5en-efa", "580.159.04")
    said = rules_of(compiled(PD, where, with_lock(None)))["image-not-built"]
    assert (
        "`invoke lock-image --engine sglang --variant efa`, then `invoke build-image --engine sglang --variant efa`"
        in said
    )
    made = compiled(PD, where, built(7))
    assert "image-not-built" not in rules_of(made)
    assert made.processes[0].image == "build:sglang-efa"
    assert made.processes[0].mounts[-1].target == "/kernels"


def test_docker_runs_what_was_built_by_its_own_name_and_never_pulls_it() -> None:
    for made, digest in (
        (compiled(PD, hosts("example-2xp5en-efa")), "NOT BUILT"),
        (compiled(PD, hosts("example-2xp5en-efa"), built(7)), f"image sha256:{7:064x}"),
    ):
        for process in made.processes:
            words = plan.docker_argv(process)
            assert "build:sglang-efa" not in words
            assert words[words.index("slipway/sglang-efa:0.5.18") - 1] == "--pull=never"
        assert plan.shell_text(made).count(f"# build:sglang-efa is slipway/sglang-efa:0.5.18 here, {digest}; ") == 3
    published = compiled(PD, hosts("example-2x8h200-infiniband"))
    assert "--pull=never" not in plan.docker_argv(published.processes[0])


def test_another_build_under_the_same_name_is_another_deployment_and_is_told() -> None:
    where = hosts("example-2xp5en-efa", "580.159.04")
    one, other = compiled(PD, where, built(7)), compiled(PD, where, built(8))
    assert one.deployment_digest != other.deployment_digest
    told = plan.changes(one, other)
    assert len(told) == 3, "prefill, decode, router"
    assert all(".image_digest: " in line for line in told)
    assert keys(one) != keys(other)


def test_a_build_that_compiles_nothing_is_told_apart_too() -> None:
    where, none = hosts("example-2xp5en-efa", "580.159.04"), CACHES.model_copy(update={"variables": []})
    one, other = (plan.compile_plan(PD, where, {}, SCHEMAS, built(number), none) for number in (7, 8))
    assert one.deployment_digest != other.deployment_digest


def keys(made: Plan) -> dict[str, str | None]:
    return {process.role: process.cache_folder for process in made.processes}


def with_roles(item: Recipe, **changes: dict[str, Any]) -> Recipe:
    """`item` with changes to its roles by name; `flags` and `env` are added to those there."""
    roles = []
    for role in item.cell.roles:
        change = dict(changes.get(role.name, {}))
        for part in ("flags", "env"):
            if part in change:
                change[part] = {**getattr(role, part), **change[part]}
        roles.append(role.model_copy(update=change))
    return item.model_copy(update={"cell": item.cell.model_copy(update={"roles": roles})})


def changed_roles(**changes: dict[str, Any]) -> set[str]:
    where = hosts("example-2x8h200-infiniband", "580.159.04")
    before, after = keys(compiled(PD, where)), keys(compiled(with_roles(PD, **changes), where))
    return {role for role in before if before[role] != after[role]}


def test_each_role_has_a_cache_of_its_own_and_the_router_none() -> None:
    found = keys(compiled(PD, hosts("example-2x8h200-infiniband")))
    assert found["router"] is None
    assert found["prefill"] != found["decode"]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_one_shape_flag_changes_exactly_its_roles_key(role: str) -> None:
    assert changed_roles(**{role: {"flags": {"chunked-prefill-size": 4096}}}) == {role}
    assert changed_roles(**{role: {"env": {"SGLANG_SHARED_EXPERT_TP1": "1"}}}) == {role}


def test_ports_addresses_and_log_levels_change_no_key() -> None:
    assert changed_roles(prefill={"port": 31000, "bind": "127.0.0.1", "flags": {"log-level": "debug"}}) == set()
    assert changed_roles(router={"flags": {"policy": "random"}}) == set()
    assert PD.cell.transfer is not None
    moved = PD.cell.transfer.model_copy(update={"bootstrap_port": 8999})
    other = PD.model_copy(update={"cell": PD.cell.model_copy(update={"transfer": moved})})
    where = hosts("example-2x8h200-infiniband")
    assert keys(compiled(other, where)) == keys(compiled(PD, where))


def test_the_same_recipe_has_the_same_keys_on_other_hosts_with_such_gpus() -> None:
    names = {Path(folder).name for folder in keys(compiled(CHAMPION, hosts("example-4x3090"))).values() if folder}
    assert names == {Path(folder).name for folder in keys(compiled(CHAMPION)).values() if folder}


def only(made: Plan) -> Process:
    (process,) = made.processes
    return process


def test_a_container_gets_one_writable_mount_and_every_variable_points_into_it() -> None:
    process = only(compiled(CHAMPION))
    (mount,) = [mount for mount in process.mounts if not mount.read_only]
    assert (mount.source, mount.target) == (process.cache_folder, "/cache")
    env = kernels.cache_env(CACHES, "vllm", "0.25.1", "/cache")
    assert env.items() <= process.env.items()
    words = plan.docker_argv(process)
    assert f"{process.cache_folder}:/cache" in words


def test_a_plain_process_gets_the_hosts_folder_and_no_mount() -> None:
    where = hosts("example-4x3090", runtime="process")
    paths = where.nodes[0].paths.model_copy(update={"caches": "./kernels"})
    where = where.model_copy(update={"nodes": [where.nodes[0].model_copy(update={"paths": paths})]})
    process = only(compiled(CHAMPION, where))
    assert process.mounts == ()
    assert process.cache_folder is not None
    assert process.cache_folder.startswith("kernels/vllm-0.25.1-rtx-3090-")
    assert process.env["VLLM_CACHE_ROOT"] == f"{process.cache_folder}/vllm"


def test_the_reference_engine_needs_no_cache() -> None:
    process = only(compiled(recipe.find(ROOT / "recipes", "laguna-tiny.reference/laptop")))
    assert process.cache_folder is None
    assert "TRITON_CACHE_DIR" not in process.env


@pytest.mark.parametrize("variable", ["TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"])
def test_a_recipe_must_not_move_a_cache_itself(variable: str) -> None:
    with pytest.raises(PlanRefused, match=rf"roles\.server\.env\.{variable}") as caught:
        compiled(with_roles(CHAMPION, server={"env": {variable: "/somewhere"}}))
    assert caught.value.rule == "cache-variable-set"


def test_a_relative_cache_folder_is_refused_for_containers() -> None:
    where = hosts("example-4x3090")
    paths = where.nodes[0].paths.model_copy(update={"caches": ".slipway/caches"})
    where = where.model_copy(update={"nodes": [where.nodes[0].model_copy(update={"paths": paths})]})
    with pytest.raises(PlanRefused, match=r"paths\.caches is not absolute") as caught:
        compiled(CHAMPION, where)
    assert caught.value.rule == "placement-paths"
