"""Signatures by the real cosign in a real registry, what is attached beside them, and every way in which they must not hold."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import (
    AuthFailure,
    CheckFailed,
    IntegrityMismatch,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)
from slipway.images import attach, mirror, provenance, sbom, signing
from slipway.images.image_name import ImageName, parse
from slipway.images.layout import Layout
from slipway.images.provenance import Build
from slipway.images.registry import Registry
from slipway.images.sbom import Components
from slipway.images.signing import Cosign, Keys

DIGEST = "sha256:" + "ab" * 32
COMPONENTS = Components("sglang", "0.5.18", "default", DIGEST, 1_790_000_000)

COSIGN = shutil.which("cosign")


@pytest.fixture(scope="module")
def cosign() -> Cosign:
    if COSIGN is None:
        pytest.skip("cosign is not on PATH")
    return signing.find({"PATH": os.environ["PATH"]})


@pytest.fixture(scope="module")
def keys(cosign: Cosign, tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return cosign.generate_keys(tmp_path_factory.mktemp("keys"), "open sesame")


@pytest.fixture
def image(real: Any, registry: Registry, sample: Any, request: pytest.FixtureRequest) -> ImageName:
    """The sample in a repository of the test's own, by digest."""
    layout = sample.write(Layout(request.getfixturevalue("tmp_path") / "pushed", "v1"))
    name = parse(f"{real.host}/signed/{abs(hash(request.node.name))}:v1")
    mirror.run(f"oci:{layout.folder}", str(name), registry)
    return replace(name, digest=sample.index.digest)


needs = pytest.mark.needs("cosign")


@needs
def test_a_signature_holds_for_its_digest_its_key_and_its_annotations(
    cosign: Cosign, keys: Keys, image: ImageName
) -> None:
    with pytest.raises(MissingFile, match="no signatures found") as unsigned:
        cosign.verify(image, keys.public)
    assert unsigned.value.exit_code == 5
    cosign.sign(image, keys.private, "open sesame", {"lock": DIGEST})
    found = cosign.verify(image, keys.public, {"lock": DIGEST})
    assert (found.digest, found.annotations["lock"]) == (image.digest, DIGEST)
    with pytest.raises(IntegrityMismatch, match="annotation") as wrong:
        cosign.verify(image, keys.public, {"lock": "sha256:" + "00" * 32})
    assert wrong.value.exit_code == 4


@needs
def test_another_key_and_another_image_are_refused(
    cosign: Cosign, keys: Keys, image: ImageName, registry: Registry, sample: Any, tmp_path: Path
) -> None:
    cosign.sign(image, keys.private, "open sesame")
    other = cosign.generate_keys(tmp_path, "", "other")
    with pytest.raises(IntegrityMismatch, match="another key"):
        cosign.verify(image, other.public)
    # The signature of one image under the name of another, as who tampers with an image would have it.
    victim = image.at(digest=sample.images[0].digest)
    for suffix in (".sig", ""):
        moved = registry.signature(image, str(image.digest), suffix)
        if moved is not None:
            registry.push_manifest(image.at(tag=str(victim.digest).replace(":", "-") + suffix), moved)
    with pytest.raises((IntegrityMismatch, MissingFile)):
        cosign.verify(victim, keys.public)


@needs
def test_a_signature_goes_where_the_image_goes(
    cosign: Cosign, keys: Keys, image: ImageName, registry: Registry, real: Any, tmp_path: Path
) -> None:
    cosign.sign(image, keys.private, "open sesame")
    mirror.run(str(image), f"oci:{tmp_path / 'disk'}", registry)
    inside = parse(f"{real.host}/inside/{image.repository}@{image.digest}")
    mirror.run(f"oci:{tmp_path / 'disk'}", str(inside), registry)
    assert cosign.verify(inside, keys.public).digest == image.digest


@needs
def test_a_lock_file_is_signed_beside_itself(cosign: Cosign, keys: Keys, tmp_path: Path) -> None:
    file = tmp_path / "image.lock.yaml"
    file.write_text("schema: x\n")
    with pytest.raises(MissingFile, match="holds the signature"):
        cosign.verify_blob(file, keys.public)
    bundle = cosign.sign_blob(file, keys.private, "open sesame")
    assert bundle.name == "image.lock.yaml.sigstore.json"
    cosign.verify_blob(file, keys.public)
    file.write_text("schema: y\n")
    with pytest.raises(IntegrityMismatch):
        cosign.verify_blob(file, keys.public)
    with pytest.raises(AuthFailure, match="password"):
        cosign.sign_blob(file, keys.private, "wrong")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.lock.yaml", bundle.name]


@needs
def test_keys_are_private_stay_and_want_their_password(
    cosign: Cosign, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stat.S_IMODE(keys.private.stat().st_mode) == 0o600
    before = keys.private.read_bytes()
    with pytest.raises(UsageError, match="there already"):
        cosign.generate_keys(keys.private.parent, "x")
    assert keys.private.read_bytes() == before
    file = tmp_path / "f"
    file.write_text("x")
    with pytest.raises(UsageError, match="COSIGN_PASSWORD"):
        cosign.sign_blob(file, keys.private)
    monkeypatch.setenv("COSIGN_PASSWORD", "open sesame")
    cosign.sign_blob(file, keys.private)
    with pytest.raises(MissingFile):
        cosign.generate_keys(tmp_path / "none", "x")
    with pytest.raises(MissingFile, match="a private key of cosign's"):
        cosign.sign(parse(f"127.0.0.1:1/a@{DIGEST}"), tmp_path / "none.key", "")
    with pytest.raises(MissingFile, match="its bytes are signed"):
        cosign.sign_blob(tmp_path / "none", keys.private, "")


@needs
def test_only_digests_are_signed_and_nobody_there_is_told(cosign: Cosign, keys: Keys, unused_port: int) -> None:
    with pytest.raises(UsageError, match="a tag may move"):
        cosign.sign(parse("127.0.0.1:1/a:v1"), keys.private, "")
    with pytest.raises(UsageError, match="no annotation"):
        cosign.sign(parse(f"127.0.0.1:1/a@{DIGEST}"), keys.private, "", {"a": "b,c=d"})
    with pytest.raises(SlipwayError) as caught:
        cosign.sign(parse(f"127.0.0.1:{unused_port}/some/engine@{DIGEST}"), keys.private, "open sesame")
    assert isinstance(caught.value, NetworkFailure), str(caught.value)


def test_cosign_that_is_missing_or_none_is_told(tmp_path: Path, helpers_on_path: Callable[[str, str], None]) -> None:
    with pytest.raises(MissingFile, match="cosign: is not installed"):
        signing.find({"PATH": str(tmp_path)})
    with pytest.raises(MissingFile, match="cannot be run"):
        signing.find({"SLIPWAY_COSIGN": str(tmp_path / "nowhere")})
    helpers_on_path("cosign", "print('Usage: cosign sign IMAGE')")
    with pytest.raises(UsageError, match="no cosign that we know"):
        signing.find()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("print('[]')", IntegrityMismatch),
        ("print('no json')", IntegrityMismatch),
        ('print(\'{"critical":{"image":{"docker-manifest-digest":"sha256:00"}}}\')', IntegrityMismatch),
        ("sys.stderr.write('Error: UNAUTHORIZED: no'); sys.exit(1)", AuthFailure),
        ("sys.stderr.write('Error: loading public key: PEM decoding: invalid pem block'); sys.exit(1)", UsageError),
        ("sys.stderr.write('Error: something new'); sys.exit(1)", CheckFailed),
        ("sys.exit(3)", CheckFailed),
    ],
)
def test_an_answer_that_does_not_name_the_digest_proves_nothing(
    helpers_on_path: Callable[[str, str], None], tmp_path: Path, answer: str, kind: type[SlipwayError]
) -> None:
    helpers_on_path("cosign", f"import sys\nif '--help' in sys.argv: print('--tlog-upload'); sys.exit()\n{answer}")
    key = tmp_path / "k.pub"
    key.write_text("-----BEGIN PUBLIC KEY-----\n")
    with pytest.raises(kind):
        signing.find().verify(parse(f"r.example/a@{DIGEST}"), key)


PRIVATE = "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("refuse", "content", "said"),
    [
        (signing.refuse_no_public_key, PRIVATE, "is no public key (got encrypted sigstore private key)"),
        (signing.refuse_no_public_key, "ssh-ed25519 AAAA", "is no public key (got no PEM block)"),
        (
            signing.refuse_no_private_key,
            "-----BEGIN PUBLIC KEY-----\n",
            "is no private key of cosign's (got public key)",
        ),
        (signing.refuse_no_private_key, "-----BEGIN PRIVATE KEY-----\n", "(got private key)"),
    ],
)
def test_a_key_of_the_wrong_kind_is_told_before_cosign_is_asked(
    tmp_path: Path, refuse: Callable[[Path], None], content: str, said: str
) -> None:
    key = tmp_path / "key"
    key.write_text(content)
    with pytest.raises(UsageError) as caught:
        refuse(key)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_who_verifies_is_not_told_to_make_a_pair(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"get the public key of who signed \(cosign\.pub\)"):
        signing.refuse_no_public_key(tmp_path / "nope.pub")
    with pytest.raises(MissingFile, match="make a pair with cosign generate-key-pair"):
        signing.refuse_no_private_key(tmp_path / "nope.key")


@needs
def test_the_real_keys_are_of_the_right_kind(keys: Keys) -> None:
    signing.refuse_no_public_key(keys.public)
    signing.refuse_no_private_key(keys.private)
    with pytest.raises(UsageError, match="is no public key"):
        signing.refuse_no_public_key(keys.private)


# --- what is attached


@pytest.mark.needs("docker-registry")
def test_papers_are_attached_once_found_again_and_carried_along(
    registry: Registry, image: ImageName, real: Any, tmp_path: Path
) -> None:
    build = Build(image, DIGEST, DIGEST, 1_790_000_000, "sglang", "default", "buildkit")
    papers = (attach.sbom_paper(COMPONENTS), attach.provenance_paper(build))
    names = [attach.attach(registry, image, paper) for paper in papers]
    assert [attach.attach(registry, str(image), paper) for paper in papers] == names
    assert len(registry.referrers(image, str(image.digest))) == 2
    inside = f"{real.host}/papers/inside@{image.digest}"
    assert len(mirror.run(str(image), inside, registry).attached) == 2
    assert attach.attached(registry, inside, sbom.MEDIA_TYPE) == (sbom.render(COMPONENTS),)
    statement = json.loads(attach.attached(registry, inside, provenance.MEDIA_TYPE)[0])
    assert statement["subject"][0]["digest"]["sha256"] == str(image.digest)[7:]
    with pytest.raises(MissingFile, match="attached"):
        attach.attached(registry, inside, "a/b")
    with pytest.raises(UsageError, match="never about a tag"):
        attach.attach(registry, "a/b:v1", papers[0])


@pytest.mark.parametrize("kind", ["layout", "archive"])
def test_papers_go_along_wherever_the_image_goes(sample: Any, tmp_path: Path, registry: Registry, kind: str) -> None:
    layout = sample.write(Layout(tmp_path / "l", "v1"))
    paper = attach.sbom_paper(COMPONENTS)
    for _ in range(2):
        sent = mirror.run(f"layout:{layout.folder}:v1", f"{kind}:{tmp_path / 'to'}:v1", registry, papers=[paper])
    back = mirror.run(f"{kind}:{tmp_path / 'to'}:v1", f"layout:{tmp_path / 'back'}", registry)
    found = Layout(tmp_path / "back", "v1")
    added = set(sent.attached) - {one.descriptor.digest for one in layout.attached(sample.index.digest)}
    assert back.attached == sent.attached
    assert len(added) == 1
    assert added <= {one.descriptor.digest for one in found.attached(sample.index.digest)}
    assert found.verify() == ()


@needs
def test_a_key_is_tried_before_anything_is_said(cosign: Cosign, keys: Keys, tmp_path: Path) -> None:
    cosign.require_key(keys.private, "open sesame")
    with pytest.raises(AuthFailure) as caught:
        cosign.require_key(keys.private, "another")
    assert caught.value.place == str(keys.private)
    with pytest.raises(MissingFile):
        cosign.require_key(tmp_path / "no.key", "open sesame")
