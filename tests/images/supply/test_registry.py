"""The registry client against docker-registry itself, and against servers that lie, stall and break off."""

from __future__ import annotations

import base64
import json
import re
import shutil
import ssl
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from slipway.errors import (
    AuthFailure,
    IntegrityMismatch,
    LockDrift,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)
from slipway.images import manifests
from slipway.images import registry as registries
from slipway.images.image_name import Mirrors, parse
from slipway.images.manifests import DOCKER_MANIFEST, OCI_INDEX, Descriptor, Manifest
from slipway.images.registry import Limits, Registry, registry_from
from slipway.images.registry_login import Logins

QUICK = Limits(connect_s=5, stall_s=2, answer_s=10, tries=3, pause_s=0.01)

needs_registry = pytest.mark.needs("docker-registry")


def push(client: Registry, name: str, sample: Any, mount_from: str | None = None) -> list[str]:
    """How each blob of the sample came to be there; then its manifests, the index under the name's tag."""
    place = parse(name)
    how = []
    for image in sample.images:
        for blob in image.blobs:
            how.append(
                client.push_blob(place.at(), blob, lambda digest=blob.digest: iter([sample.blobs[digest]]), mount_from)
            )
        client.push_manifest(place.at(), image)
    client.push_manifest(place, sample.index)
    return how


# --- against the real one


@needs_registry
def test_what_was_pushed_is_resolved_read_and_proved(real: Any, registry: Registry, sample: Any) -> None:
    name = f"{real.host}/pushed/engine:v1"
    assert set(push(registry, name, sample)) == {"sent"}
    assert set(push(registry, name, sample)) == {"present"}
    assert set(push(registry, f"{real.host}/pushed/other:v1", sample, "pushed/engine")) == {"mounted"}
    assert registry.resolve(parse(name)) == sample.index.digest
    assert registry.config(parse(name), "linux/arm64")["architecture"] == "arm64"
    layer = sample.images[0].blobs[1]
    assert b"".join(registry.blob(parse(name), layer)) == sample.blobs[layer.digest]
    assert b"".join(registry.read(parse(name), layer, 10)) == sample.blobs[layer.digest][10:]
    with pytest.raises(MissingFile, match="windows/amd64"):
        registry.config(parse(name), "windows/amd64")


@needs_registry
@pytest.mark.parametrize(("chunk_bytes", "whole_bytes"), [(None, 10), (10_000, 8 << 20)], ids=["one-patch", "pieces"])
def test_a_large_blob_goes_over_in_one_request_or_in_pieces(
    real: Any, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int | None, whole_bytes: int
) -> None:
    monkeypatch.setattr("slipway.images.registry_upload._WHOLE_BYTES", whole_bytes)
    data = bytes(range(256)) * 200 + str(chunk_bytes).encode()
    blob = manifests.describe(data, "x/y")
    with Registry(limits=Limits(chunk_bytes=chunk_bytes)) as client:
        name = parse(f"{real.host}/pieces/blob")
        assert client.push_blob(name, blob, lambda: iter([data[:7], data[7:]])) == "sent"
        assert b"".join(client.blob(name, blob)) == data


@needs_registry
def test_a_moved_tag_is_seen(real: Any, registry: Registry, sample: Any) -> None:
    name = parse(f"{real.host}/moved/engine:v1")
    push(registry, str(name), sample)
    locked = parse(f"{name}@{sample.index.digest}")
    registry.refuse_moved(locked)
    registry.push_manifest(name, sample.images[0])
    with pytest.raises(LockDrift, match=f"moved to {sample.images[0].digest}.*lock says {sample.index.digest}"):
        registry.refuse_moved(locked)
    assert registry.manifest(locked).digest == sample.index.digest


@needs_registry
def test_what_refers_to_an_image_is_listed_though_the_registry_has_no_list(
    real: Any, registry: Registry, sample: Any
) -> None:
    name = parse(f"{real.host}/referred/engine:v1")
    push(registry, str(name), sample)
    assert registry.referrers(name, sample.index.digest) == ()
    registry.push_blob(name.at(), manifests.EMPTY, lambda: iter([b"{}"]))
    said = [
        manifests.artifact(kind, [manifests.EMPTY], sample.index.descriptor, {"kind": kind})
        for kind in ("a/one", "a/two")
    ]
    for manifest in (*said, said[0]):
        registry.push_manifest(name.at(), manifest)
    found = registry.referrers(name, sample.index.digest)
    assert [(one.digest, one.artifact_type, one.annotations["kind"]) for one in found] == [
        (manifest.digest, manifest.artifact_type, manifest.artifact_type) for manifest in said
    ]
    assert [one.digest for one in registry.referrers(name, sample.index.digest, "a/two")] == [said[1].digest]


@needs_registry
def test_what_is_not_there_is_missing_and_a_push_of_other_bytes_is_refused(
    real: Any, registry: Registry, sample: Any
) -> None:
    with pytest.raises(MissingFile, match="knows no such image"):
        registry.resolve(parse(f"{real.host}/nowhere/engine:v1"))
    name = parse(f"{real.host}/nowhere/engine")
    assert not registry.has_blob(name, sample.images[0].blobs[0])
    assert registry.taken_by(name.at(tag="v1")) is None
    with pytest.raises(NetworkFailure, match="DIGEST_INVALID"):
        registry.push_blob(name, sample.images[0].blobs[0], lambda: iter([b"x" * sample.images[0].blobs[0].size_bytes]))
    with pytest.raises(NetworkFailure, match="MANIFEST_BLOB_UNKNOWN"):
        registry.push_manifest(name.at(tag="v1"), sample.images[0])


def test_a_name_with_neither_tag_nor_digest_is_no_latest(registry: Registry) -> None:
    with pytest.raises(UsageError, match="latest"):
        registry.resolve(parse("127.0.0.1:1/a"))
    with pytest.raises(UsageError, match="both"):
        registry.refuse_moved(parse("127.0.0.1:1/a:b"))
    with pytest.raises(UsageError, match="another manifest"):
        image = manifests.index([])
        registry.push_manifest(parse(f"127.0.0.1:1/a@sha256:{'0' * 64}"), image)


# --- against servers that do as they are told

Answer = Callable[[Any], None]


@pytest.fixture
def server(scripted: Callable[[], Any]) -> Any:
    return scripted()


@pytest.fixture
def blob(sample: Any) -> Descriptor:
    return sample.images[0].blobs[1]


@pytest.fixture
def data(sample: Any, blob: Descriptor) -> bytes:
    return sample.blobs[blob.digest]


def test_a_manifest_of_another_digest_is_refused(server: Any, answers: Any, registry: Registry, sample: Any) -> None:
    server.answer = lambda handler: answers(handler, 200, sample.index.data, Content_Type=OCI_INDEX)
    with pytest.raises(IntegrityMismatch, match="other bytes"):
        registry.manifest(parse(f"{server.host}/a@{sample.images[0].digest}"))
    assert registry.resolve(parse(f"{server.host}/a@{sample.index.digest}")) == sample.index.digest


def test_a_registry_that_lies_about_digest_or_media_type_is_refused(
    server: Any, answers: Any, registry: Registry, sample: Any
) -> None:
    data = sample.index.data
    server.answer = lambda handler: answers(handler, 200, data, Docker_Content_Digest="sha256:" + "0" * 64)
    with pytest.raises(IntegrityMismatch, match="calls its answer"):
        registry.resolve(parse(f"{server.host}/a:v1"))
    server.answer = lambda handler: answers(handler, 200, data, Content_Type=DOCKER_MANIFEST)
    with pytest.raises(IntegrityMismatch, match="they must agree"):
        registry.resolve(parse(f"{server.host}/a:v1"))


def test_a_manifest_without_end_is_left(server: Any, registry: Registry) -> None:
    def endless(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * 65536)

    server.answer = endless
    with pytest.raises(IntegrityMismatch, match="more than 4194304 bytes"):
        registry.resolve(parse(f"{server.host}/a:v1"))


def test_a_blob_of_other_content_never_ends_well(
    server: Any, answers: Any, registry: Registry, blob: Descriptor, data: bytes
) -> None:
    server.answer = lambda handler: answers(handler, 200, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(IntegrityMismatch, match="other content"):
        list(registry.blob(parse(f"{server.host}/a"), blob))


@pytest.mark.parametrize("length", [-1, None], ids=["stated", "unstated"])
def test_a_blob_of_another_length_is_refused(
    server: Any, answers: Any, registry: Registry, blob: Descriptor, data: bytes, length: int | None
) -> None:
    server.answer = lambda handler: answers(handler, 200, data + b"more", length)
    with pytest.raises(IntegrityMismatch, match="its manifest says"):
        list(registry.blob(parse(f"{server.host}/a"), blob))


@pytest.mark.parametrize("ranges", [True, False], ids=["with-ranges", "without"])
@pytest.mark.parametrize("stated", [True, False], ids=["stated", "unstated"])
def test_a_blob_that_breaks_off_is_gone_on_with(
    server: Any, answers: Any, registry: Registry, blob: Descriptor, data: bytes, ranges: bool, stated: bool
) -> None:
    def answer(handler: Any) -> None:
        start = int(re.findall(r"\d+", handler.headers.get("Range", "0"))[0]) if ranges else 0
        cut = len(server.requests) < 4
        handler.close_connection = cut
        body = data[start : len(data) * len(server.requests) // 4] if cut else data[start:]
        more = {"Content_Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        answers(handler, 206 if start else 200, body, (len(data) - start) if stated else None, **more)

    server.answer = answer
    assert b"".join(registry.blob(parse(f"{server.host}/a"), blob)) == data


def test_a_blob_that_always_breaks_off_is_given_up(
    server: Any, answers: Any, registry: Registry, blob: Descriptor
) -> None:
    server.answer = lambda handler: answers(handler, 200, b"", None)
    with pytest.raises(NetworkFailure, match=r"broke off .* tried 3 times"):
        list(registry.blob(parse(f"{server.host}/a"), blob))


def test_another_range_than_asked_for_is_not_taken(
    server: Any, answers: Any, registry: Registry, blob: Descriptor, data: bytes
) -> None:
    server.answer = lambda handler: answers(
        handler, 206, data[5:], Content_Range=f"bytes 5-{len(data) - 1}/{len(data)}"
    )
    with pytest.raises(NetworkFailure, match="another range"):
        list(registry.read(parse(f"{server.host}/a"), blob, 4))


def test_a_stalled_answer_is_given_up(server: Any, blob: Descriptor) -> None:
    done = threading.Event()
    server.answer = lambda handler: done.wait(20)
    with (
        Registry(limits=Limits(stall_s=0.1, tries=2, pause_s=0.01)) as client,
        pytest.raises(NetworkFailure, match="time limit"),
    ):
        client.resolve(parse(f"{server.host}/a:v1"))
    done.set()


def test_an_answer_that_trickles_is_given_up(server: Any, sample: Any) -> None:
    done = threading.Event()

    def trickle(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not done.wait(0.02):
            handler.wfile.write(b" ")

    server.answer = trickle
    with (
        Registry(limits=Limits(answer_s=0.2, tries=2, pause_s=0.01)) as client,
        pytest.raises(NetworkFailure, match="too slowly"),
    ):
        client.resolve(parse(f"{server.host}/a:v1"))
    done.set()


def test_a_config_that_drips_is_given_up(server: Any, answers: Any, sample: Any) -> None:
    done, image = threading.Event(), sample.images[0]

    def drip(handler: Any) -> None:
        if "manifests" in handler.path:
            answers(handler, 200, image.data)
            return
        handler.send_response(200)
        handler.send_header("Content-Length", str(image.blobs[0].size_bytes))
        handler.end_headers()
        while not done.wait(0.05):
            handler.wfile.write(b" ")

    server.answer = drip
    began = time.monotonic()
    with (
        Registry(limits=Limits(free_s=0.2, pause_s=0.01)) as client,
        pytest.raises(NetworkFailure, match="too slowly"),
    ):
        client.config(parse(f"{server.host}/a:v1"))
    assert time.monotonic() - began < 5  # all of it would take longer
    done.set()


def test_a_busy_registry_is_waited_for_as_it_asks(server: Any, answers: Any, registry: Registry, sample: Any) -> None:
    def answer(handler: Any) -> None:
        if len(server.asked("manifests")) == 1:
            answers(handler, 429, Retry_After="1")
        elif len(server.asked("manifests")) == 2:
            answers(handler, 503, Retry_After=formatdate(0, usegmt=True))
        else:
            answers(handler, 200, sample.index.data)

    server.answer = answer
    began = time.monotonic()
    assert registry.resolve(parse(f"{server.host}/a:v1")) == sample.index.digest
    assert 1 <= time.monotonic() - began < 5


def test_a_registry_that_stays_busy_is_given_up(server: Any, answers: Any, registry: Registry) -> None:
    body = b'{"errors":[{"code":"TOOMANYREQUESTS","message":"slow \\u001b[31mdown"}]}'
    server.answer = lambda handler: answers(handler, 429, body)
    with pytest.raises(NetworkFailure, match=r"HTTP 429 TOOMANYREQUESTS: slow \\x1b\[31mdown") as caught:
        registry.resolve(parse(f"{server.host}/a:v1"))
    assert caught.value.exit_code == 8
    server.answer = lambda handler: answers(handler, 429, Retry_After="3600")
    with pytest.raises(NetworkFailure, match="asks to wait 3600 s"):
        registry.resolve(parse(f"{server.host}/a:v1"))


def test_nobody_there_is_a_network_failure(registry: Registry, unused_port: int) -> None:
    said = rf"nobody listens at 127\.0\.0\.1:{unused_port}; tried 3 times"
    with pytest.raises(NetworkFailure, match=said):
        registry.resolve(parse(f"127.0.0.1:{unused_port}/a:v1"))


def test_a_host_without_an_address_is_named(registry: Registry) -> None:
    with pytest.raises(NetworkFailure, match=r"no such host: nowhere\.invalid"):
        registry.resolve(parse("nowhere.invalid/a:v1"))


# --- logins


def bearer(server: Any, answers: Any, realm: str = "") -> Answer:
    """A registry whose token service is part of it: `someone` with `secret` gets `pass-1`, and nothing goes without it."""

    def answer(handler: Any) -> None:
        if handler.path.startswith("/token"):
            good = "Basic " + base64.b64encode(b"someone:secret").decode()
            known = handler.headers.get("Authorization") == good or handler.command == "POST"
            answers(handler, 200 if known else 401, b'{"token":"pass-1"}')
        elif handler.headers.get("Authorization") != "Bearer pass-1":
            where = realm or f"http://{server.host}/token"
            answers(handler, 401, WWW_Authenticate=f'Bearer realm="{where}",service="here",scope="repository:a:pull"')
        else:
            answers(handler, 200, server.body)

    return answer


def logins(host: str, **entry: str) -> Logins:
    return Logins({"auths": {host: entry or {"auth": base64.b64encode(b"someone:secret").decode()}}})


def test_a_token_is_fetched_once_and_used_for_its_repository(server: Any, answers: Any, sample: Any) -> None:
    server.body = sample.index.data
    server.answer = bearer(server, answers)
    with Registry(logins=logins(server.host), limits=QUICK) as client:
        client.resolve(parse(f"{server.host}/a:v1"))
        client.resolve(parse(f"{server.host}/a:v2"))
    assert len(server.asked("/token")) == 1
    assert "scope=repository%3Aa%3Apull" in server.asked("/token")[0][1]


def test_who_pushes_asks_with_the_right_to_push_from_the_start(
    server: Any, answers: Any, blob: Descriptor, data: bytes
) -> None:
    inner = bearer(server, answers)

    def answer(handler: Any) -> None:
        if handler.path.startswith("/token") or "Authorization" not in handler.headers:
            inner(handler)
        else:
            status = {"HEAD": 404, "GET": 404, "POST": 202, "PUT": 201}[handler.command]
            answers(handler, status, **({"Location": "/up"} if handler.command == "POST" else {}))

    server.answer = answer
    with Registry(logins=logins(server.host), limits=QUICK) as client:
        name = parse(f"{server.host}/a:v1")
        assert client.taken_by(name) is None
        assert client.push_blob(name, blob, lambda: iter([data]), "b") == "sent"
    scopes = [parse_qs(urlsplit(one[1]).query)["scope"] for one in server.asked("/token")]
    assert scopes == [["repository:a:pull,push"], ["repository:a:pull,push", "repository:b:pull"]]


def test_an_identity_token_is_exchanged(server: Any, answers: Any, sample: Any) -> None:
    server.body = sample.index.data
    server.answer = bearer(server, answers)
    with Registry(logins=logins(server.host, identitytoken="idt"), limits=QUICK) as client:
        client.resolve(parse(f"{server.host}/a:v1"))
    assert server.asked("/token")[0][0] == "POST"


def test_a_wrong_login_and_a_registry_that_never_has_enough_are_refused(
    server: Any, answers: Any, registry: Registry
) -> None:
    server.answer = bearer(server, answers)
    with pytest.raises(AuthFailure, match="token service answers HTTP 401") as caught:
        registry.resolve(parse(f"{server.host}/a:v1"))
    assert caught.value.exit_code == 7
    server.answer = lambda handler: answers(handler, 401, WWW_Authenticate='Basic realm="x"')
    with (
        Registry(logins=logins(server.host), limits=QUICK) as client,
        pytest.raises(AuthFailure, match="HTTP 401") as caught,
    ):
        client.resolve(parse(f"{server.host}/a:v1"))
    assert "secret" not in str(caught.value)
    assert len(server.asked("manifests")) == 3, "one for the first client, two for the second: no loop"
    with pytest.raises(AuthFailure, match="asks for a login"):
        registry.resolve(parse(f"{server.host}/b:v1"))


def test_a_login_is_not_sent_to_a_token_service_in_clear(server: Any, answers: Any) -> None:
    server.answer = bearer(server, answers, "http://tokens.example/token")
    with Registry(logins=logins(server.host), limits=QUICK) as client, pytest.raises(AuthFailure, match="without TLS"):
        client.resolve(parse(f"{server.host}/a:v1"))


@pytest.mark.parametrize("token", ['{"token":7}', '{"token":"a\\nb"}', "[]", "<html>"])
def test_a_token_that_is_none_is_refused(server: Any, answers: Any, registry: Registry, token: str) -> None:
    def answer(handler: Any) -> None:
        if handler.path.startswith("/token"):
            answers(handler, 200, token.encode())
        else:
            answers(handler, 401, WWW_Authenticate=f'Bearer realm="http://{server.host}/token"')

    server.answer = answer
    with pytest.raises(AuthFailure, match="gave no token"):
        registry.resolve(parse(f"{server.host}/a:v1"))


def test_a_token_that_has_expired_is_fetched_anew(server: Any, answers: Any, sample: Any) -> None:
    server.body, inner = sample.index.data, bearer(server, answers)
    with Registry(logins=logins(server.host), limits=QUICK) as client:
        server.answer = inner
        client.resolve(parse(f"{server.host}/a:v1"))
        client._wire._passes = dict.fromkeys(client._wire._passes, "Bearer old")
        client.resolve(parse(f"{server.host}/a:v1"))
    assert len(server.asked("/token")) == 2


# --- redirects


def test_a_login_never_follows_a_redirect_to_the_store(
    scripted: Any, answers: Any, blob: Descriptor, data: bytes
) -> None:
    server, store = scripted(), scripted()
    store.answer = lambda handler: answers(handler, 200, data)

    def answer(handler: Any) -> None:
        if handler.headers.get("Authorization", "").startswith("Basic"):
            answers(handler, 307, Location=f"http://{store.host}/signed?sig=abc")
        else:
            answers(handler, 401, WWW_Authenticate='Basic realm="x"')

    server.answer = answer
    with Registry(logins=logins(server.host), limits=QUICK) as client:
        assert b"".join(client.blob(parse(f"{server.host}/a"), blob)) == data
    assert "authorization" not in store.requests[0][2]


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("http://elsewhere.example/blob?sig=secret", "only TLS is followed"),
        ("file:///etc/passwd", "only TLS is followed"),
        ("", "redirects more than 5 times"),
        ("http://[bad", "no address"),
    ],
)
def test_a_redirect_to_where_nothing_is_protected_is_not_followed(
    server: Any, answers: Any, registry: Registry, blob: Descriptor, location: str, said: str
) -> None:
    server.answer = lambda handler: answers(handler, 302, Location=location or handler.path)
    with pytest.raises(NetworkFailure, match=said) as caught:
        list(registry.blob(parse(f"{server.host}/a"), blob))
    assert "sig" not in str(caught.value)


def test_a_store_whose_signed_address_has_expired_is_asked_through_the_registry_again(
    scripted: Any, answers: Any, registry: Registry, blob: Descriptor, data: bytes
) -> None:
    server, store = scripted(), scripted()
    server.answer = lambda handler: answers(handler, 307, Location=f"http://{store.host}/signed")
    store.answer = lambda handler: answers(
        handler, 200 if len(store.requests) > 1 else 403, data if len(store.requests) > 1 else b""
    )
    assert b"".join(registry.blob(parse(f"{server.host}/a"), blob)) == data
    assert len(server.asked("blobs")) == 2


# --- mirrors


def test_a_mirror_serves_what_a_digest_names_and_the_next_place_what_it_lacks(
    scripted: Any, answers: Any, sample: Any, blob: Descriptor, data: bytes
) -> None:
    spoilt, empty, good = scripted(), scripted(), scripted()
    spoilt.answer = lambda handler: answers(handler, 200, b"?" * (blob.size_bytes if "blobs" in handler.path else 5))
    good.answer = lambda handler: answers(handler, 200, data if "blobs" in handler.path else sample.index.data)
    mirrors = Mirrors({"registry.example": (spoilt.host, empty.host, f"{good.host}/copies")})
    with Registry(mirrors, limits=QUICK) as client:
        name = parse(f"registry.example/engine@{sample.index.digest}")
        assert client.manifest(name).digest == sample.index.digest
        with pytest.raises(IntegrityMismatch):
            list(client.blob(name, blob))
        assert client.reject(blob.digest)
        assert b"".join(client.blob(name, blob)) == data
    assert good.requests[-1][1] == f"/v2/copies/engine/blobs/{blob.digest}"


def test_a_blob_begun_at_one_mirror_is_ended_at_the_next(
    scripted: Any, answers: Any, blob: Descriptor, data: bytes
) -> None:
    first, second = scripted(), scripted()
    half = len(data) // 2

    def broken(handler: Any) -> None:
        if "Range" in handler.headers:
            answers(handler, 404)
        else:
            answers(handler, 200, data[:half], None)

    first.answer = broken
    second.answer = lambda handler: answers(
        handler, 206, data[half:], Content_Range=f"bytes {half}-{len(data) - 1}/{len(data)}"
    )
    with Registry(Mirrors({"registry.example": (first.host, second.host)}), limits=QUICK) as client:
        assert b"".join(client.blob(parse(f"registry.example/a@{blob.digest}"), blob)) == data


def test_every_place_that_failed_is_told_and_the_gravest_decides(
    scripted: Any, answers: Any, registry: Registry, sample: Any, unused_port: int
) -> None:
    spoilt, empty = scripted(), scripted()
    spoilt.answer = lambda handler: answers(handler, 200, b"{}")
    mirrors = Mirrors({"127.0.0.1:" + str(unused_port): (empty.host, spoilt.host)})
    with Registry(mirrors, limits=QUICK) as client, pytest.raises(IntegrityMismatch) as caught:
        client.manifest(parse(f"127.0.0.1:{unused_port}/a@{sample.index.digest}"))
    assert empty.host in str(caught.value) and str(unused_port) in str(caught.value)


# --- pushes that go wrong


def test_an_upload_begins_anew_after_a_broken_step(
    server: Any, answers: Any, registry: Registry, blob: Descriptor, data: bytes
) -> None:
    def answer(handler: Any) -> None:
        if handler.command == "HEAD":
            answers(handler, 404)
        elif handler.command == "POST":
            answers(handler, 202, Location="/v2/a/blobs/uploads/1?state=x")
        elif len([one for one in server.requests if one[0] == "PUT"]) == 1:
            answers(handler, 500)
        else:
            answers(handler, 201, Docker_Content_Digest=blob.digest)

    server.answer = answer
    assert registry.push_blob(parse(f"{server.host}/a"), blob, lambda: iter([data])) == "sent"
    put = [one for one in server.requests if one[0] == "PUT"]
    assert len(put) == 2 and f"?state=x&digest=sha256%3A{blob.digest[7:]}" in put[1][1]


@pytest.mark.parametrize(
    ("post", "put", "error"),
    [
        ({}, {}, NetworkFailure),
        ({"Location": "http://elsewhere.example/up"}, {}, NetworkFailure),
        ({"Location": "/up"}, {"Docker_Content_Digest": "sha256:" + "0" * 64}, IntegrityMismatch),
    ],
)
def test_an_upload_that_cannot_be_right_is_refused(
    server: Any,
    answers: Any,
    registry: Registry,
    blob: Descriptor,
    data: bytes,
    post: Any,
    put: Any,
    error: type[SlipwayError],
) -> None:
    def answer(handler: Any) -> None:
        status = {"HEAD": 404, "POST": 202, "PUT": 201}[handler.command]
        answers(handler, status, **{"POST": post, "PUT": put}.get(handler.command, {}))

    server.answer = answer
    with pytest.raises(error):
        registry.push_blob(parse(f"{server.host}/a"), blob, lambda: iter([data]))


def test_pages_of_referrers_are_followed_and_not_for_ever(
    server: Any, answers: Any, registry: Registry, sample: Any
) -> None:
    pages = {"/v2/a/referrers/" + sample.index.digest: sample.images[0], "/next": sample.images[1]}

    def answer(handler: Any) -> None:
        entry: Manifest = pages[handler.path]
        more = {"Link": '</next>; rel="next"'} if handler.path != "/next" else {}
        answers(handler, 200, manifests.index([entry.descriptor]).data, Content_Type=OCI_INDEX, **more)

    server.answer = answer
    found = registry.referrers(parse(f"{server.host}/a"), sample.index.digest)
    assert [one.digest for one in found] == [one.digest for one in sample.images]
    server.answer = lambda handler: answers(
        handler, 200, manifests.index([]).data, Link=f'<{handler.path}>; rel="next"'
    )
    with pytest.raises(NetworkFailure, match="100 pages"):
        registry.referrers(parse(f"{server.host}/a"), sample.index.digest)


def test_a_registry_that_lists_referrers_itself_needs_no_tag(
    server: Any, answers: Any, registry: Registry, sample: Any
) -> None:
    said = manifests.artifact("a/one", [manifests.EMPTY], sample.index.descriptor, {})

    def answer(handler: Any) -> None:
        answers(handler, 201, OCI_Subject=sample.index.digest)

    server.answer = answer
    registry.push_manifest(parse(f"{server.host}/a"), said)
    assert [one[0] for one in server.asked("manifests")] == ["PUT"]


def test_a_config_that_is_none_is_refused(server: Any, answers: Any, registry: Registry) -> None:
    config = manifests.describe(b"[]", "application/vnd.oci.image.config.v1+json")
    value = {"schemaVersion": 2, "config": config.as_json(), "layers": []}
    server.answer = lambda handler: answers(
        handler, 200, b"[]" if "blobs" in handler.path else json.dumps(value).encode()
    )
    with pytest.raises(IntegrityMismatch, match="no JSON object"):
        registry.config(parse(f"{server.host}/a:v1"))
    value["config"] = {**config.as_json(), "size": 1 << 30}
    with pytest.raises(IntegrityMismatch, match="config of"):
        registry.config(parse(f"{server.host}/a:v1"))


# --- TLS


@pytest.fixture
def certificate(tmp_path: Path, tool: Any) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = "subjectAltName=IP:127.0.0.1"
    make = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    tool(*make, "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", names)
    return cert, key


@pytest.mark.needs("openssl")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_tls_is_spoken_on_loopback_too_where_the_registry_does_and_its_certificate_is_checked(
    scripted: Any, answers: Any, sample: Any, certificate: tuple[Path, Path]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server = scripted(context)
    server.answer = lambda handler: answers(handler, 200, sample.index.data)
    name = parse(f"{server.host}/a@{sample.index.digest}")
    with registry_from({"SLIPWAY_REGISTRY_CA": str(certificate[0])}, QUICK) as client:
        assert client.resolve(name) == sample.index.digest
    with (
        Registry(limits=QUICK) as client,
        pytest.raises(NetworkFailure, match=r"certificate is not trusted.*SSL_CERT_FILE"),
    ):
        client.resolve(name)
    assert len(server.asked("manifests")) == 1


# --- the environment


def test_the_client_of_the_environment_has_its_mirrors_logins_and_certificates(
    tmp_path: Path, server: Any, answers: Any, sample: Any
) -> None:
    server.body = sample.index.data
    server.answer = bearer(server, answers)
    config = json.dumps({"auths": {server.host: {"username": "someone", "password": "secret"}}})
    environ = {"SLIPWAY_REGISTRY_MIRRORS": f"docker.io={server.host}", "DOCKER_AUTH_CONFIG": config}
    with registry_from(environ, QUICK) as client:
        assert client.resolve(parse(f"debian@{sample.index.digest}")) == sample.index.digest
    with pytest.raises(MissingFile, match="certificates"):
        registry_from({"SLIPWAY_REGISTRY_CA": str(tmp_path / "none.pem")})
    (tmp_path / "none.pem").write_text("nothing")
    with pytest.raises(AuthFailure, match="holds no certificates"):
        registry_from({"SLIPWAY_REGISTRY_CA": str(tmp_path / "none.pem")})
    assert registries.referrers_tag("sha256:ab") == "sha256-ab"
