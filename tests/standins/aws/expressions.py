"""JMESPath with the few functions that the table of resources needs."""

import functools
import re

import jmespath
from jmespath import functions


def capital(key):
    return key[:1].upper() + key[1:]


def small(key):
    return key[:1].lower() + key[1:]


def deep(value, rename):
    if isinstance(value, dict):
        return {rename(key): deep(inner, rename) for key, inner in value.items()}
    if isinstance(value, list):
        return [deep(inner, rename) for inner in value]
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


def key_values(tags):
    return [{"Key": key, "Value": value} for key, value in sorted((tags or {}).items())]


INTERFACE = {"securityGroups": "Groups", "ipv4AddressCount": "SecondaryPrivateIpAddressCount"}
TEMPLATE = {
    "vpcSecurityGroupIds": "SecurityGroupIds",
    "iamInstanceProfile": "IamInstanceProfile",
    "keyName": "KeyName",
}
NOT_IN_DATA = {
    "name",
    "namePrefix",
    "tags",
    "description",
    "updateDefaultVersion",
    "defaultVersion",
    "id",
    "was",
    "latestVersion",
}


def template(inputs):
    """LaunchTemplateData of a LaunchTemplate's inputs."""
    data = {}
    for key, value in inputs.items():
        if key in NOT_IN_DATA or value is None:
            continue
        if key == "networkInterfaces":
            shown = [{INTERFACE.get(k, capital(k)): deep(v, capital) for k, v in nic.items()} for nic in value]
        elif key == "tagSpecifications":
            shown = [{"ResourceType": spec["resourceType"], "Tags": key_values(spec.get("tags"))} for spec in value]
        else:
            shown = deep(value, capital)
        data[TEMPLATE.get(key, capital(key))] = shown
    return without_nothing(data)


def without_nothing(value):
    """`value` less its nulls, at every depth."""
    if isinstance(value, dict):
        return {key: without_nothing(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nothing(inner) for inner in value if inner is not None]
    return value


ANY = {"types": []}


class Functions(functions.Functions):
    @functions.signature(ANY)
    def _func_pascal(self, value):
        return value and deep(value, capital)

    @functions.signature(ANY)
    def _func_camel(self, value):
        return value and deep(value, small)

    @functions.signature(ANY)
    def _func_tags(self, value):
        return key_values(value) if value else None

    @functions.signature(ANY)
    def _func_untags(self, value):
        pairs = [{small(key): text for key, text in tag.items()} for tag in value or []]
        return {tag["key"]: tag["value"] for tag in pairs if not tag["key"].startswith("aws:")}

    @functions.signature(ANY, ANY)
    def _func_spec(self, kind, value):
        return [{"ResourceType": kind, "Tags": key_values(value)}] if value else None

    @functions.signature(ANY, ANY)
    def _func_ifset(self, value, then):
        return then if value else None

    @functions.signature(ANY, ANY)
    def _func_join_lists(self, first, second):
        return [*(first or []), *(second or [])] or None

    @functions.signature(ANY)
    def _func_template(self, inputs):
        return template(inputs)


OPTIONS = jmespath.Options(custom_functions=Functions())


@functools.cache
def compiled(text):
    return jmespath.compile(text)


def value(text, data):
    """What the expression `text` says about `data`; `$name` stands for the text that `data` has under that name."""
    here = data if isinstance(data, dict) else {}

    def known(match):
        name = match.group(1)
        return here[name] if isinstance(here.get(name), str) else match.group(0)

    return compiled(re.sub(r"\$(\w+)", known, text)).search(data, options=OPTIONS)
