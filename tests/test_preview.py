"""What `invoke preview` says of every shipped stack, without Pulumi, account or network; and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slipway import preview, stacks
from slipway.errors import PlanRefused, UsageError
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent
CHECKOUT = Checkout(ROOT)
GOLDEN = ROOT / "tests" / "data" / "previews"
STACKS = stacks.names(CHECKOUT)


def golden_name(stack: str) -> Path:
    return GOLDEN / f"{stack}.txt"


@pytest.mark.parametrize("stack", STACKS)
def test_the_preview_is_the_golden_one(stack: str) -> None:
    assert preview.text(preview.of(CHECKOUT, stack)) == golden_name(stack).read_text()


def test_no_golden_preview_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(STACKS)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT, stdin=subprocess.DEVNULL
    )


def test_the_command_needs_no_pulumi_and_is_done_in_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    before = os.times()
    ran = run("-X", "importtime", "-m", "invoke", "preview", "--stack", "m1-pd", "--json")
    after = os.times()
    assert ran.returncode == 0, ran.stderr[-2000:]
    seen = json.loads(ran.stdout)
    assert (seen["schema"], seen["hosts"], len(seen["resources"])) == ("slipway/preview/v1", "aws", 29)
    assert sum(row["interfaces"] for row in seen["nics_per_host"]) == 17
    assert [process["role"] for process in seen["plan"]["processes"]] == ["prefill", "decode", "router"]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ran.stderr.splitlines()}
    assert "slipway" in imported and not imported & {"pulumi", "pulumi_aws", "boto3", "httpx"}
    # CPU seconds of the command: what it takes on an idle machine.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 5


def changed(tmp_path: Path, stack: str, keys: dict[str, object]) -> Checkout:
    """The checkout with one stack's settings changed; everything else is the real one."""
    for name in ("recipes", "checkpoints", "images"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "data").symlink_to(ROOT / "stacks" / "data")
    values = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    values["config"]["slipway:aws"] |= keys.pop("aws", {})  # type: ignore[operator]
    values["config"] |= keys
    (tmp_path / "stacks" / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump(values))
    return Checkout(tmp_path)


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"aws": {"count": 1}}, "placement-nodes"),
        ({"slipway:recipe": "laguna-m.1.sglang/h200-bf16-pd-nixl"}, "placement-fabric"),
        ({"slipway:recipe": "laguna-m.1.sglang/b200-nvfp4"}, "nvfp4-needs-blackwell"),
    ],
)
def test_a_wrong_combination_is_refused_with_its_rule(tmp_path: Path, keys: dict[str, object], rule: str) -> None:
    with pytest.raises(PlanRefused) as caught:
        preview.of(changed(tmp_path, "m1-pd", keys), "m1-pd")
    assert caught.value.rule == rule


def test_types_whose_device_names_nobody_wrote_down_are_previewed_by_position(tmp_path: Path) -> None:
    keys = {"aws": {"instance_type": "p5e.48xlarge"}}
    seen = preview.of(changed(tmp_path, "m1-pd", keys), "m1-pd")
    assert any("not known for this type" in note for note in seen.notes)
    assert seen.inventory.nodes[0].rdma_devices[31].name == "rdmap-card-31"


def test_a_recipe_for_other_gpus_is_noted(tmp_path: Path) -> None:
    keys = {"aws": {"instance_type": "p6-b200.48xlarge"}}
    seen = preview.of(changed(tmp_path, "m1-pd", keys), "m1-pd")
    assert "the recipe was written for h200, the hosts have b200" in seen.notes


def test_an_unknown_recipe_points_at_the_stacks_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"stacks/Pulumi.m1-pd.yaml: slipway:recipe"):
        preview.of(changed(tmp_path, "m1-pd", {"slipway:recipe": "laguna-m.1.sglang/h200-bf16-pd"}), "m1-pd")


def test_a_hand_kept_inventory_counts_more_than_the_list_of_the_stack(tmp_path: Path) -> None:
    values = (ROOT / "stacks" / "Pulumi.s21-3090.yaml").read_text()
    (tmp_path / "stacks" / "inventory").mkdir(parents=True)
    (tmp_path / "stacks" / "Pulumi.s21-3090.yaml").write_text(values)
    checkout = Checkout(tmp_path)
    listed = stacks.read(checkout, "s21-3090")
    assert listed.inventory.nodes[0].name == "workstation"
    stacks.save_inventory(checkout, listed)
    (tmp_path / "stacks" / "Pulumi.s21-3090.yaml").write_text(values.replace("192.0.2.30", "10.0.0.30"))
    assert stacks.read(checkout, "s21-3090").inventory.nodes[0].address == "10.0.0.30", "a saved copy is older"
    kept = "schema: slipway/inventory/v1\nname: s21-3090\nnodes:\n  - {name: mine, address: 10.0.0.9}\n"
    (tmp_path / "stacks" / "inventory" / "s21-3090.yaml").write_text(kept)
    assert stacks.read(checkout, "s21-3090").inventory.nodes[0].name == "mine"


if __name__ == "__main__":
    for each in STACKS:
        golden_name(each).write_text(preview.text(preview.of(CHECKOUT, each)))
