"""Whether the Docker here can build an image that another machine gets the same, asked before anything is built."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from slipway.errors import CheckFailed, MissingFile, SlipwayError
from slipway.images.builders import failures, version_of

REWRITES_SINCE = (0, 13)
"""The first BuildKit whose exporter rewrites timestamps. Source: moby/buildkit release notes of v0.13.0."""

DOCKER_SINCE = (26, 0)
"""The first dockerd with that BuildKit inside. Source: measured with 26.1.5, 2026-12-01; 25.0 carries BuildKit 0.12."""

_STORE = "io.containerd.snapshotter.v1"


@dataclass(frozen=True)
class Capabilities:
    """What builds here: versions as text, the driver's name, and whether the daemon keeps images in containerd's store.

    `buildkit` is `""` where the driver does not tell, as the one inside of dockerd.
    """

    docker: str
    server: str
    buildx: str
    driver: str
    buildkit: str
    containerd_store: bool

    @property
    def versions(self) -> dict[str, str]:
        """The versions to record in a lock."""
        told = {"docker": self.docker, "dockerd": self.server, "buildx": self.buildx, "buildkit": self.buildkit}
        return {name: version for name, version in told.items() if version}


def check(env: Mapping[str, str]) -> Capabilities:
    """What the Docker that `env` leads to can do, once it is sure that it can build reproducibly.

    Raises: MissingFile when docker or buildx lacks; NetworkFailure, AuthFailure when the daemon does not answer;
    CheckFailed when it is too old or its image store cannot export, with what to do.
    """
    found = find(env)
    refuse_unable(found)
    return found


def find(env: Mapping[str, str]) -> Capabilities:
    """What the Docker that `env` leads to says about itself.

    Raises: MissingFile, NetworkFailure, AuthFailure.
    """
    if shutil.which("docker", path=env.get("PATH")) is None:
        remedy = _or_buildah(env, "install Docker 26 or newer with buildx")
        raise MissingFile("docker", "not found on PATH", "images are built by it", remedy)
    version = _said(env, "version", "--format", "{{json .}}")
    told = json.loads(version)
    try:
        buildx = _said(env, "buildx", "version")
    except SlipwayError as error:
        remedy = _or_buildah(env, "install it (Debian: docker-buildx; Docker's own packages: docker-buildx-plugin)")
        raise MissingFile("docker buildx", "is not installed", "only BuildKit builds reproducibly", remedy) from error
    status = json.loads(_said(env, "info", "--format", "{{json .DriverStatus}}")) or []
    driver = _said(env, "buildx", "inspect")
    return Capabilities(
        docker=told["Client"]["Version"],
        server=told["Server"]["Version"],
        buildx=_first(r"\bv?(\d+\.\d+\S*)", buildx),
        driver=_first(r"^Driver:\s+(\S+)", driver),
        buildkit=_first(r"^Buildkit(?: version)?:\s+v?([1-9]\S*|0\.[1-9]\S*)", driver),
        containerd_store=any(_STORE in str(entry) for entry in status),
    )


def _or_buildah(env: Mapping[str, str], remedy: str) -> str:
    """`remedy`, and the builder that is here already where buildah is."""
    here = shutil.which("buildah", path=env.get("PATH")) is not None
    return f"{remedy}, or give --builder buildah, which is here and needs no Docker" if here else remedy


def refuse_unable(found: Capabilities) -> None:
    """Nothing when `found` can build the same image as another machine.

    Raises: CheckFailed saying what is missing and how to get it.
    """
    place = f"builder {found.driver or 'docker'}"
    why = "without rewritten timestamps each build has another digest"
    if found.driver == "docker":
        # Its own word for the version is `v0.0.0+unknown` in Debian's builds, so the daemon's decides.
        if version_of(found.server) < DOCKER_SINCE:
            problem = f"cannot reproduce an image: its BuildKit is older than 0.13 (got dockerd {found.server})"
            raise CheckFailed(place, problem, why, "update Docker to 26 or newer, or use --builder buildah")
        if not found.containerd_store:
            problem = "cannot export an archive: dockerd keeps its images in the old store"
            remedy = (
                'put {"features": {"containerd-snapshotter": true}} into /etc/docker/daemon.json and restart it, '
                "make a builder with `docker buildx create --use`, or use --builder buildah"
            )
            raise CheckFailed(place, problem, "the archive is what is checked, signed and pushed", remedy)
    elif not found.buildkit or version_of(found.buildkit) < REWRITES_SINCE:
        problem = f"cannot reproduce an image: BuildKit 0.13 or newer is needed (got {found.buildkit or 'no version'})"
        raise CheckFailed(
            place, problem, why, "make a newer one with `docker buildx create --use`, or use --builder buildah"
        )


def _said(env: Mapping[str, str], *words: str) -> str:
    ran = subprocess.run(
        ("docker", *words), env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise failures.explain(f"docker {words[0]}", ran.stderr.strip() or ran.stdout.strip(), (), "")
    return ran.stdout


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE | re.IGNORECASE)
    return found[1] if found else ""
