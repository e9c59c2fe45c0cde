"""Cloud stacks without a cloud: settings, network cards, access, costs, and each policy with something that breaks it."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway import documents, recipe, stacks
from slipway.cloud import access, cost, hosts, instance_types, permissions, policies, resources, settings
from slipway.cloud.instance_types import Card, InstanceType, InstanceTypes
from slipway.cloud.policies import Record
from slipway.cloud.settings import AwsHosts, StackConfig
from slipway.errors import DocumentError, UsageError
from slipway.inventory import RdmaDevice
from slipway.stacks import Checkout

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "stacks" / "data"
TYPES = documents.read_json(DATA / "instance-types.json", InstanceTypes).types
PORTS = access.ports(recipe.find(ROOT / "recipes", "laguna-m.1.sglang/h200-bf16-pd-mooncake"))
AWS: dict[str, Any] = {
    "zone": "us-east-2b",
    "instance_type": "p5en.48xlarge",
    "count": 2,
    "ami": "ami-0123456789abcdef0",
    "capacity": {"kind": "block", "id": "cr-0123456789abcdef0"},
}


def config(**aws: Any) -> StackConfig:
    values = {"slipway:recipe": "a.b/c", "aws:region": "us-east-2", "slipway:aws": {**AWS, **aws}}
    return stacks.parse_config(values, "test")


def aws_hosts(**aws: Any) -> AwsHosts:
    read = config(**aws).aws
    assert read is not None
    return read


class TestSettings:
    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"zone": "us-west-2a"}, "is not in aws:region us-east-2"),
            ({"zone": "somewhere"}, "string should match pattern"),
            ({"ami": "latest"}, "string should match pattern"),
            ({"ami": "/aws/service/deeplearning/latest"}, "string should match pattern"),
            ({"count": 0}, "greater than or equal to 1"),
            ({"clients": ["0.0.0.0/0"]}, "the open internet"),
            ({"clients": ["10.0.0.0/33"]}, "33"),
            ({"clients": ["10.0.0.1/8"]}, "host bits"),
            ({"network": "8.8.0.0/20"}, "a private IPv4 network"),
            ({"network": "10.0.0.0/8"}, "a private IPv4 network"),
            ({"capacity": {"kind": "block"}}, "named by its id"),
            ({"capacity": {"kind": "on-demand", "id": "cr-0123456789abcdef0"}}, "on-demand has none"),
            ({"ssh_keys": ["ssh-ed25519 AAAA'; rm -rf /"]}, "string should match pattern"),
            ({"models": "/mod'els"}, "a path that begins with /"),
            ({"capacitty": {}}, "did you mean capacity"),
        ],
    )
    def test_a_wrong_value_is_refused_with_what_is_allowed(self, change: dict[str, Any], said: str) -> None:
        with pytest.raises(DocumentError, match=said):
            config(**change)

    def test_a_zone_id_is_taken_as_it_is(self) -> None:
        assert aws_hosts(zone="use2-az2").zone == "use2-az2"

    def test_hosts_on_aws_need_a_region(self) -> None:
        with pytest.raises(DocumentError, match="aws:region: is missing"):
            stacks.parse_config({"slipway:recipe": "a.b/c", "slipway:aws": AWS}, "test")

    def test_a_stack_has_one_kind_of_host(self) -> None:
        with pytest.raises(DocumentError, match="one kind of host"):
            stacks.parse_config(
                {"slipway:recipe": "a.b/c", "slipway:hosts": "local", "aws:region": "us-east-2", "slipway:aws": AWS},
                "t",
            )

    def test_every_example_value_is_named_with_what_belongs_there(self) -> None:
        read = config(ami="replace-me", capacity={"kind": "block", "id": "replace-me"})
        with pytest.raises(UsageError) as caught:
            settings.refuse_placeholders(read, [], "m1")
        assert "slipway:aws.ami, slipway:aws.capacity.id" in str(caught.value)
        assert "aws ssm get-parameter" in str(caught.value)
        settings.refuse_placeholders(config(), [], "m1")

    @pytest.mark.parametrize(
        ("address", "example"),
        [("192.0.2.1", True), ("198.51.100.7", True), ("203.0.113.9", True), ("10.0.0.1", False), ("host-1", False)],
    )
    def test_addresses_of_the_documentation_are_no_hosts(self, address: str, example: bool) -> None:
        assert settings.is_example_address(address) is example


class TestInterfaces:
    @pytest.mark.parametrize(
        ("name", "interfaces", "efa"),
        [
            ("p5.48xlarge", 33, 32),
            ("p5e.48xlarge", 33, 32),
            ("p5en.48xlarge", 17, 16),
            ("p6-b200.48xlarge", 9, 8),
            ("p6-b300.48xlarge", 17, 16),
        ],
    )
    def test_each_type_has_the_interfaces_that_aws_documents(self, name: str, interfaces: int, efa: int) -> None:
        layout = instance_types.nics(instance_types.find(DATA, name))
        assert len(layout) == interfaces
        assert sum(nic.kind == "efa-only" for nic in layout) == efa

    def test_the_first_card_of_p6_b300_has_no_efa(self) -> None:
        layout = instance_types.nics(instance_types.find(DATA, "p6-b300.48xlarge"))
        assert [nic.kind for nic in layout if nic.card == 0] == ["interface"]

    @pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
    def test_efa_is_at_device_one_on_the_first_card_and_at_device_zero_on_the_others(self, kind: InstanceType) -> None:
        efa = [(nic.card, nic.device) for nic in instance_types.nics(kind) if nic.kind == "efa-only"]
        assert efa == [(card.index, 0 if card.index else 1) for card in kind.cards if card.efa_gbps]

    @pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
    def test_no_layout_breaks_the_limits_of_its_type(self, kind: InstanceType) -> None:
        check_layout(kind)

    @given(
        st.lists(
            st.tuples(
                st.sampled_from([("interface",), ("interface", "efa", "efa-only"), ("efa-only",)]), st.integers(1, 4)
            ),
            min_size=1,
            max_size=40,
        )
    )
    def test_whatever_cards_a_type_has_the_layout_obeys_the_rules(self, cards: list[tuple[Any, int]]) -> None:
        made = tuple(
            Card(index=index, interface_types=types, max_interfaces=most, efa_gbps=0)
            for index, (types, most) in enumerate(cards)
        )
        efa = sum("efa-only" in card.interface_types for card in made)
        check_layout(TYPES[0].model_copy(update={"cards": made, "efa_max": efa}))

    def test_the_data_is_what_describe_instance_types_says(self) -> None:
        found = importlib.util.find_spec("moto")
        if found is None or found.origin is None:
            pytest.skip("moto carries the answers of DescribeInstanceTypes and is not installed")
        table = json.loads(
            gzip.decompress((Path(found.origin).parent / "ec2" / "resources" / "instance_types.json.gz").read_bytes())
        )
        for kind in TYPES:
            said = table[kind.name]
            cards = said["NetworkInfo"]["NetworkCards"]
            assert [(card.index, list(card.interface_types), card.max_interfaces) for card in kind.cards] == [
                (card["NetworkCardIndex"], card["InterfaceTypes"], card["MaximumNetworkInterfaces"]) for card in cards
            ]
            gpu = said["GpuInfo"]["Gpus"][0]
            assert (kind.gpus, kind.gpu_memory_mib) == (gpu["Count"], gpu["MemoryInfo"]["SizeInMiB"])
            assert kind.gpu_model == gpu["Name"].lower()
            assert kind.efa_max == said["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"]

    def test_an_unknown_type_names_the_nearest(self) -> None:
        with pytest.raises(UsageError, match=r"did you mean p5en\.48xlarge"):
            instance_types.find(DATA, "p5n.48xlarge")

    @pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
    def test_expected_devices_are_one_per_efa_card(self, kind: InstanceType) -> None:
        devices = hosts.expected_devices(kind)
        assert len(devices) == kind.efa_max == len({device.name for device in devices})
        assert not any(device.name.startswith("mlx5") for device in devices)


def check_layout(kind: InstanceType) -> None:
    layout = instance_types.nics(kind)
    cards = {card.index: card for card in kind.cards}
    assert (layout[0].card, layout[0].device, layout[0].kind) == (0, 0, "interface"), "the primary needs an IP address"
    assert len({(nic.card, nic.device) for nic in layout}) == len(layout)
    assert sum(nic.kind != "interface" for nic in layout) <= kind.efa_max
    for nic in layout[1:]:
        assert nic.kind in cards[nic.card].interface_types
        assert nic.device < cards[nic.card].max_interfaces


class TestAccess:
    @given(st.booleans(), st.lists(st.sampled_from(["10.1.0.0/16", "172.16.0.0/12"]), unique=True))
    def test_efa_is_allowed_both_ways_and_nobody_is_let_in_unasked(self, router: bool, clients: list[str]) -> None:
        rules = access.rules(
            aws_hosts(clients=clients, router={"instance_type": "c7i.2xlarge"} if router else None), PORTS
        )
        selves = {rule.direction for rule in rules if rule.group == rule.peer == "nodes" and rule.protocol == "-1"}
        assert selves == {"in", "out"}
        networks = [rule.peer for rule in rules if "/" in rule.peer]
        assert networks == clients
        assert len({rule.name for rule in rules}) == len(rules)
        assert all(rule.peer not in policies.OPEN for rule in rules)

    def test_clients_reach_the_router_where_it_has_a_host_of_its_own(self) -> None:
        rules = access.rules(aws_hosts(clients=["10.1.0.0/16"], router={"instance_type": "c7i.2xlarge"}), PORTS)
        assert [rule.group for rule in rules if rule.peer == "10.1.0.0/16"] == ["router"]
        assert {rule.port for rule in rules if rule.group == "nodes" and rule.peer == "router"} == {8998, 30000, 30001}

    def test_the_front_door_is_the_port_that_the_recipe_publishes(self) -> None:
        assert (PORTS.front, PORTS.servers) == (8000, (8998, 30000, 30001))
        champion = access.ports(recipe.find(ROOT / "recipes", "laguna-s-2.1.vllm/4x3090-int4-champion"))
        assert champion.front == 8080

    def test_without_repositories_the_role_may_pull_nothing(self) -> None:
        assert "BatchGetImage" not in permissions.node_policy("arn:x", [])


class TestCost:
    def test_known_prices_are_summed_and_unknown_ones_named(self) -> None:
        aws = aws_hosts(instance_type="p6-b200.48xlarge")
        kind = instance_types.find(DATA, "p6-b200.48xlarge")
        bill = cost.of(aws, resources.planned(aws, kind, PORTS), cost.read(DATA))
        assert bill.known_hourly == pytest.approx(2 * 113.9328 + 5 * 0.01)
        assert bill.unknown == ("volume-gib",)
        assert next(line.note for line in bill.lines if line.item == "p6-b200.48xlarge").startswith(
            "read 2025-12-21; on demand"
        )

    def test_every_type_stands_in_the_price_file_even_when_its_price_is_not_known(self) -> None:
        assert {kind.name for kind in TYPES} <= {price.item for price in cost.read(DATA).hourly}


class TestOutputs:
    def test_devices_that_a_person_wrote_in_are_kept_for_hosts_that_are_still_the_same(self) -> None:
        kind = instance_types.find(DATA, "p5en.48xlarge")
        known = [
            {"name": name, "address": f"10.0.0.{n}", "id": f"i-{n}"} for n, name in enumerate(("gpu-1", "gpu-2"), 1)
        ]
        new = hosts.from_outputs("m1", {"inventory": hosts.resolved("m1", aws_hosts(), kind, known)})
        device = RdmaDevice(name="rdmap85s0", rate_gbps=200, gpu=0)
        by_hand = [node.model_copy(update={"rdma_devices": [device]}) for node in new.nodes]
        replaced = by_hand[1].model_copy(update={"ssh": "ubuntu@i-old"})
        kept = hosts.with_known_devices(new, new.model_copy(update={"nodes": [by_hand[0], replaced]}))
        assert [node.rdma_devices for node in kept.nodes] == [[device], []]
        assert hosts.with_known_devices(new, None) == new

    def test_outputs_without_an_inventory_say_what_to_run(self) -> None:
        with pytest.raises(UsageError, match=r"outputs: none.*run `pulumi up --stack m1`"):
            hosts.from_outputs("m1", {})

    def test_an_inventory_that_is_none_is_a_document_error(self) -> None:
        with pytest.raises(DocumentError, match=r"nodes: is missing"):
            hosts.from_outputs("m1", {"inventory": {"schema": "slipway/inventory/v1", "name": "m1"}})


TAGS = policies.Tags("m1")("x")
LT, SG, BUCKET = (
    "aws:ec2/launchTemplate:LaunchTemplate",
    "aws:ec2/securityGroup:SecurityGroup",
    "aws:s3/bucket:Bucket",
)
DISK = {"blockDeviceMappings": [{"ebs": {"encrypted": "true"}}]}
TOKENS = {"metadataOptions": {"httpTokens": "required"}}
RULE = "aws:vpc/securityGroup{0}Rule:SecurityGroup{0}Rule"
BLOCKED = dict.fromkeys(("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets"), True)


def broken(kind: str, inputs: Mapping[str, Any], *, tags: Mapping[str, str] | None = TAGS) -> list[str]:
    tagged = {**inputs, "tags": tags} if tags and kind not in policies.UNTAGGED else inputs
    return [found.policy for found in policies.violations(Record(kind, "x", tagged))]


VIOLATIONS = [
    (RULE.format("Ingress"), {"cidrIpv4": "0.0.0.0/0"}, "closed-to-the-internet"),
    (RULE.format("Egress"), {"cidrIpv6": "::/0"}, "closed-to-the-internet"),
    (SG, {"ingress": [{"cidrBlocks": ["10.0.0.0/8", "0.0.0.0/0"]}]}, "closed-to-the-internet"),
    (SG, {"egress": [{"ipv6CidrBlocks": ["::/0"]}]}, "closed-to-the-internet"),
    ("aws:ec2/routeTable:RouteTable", {"routes": [{"cidrBlock": "0.0.0.0/0"}]}, "closed-to-the-internet"),
    ("aws:ec2/route:Route", {"destinationCidrBlock": "0.0.0.0/0"}, "closed-to-the-internet"),
    ("aws:ec2/subnet:Subnet", {"mapPublicIpOnLaunch": True}, "no-public-address"),
    (LT, {**DISK, **TOKENS, "networkInterfaces": [{"associatePublicIpAddress": "true"}]}, "no-public-address"),
    ("aws:ec2/instance:Instance", {"launchTemplate": {}, "associatePublicIpAddress": True}, "no-public-address"),
    ("aws:ec2/internetGateway:InternetGateway", {}, "no-public-address"),
    (LT, {**TOKENS, "blockDeviceMappings": [{"ebs": {"volumeSize": 10}}]}, "volumes-encrypted"),
    (LT, TOKENS, "volumes-encrypted"),
    ("aws:ec2/instance:Instance", TOKENS, "volumes-encrypted"),
    ("aws:ebs/volume:Volume", {"encrypted": False}, "volumes-encrypted"),
    (LT, {**DISK, "metadataOptions": {"httpTokens": "optional"}}, "imdsv2-only"),
    ("aws:ec2/instance:Instance", {"rootBlockDevice": {"encrypted": True}}, "imdsv2-only"),
    ("aws:ecr/repository:Repository", {"imageTagMutability": "MUTABLE"}, "image-tags-immutable"),
    (LT, {**DISK, **TOKENS, "imageId": "resolve:ssm:/aws/service/x"}, "machine-image-pinned"),
    (BUCKET, {"acl": "public-read"}, "bucket-private"),
    (
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        {**BLOCKED, "ignorePublicAcls": False},
        "bucket-private",
    ),
]


class TestPolicies:
    @pytest.mark.parametrize(("kind", "inputs", "policy"), VIOLATIONS)
    def test_a_resource_that_breaks_a_policy_is_caught_by_it_alone(
        self, kind: str, inputs: dict[str, Any], policy: str
    ) -> None:
        assert set(broken(kind, inputs)) == {policy}

    def test_a_resource_without_its_tags_is_caught(self) -> None:
        for tags in (None, {}, {policies.STACK_TAG: "m1"}, policies.Tags("m1")("another")):
            assert broken("aws:ec2/vpc:Vpc", {"tags": tags} if tags is not None else {}, tags=None) == ["tagged"]
        assert broken("aws:ec2/vpc:Vpc", {}) == []

    def test_every_policy_has_an_example_that_breaks_it(self) -> None:
        assert {policy for *_, policy in VIOLATIONS} | {"tagged"} == set(policies.POLICIES)

    @pytest.mark.parametrize("missing", ["Ingress", "Egress"])
    def test_efa_without_a_self_rule_is_caught_in_each_direction(self, missing: str) -> None:
        itself = {"securityGroupId": "sg-1", "referencedSecurityGroupId": "sg-1", "ipProtocol": "-1"}
        template = Record(LT, "gpu", {"networkInterfaces": [{"interfaceType": "efa-only", "securityGroups": ["sg-1"]}]})
        rules = [Record(RULE.format(kind), kind, itself) for kind in ("Ingress", "Egress")]
        assert policies.stack_violations([template, *rules]) == ()
        found = policies.stack_violations([template, *(rule for rule in rules if rule.name != missing)])
        assert [violation.policy for violation in found] == ["efa-self-rules"]
        other = [Record(rule.type, rule.name, {**rule.inputs, "referencedSecurityGroupId": "sg-2"}) for rule in rules]
        assert len(policies.stack_violations([template, *other])) == 2
        narrow = [Record(rule.type, rule.name, {**rule.inputs, "ipProtocol": "tcp"}) for rule in rules]
        assert len(policies.stack_violations([template, *narrow])) == 2

    def test_a_bucket_without_one_of_its_parts_is_caught(self) -> None:
        parts = [
            Record(f"aws:s3/{name[0].lower()}{name[1:]}:{name}", "models", {})
            for name in ("BucketVersioning", "BucketServerSideEncryptionConfiguration", "BucketPublicAccessBlock")
        ]
        bucket = Record(BUCKET, "models", {})
        assert policies.stack_violations([bucket, *parts]) == ()
        for part in parts:
            found = policies.stack_violations([bucket, *(other for other in parts if other is not part)])
            assert [violation.policy for violation in found] == ["bucket-complete"]
            assert part.type.rpartition(":")[2] in str(found[0])


def test_shipped_cloud_stacks_have_no_account_in_them() -> None:
    for name in stacks.names(Checkout(ROOT)):
        text = (ROOT / "stacks" / f"Pulumi.{name}.yaml").read_text()
        assert not any(len(word) == 12 and word.isdigit() for word in text.replace(":", " ").split())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("repositories", ["engine", "other", "engine"], "engine stands more than once"),
        ("clients", ["10.0.0.0/8", "10.0.0.0/8"], "10.0.0.0/8 stands more than once"),
        ("network", "127.0.0.0/16", "a private IPv4 network"),
        ("network", "169.254.0.0/16", "a private IPv4 network"),
        ("network", "0.0.0.0/16", "a private IPv4 network"),
        ("network", "10.0.0.0/016", "is written 10.0.0.0/16"),
        ("clients", ["10.0.0.0/016"], "is written 10.0.0.0/16"),
        ("models", "/a;b", "a path that begins with /"),
        ("models", "./models", "has no checkout"),
    ],
)
def test_what_aws_or_a_host_would_refuse_is_refused_in_the_settings(key: str, value: object, said: str) -> None:
    with pytest.raises(DocumentError, match=said) as caught:
        config(**{key: value})
    assert caught.value.exit_code == 2


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12).map("/{}".format))
def test_models_that_the_settings_take_an_inventory_takes_too(path: str) -> None:
    kind = instance_types.find(DATA, AWS["instance_type"])
    try:
        made = aws_hosts(models=path)
    except DocumentError:
        return
    assert hosts.expected("x", made, kind).nodes[0].paths.models == path


def test_values_without_a_file_name_no_line() -> None:
    with pytest.raises(DocumentError, match=r"^test: aws\.count: "):
        config(count=0)
