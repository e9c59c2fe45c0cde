"""A resource's life as the table says it: create, read, update, delete against boto3."""

import json
import threading

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from aws import expressions

_lock = threading.Lock()
_clients = {}


class Refused(Exception):
    """What AWS said no to, in the words of the real provider."""


def client(service, region):
    with _lock:  # boto3 clients may be shared between threads, but not made by two at a time
        if (service, region) not in _clients:
            settings = Config(retries={"total_max_attempts": 2}, max_pool_connections=40)
            _clients[service, region] = boto3.client(service, region_name=region, config=settings)
        return _clients[service, region]


class Kind:
    """One resource type of the table."""

    def __init__(self, token, table, region, moments):
        entry = dict(table[token])
        while "like" in entry:
            entry = {**table[entry.pop("like")], **entry}
        self.token = token
        self.entry = entry
        self.region = region
        self.moments = moments

    def create(self, inputs):
        """The id and the state of a new resource."""
        method, parameters, *_ = self.entry["create"]
        answer = self._call(method, parameters, inputs)
        self.moments.middle()
        where = self.entry["id"]
        identity = (
            expressions.value(where.removeprefix("in."), inputs)
            if where.startswith("in.")
            else expressions.value(where, answer)
        )
        data = {**inputs, "id": identity}
        for call in self.entry.get("begin", []):
            self._call(*call, data)
        self._settle(data, [name for name in self.entry.get("settings", {}) if inputs.get(name)])
        return identity, self.read(identity, inputs)

    def read(self, identity, inputs):
        """The state of the resource, or None when it is gone."""
        data = {**inputs, **self._from_id(identity), "id": identity}
        method, parameters, where = self.entry["read"]
        answer = self._look(method, parameters, data, self.entry["gone"])
        found = None if answer is None else expressions.value(expressions_with(where, data), answer)
        if not found:
            return None
        state = {**inputs, "id": identity}
        for name, expression in self.entry["outputs"].items():
            seen = expressions.value(expressions_with(expression, data), found)
            if name in self.entry.get("written_only", []) and name not in inputs:
                continue
            if name == "policy" and isinstance(seen, dict):
                seen = json.dumps(seen)
            state[name] = seen
        for name, (method, parameters, expression, *absent) in self.entry.get("also", {}).items():
            answer = self._look(method, parameters, {**data, **state}, absent)
            state[name] = {} if answer is None else expressions.value(expression, answer) if answer else None
        if "tags" in state:
            state["tagsAll"] = state["tags"]
        return state

    def update(self, identity, state, was, inputs):
        """The state after what differs between the inputs `was` (as AWS has them) and `inputs` was changed."""
        data = {**state, **inputs, "id": identity, "was": was, "given": inputs}
        calls = self.entry.get("update", []) if self.moves(was, inputs) or "moves" not in self.entry else []
        for method, parameters, *learnt in calls:
            answer = self._call(method, parameters, data)
            if learnt:
                data.update(expressions.value(learnt[0], answer))
        changed = [name for name in self.entry.get("settings", {}) if not same(inputs.get(name), was.get(name))]
        self._settle(data, changed)
        if not same(inputs.get("tags"), was.get("tags")):
            self._tag(identity, data, was.get("tags") or {}, inputs.get("tags") or {})
        return self.read(identity, inputs)

    def moves(self, was, inputs):
        """The outputs that are new after the change: those of the table's `moves`, unless nothing but tags changes."""
        beyond = {*was, *inputs} - {"tags", "tagsAll"}
        return self.entry.get("moves", []) if any(not same(inputs.get(name), was.get(name)) for name in beyond) else []

    def delete(self, identity, state):
        """Make the resource go; one that is gone already is no error."""
        data = {**state, "id": identity, "was": {}}
        for call in self.entry.get("finish", []):
            self._look(*call, data, self.entry["gone"])
            self.moments.middle()
        self._look(*self.entry["delete"], data, self.entry["gone"])

    def imported_inputs(self, state):
        """The inputs that a program would have to give for `state`."""
        computed = {"id", "arn", "tagsAll", "ownerId", "uniqueId", "latestVersion"}
        return {name: value for name, value in state.items() if name not in computed and value not in (None, {}, [])}

    def _settle(self, data, names):
        for name in names:
            for call in self.entry["settings"][name]:
                self._call(*call, data)

    def _tag(self, identity, data, old, new):
        gone = sorted(set(old) - set(new))
        if self.entry.get("tagging") == "by_settings":
            return
        if self.entry["service"] == "ec2":
            target = data.get(self.entry.get("tag_id", "id"))
            ec2 = client("ec2", self.region)
            if new:
                ec2.create_tags(Resources=[target], Tags=expressions.key_values(new))
            if gone:
                ec2.delete_tags(Resources=[target], Tags=[{"Key": key} for key in gone])
            return
        put, put_parameters, remove, remove_parameters = self.entry["tagging"]
        if new:
            self._call(put, put_parameters, data)
        if gone:
            self._call(remove, remove_parameters, {**data, "keys": gone})

    def _from_id(self, identity):
        names = self.entry.get("from_id", [])
        return dict(zip(names, identity.split(":", len(names) - 1), strict=False))

    def _look(self, method, parameters, data, absent):
        try:
            return self._call(method, parameters, data)
        except Refused as error:
            if error.args[0] in absent:
                return None
            raise

    def _call(self, method, parameters, data):
        given = expressions.value(parameters, data)
        method, _, each = method.rpartition(":")[::-1]
        if given is None:
            return {}
        answer = {}
        for one in given if each else [given]:
            answer = self._ask(method, expressions.without_nothing(one))
        return answer

    def _ask(self, method, parameters):
        try:
            self.moments.may_fail(method)
            return getattr(client(self.entry["service"], self.region), method)(**parameters)
        except ClientError as error:
            said = error.response["Error"]
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            service = self.entry["service"].upper()
            text = f"operation error {service}: {error.operation_name}, https response error StatusCode: {status}, "
            raise Refused(
                said["Code"], f"{text}RequestID: stand-in, api error {said['Code']}: {said['Message']}"
            ) from None


def expressions_with(text, data):
    """`text` with `$name` replaced from `data`, for expressions that look at something else."""
    for name in ("id", "destinationCidrBlock", "policyArn"):
        if isinstance(data.get(name), str):
            text = text.replace(f"${name}", data[name])
    return text


def plain(value):
    """`value` without what says nothing: nulls, empty lists, false; numbers as floats; lists in one order."""
    if isinstance(value, dict):
        return {key: shown for key, inner in value.items() if (shown := plain(inner)) not in (None, {}, [])}
    if isinstance(value, list):
        return sorted((plain(inner) for inner in value), key=lambda inner: json.dumps(inner, sort_keys=True))
    if isinstance(value, bool):
        return value or None
    if isinstance(value, int | float):
        return float(value) or None
    if isinstance(value, str):
        if value.startswith(("{", "[")):
            try:
                return plain(json.loads(value))  # policies are JSON texts; spaces and order mean nothing
            except ValueError:
                return value
        return {"true": True, "false": None}.get(value, value) or None
    return value


def same(left, right):
    return plain(left) == plain(right)


def within(wanted, seen):
    """Whether `seen` has everything of `wanted`; AWS adds defaults that a program need not name."""
    if isinstance(wanted, dict) and isinstance(seen, dict):
        return all(within(value, seen.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(seen, list):
        return len(wanted) == len(seen) and all(any(within(one, other) for other in seen) for one in wanted)
    return wanted == seen
