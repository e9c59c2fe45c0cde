"""`buildah build`: the second builder, for hosts without a Docker daemon. Same request, same result, digests of its own.

It has no source policy, so a Dockerfile's inputs are held to the lock by the linter and by `unlocked_materials` alone.
Measured with buildah 1.28.2, 2026-12-01: `--timestamp` gives the same config digest each time; layers in an OCI archive are
always compressed; `push` fails where DOCKER_CONFIG names a folder without config.json; a step's layers exist only with
`--layers`, so it is always given: without it the same request has other diff ids.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from slipway.errors import MissingFile, UsageError, from_os_error
from slipway.images import oci_archive
from slipway.images.builders import BuildRequest, BuildResult, display, failures, process
from slipway.images.builders.progress_events import BuildState, Event, Line, Log, Vertex
from slipway.progress import Progress, silent

_STEP = re.compile(r"(?:\[(?P<stage>\d+)/(?P<stages>\d+)\] )?STEP (?P<index>\d+)/(?P<count>\d+): (?P<text>.*)")


@dataclass
class BuildahBuilder:
    """Builds with buildah, without a daemon; RUN is isolated by chroot, which works inside of containers too.

    `storage` is a folder for its images (None: buildah's own); `tls_verify` is off for registries in plain HTTP.
    """

    env: Mapping[str, str] | None = None
    storage: Path | None = None
    tls_verify: bool = True
    name: str = "buildah"

    def build(self, request: BuildRequest, progress: Progress = silent) -> BuildResult:
        """The image, written to `request.archive`; nothing is left there when the build fails.

        Raises: MissingFile when buildah lacks; UsageError for what it cannot do; SlipwayError in the words of `failures`.
        """
        version = self._version()
        if request.compression == "uncompressed":
            raise UsageError(
                "buildah", "cannot write uncompressed layers", "it writes zstd and gzip", "choose one of them"
            )
        process.require_files(request.secrets)
        state = BuildState()
        started_s = time.monotonic()
        with (
            process.written_whole(request.archive) as part,
            # Beside the archive, in a folder that is swept if we are killed, and where there is room for an image.
            tempfile.TemporaryDirectory(prefix="build-", dir=part.parent) as folder,
        ):
            context, ids = Path(folder) / "context", Path(folder) / "id"
            unpack(request.context, context)
            self._build(request, context, ids, state, progress)
            self._export(request, ids.read_text().strip(), part)
        archive = oci_archive.read(request.archive)
        return BuildResult(
            builder=self.name,
            versions={"buildah": version},
            config_digest=archive.config_digest,
            diff_ids=archive.diff_ids,
            manifest_digest=archive.manifest_digest,
            layers=archive.layers,
            archive=request.archive,
            materials=dict(state.materials),
            seconds=time.monotonic() - started_s,
            cached_steps=state.cached_steps,
        )

    def _build(self, request: BuildRequest, context: Path, ids: Path, state: BuildState, progress: Progress) -> None:
        reader = StepReader()
        argv = (*self._program(), *command(request, context, ids, tls_verify=self.tls_verify))
        with display.shown(f"building {request.name}", state, progress) as show:

            def take(line: str) -> None:
                for event in reader.feed(line):
                    show(event)

            code = process.run(argv, self._environment(), None, take)
            for event in reader.close(failed=bool(code)):
                show(event)
        if code:
            step = state.failed
            said = next((line for line in reversed(state.lines) if line.startswith(("Error", "error"))), "")
            output = tuple(step.output) if step else ()
            raise failures.explain(request.name, said or (output[-1] if output else ""), output, request.dockerfile)

    def _export(self, request: BuildRequest, image: str, archive: Path) -> None:
        lines: list[str] = []
        words = (
            "push",
            "--quiet",
            f"--compression-format={request.compression}",
            image,
            f"oci-archive:{archive}:{request.name}",
        )
        if process.run((*self._program(), *words), self._environment(), None, lines.append):
            raise failures.explain(request.name, " ".join(lines), (), "")

    def _program(self) -> tuple[str, ...]:
        if self.storage is None:
            return ("buildah",)
        return ("buildah", f"--root={self.storage / 'root'}", f"--runroot={self.storage / 'run'}")

    def _environment(self) -> dict[str, str]:
        env = dict(os.environ if self.env is None else self.env)
        if "DOCKER_CONFIG" in env and not (Path(env["DOCKER_CONFIG"]) / "config.json").is_file():
            del env["DOCKER_CONFIG"]
        return env

    def _version(self) -> str:
        env = self._environment()
        if shutil.which("buildah", path=env.get("PATH")) is None:
            raise MissingFile("buildah", "not found on PATH", "it is the second builder", "install it, or use Docker")
        said = subprocess.run(
            ("buildah", "--version"), env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        ).stdout
        found = re.search(r"version (\S+)", said)
        return found[1] if found else ""


def command(request: BuildRequest, context: Path, ids: Path, *, tls_verify: bool) -> tuple[str, ...]:
    """The words after `buildah` that build `request` from the folder `context`; the image's id is written to `ids`."""
    argv = ["build", f"--timestamp={request.epoch}", "--isolation=chroot", "--layers", f"--iidfile={ids}"]
    argv += [f"--file={context / request.dockerfile}", f"--platform={request.platform}", "--format=oci"]
    argv += [] if tls_verify else ["--tls-verify=false"]
    argv += [f"--target={request.target}"] if request.target else []
    argv += [f"--network={request.network}"] if request.network != "default" else []
    argv += ["--no-cache"] if request.no_cache else []
    argv += [f"--build-arg={name}={value}" for name, value in sorted(request.all_build_args.items())]
    argv += [f"--label={name}={value}" for name, value in sorted(request.labels.items())]
    argv += [f"--add-host={name}:{address}" for name, address in sorted(request.add_hosts.items())]
    argv += [f"--secret=id={name},src={path}" for name, path in sorted(request.secrets.items())]
    return (*argv, str(context))


def unpack(context: bytes | Path, folder: Path) -> None:
    """Nothing; the context's files lie in `folder`, with their modes. buildah takes folders only.

    Raises: UsageError for a context that is no tar or holds what leaves the folder.
    """
    source = BytesIO(context) if isinstance(context, bytes) else None
    try:
        with tarfile.open(name=None if source else context, fileobj=source, mode="r:") as tar:
            tar.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise UsageError("the context", f"cannot be unpacked ({error})", "", "pack it again") from error
    except OSError as error:
        raise from_os_error(error, folder, "unpacking the context") from error


class StepReader:
    """buildah's lines as the events that BuildKit's make: one vertex per STEP, its output below it."""

    def __init__(self) -> None:
        self._open: Vertex | None = None

    def feed(self, line: str) -> tuple[Event, ...]:
        """The events that `line` means."""
        line = line.rstrip("\n")
        found = _STEP.fullmatch(line)
        if found:
            ended = self.close()
            name = f"[stage-{found['stage'] or 1} {found['index']}/{found['count']}] {found['text']}"
            self._open = Vertex(name, name, started_s=time.time())
            return (*ended, self._open)
        if self._open and line.startswith("--> Using cache"):
            return self._completed(cached=True)
        if line.startswith(("Error", "error")):
            return (Line(line),)
        return (Log(self._open.digest, line),) if self._open and line.strip() else ()

    def close(self, *, failed: bool = False) -> tuple[Event, ...]:
        """The end of the step that is under way; `failed` when the build ended in it."""
        return self._completed(error="failed" if failed else "")

    def _completed(self, *, cached: bool = False, error: str = "") -> tuple[Event, ...]:
        step, self._open = self._open, None
        if step is None:
            return ()
        return (Vertex(step.digest, step.name, step.started_s, time.time(), cached, error),)
