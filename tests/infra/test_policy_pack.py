"""The policy pack as the engine sees it: a process that prints its port and answers the analyzer protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc

from slipway.cloud import policies

ROOT = Path(__file__).resolve().parent.parent.parent
NOT_KNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "value": "latest"}
TAGS = {**policies.Tags("s")("gpu")}


@pytest.fixture(scope="module")
def pack() -> Iterator[analyzer_pb2_grpc.AnalyzerStub]:
    """The running pack."""
    words = [sys.executable, str(ROOT / "infra" / "policy" / "__main__.py"), "127.0.0.1:1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        with grpc.insecure_channel(f"127.0.0.1:{process.stdout.readline().strip()}") as channel:
            yield analyzer_pb2_grpc.AnalyzerStub(channel)
        process.terminate()
        assert process.wait(10) == 0


def struct(values: dict[str, Any]) -> Struct:
    return ParseDict(values, Struct())


def analyzed(pack: Any, kind: str, name: str, **inputs: Any) -> list[tuple[str, str]]:
    request = analyzer_pb2.AnalyzeRequest(type=kind, name=name, urn=f"urn:{name}", properties=struct(inputs))
    answer = pack.Analyze(request)
    assert all(one.urn == f"urn:{name}" for one in answer.diagnostics)
    assert all(one.enforcementLevel == analyzer_pb2.MANDATORY for one in answer.diagnostics)
    return [(one.policyName, one.message) for one in answer.diagnostics]


def test_it_names_every_policy(pack: Any) -> None:
    info = pack.GetAnalyzerInfo(Empty())
    assert info.name == "slipway"
    assert [policy.name for policy in info.policies] == [*policies.POLICIES, *policies.STACK_POLICIES]


def test_what_breaks_a_policy_is_refused_and_what_keeps_them_passes(pack: Any) -> None:
    group = "aws:ec2/securityGroup:SecurityGroup"
    rule = {"cidrBlocks": ["0.0.0.0/0"], "fromPort": 22, "toPort": 22, "protocol": "tcp"}
    ((policy, message),) = analyzed(pack, group, "gpu", ingress=[rule], tags=TAGS)
    assert policy == "closed-to-the-internet"
    assert message.startswith("gpu: 0.0.0.0/0 is the whole internet")
    assert analyzed(pack, group, "gpu", ingress=[], tags=TAGS) == []


def test_secrets_are_looked_into_and_what_is_not_known_yet_is_no_violation(pack: Any) -> None:
    template = "aws:ec2/launchTemplate:LaunchTemplate"
    good = {
        "metadataOptions": {"httpTokens": "required"},
        "blockDeviceMappings": [{"ebs": {"encrypted": "true"}}],
        "userData": NOT_KNOWN,
        "tags": TAGS,
    }
    assert analyzed(pack, template, "gpu", **good) == []
    assert [policy for policy, _ in analyzed(pack, template, "gpu", imageId=SECRET, **good)] == ["machine-image-pinned"]


def test_a_whole_stack_is_judged_when_its_ids_are_known(pack: Any) -> None:
    def resource(kind: str, name: str, **values: Any) -> analyzer_pb2.AnalyzerResource:
        return analyzer_pb2.AnalyzerResource(type=kind, name=name, urn=f"urn:{name}", properties=struct(values))

    def said(group: str) -> list[tuple[str, str]]:
        nic = {"interfaceType": "efa-only", "securityGroups": [group]}
        stack = [resource("aws:ec2/launchTemplate:LaunchTemplate", "gpu", networkInterfaces=[nic])]
        for kind in ("Ingress", "Egress"):
            rule = {"securityGroupId": "sg-1", "referencedSecurityGroupId": "sg-1", "ipProtocol": "-1"}
            stack.append(resource(f"aws:vpc/securityGroup{kind}Rule:SecurityGroup{kind}Rule", f"self-{kind}", **rule))
        answer = pack.AnalyzeStack(analyzer_pb2.AnalyzeStackRequest(resources=stack))
        return [(one.policyName, one.urn) for one in answer.diagnostics]

    assert said("sg-1") == []
    assert said("sg-2") == [("efa-self-rules", "urn:gpu")] * 2
    assert said(NOT_KNOWN) == []
