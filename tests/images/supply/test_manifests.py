"""Manifests are read strictly: one meaning, whoever reads them, and nothing that is not a descriptor."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.errors import IntegrityMismatch, MissingFile
from slipway.images import manifests
from slipway.images.manifests import DOCKER_LIST, DOCKER_MANIFEST, EMPTY, OCI_INDEX, OCI_MANIFEST, Descriptor

DIGEST = "sha256:" + "cd" * 32
ONE = {"mediaType": OCI_MANIFEST, "digest": DIGEST, "size": 3}
IMAGE: dict[str, Any] = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": ONE, "layers": [ONE]}
INDEX: dict[str, Any] = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [ONE]}


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_an_image_names_its_config_before_its_layers_and_keeps_its_bytes() -> None:
    data = text({**IMAGE, "subject": ONE, "artifactType": "a/b", "annotations": {"k": "v"}})
    found = manifests.parse(data, "x", OCI_MANIFEST, manifests.digest_of(data))
    assert (found.data, found.digest) == (data, manifests.digest_of(data))
    assert [blob.digest for blob in found.blobs] == [DIGEST, DIGEST]
    assert found.subject == Descriptor(OCI_MANIFEST, DIGEST, 3)
    assert found.descriptor.artifact_type == "a/b"
    assert found.descriptor.annotations == {"k": "v"}


@pytest.mark.parametrize(
    ("value", "content_type"),
    [
        (IMAGE, OCI_INDEX),
        (INDEX, OCI_MANIFEST),
        (IMAGE, DOCKER_MANIFEST),
        ({**IMAGE, "mediaType": OCI_INDEX}, ""),
        ({**IMAGE, "manifests": [ONE]}, ""),
        ({"schemaVersion": 2}, OCI_MANIFEST),
        ({**IMAGE, "mediaType": "text/html"}, ""),
        ({**IMAGE, "schemaVersion": 1}, ""),
        ({**IMAGE, "layers": {}}, ""),
        ({**IMAGE, "layers": [{}]}, ""),
        ({**IMAGE, "layers": [{**ONE, "size": -1}]}, ""),
        ({**IMAGE, "layers": [{**ONE, "size": True}]}, ""),
        ({**IMAGE, "layers": [{**ONE, "digest": "sha256:../../x"}]}, ""),
        ({**IMAGE, "config": None}, ""),
        ({**IMAGE, "annotations": {"a": 1}}, ""),
        ([], ""),
    ],
)
def test_what_could_be_read_in_two_ways_or_in_none_is_refused(value: Any, content_type: str) -> None:
    with pytest.raises(IntegrityMismatch):
        manifests.parse(text(value), "x", content_type)


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(IntegrityMismatch):
        manifests.parse(b'{"schemaVersion":2,"layers":[],' + text(IMAGE)[1:], "x")


def test_other_bytes_than_the_digest_names_are_refused() -> None:
    with pytest.raises(IntegrityMismatch, match="other bytes"):
        manifests.parse(text(IMAGE), "x", "", DIGEST)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["schemaVersion", "mediaType", "config", "layers", "manifests", "digest", "size", "subject"]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_manifest_or_is_refused(value: Any) -> None:
    try:
        manifests.parse(text(value), "x")
    except IntegrityMismatch:
        return
    assert isinstance(value, dict) and value["schemaVersion"] == 2


@pytest.mark.parametrize("media_type", [OCI_INDEX, DOCKER_LIST])
def test_a_platform_is_chosen_with_any_of_its_variants(media_type: str) -> None:
    entries = [
        {**ONE, "digest": "sha256:" + "1" * 64, "platform": {"os": "linux", "architecture": "amd64"}},
        {**ONE, "digest": "sha256:" + "2" * 64, "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}},
        {**ONE, "digest": "sha256:" + "3" * 64, "platform": {"os": "unknown", "architecture": "unknown"}},
    ]
    index = manifests.parse(text({**INDEX, "mediaType": media_type, "manifests": entries}), "x", media_type)
    assert manifests.choose(index, "linux/arm64", "x").digest == "sha256:" + "2" * 64
    with pytest.raises(MissingFile, match="linux/amd64, linux/arm64/v8, unknown/unknown"):
        manifests.choose(index, "windows/amd64", "x")


@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 60))
def test_the_last_piece_comes_only_when_all_of_it_is_right(pieces: list[bytes], cut: int) -> None:
    whole = b"".join(pieces)
    name = manifests.describe(whole, "x/y")
    assert b"".join(manifests.proved(pieces, name, "x")) == whole
    for wrong in (whole[:cut], whole + b"!", bytes(byte ^ 1 for byte in whole)):
        if wrong != whole:
            got = bytearray()
            with pytest.raises(IntegrityMismatch):
                for piece in manifests.proved([wrong[:4], wrong[4:]], name, "x"):
                    got += piece
            assert len(got) < max(len(wrong), 1)


def test_equal_things_said_of_an_image_are_equal_bytes() -> None:
    subject = Descriptor(OCI_MANIFEST, DIGEST, 3, platform="linux/amd64")
    first, second = (manifests.artifact("a/b", [EMPTY], subject, {"k": "v"}) for _ in range(2))
    assert first.data == second.data
    assert first.subject == Descriptor(OCI_MANIFEST, DIGEST, 3)
    assert first.blobs[0] == EMPTY
