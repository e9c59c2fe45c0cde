"""The reference engine's image, built for real: the same from two checkouts, fit to ship, pushed, pulled, and serving."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from slipway.endpoint import Client, Endpoint
from slipway.errors import NetworkFailure, SlipwayError
from slipway.gates import refuse_failed, smoke
from slipway.images import image_gates, oci_archive, verify_image
from slipway.images.builders import BuildRequest, BuildResult, unlocked_materials
from slipway.images.builders.buildah import BuildahBuilder
from slipway.images.builders.buildx import BuildxBuilder
from slipway.images.context import pack
from slipway.reference import checkpoint

pytestmark = pytest.mark.needs("docker")

ROOT = Path(__file__).resolve().parents[3]
MARKER = b"# a line that only this secret holds: 5c1f0b7e\n"


@dataclass
class Built:
    """The image as the first of two checkouts gave it, and the request that anyone can repeat."""

    request: BuildRequest
    result: BuildResult


def needed() -> frozenset[str]:
    """What the shipped image.yaml asks for, and what that needs in turn, as `lock-image` would find."""
    found: set[str] = set()
    ahead = [requirement.partition("==")[0] for requirement in variant()["source"]["packages"]["requirements"]]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            wanted = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
            ahead += [
                canonicalize_name(one.name) for one in wanted if not one.marker or one.marker.evaluate({"extra": ""})
            ]
    return frozenset(found)


def requirements(names: frozenset[str]) -> bytes:
    """The entries of requirements.lock for `names`, with their hashes."""
    entries = re.findall(r"^[a-z0-9].*\n(?:    .*\n)*", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    chosen = [entry for entry in entries if re.split(r"[=\[ ]", entry)[0] in names]
    assert {re.split(r"[=\[ ]", entry)[0] for entry in chosen} == names
    return "".join(chosen).encode()


def variant() -> dict[str, Any]:
    """The shipped image.yaml's default variant."""
    document = yaml.safe_load((ROOT / "images" / "reference" / "image.yaml").read_text())
    return dict(document["variants"]["default"])


def checkout(folder: Path, mode: int, mtime: int) -> Path:
    """What a clone in `folder` would hold, with an umask and times of its own."""
    for pattern in (*variant()["context"], "images/reference/Dockerfile"):
        for path in ROOT.glob(pattern):
            copy = folder / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            copy.chmod(mode)
            os.utime(copy, (mtime, mtime))
    return folder


def context_of(folder: Path, epoch: int, names: frozenset[str] | None = None) -> bytes:
    listed = (*variant()["context"], "images/reference/Dockerfile")
    return pack(folder, listed, {"locked/requirements.txt": requirements(names or needed())}, epoch).tar


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """This machine's CA and index, as its user would pass them, each with a line that is found nowhere else."""
    folder = tmp_path_factory.mktemp("secrets")
    found = {}
    for name, variable in (("ca", "SLIPWAY_TEST_CA"), ("pip-conf", "SLIPWAY_TEST_PIP_CONF")):
        if os.environ.get(variable):
            found[name] = folder / name
            found[name].write_bytes(Path(os.environ[variable]).read_bytes() + MARKER)
    return found


@pytest.fixture(scope="module")
def built(
    docker_daemon: Any, base_image: Any, secrets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Built:
    folder = tmp_path_factory.mktemp("first")
    request = BuildRequest(
        context=context_of(checkout(folder / "checkout", 0o600, 1_600_000_000), base_image.epoch),
        archive=folder / "reference.tar",
        name="slipway-test/reference:0.1.0",
        epoch=base_image.epoch,
        dockerfile="images/reference/Dockerfile",
        build_args={"BASE": base_image.ref},
        labels={"org.slipway.image.lock": "sha256:" + "0" * 64},
        secrets=secrets,
        network="host",
        no_cache=True,
    )
    return Built(request, BuildxBuilder({**os.environ, **docker_daemon.env}).build(request))


def test_two_checkouts_give_the_same_image(docker: Any, built: Built, base_image: Any, tmp_path: Path) -> None:
    other = checkout(tmp_path / "another" / "place", 0o664, 1_700_000_000)
    request = replace(built.request, context=context_of(other, base_image.epoch), archive=tmp_path / "second.tar")
    second = BuildxBuilder().build(request)
    first = oci_archive.read(built.result.archive)
    assert verify_image.differences(first, oci_archive.read(second.archive)).lines() == ()
    assert second.diff_ids == built.result.diff_ids
    assert second.manifest_digest == built.result.manifest_digest
    assert unlocked_materials(second, {base_image.digest}) == ()


def test_an_unchanged_rebuild_runs_no_step(docker: Any, built: Built, tmp_path: Path) -> None:
    again = BuildxBuilder().build(replace(built.request, no_cache=False, archive=tmp_path / "again.tar"))
    assert again.config_digest == built.result.config_digest
    dockerfile = (ROOT / "images" / "reference" / "Dockerfile").read_text()
    assert again.cached_steps == len(re.findall(r"^(?:RUN|COPY) ", dockerfile, re.MULTILINE))


def test_it_is_fit_to_ship(built: Built, secrets: dict[str, Path]) -> None:
    image = oci_archive.read(built.result.archive)
    sought = {name: path.read_bytes() for name, path in secrets.items()}
    state = image_gates.inspect(image, {**sought, "marker": MARKER, "cache": b"/root/.cache/pip/http"}, base_layers=1)
    image_gates.refuse("reference", state)
    assert state.pyc.stale == 0
    # The packages' and the engine's own, not only the base's.
    assert state.pyc.hashed > 500
    assert image.process["User"] == "65532:65532"
    assert image.process["Labels"]["org.slipway.image.lock"].startswith("sha256:")
    assert built.result.size_bytes < 120_000_000


def test_buildah_gives_its_own_image_twice(
    built: Built, base_image: Any, buildah_storage: Path, tmp_path: Path
) -> None:
    builder = BuildahBuilder(storage=buildah_storage, tls_verify=False)
    # The whole Dockerfile, with few packages: two builds of all of them take two minutes (docs/benchmarks.md has them).
    few, contexts = frozenset({"click", "h11", "typing-extensions"}), []
    for name, mode, mtime in (("one", 0o640, 1_650_000_000), ("two", 0o604, 1_750_000_000)):
        folder = checkout(tmp_path / name, mode, mtime)
        (folder / "src/slipway/reference/engine.py").write_text(
            "import h11\n"
        )  # the engine itself would miss the others
        contexts.append(context_of(folder, base_image.epoch, few))
    first, second = (
        builder.build(replace(built.request, archive=tmp_path / f"{number}.tar", context=context))
        for number, context in enumerate(contexts)
    )
    assert verify_image.differences(oci_archive.read(first.archive), oci_archive.read(second.archive)).lines() == ()
    assert first.diff_ids == second.diff_ids
    state = image_gates.inspect(oci_archive.read(first.archive), {"marker": MARKER}, base_layers=1)
    image_gates.refuse("reference by buildah", state)


def test_pushed_and_pulled_by_digest_it_serves_and_passes_the_smoke_gate(
    docker: Any, built: Built, registry: str, unused_port: int, tmp_path: Path
) -> None:
    place = f"{registry}/build-test/reference"
    subprocess.run(
        (
            *("skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false"),
            *(f"oci-archive:{built.result.archive}", f"docker://{place}:0.1.0"),
        ),
        check=True,
        capture_output=True,
    )
    pinned = f"{place}@{built.result.manifest_digest}"
    docker.run("pull", "--quiet", pinned)
    model = checkpoint.generate(tmp_path / "model").folder
    # Whoever runs the engine is neither root nor the test's user.
    for path in (tmp_path, model, *model.iterdir()):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    with running(docker, pinned, model, unused_port) as endpoint:
        refuse_failed([smoke.run(endpoint, request={"chat_template_kwargs": {"enable_thinking": False}})])


class running:  # reads as a sentence where it is used
    """The engine in a container, from the pinned image, while the block runs."""

    def __init__(self, docker: Any, image: str, model: Path, port: int) -> None:
        self.docker = docker
        flags = ("--host=127.0.0.1", f"--port={port}", "--served-model-name=laguna", "--reasoning-parser=poolside_v1")
        # As an operator would: nothing writable but the cache, no privileges.
        hard = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp")
        mount = f"--mount=type=bind,source={model},target=/model,readonly"
        self.name = f"slipway-test-{port}"
        self.words = ("run", "--detach", "--network=host", f"--name={self.name}", *hard, mount, image, "/model", *flags)
        self.endpoint = Endpoint(f"http://127.0.0.1:{port}", "laguna")

    def __enter__(self) -> Endpoint:
        self.docker.run(*self.words)
        waited = threading.Event()
        for _ in range(300):
            try:
                with Client(self.endpoint) as client:
                    client.generate_once()
            except SlipwayError as error:
                assert isinstance(error, NetworkFailure), error
                state = self.docker.run("inspect", "--format={{.State.Running}}", self.name).stdout.strip()
                assert state == "true", self.docker.run("logs", self.name).stderr
                waited.wait(0.2)
            else:
                return self.endpoint
        self.__exit__()
        return pytest.fail("the engine did not answer within a minute")

    def __exit__(self, *_: object) -> None:
        self.docker.run("rm", "--force", self.name)


def test_the_image_is_pinned_to_what_the_tests_run_with() -> None:
    locked = (ROOT / "requirements.lock").read_text()
    for requirement in variant()["source"]["packages"]["requirements"]:
        assert re.search(rf"^{re.escape(requirement)}(?: |$)", locked, re.MULTILINE), requirement
