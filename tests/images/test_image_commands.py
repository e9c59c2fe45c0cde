"""The image commands on a real Docker, a real registry and a real git repository: locked, built twice, proved, refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ("__init__.py", "errors.py", "reference")


@pytest.fixture
def checkout(copy_checkout: Any, tmp_path: Path) -> Callable[..., Any]:
    """Call it with a name for a checkout of its own, with the sources that the reference image takes in."""

    def make(name: str) -> Any:
        root = tmp_path / name
        root.mkdir()
        copy = copy_checkout(root)
        (root / "src" / "slipway").mkdir(parents=True)
        for source in SOURCES:
            start, end = ROOT / "src" / "slipway" / source, root / "src" / "slipway" / source
            ignore = shutil.ignore_patterns("__pycache__")
            _ = shutil.copytree(start, end, ignore=ignore) if start.is_dir() else shutil.copy(start, end)
        return copy

    return make


@pytest.fixture
def building(docker: Any, base_image: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What a user behind a proxy of their own sets, so that RUN reaches package indexes."""
    found = {
        "SLIPWAY_BUILD_NETWORK": "host",
        "SLIPWAY_BUILD_CA": os.environ["SLIPWAY_TEST_CA"],
        "SLIPWAY_BUILD_PIP_CONF": os.environ["SLIPWAY_TEST_PIP_CONF"],
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return {**found, "base": base_image.ref}


def git(folder: Path, *words: str) -> str:
    identity = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(folder)}
    for who in ("AUTHOR", "COMMITTER"):
        identity |= {f"GIT_{who}_NAME": "A", f"GIT_{who}_EMAIL": "a@b", f"GIT_{who}_DATE": "2026-06-18T12:00:00Z"}
    ran = subprocess.run(
        ("git", "-C", str(folder), *words), env={**os.environ, **identity}, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository with a small `sglang`, and the pull request 28400 squash-merged into it."""
    folder = tmp_path / "upstream"
    package = folder / "python" / "sglang"
    package.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (package / "__init__.py").write_text("gating = 'per-head'\n")
    (folder / "python" / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "sglang"\nversion = "0.5.18"\n[tool.setuptools]\npackages = ["sglang"]\n'
    )
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Begin (#1)")
    (package / "__init__.py").write_text("gating = 'per-element'\n")
    git(folder, "commit", "-qam", "Support per-element gating (#28400)")
    return folder


def write_git_variant(root: Path, upstream: Path, base: str, **changed: Any) -> None:
    """An image.yaml for sglang whose default is built from `upstream`."""
    source = {
        "kind": "git",
        "base": base,
        "repository": f"file://{upstream}",
        "commit": git(upstream, "rev-parse", "HEAD"),
        "subdirectory": "python",
        "must_contain": [{"number": 28400, "title": "per-element gating"}],
        "assertions": [{"path": "python/sglang/__init__.py", "contains": "per-element", "why": "what #28400 brought"}],
        "packages": {
            "python": "3.13",
            "glibc": "2.40",
            "uv": "0.13.9",
            "requirements": ["setuptools==80.9.0"],
            "exclude_newer": "2026-11-30T00:00:00Z",
        },
        **changed,
    }
    variant = {
        "engine_version": "0.5.18",
        "source": source,
        "dockerfile": "Dockerfile.small",
        "entrypoint": ["/usr/bin/env"],
        "cuda": None,
    }
    document = {"schema": "slipway/image/v1", "engine": "sglang", "variants": {"default": variant}}
    (root / "images" / "sglang" / "image.yaml").write_text(yaml.safe_dump(document))
    (root / "images" / "sglang" / "image.lock.yaml").unlink(missing_ok=True)
    # The published image's own Dockerfile takes another sglang away first; this base has none.
    text = (ROOT / "images" / "sglang" / "Dockerfile.git").read_text()
    text = text.replace("    python3 -m pip --disable-pip-version-check uninstall -y sglang \\\n    &&", "   ")
    text = text.replace("export PIP_ROOT", "python3 -m venv /opt/venv; PATH=/opt/venv/bin:$PATH; export PIP_ROOT")
    (root / "images" / "sglang" / "Dockerfile.small").write_text(text.replace("/run/wheels/*.whl", "/run/wheels/*.whl"))


@pytest.mark.needs("docker")
def test_two_checkouts_build_one_image_and_an_unchanged_one_is_not_built_again(
    checkout: Callable[..., Any], building: dict[str, str]
) -> None:
    first, second = checkout("first"), checkout("a longer name/second".replace("/", "-"))
    locked = first.run("lock-image", "--engine", "reference", "--base", building["base"], "--json")
    assert locked.returncode == 0, locked.stderr
    made = json.loads(first.run("build-image", "--engine", "reference", "--no-cache", "--json").stdout)
    assert made["repeats_the_lock"] is False
    assert any("none stale" in check for check in made["checks"])
    assert any("no secret in any layer (ca, pip-conf)" in check for check in made["checks"])
    for name in ("image.lock.yaml", "requirements.lock"):
        shutil.copy(first.root / "images" / "reference" / name, second.root / "images" / "reference" / name)
    for path in second.root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o700 if path.is_dir() else 0o600)
            os.utime(path, (1_000_000_000, 1_000_000_000))
    again = second.run("build-image", "--engine", "reference", "--no-cache", "--json")
    assert again.returncode == 0, again.stderr
    other = json.loads(again.stdout)
    assert (other["config_digest"], other["diff_ids"]) == (made["config_digest"], made["diff_ids"])
    assert other["repeats_the_lock"] is True
    unchanged = json.loads(second.run("build-image", "--engine", "reference", "--json").stdout)
    assert unchanged["checks"] == ["the archive holds this image already, each layer hashed just now"]


@pytest.mark.needs("docker")
def test_a_commit_is_built_only_with_its_pull_requests_and_pushed_with_its_papers(
    checkout: Callable[..., Any], building: dict[str, str], upstream: Path, registry: str, tmp_path: Path
) -> None:
    copy = checkout("git")
    write_git_variant(copy.root, upstream, building["base"])
    locked = copy.run("lock-image", "--engine", "sglang")
    assert locked.returncode == 0, locked.stderr
    assert "proved         #28400 merged by" in locked.stdout
    # Whatever the lock holds is shown without a network, and without Docker.
    shown = copy.run(
        "build-image", "--engine", "sglang", "--dry-run", DOCKER_HOST="unix:///nowhere", PATH=os.environ["PATH"]
    )
    assert shown.returncode == 0, shown.stderr
    for part in (building["base"], git(upstream, "rev-parse", "HEAD"), "#28400", "requirements.lock sha256"):
        assert part in shown.stdout
    key = tmp_path / "cosign"
    secret = {"COSIGN_PASSWORD": "only for this test"}
    subprocess.run(
        ("cosign", "generate-key-pair", "--output-key-prefix", str(key)),
        env={**os.environ, **secret}, check=True, capture_output=True,
    )  # fmt: skip
    pushed = ("--engine", "sglang", "--pushed", f"{registry}/signed/sglang:test")
    built = copy.run("build-image", *pushed[:2], "--push", pushed[3], "--sign", f"{key}.key", "--json", **secret)
    assert built.returncode == 0, built.stderr
    assert json.loads(built.stdout)["pushed"]["signed"] is True
    proved = copy.run("verify-image", *pushed, "--key", f"{key}.pub", **secret)
    assert proved.returncode == 0, proved.stderr
    for part in ("layers are those", "SBOM is attached", "provenance is attached", "signed with the key"):
        assert part in proved.stdout
    bill = json.loads((copy.root / ".slipway" / "images" / "sglang.default.cdx.json").read_text())
    assert {"setuptools", "upstream"} <= {part["name"] for part in bill["components"]}
    git(upstream, "revert", "--no-edit", "HEAD")
    write_git_variant(copy.root, upstream, building["base"], assertions=[])
    reverted = copy.run("lock-image", "--engine", "sglang")
    assert reverted.returncode == 3
    assert "28400" in reverted.stderr
    assert "revert" in reverted.stderr.lower()
    write_git_variant(copy.root, upstream, building["base"], commit="main")
    moving = copy.run("lock-image", "--engine", "sglang")
    assert moving.returncode == 2
    assert "40 hex digits" in moving.stderr


@pytest.mark.needs("docker")
def test_what_differs_in_a_rebuild_is_named_by_layer_and_file(
    checkout: Callable[..., Any], building: dict[str, str], upstream: Path
) -> None:
    copy = checkout("random")
    write_git_variant(copy.root, upstream, building["base"])
    dockerfile = copy.root / "images" / "sglang" / "Dockerfile.small"
    text = dockerfile.read_text()
    dockerfile.write_text(
        text.replace("ENV HOME=/cache", "RUN cat /proc/sys/kernel/random/uuid >/cache/when\nENV HOME=/cache")
    )
    assert copy.run("lock-image", "--engine", "sglang").returncode == 0
    built = copy.run("build-image", "--engine", "sglang")
    assert built.returncode == 0, built.stderr
    verified = copy.run("verify-image", "--engine", "sglang")
    assert verified.returncode == 4
    assert "cache/when" in verified.stderr
    assert "layer" in verified.stderr


@pytest.mark.needs("docker")
def test_a_moved_tag_is_drift(
    checkout: Callable[..., Any], building: dict[str, str], registry: str, upstream: Path
) -> None:
    copy = checkout("moved")
    tagged = f"{registry}/moving/base:stable"
    layout = os.environ["SLIPWAY_TEST_BASE_LAYOUT"]
    sent = copy.run("mirror-image", "--from", f"layout:{layout}", "--to", tagged)
    assert sent.returncode == 0, sent.stderr
    write_git_variant(copy.root, upstream, tagged)
    assert copy.run("lock-image", "--engine", "sglang").returncode == 0
    assert copy.run("verify-image", "--engine", "sglang", "--drift").returncode == 0
    built = copy.run("build-image", "--engine", "sglang")
    assert built.returncode == 0, built.stderr
    subprocess.run(
        ("skopeo", "copy", "--quiet", "--dest-tls-verify=false",
         f"docker-archive:{copy.root}/.slipway/images/sglang.default.tar", f"docker://{tagged}"),
        check=True, capture_output=True, env={**os.environ, "PATH": os.environ["PATH"]},
    )  # fmt: skip
    drift = copy.run("verify-image", "--engine", "sglang", "--drift")
    assert drift.returncode == 3
    assert f"base.ref: {tagged}@sha256:" in drift.stderr


@pytest.mark.needs("docker")
def test_other_bytes_than_the_locked_ones_are_refused_before_and_by_the_build(
    checkout: Callable[..., Any], building: dict[str, str], upstream: Path
) -> None:
    copy = checkout("changed")
    write_git_variant(copy.root, upstream, building["base"])
    assert copy.run("lock-image", "--engine", "sglang").returncode == 0
    folder = copy.root / "images" / "sglang"
    requirements, lock = folder / "requirements.lock", folder / "image.lock.yaml"
    before = requirements.read_text()
    digest = before.partition("sha256:")[2][:64]
    requirements.write_text(before.replace(digest, "0" * 64))
    refused = copy.run("build-image", "--engine", "sglang", "--dry-run")
    assert refused.returncode == 3
    assert "is not what was locked" in refused.stderr
    requirements.write_text(before)
    # An edited image.yaml, Dockerfile or source is a stale lock, too.
    dockerfile = folder / "Dockerfile.small"
    text = dockerfile.read_text()
    dockerfile.write_text(text + "# changed\n")
    assert copy.run("build-image", "--engine", "sglang", "--dry-run").returncode == 3
    dockerfile.write_text(text)
    lock.write_text(lock.read_text().replace("engine_version: 0.5.18", "engine_version: 0.5.19"))
    edited = copy.run("build-image", "--engine", "sglang", "--dry-run")
    assert edited.returncode == 3
    assert "was edited by hand" in edited.stderr
    lock.write_text(lock.read_text().replace("engine_version: 0.5.19", "engine_version: 0.5.18"))
    assert copy.run("build-image", "--engine", "sglang").returncode == 0
    whole = lock.read_text()
    results = whole[whole.index("results:") : whole.index("results_sealed:")]
    for changed in (
        whole.replace("version: buildx", "version: somebody's buildx"),
        whole.replace(results, "results: []\n"),
    ):
        assert changed != whole
        lock.write_text(changed)
        edited = copy.run("build-image", "--engine", "sglang")
        assert (edited.returncode, "its results do not have the digest" in edited.stderr) == (3, True), edited.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("FROM debian:trixie-slim AS extra", "image-unpinned"),
        ("RUN curl -fsSL https://example.org/install.sh | sh", "curl"),
        ("RUN pip install requests", "hashes"),
        ("RUN git clone https://github.com/sgl-project/sglang.git", "git"),
        ("RUN apt-get install -y vim", "apt"),
    ],
)
def test_a_line_that_takes_in_something_unlocked_is_refused_with_its_place(
    copy_checkout: Any, tmp_path: Path, line: str, said: str
) -> None:
    copy = copy_checkout(tmp_path)
    dockerfile = tmp_path / "images" / "vllm" / "Dockerfile"
    lines = dockerfile.read_text().splitlines()
    at = next(number for number, text in enumerate(lines) if text.startswith("ARG ENGINE_VERSION")) + 1
    dockerfile.write_text("\n".join([*lines[:at], line, *lines[at:]]) + "\n")
    refused = copy.run("build-image", "--engine", "vllm", "--dry-run")
    assert refused.returncode == 2
    assert f"Dockerfile:{at + 1}:" in refused.stderr
    assert said in refused.stderr


def test_the_published_images_are_locked_and_shown_without_a_network(copy_checkout: Any, tmp_path: Path) -> None:
    copy = copy_checkout(tmp_path)
    for engine, digest in (("sglang", "9e148f5a"), ("vllm", "e4f88a83")):
        shown = copy.run("build-image", "--engine", engine, "--dry-run", "--json", PATH=os.environ["PATH"])
        assert shown.returncode == 0, shown.stderr
        made = json.loads(shown.stdout)
        assert digest in made["base"]["ref"]
        assert made["labels"]["org.slipway.image.lock"] == made["inputs_digest"]


def test_the_reference_images_packages_are_those_that_the_tests_run_with() -> None:
    """One version of each package: the image must not serve with another numpy than the goldens were made with."""
    spec = yaml.safe_load((ROOT / "images" / "reference" / "image.yaml").read_text())
    pinned = set(spec["variants"]["default"]["source"]["packages"]["requirements"])
    lock = (ROOT / "requirements.lock").read_text()
    assert pinned <= {line.split(" ")[0].removesuffix(";") for line in lock.splitlines() if "==" in line}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("build-image", "--engine", "trt"), 2, "known: reference, sglang, vllm"),
        (("build-image", "--engine", "sglang", "--variant", "nope"), 2, "known: default, efa, git, wheels"),
        (
            ("build-image", "--engine", "sglang", "--variant", "wheels"),
            5,
            "invoke lock-image --engine sglang --variant wheels",
        ),
        (("build-image", "--engine", "sglang", "--builder", "kaniko"), 2, "known: docker, buildah"),
        (("build-image", "--engine", "sglang", "--secret", "x=y"), 2, "names: ca, pip-conf, apt-sources"),
        (("lock-image", "--engine", "vllm", "--variant", "wheels", "--offline"), 2, "debian:trixie-slim"),
        (("mirror-image", "--to", "layout:x"), 2, "give one of --engine and --from"),
        (("mirror-image", "--engine", "vllm", "--to", "layout:x"), 5, "invoke build-image --engine vllm"),
        (("verify-image", "--engine", "vllm"), 5, "invoke build-image --engine vllm"),
        (("verify-image", "--engine", "vllm", "--key", "k.pub"), 2, "--key: needs --pushed"),
        (("verify-image", "--engine", "vllm", "--pushed", "r/x:1", "--drift"), 2, "--drift: does not go with"),
        (
            ("verify-image", "--engine", "vllm", "--pushed", "r/x:1", "--key", "k.pub"),
            5,
            "get the public key of who signed",
        ),
        (
            ("verify-image", "--engine", "vllm", "--pushed", "r/x:1", "--key", "images/caches.yaml"),
            2,
            "images/caches.yaml: is no public key (got no PEM block)",
        ),
        (("verify-image", "--engine", "vllm", "--pushed", ""), 2, "--pushed: is empty"),
        (("build-image", "--engine", "vllm", "--push", ""), 2, "--push: is empty"),
        (("build-image", "--engine", "vllm", "--push", "mine"), 2, "mine: names no registry; what is sent away"),
        (("build-image", "--engine", "vllm", "--push", "127.0.0.1:5000"), 2, "127.0.0.1:5000: names no registry"),
        (("build-image", "--engine", "vllm", "--replace"), 2, "--replace: needs --push"),
        (("build-image", "--engine", "vllm", "--secret", "ca=/nofile"), 5, "--secret: ca has no such file"),
        (("mirror-image", "--from", "r.example/x:1", "--to", "user/x:1"), 2, "user/x:1: names no registry"),
        (("mirror-image", "--engine", "vllm", "--to", ""), 2, "--to: is empty"),
        (("build-image", "--engine", "vllm", "--dry-run", "--oldest-docker", "banana"), 2, "is no version"),
        (("build-image", "--engine", "vllm", "--push", "r.example/x:1", "--sign", "no.key"), 5, "no.key"),
    ],
)
def test_what_cannot_be_meant_is_said_with_the_next_step(
    copy_checkout: Any, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    ran = copy_checkout(tmp_path).run(*words)
    assert (ran.returncode, said in ran.stderr) == (code, True), ran.stderr
