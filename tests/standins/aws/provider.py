"""Pulumi's provider protocol for AWS, for tests: what the real provider answers, from the table beside this file, with boto3.

Nothing is kept here: every answer comes from the account that AWS_ENDPOINT_URL names.
"""

import importlib.metadata
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import protocol  # noqa: F401 (goes before Pulumi's messages)
import yaml
from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from aws import invokes
from aws.lifecycle import Kind, Refused, client, plain, same, within
from aws.moments import Moments

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""How the protocol writes a value that is known only after another resource exists."""

VERSION = importlib.metadata.version("pulumi_aws")
TABLE = yaml.load((Path(__file__).parent / "resources.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def values(struct):
    """A protobuf struct as plain values, whole numbers as integers."""
    return whole(MessageToDict(struct))


def whole(value):
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def struct(value):
    return ParseDict({key: inner for key, inner in value.items() if inner is not None}, Struct())


def has_unknown(value):
    if isinstance(value, dict):
        return any(has_unknown(inner) for inner in value.values())
    if isinstance(value, list):
        return any(has_unknown(inner) for inner in value)
    return value == UNKNOWN


class Provider(provider_pb2_grpc.ResourceProviderServicer):
    def __init__(self):
        self.region = os.environ.get("AWS_REGION", "us-east-2")
        self.moments = Moments()

    def GetPluginInfo(self, request, context):
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetSchema(self, request, context):
        return provider_pb2.GetSchemaResponse(schema="{}")

    def CheckConfig(self, request, context):
        return provider_pb2.CheckResponse(inputs=request.news)

    def DiffConfig(self, request, context):
        return provider_pb2.DiffResponse(changes=provider_pb2.DiffResponse.DIFF_NONE)

    def Configure(self, request, context):
        self.region = request.variables.get("aws:config:region", self.region)
        if request.variables.get("aws:config:skipCredentialsValidation") != "true":
            try:
                client("sts", self.region).get_caller_identity()
            except Exception as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unable to validate AWS credentials. Details: {error}")
        return provider_pb2.ConfigureResponse(supportsPreview=True)

    def Cancel(self, request, context):
        return Empty()

    def Check(self, request, context):
        kind = self._kind(request, context)
        news, olds = values(request.news), values(request.olds)
        name = kind.entry.get("name")
        if name and not news.get(name):
            logical = request.urn.rpartition("::")[2]
            seed = request.randomSeed or os.urandom(8)
            news[name] = olds.get(name) or f"{logical}-{seed[:4].hex()[:7]}"
        return provider_pb2.CheckResponse(inputs=struct(news))

    def Diff(self, request, context):
        kind = self._kind(request, context)
        olds, was, news = values(request.olds), values(request.old_inputs), values(request.news)
        ignored = set(request.ignoreChanges)
        changed = [
            name
            for name in sorted({*news, *was})
            if name not in ignored
            and not (
                same(news.get(name), was.get(name)) and (name not in news or self._as_seen(news[name], olds.get(name)))
            )
        ]
        replaces = [name for name in changed if name in kind.entry.get("replace", [])]
        changes = provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE
        return provider_pb2.DiffResponse(changes=changes, diffs=changed, replaces=replaces)

    def Create(self, request, context):
        kind, inputs = self._kind(request, context), values(request.properties)
        if request.preview:
            unknown = {name: UNKNOWN for name in [*kind.entry["outputs"], "arn"] if name not in inputs}
            return provider_pb2.CreateResponse(properties=struct({**unknown, **inputs}))
        with self._counted("create", request.urn, context):
            identity, state = kind.create(inputs)
            self.moments.end()
        return provider_pb2.CreateResponse(id=identity, properties=struct(state))

    def Read(self, request, context):
        kind, inputs = self._kind(request, context), values(request.inputs)
        known = {**values(request.properties), **inputs}
        with self._answering(context):
            state = kind.read(request.id, known)
        if state is None:
            return provider_pb2.ReadResponse()
        if inputs:
            # What the program wrote, with AWS's word where AWS tells; an unread value stays as it was written.
            told = [*kind.entry["outputs"], *kind.entry.get("also", {})]
            seen = {
                name: state[name]
                for name in told
                if name in inputs and not within(plain(inputs[name]), plain(state[name]))
            }
            inputs = {**inputs, **seen}
            state = {**state, **{name: inputs[name] for name in inputs}}
        else:
            inputs = kind.imported_inputs(state)
        return provider_pb2.ReadResponse(id=request.id, properties=struct(state), inputs=struct(inputs))

    def Update(self, request, context):
        kind, news, olds = self._kind(request, context), values(request.news), values(request.olds)
        if request.preview:
            moved = dict.fromkeys(kind.moves(values(request.old_inputs), news), UNKNOWN)
            return provider_pb2.UpdateResponse(properties=struct({**olds, **news, **moved}))
        with self._counted("update", request.urn, context):
            was = {**values(request.old_inputs), **{name: olds[name] for name in news if name in olds}}
            state = kind.update(request.id, olds, was, news)
            self.moments.end()
        return provider_pb2.UpdateResponse(properties=struct({**olds, **(state or {})}))

    def Delete(self, request, context):
        kind = self._kind(request, context)
        with self._counted("delete", request.urn, context):
            kind.delete(request.id, {**values(request.old_inputs), **values(request.properties)})
            self.moments.end()
        return Empty()

    def Invoke(self, request, context):
        with self._answering(context):
            answer = invokes.answer(request.tok, values(request.args), self.region)
        return provider_pb2.InvokeResponse(**{"return": struct(answer)})

    def _kind(self, request, context):
        token = request.type or request.urn.split("::")[2].rpartition("$")[2]
        if token not in TABLE:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED, f"the stand-in provider knows no {token}; add it to resources.yaml"
            )
        return Kind(token, TABLE, self.region, self.moments)

    @staticmethod
    def _as_seen(wanted, seen):
        return seen is None or has_unknown(wanted) or within(plain(wanted), plain(seen))

    def _counted(self, what, urn, context):
        self.moments.begin(f"{what} {urn}")
        return self._answering(context)

    @staticmethod
    def _answering(context):
        return Answering(context)


class Answering:
    """Turns what AWS refuses into the engine's error, in the real provider's words."""

    def __init__(self, context):
        self.context = context

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        if isinstance(error, Refused):
            self.context.abort(grpc.StatusCode.UNKNOWN, error.args[1])


def main():
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(max_workers=32), options=unlimited)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Provider(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    engine = os.getppid()
    # An engine that was killed tells nobody; what it had asked for is ended, then there is nothing left to serve.
    while not done.wait(1) and os.getppid() == engine:
        pass
    server.stop(5).wait()
