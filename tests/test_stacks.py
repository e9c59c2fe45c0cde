"""Stacks: which one is meant is never guessed, and what it names is read or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway import inventory, stacks
from slipway.errors import DiskFailure, DocumentError, UsageError
from slipway.progress import silent
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent
LAPTOP = "config:\n  slipway:recipe: laguna-tiny.reference/laptop\n  slipway:hosts: local\n"
HOSTS = "schema: slipway/inventory/v1\nname: {name}\nnodes:\n  - {{name: n1, address: 10.0.0.1}}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    (tmp_path / "stacks" / "inventory").mkdir(parents=True)
    (tmp_path / "stacks" / "Pulumi.laptop.yaml").write_text(LAPTOP)
    (tmp_path / "stacks" / "Pulumi.m1-pd.yaml").write_text(
        "encryptionsalt: v1:abc\nconfig:\n  slipway:recipe: x.y/z\n  aws:region: us-east-1\n"
    )
    return Checkout(tmp_path)


def test_no_stack_is_never_guessed(checkout: Checkout) -> None:
    with pytest.raises(UsageError) as caught:
        stacks.choose(checkout, None)
    assert "  invoke select --stack laptop\n  invoke select --stack m1-pd" in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_order_is_flag_variable_selection_only_saved(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout.stacks / "inventory" / "m1-pd.yaml").write_text(HOSTS.format(name="m1-pd"))
    assert stacks.choose(checkout, None) == "m1-pd"
    assert stacks.select(checkout, "laptop") == "laptop"
    assert stacks.choose(checkout, None) == "laptop"
    monkeypatch.setenv("SLIPWAY_STACK", "m1-pd")
    assert stacks.choose(checkout, None) == "m1-pd"
    assert stacks.choose(checkout, "laptop") == "laptop"


@pytest.mark.parametrize("wrong", ["nope", "../laptop", "inventory/m1"])
def test_an_unknown_stack_names_where_it_was_said(
    checkout: Checkout, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="--stack: no such stack"):
        stacks.choose(checkout, wrong)
    monkeypatch.setenv("SLIPWAY_STACK", wrong)
    with pytest.raises(UsageError, match="SLIPWAY_STACK: no such stack"):
        stacks.choose(checkout, None)


def test_local_hosts_need_no_file_and_a_saved_one_reads_back_equal(checkout: Checkout) -> None:
    stack = stacks.read(checkout, "laptop")
    assert stack.inventory.nodes[0].paths.models == ".slipway/models"
    stacks.save_inventory(checkout, stack)
    assert stacks.read(checkout, "laptop") == stack
    assert stacks.choose(checkout, None) == "laptop"


def test_a_hand_kept_inventory_wins_over_a_saved_one(checkout: Checkout) -> None:
    stacks.save_inventory(checkout, stacks.read(checkout, "laptop"))
    (checkout.stacks / "inventory" / "laptop.yaml").write_text(HOSTS.format(name="laptop"))
    assert stacks.read(checkout, "laptop").inventory.nodes[0].name == "n1"


def test_a_stack_without_hosts_says_how_to_get_them(checkout: Checkout) -> None:
    with pytest.raises(UsageError, match="invoke inventory --stack m1-pd"):
        stacks.read(checkout, "m1-pd")


def test_an_inventory_of_another_stack_is_refused(checkout: Checkout) -> None:
    (checkout.stacks / "inventory" / "m1-pd.yaml").write_text(HOSTS.format(name="other"))
    with pytest.raises(DocumentError, match="is the inventory of other"):
        stacks.read(checkout, "m1-pd")


def test_a_wrong_key_of_ours_is_refused_and_pulumis_are_left_alone(checkout: Checkout) -> None:
    (checkout.stacks / "Pulumi.m1-pd.yaml").write_text("config:\n  slipway:recipie: x\n  aws:anything: {a: 1}\n")
    with pytest.raises(DocumentError, match="did you mean recipe"):
        stacks.read(checkout, "m1-pd")


def test_a_state_folder_that_cannot_be_written_is_a_disk_failure(checkout: Checkout) -> None:
    checkout.state.write_text("a file where a folder must be")
    with pytest.raises(DiskFailure):
        stacks.select(checkout, "laptop")
    with pytest.raises(DiskFailure):
        stacks.save_inventory(checkout, stacks.Stack("x", "y", inventory.this_machine("x", "./models")))


def test_every_shipped_stack_names_a_recipe() -> None:
    checkout = Checkout(ROOT)
    for name in stacks.names(checkout):
        assert stacks.config(checkout, name).recipe


def test_a_name_that_no_process_or_inventory_can_carry_is_refused(checkout: Checkout) -> None:
    (checkout.stacks / "Pulumi.my stack's.yaml").write_text(LAPTOP)
    with pytest.raises(UsageError, match="lower-case letters, digits, dots and dashes"):
        stacks.choose(checkout, "my stack's")


def test_the_owner_is_of_the_state_and_not_of_the_name(checkout: Checkout) -> None:
    first = stacks.owner(checkout, "m1-pd")
    assert first
    assert len(first) == 12
    assert stacks.owner(checkout, "laptop") is None
    file = checkout.stacks / "Pulumi.m1-pd.yaml"
    file.write_text(file.read_text().replace("v1:abc", "v1:def"))
    assert stacks.owner(checkout, "m1-pd") not in {None, first}


def test_a_saved_inventory_that_nobody_can_read_is_put_aside_and_not_lost(checkout: Checkout) -> None:
    assert stacks.saved_inventory(checkout, "m1-pd", silent) is None
    path = checkout.state / "inventory" / "m1-pd.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(HOSTS.format(name="m1-pd"))
    found = stacks.saved_inventory(checkout, "m1-pd", silent)
    assert found
    assert found.name == "m1-pd"
    path.write_text("nodes: [")
    assert stacks.saved_inventory(checkout, "m1-pd", silent) is None
    assert [file.name for file in path.parent.iterdir()] == ["m1-pd.yaml.bak"]


CLOUD = """config:
  slipway:recipe: a.b/c
  aws:region: us-east-2
  slipway:aws:
    zone: us-east-2b
    instance_type: p5en.48xlarge
    ami: ami-0123456789abcdef0
    capacity: {kind: on-demand}
    count: 2
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("count: 2", "count: 99", ":9:5: slipway:aws.count: "),
        ("    count: 2\n", "", ":4:3: slipway:aws.count: is missing"),
        ("count: 2", "count: 2\n    cuont: 3", ":10:5: slipway:aws.cuont: unknown key; did you mean count?"),
        (
            "count: 2",
            "count: 2\n    clients:\n      - 10.0.0.0/8\n      - 0.0.0.0/0",
            ":12:9: slipway:aws.clients[1]: ",
        ),
        ("us-east-2\n", "nowhere\n", ":3:3: aws:region: "),
        ("kind: on-demand", "kind: spot", ":8:16: slipway:aws.capacity.kind: "),
        ("slipway:recipe", "slipway:recip", ":1:1: slipway:recipe: is missing"),
        ("zone: us-east-2b", "zone: us-west-2b", ":1:1: aws.zone: us-west-2b is not in"),
    ],
)
def test_a_wrong_setting_is_placed_where_it_stands_in_the_stacks_file(
    checkout: Checkout, old: str, new: str, said: str
) -> None:
    path = checkout.stacks / "Pulumi.cloud.yaml"
    path.write_text(CLOUD)
    stacks.config(checkout, "cloud")
    path.write_text(CLOUD.replace(old, new))
    with pytest.raises(DocumentError) as caught:
        stacks.config(checkout, "cloud")
    assert f"{path}{said}" in str(caught.value)
