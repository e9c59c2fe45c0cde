"""The policies of slipway.cloud as a policy pack: `pulumi preview --policy-pack infra/policy`.

Slipway's own program holds itself against them without this (guard.py); the pack is for other programs, and for organisations that
enforce packs. It answers Pulumi's analyzer protocol with the messages that the SDK brings along: the package pulumi-policy would
bind the lock to protobuf 5. Pulumi gives the engine's address as the last argument and reads the port from the first line.
"""

# ruff: noqa: N802 (the protocol names its calls like this)

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc, plugin_pb2

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from slipway import __version__
from slipway.cloud import policies
from slipway.cloud.policies import Record, Violation

NAME = "slipway"

NOT_KNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""How the protocol writes a value that is known only when another resource exists.

Source: sdk/go/common/resource/plugin/rpc.go (UnknownStringValue) of Pulumi 3.274, as SECRET_MARK is.
"""

SECRET_MARK = "4dabf18193072939515e22adb298388d"  # noqa: S105 (a mark, not a secret)
"""The key that tells a secret, which stands under `value`, from a plain mapping."""


class Pack(analyzer_pb2_grpc.AnalyzerServicer):
    """Holds what the engine is asked for against the policies."""

    def GetAnalyzerInfo(self, request: Empty, context: grpc.ServicerContext) -> analyzer_pb2.AnalyzerInfo:
        kinds = (
            (policies.POLICIES, analyzer_pb2.POLICY_TYPE_RESOURCE),
            (policies.STACK_POLICIES, analyzer_pb2.POLICY_TYPE_STACK),
        )
        told = [
            analyzer_pb2.PolicyInfo(
                name=name, description=name, enforcementLevel=analyzer_pb2.MANDATORY, policy_type=kind
            )
            for named, kind in kinds
            for name in named
        ]
        return analyzer_pb2.AnalyzerInfo(
            name=NAME, displayName="Slipway", version=__version__, policies=told, supportsConfig=False
        )

    def GetPluginInfo(self, request: Empty, context: grpc.ServicerContext) -> plugin_pb2.PluginInfo:
        return plugin_pb2.PluginInfo(version=__version__)

    def Handshake(
        self, request: analyzer_pb2.AnalyzerHandshakeRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzerHandshakeResponse:
        return analyzer_pb2.AnalyzerHandshakeResponse()

    def ConfigureStack(
        self, request: analyzer_pb2.AnalyzerStackConfigureRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzerStackConfigureResponse:
        return analyzer_pb2.AnalyzerStackConfigureResponse()

    def Configure(self, request: analyzer_pb2.ConfigureAnalyzerRequest, context: grpc.ServicerContext) -> Empty:
        return Empty()

    def Remediate(
        self, request: analyzer_pb2.AnalyzeRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.RemediateResponse:
        return analyzer_pb2.RemediateResponse()

    def Cancel(self, request: Empty, context: grpc.ServicerContext) -> Empty:
        return Empty()

    def Analyze(
        self, request: analyzer_pb2.AnalyzeRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzeResponse:
        record = Record(request.type, request.name, plain(MessageToDict(request.properties)))
        return _response(policies.violations(record), {record.name: request.urn})

    def AnalyzeStack(
        self, request: analyzer_pb2.AnalyzeStackRequest, context: grpc.ServicerContext
    ) -> analyzer_pb2.AnalyzeResponse:
        records = [Record(one.type, one.name, plain(MessageToDict(one.properties))) for one in request.resources]
        if any(NOT_KNOWN in str(one.properties) for one in request.resources):
            return analyzer_pb2.AnalyzeResponse()  # a preview; rules name groups by ids, which only `up` knows
        return _response(policies.stack_violations(records), {one.name: one.urn for one in request.resources})


def plain(value: Any) -> Any:
    """`value` without the protocol's marks: secrets open, and what is not known yet as one word."""
    if isinstance(value, Mapping):
        if SECRET_MARK in value:
            return plain(value.get("value"))
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return "(known when it exists)" if value == NOT_KNOWN else value


def _response(found: Iterable[Violation], urns: Mapping[str, str]) -> analyzer_pb2.AnalyzeResponse:
    told = [
        analyzer_pb2.AnalyzeDiagnostic(
            policyName=violation.policy,
            policyPackName=NAME,
            policyPackVersion=__version__,
            message=f"{violation.name}: {violation.message}",
            enforcementLevel=analyzer_pb2.MANDATORY,
            urn=urns.get(violation.name, ""),
        )
        for violation in found
    ]
    return analyzer_pb2.AnalyzeResponse(diagnostics=told)


def main() -> None:
    """Serve until the engine ends us."""
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(max_workers=8), options=unlimited)
    analyzer_pb2_grpc.add_AnalyzerServicer_to_server(Pack(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    done.wait()
    server.stop(0)


if __name__ == "__main__":
    main()
