"""The source policy against a golden file, and against BuildKit's rules of evaluation written out here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.errors import UsageError
from slipway.images.allowed import AllowedInputs, Download, GitCommit, git_place, pinned
from slipway.images.image_name import parse
from slipway.images.source_policy import as_text, policy

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "source_policy.golden.json"
ONE, TWO = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
COMMIT = "c" * 40
ALLOWED = AllowedInputs(
    images=(f"vllm/vllm-openai:v0.25.1@{TWO}", f"127.0.0.1:5000/base@{ONE}", f"debian@{ONE}"),
    downloads=(Download("https://files.example/a.whl", "a" * 64),),
    commits=(GitCommit("https://git.example/sgl-project/sglang.git", COMMIT),),
)


def test_the_policy_of_a_lock_is_the_golden_file() -> None:
    assert as_text(ALLOWED) == GOLDEN.read_text()


def permitted(rules: list[dict[str, Any]], source: str, attributes: dict[str, str]) -> bool:
    """What BuildKit decides: wildcards where * stands for anything, constraints first, the last rule that matches wins.

    It compiles a selector once for each identifier and keeps its constraints with it; that is imitated too.
    """
    kept: dict[str, dict[str, Any]] = {}
    deny = False
    for rule in rules:
        selector = kept.setdefault(rule["selector"]["identifier"], rule["selector"])
        if any(attributes.get(one["key"], "") != one["value"] for one in selector.get("constraints", [])):
            continue
        pattern = re.escape(selector["identifier"]).replace(r"\*", "(.*)")
        if selector["identifier"] == source or re.fullmatch(pattern, source):
            deny = rule["action"] == "DENY"
    return not deny


@pytest.mark.parametrize(
    ("source", "attributes", "expected"),
    [
        (f"docker-image://docker.io/library/debian@{ONE}", {}, True),
        (f"docker-image://docker.io/library/debian:trixie@{ONE}", {}, True),
        (f"docker-image://docker.io/vllm/vllm-openai:v0.25.1@{TWO}", {}, True),
        (f"docker-image://127.0.0.1:5000/base:x@{ONE}", {}, True),
        (f"oci-layout://base@{ONE}", {}, True),
        ("local://context", {}, True),
        ("http://buildkit-session/2j5kq", {}, True),
        ("https://files.example/a.whl", {"http.checksum": f"sha256:{'a' * 64}"}, True),
        (f"git://git.example/sgl-project/sglang.git#{COMMIT}", {}, True),
        (f"git://git.example/sgl-project/sglang.git#{COMMIT}:python", {}, True),
        ("docker-image://docker.io/library/debian:trixie", {}, False),
        (f"docker-image://docker.io/library/debian:trixie@{TWO}", {}, False),
        (f"docker-image://docker.io/evil/debian@{ONE}", {}, False),
        ("docker-image://docker.io/docker/dockerfile:1", {}, False),
        (f"docker-image+blob://docker.io/library/debian@{ONE}", {}, False),
        (f"oci-layout://base@sha256:{'3' * 64}", {}, False),
        ("https://files.example/a.whl", {}, False),
        ("https://files.example/a.whl", {"http.checksum": f"sha256:{'b' * 64}"}, False),
        ("https://files.example/b.whl", {"http.checksum": f"sha256:{'a' * 64}"}, False),
        ("http://buildkit-session.example/x", {}, False),
        ("git://git.example/sgl-project/sglang.git#main", {}, False),
        ("git://git.example/sgl-project/sglang.git", {}, False),
        (f"git://git.example/other.git#{COMMIT}", {}, False),
        ("something-new://x", {}, False),
    ],
)
def test_only_locked_sources_pass(source: str, attributes: dict[str, str], expected: bool) -> None:
    assert permitted(policy(ALLOWED)["rules"], source, attributes) is expected


HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
NAME = st.from_regex(r"\A[a-z][a-z0-9]{0,5}(/[a-z][a-z0-9]{0,5}){0,2}\Z")


@given(st.lists(st.tuples(NAME, HEX), max_size=5), st.lists(HEX, max_size=5), st.tuples(NAME, HEX))
def test_every_locked_input_passes_and_every_other_image_is_denied(
    images: list[tuple[str, str]], files: list[str], other: tuple[str, str]
) -> None:
    allowed = AllowedInputs(
        images=tuple(f"{name}@sha256:{digest}" for name, digest in images),
        downloads=tuple(Download(f"https://files.example/{digest}", digest) for digest in files),
    )
    rules = policy(allowed)["rules"]
    identifiers = [rule["selector"]["identifier"] for rule in rules]
    assert len(identifiers) == len(set(identifiers)), "a second rule would be judged by the first one's constraints"
    assert not any("**" in identifier for identifier in identifiers), "BuildKit refuses a double wildcard"
    for image in allowed.image_names():
        assert permitted(rules, f"docker-image://{image}", {})
    for download in allowed.downloads:
        assert permitted(rules, download.url, {"http.checksum": f"sha256:{download.sha256}"})
        assert not permitted(rules, download.url, {})
    wanted = pinned(parse(f"{other[0]}@sha256:{other[1]}"))
    assert permitted(rules, f"docker-image://{wanted}", {}) == (wanted in allowed.image_names())
    assert json.loads(as_text(allowed)) == policy(allowed)


def test_the_order_of_the_lock_does_not_change_the_policy() -> None:
    turned = AllowedInputs(images=ALLOWED.images[::-1], downloads=ALLOWED.downloads, commits=ALLOWED.commits)
    assert as_text(turned) == as_text(ALLOWED)


def test_one_url_with_two_checksums_is_refused() -> None:
    twice = AllowedInputs(downloads=(Download("https://x/y", "a" * 64), Download("https://x/y", "b" * 64)))
    with pytest.raises(UsageError, match="locked with two checksums"):
        policy(twice)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"images": ("debian:trixie",)}, "an image needs name@sha256"),
        ({"images": ("Debian@sha256:" + "1" * 64,)}, "is no image name"),
        ({"downloads": (Download("https://x/y", "sha256:" + "a" * 64),)}, "a download needs its sha256"),
        ({"downloads": (Download("ftp://x/y", "a" * 64),)}, "fetched by HTTP"),
        ({"downloads": (Download("https://x/*", "a" * 64),)}, "write %2A"),
        ({"commits": (GitCommit("https://x/y", "main"),)}, "40 hex digits"),
        ({"debs": ("curl",)}, "name=version"),
    ],
)
def test_inputs_that_pin_nothing_are_refused(inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        AllowedInputs(**inputs)


def test_every_way_to_reach_a_repository_is_one_place() -> None:
    ways = [
        "https://git.example/o/r.git",
        "ssh://git@git.example/o/r",
        "git@git.example:o/r.git",
        "https://t:k@git.example/o/r.git#x",
    ]
    assert {git_place(way) for way in ways} == {"git.example/o/r"}
