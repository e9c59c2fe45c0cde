"""`docker buildx build`: the first builder. Context on stdin, archive to a file, progress as events.

Measured on dockerd 26.1.5 with buildx 0.13.1, 2026-12-01: the exporter `type=docker` with OCI media types writes an
archive that `docker load` and `skopeo copy oci-archive:` both take, with the manifest digest of `type=oci`; without
containerd's image store that dockerd exports nothing ("not supported for the docker driver"), which `capabilities` tells
beforehand.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from slipway.images import oci_archive
from slipway.images.builders import BuildRequest, BuildResult, capabilities, display, failures, process
from slipway.images.builders.progress_events import BuildState, EventReader
from slipway.progress import Progress, silent


class BuildxBuilder:
    """Builds with the Docker that the environment leads to (DOCKER_HOST, DOCKER_CONFIG, BUILDX_BUILDER are honoured)."""

    name = "buildx"

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = dict(os.environ if env is None else env)

    def build(self, request: BuildRequest, progress: Progress = silent) -> BuildResult:
        """The image, written to `request.archive`; nothing is left there when the build fails.

        Raises: as `capabilities.check`, and SlipwayError in the words of `failures`.
        """
        found = capabilities.check(self._env)
        process.require_files(request.secrets)
        state = BuildState()
        started_s = time.monotonic()
        with (
            process.written_whole(request.archive) as part,
            # Beside the archive, in a folder that is swept if we are killed, and where there is room for an image.
            tempfile.TemporaryDirectory(prefix="build-", dir=part.parent) as folder,
        ):
            metadata = Path(folder) / "metadata.json"
            argv = command(request, metadata, part)
            env = {**self._env, **_environment(request, Path(folder))}
            self._run(argv, env, request, state, progress)
            materials = {**state.materials, **provenance_materials(_read_json(metadata))}
        archive = oci_archive.read(request.archive)
        return BuildResult(
            builder=self.name,
            versions=found.versions,
            config_digest=archive.config_digest,
            diff_ids=archive.diff_ids,
            manifest_digest=archive.manifest_digest,
            layers=archive.layers,
            archive=request.archive,
            materials=materials,
            seconds=time.monotonic() - started_s,
            cached_steps=state.cached_steps,
        )

    def _run(
        self,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        request: BuildRequest,
        state: BuildState,
        progress: Progress,
    ) -> None:
        reader = EventReader()
        with display.shown(f"building {request.name}", state, progress) as show:

            def take(line: str) -> None:
                for event in reader.feed(line):
                    show(event)

            code = process.run(argv, env, request.context, take)
            for event in reader.close():
                show(event)
        if code:
            raise failed(request.name, state)


def command(request: BuildRequest, metadata: Path, archive: Path) -> tuple[str, ...]:
    """The argv that builds `request` from the context on stdin; build arguments and labels in a fixed order."""
    output = {
        "type": "docker",
        "dest": str(archive),
        "name": request.name,
        "oci-mediatypes": "true",
        "rewrite-timestamp": "true",
        "compression": request.compression,
        # Otherwise layers of the base keep theirs, and the digest depends on what was pulled.
        "force-compression": "true",
    }
    argv = ["docker", "buildx", "build", "--progress=rawjson", f"--metadata-file={metadata}"]
    # Both hold times, so the digest would change with every build; they are attached afterwards instead.
    argv += ["--provenance=false", "--sbom=false"]
    argv += [f"--file={request.dockerfile}", f"--platform={request.platform}"]
    argv += [f"--target={request.target}"] if request.target else []
    argv += [f"--network={request.network}"] if request.network != "default" else []
    argv += ["--no-cache"] if request.no_cache else []
    argv += [f"--build-arg={name}={value}" for name, value in sorted(request.all_build_args.items())]
    argv += [f"--label={name}={value}" for name, value in sorted(request.labels.items())]
    argv += [f"--add-host={name}={address}" for name, address in sorted(request.add_hosts.items())]
    argv += [f"--secret={_fields({'id': name, 'src': str(path)})}" for name, path in sorted(request.secrets.items())]
    return (*argv, f"--output={_fields(output)}", "-")


def provenance_materials(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The resolved inputs in a metadata file, uri → digest; empty before buildx 0.14, which does not write them.

    Source: SLSA provenance 0.2 as BuildKit writes it (`materials[].uri`, `.digest`), read 2026-11-30.
    """
    provenance = metadata.get("buildx.build.provenance")
    listed = provenance.get("materials") if isinstance(provenance, dict) else None
    found: dict[str, str] = {}
    for material in listed if isinstance(listed, list) else ():
        uri, digest = material.get("uri"), material.get("digest") or {}
        if isinstance(uri, str) and isinstance(digest, dict):
            sha256 = digest.get("sha256")
            found[_image_uri(uri)] = f"sha256:{sha256}" if sha256 else str(digest.get("sha1", ""))
    return found


def failed(name: str, state: BuildState) -> Exception:
    """The user's error for a build that ended with a code: what its last lines and its failed step say."""
    lines = list(state.lines)
    said = next((line for line in reversed(lines) if line.startswith("ERROR: ")), lines[-1] if lines else "")
    said = said.removeprefix("ERROR: ").removeprefix("failed to solve: ")
    step = state.failed
    place = next((line for line in lines if re.fullmatch(r"\S+:\d+", line)), "")
    return failures.explain(name, said or (step.error if step else ""), tuple(step.output) if step else (), place)


def _environment(request: BuildRequest, folder: Path) -> dict[str, str]:
    env = {
        "SOURCE_DATE_EPOCH": str(request.epoch),
        # From 0.14 on the metadata file then lists every resolved input.
        "BUILDX_METADATA_PROVENANCE": "max",
        "BUILDX_METADATA_WARNINGS": "0",
        "BUILDKIT_COLORS": "",
        "NO_COLOR": "1",
    }
    if request.source_policy is not None:
        policy = folder / "policy.json"
        policy.write_text(json.dumps(request.source_policy))
        env["EXPERIMENTAL_BUILDKIT_SOURCE_POLICY"] = str(policy)
    return env


def _fields(fields: Mapping[str, str]) -> str:
    """Options as buildx reads them, which is one line of CSV."""
    return ",".join(
        f'"{text.replace(chr(34), chr(34) * 2)}"' if set(text := f"{name}={value}") & set(',"\n') else text
        for name, value in fields.items()
    )


def _image_uri(uri: str) -> str:
    """`pkg:docker/debian@trixie?platform=…` as `docker-image://debian:trixie`, the form of everything else here."""
    if not uri.startswith("pkg:docker/"):
        return uri
    name, _, tag = unquote(uri.removeprefix("pkg:docker/").partition("?")[0]).partition("@")
    return f"docker-image://{name}:{tag}" if tag and not tag.startswith("sha256:") else f"docker-image://{name}"


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = json.loads(path.read_text())
    return value if isinstance(value, dict) else {}
