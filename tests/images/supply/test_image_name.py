"""Names of images: Docker's defaults, nothing assumed that floats, and mirrors only for what a digest proves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.errors import UsageError
from slipway.images.image_name import ImageName, Mirrors, is_loopback, parse, parse_mirrors

DIGEST = "sha256:" + "ab" * 32

component = st.from_regex(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+){0,2}", fullmatch=True)
registries = st.from_regex(r"[a-z0-9]{1,5}\.[a-z]{2,4}(?::[0-9]{1,5})?|localhost(?::[0-9]{1,5})?", fullmatch=True)
names = st.builds(
    ImageName,
    registries,
    st.lists(component, min_size=1, max_size=3).map("/".join).filter(lambda path: len(path) < 200),
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    st.none() | st.just(DIGEST),
)


@given(names)
def test_a_name_reads_back_as_it_is_written(name: ImageName) -> None:
    assert parse(str(name)) == name


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_is_refused_with_its_reason(text: str) -> None:
    try:
        name = parse(text)
    except UsageError as error:
        assert error.place.isascii() and error.place.isprintable()
    else:
        assert parse(str(name)) == name


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("debian", "docker.io", "library/debian", None, None),
        ("debian:12", "docker.io", "library/debian", "12", None),
        ("lmsysorg/sglang:v0.5.18", "docker.io", "lmsysorg/sglang", "v0.5.18", None),
        (f"vllm/vllm-openai:v1@{DIGEST}", "docker.io", "vllm/vllm-openai", "v1", DIGEST),
        ("index.docker.io/library/debian", "docker.io", "library/debian", None, None),
        ("127.0.0.1:5000/a/b:c", "127.0.0.1:5000", "a/b", "c", None),
        ("localhost/a", "localhost", "a", None, None),
        ("[::1]:5000/a", "[::1]:5000", "a", None, None),
        ("nvcr.io/nvidia/cuda:13.0.3-base", "nvcr.io", "nvidia/cuda", "13.0.3-base", None),
    ],
)
def test_docker_s_defaults(text: str, registry: str, repository: str, tag: str | None, digest: str | None) -> None:
    assert parse(text) == ImageName(registry, repository, tag, digest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Debian",
        "a:",
        "a@",
        "a@sha256:ab",
        f"a@sha512:{'ab' * 64}",
        "a//b",
        "a:b:c",
        "/a",
        "a/",
        "a b",
        "x" * 300,
        "a@" + DIGEST.upper(),
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("localhost:1", True),
        ("[::1]:5", True),
        ("::1", True),
        ("10.0.0.1:5000", False),
        ("localhost.example", False),
        ("127.0.0.1.example:5000", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, here: bool) -> None:
    assert is_loopback(host) is here


def test_a_mirror_is_asked_first_for_a_digest_and_never_for_a_tag() -> None:
    mirrors = parse_mirrors("docker.io=127.0.0.1:5000, mirror.example/hub ; ghcr.io=127.0.0.1:5000")
    pinned = [str(one) for one in mirrors.names(parse(f"lmsysorg/sglang@{DIGEST}"))]
    assert pinned == [
        f"127.0.0.1:5000/lmsysorg/sglang@{DIGEST}",
        f"mirror.example/hub/lmsysorg/sglang@{DIGEST}",
        f"docker.io/lmsysorg/sglang@{DIGEST}",
    ]
    assert [str(one) for one in mirrors.names(parse("lmsysorg/sglang:v1"))] == ["docker.io/lmsysorg/sglang:v1"]
    trusted = Mirrors(mirrors.places, for_tags=True)
    assert str(trusted.names(parse("lmsysorg/sglang:v1"))[0]) == "127.0.0.1:5000/lmsysorg/sglang:v1"


@pytest.mark.parametrize(
    "text",
    [
        "docker.io",
        "docker.io=",
        "=a",
        "docker.io=a b",
        "docker.io=a;docker.io=b",
        "docker.io=https://a/b",
        "docker.io=a/B",
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SLIPWAY_REGISTRY_MIRRORS"):
        parse_mirrors(text)
