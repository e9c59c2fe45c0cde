"""What is decided before and after a build, without building: argv, compression, refusals, errors, materials."""

from __future__ import annotations

import csv
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.errors import (
    AuthFailure,
    CheckFailed,
    DiskFailure,
    IntegrityMismatch,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
)
from slipway.images.builders import (
    BuildRequest,
    BuildResult,
    buildah,
    buildx,
    capabilities,
    compression_for,
    failures,
    process,
    unlocked_materials,
    version_of,
)
from slipway.images.builders.buildah import BuildahBuilder, StepReader
from slipway.images.builders.buildx import BuildxBuilder
from slipway.images.builders.capabilities import Capabilities
from slipway.images.builders.progress_events import BuildState

REQUEST = BuildRequest(
    context=b"",
    archive=Path("/a/image.tar"),
    name="slipway/reference:1",
    epoch=1795252544,
    target="final",
    build_args={"BASE": "host/base@sha256:1", "A": "two words"},
    labels={"b": 'x,"y"', "a": "1"},
    secrets={"ca": Path("/some/ca,1.crt")},
    network="host",
    add_hosts={"mirror": "127.0.0.1"},
    no_cache=True,
)

GOOD = Capabilities("26.1.5+dfsg1", "26.1.5+dfsg1", "0.13.1+ds1", "docker", "", containerd_store=True)


@pytest.mark.parametrize(
    ("oldest", "expected"),
    [
        ("26.1.5+dfsg1", "zstd"),
        ("23.0.0", "zstd"),
        ("20.10.24", "gzip"),
        ("22.06.0-beta.0", "gzip"),
        (None, "zstd"),
        ("?", "gzip"),
    ],
)
def test_layers_are_zstd_only_where_every_node_reads_it(oldest: str | None, expected: str) -> None:
    assert compression_for(oldest) == expected


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=5), st.sampled_from(["", "+dfsg1", "-rc1", " (x)"]))
def test_a_version_is_its_leading_numbers(numbers: list[int], rest: str) -> None:
    text = ".".join(map(str, numbers))
    assert version_of(f"v{text}{rest}") == version_of(f"{text}{rest}") == tuple(numbers)


def test_the_same_request_gives_the_same_command_whatever_the_order_of_its_maps() -> None:
    turned = replace(
        REQUEST,
        build_args=dict(reversed(REQUEST.build_args.items())),
        labels=dict(reversed(REQUEST.labels.items())),
    )
    for command in (_buildx, _buildah):
        assert command(turned) == command(REQUEST)


def test_buildx_is_told_everything_that_decides_the_bytes() -> None:
    argv = _buildx(REQUEST)
    assert argv[:3] == ("docker", "buildx", "build")
    assert argv[-1] == "-"
    for word in (
        "--provenance=false",
        "--sbom=false",
        "--no-cache",
        "--network=host",
        "--platform=linux/amd64",
        "--target=final",
        "--add-host=mirror=127.0.0.1",
        "--build-arg=A=two words",
        "--build-arg=SOURCE_DATE_EPOCH=1795252544",
        '--label=b=x,"y"',
    ):
        assert word in argv
    output = next(word for word in argv if word.startswith("--output="))
    (fields,) = csv.reader([output.removeprefix("--output=")])
    assert set(fields) >= {
        "rewrite-timestamp=true",
        "compression=zstd",
        "force-compression=true",
        "oci-mediatypes=true",
    }
    secret = next(word for word in argv if word.startswith("--secret="))
    assert next(csv.reader([secret.removeprefix("--secret=")])) == ["id=ca", "src=/some/ca,1.crt"]


def test_buildah_is_told_the_same_in_its_words() -> None:
    argv = _buildah(REQUEST)
    assert {"--timestamp=1795252544", "--isolation=chroot", "--layers", "--network=host", "--tls-verify=false"} <= set(
        argv
    )
    assert "--add-host=mirror:127.0.0.1" in argv
    assert argv[-1] == "/context"


def test_a_docker_that_can_reproduce_is_taken() -> None:
    capabilities.refuse_unable(GOOD)
    capabilities.refuse_unable(replace(GOOD, driver="docker-container", buildkit="0.13.0", containerd_store=False))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(GOOD, server="25.0.3"), "cannot reproduce an image: its BuildKit is older than 0.13"),
        (replace(GOOD, server="20.10.24+dfsg1"), "cannot reproduce"),
        (replace(GOOD, containerd_store=False), "containerd-snapshotter"),
        (replace(GOOD, driver="docker-container", buildkit="0.12.5"), "cannot reproduce"),
        (replace(GOOD, driver="remote", buildkit=""), "got no version"),
    ],
)
def test_a_docker_that_cannot_reproduce_is_refused_with_the_way_out(found: Capabilities, said: str) -> None:
    with pytest.raises(CheckFailed, match=said) as caught:
        capabilities.refuse_unable(found)
    assert "buildah" in caught.value.remedy


def test_without_docker_on_the_path_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="docker: not found on PATH"):
        capabilities.check({"PATH": str(tmp_path)})


@pytest.mark.parametrize("missing", ["docker", "docker buildx"])
@pytest.mark.parametrize("buildah", [True, False])
def test_where_buildah_is_it_is_named_as_the_way_without_docker(tmp_path: Path, missing: str, buildah: bool) -> None:
    tools = {"docker": "[ $1 = version ] && echo '{}'"} if missing == "docker buildx" else {}
    for name, script in {**tools, **({"buildah": "exit"} if buildah else {})}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(MissingFile, match=f"^{missing}: ") as caught:
        capabilities.check({"PATH": str(tmp_path)})
    assert ("or give --builder buildah" in caught.value.remedy) is buildah


def test_without_buildah_on_the_path_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="buildah: not found on PATH"):
        BuildahBuilder(env={"PATH": str(tmp_path)}).build(REQUEST)


def test_only_locked_inputs_pass() -> None:
    result = BuildResult(
        "buildx", {}, "c", ("d",), "m", (), Path("a"), {"docker-image://b": "sha256:1", "https://c": ""}, 1.0, 0
    )
    assert unlocked_materials(result, {"sha256:1"}) == ("https://c (no digest)",)
    assert unlocked_materials(result, {"sha256:2"}) == (
        "docker-image://b (sha256:1)",
        "https://c (no digest)",
    )


def test_the_materials_of_a_metadata_file_are_read_as_ours() -> None:
    metadata = {
        "buildx.build.provenance": {
            "materials": [
                {
                    "uri": "pkg:docker/127.0.0.1%3A5000/base@trixie?digest=sha256:ab&platform=linux%2Famd64",
                    "digest": {"sha256": "ab"},
                },
                {"uri": "pkg:docker/debian?platform=linux%2Famd64", "digest": {"sha256": "cd"}},
                {"uri": "https://host/r.git#1", "digest": {"sha1": "ef"}},
                {"uri": 5},
            ]
        }
    }
    assert buildx.provenance_materials(metadata) == {
        "docker-image://127.0.0.1:5000/base:trixie": "sha256:ab",
        "docker-image://debian": "sha256:cd",
        "https://host/r.git#1": "ef",
    }
    assert buildx.provenance_materials({}) == {}


RUN = 'process "/bin/sh -c pip" did not complete successfully: exit code: 1'


@pytest.mark.parametrize(
    ("said", "output", "kind", "words"),
    [
        ("failed to solve: no active sessions", (), NetworkFailure, "run it again"),
        ("failed to copy to tar: write x.tar: no space left on device", (), DiskFailure, "no space left"),
        (RUN, ("dd: No space left on device",), DiskFailure, "dd: No space left on device"),
        (RUN, ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES",), IntegrityMismatch, "not what the lock says"),
        (RUN, ("connection refused",), CheckFailed, "a RUN ended with code 1"),
        (RUN.replace("code: 1", "code: 137"), (), CheckFailed, "for want of memory"),
        (
            'source "docker-image://x" denied by policy: source denied by policy',
            (),
            CheckFailed,
            "what the lock does not name",
        ),
        ("digest mismatch sha256:1: sha256:2", (), IntegrityMismatch, "not what the lock says"),
        (
            "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?",
            (),
            NetworkFailure,
            "does not answer",
        ),
        ("permission denied while trying to connect to the Docker daemon socket", (), AuthFailure, "refuses you"),
        ("rpc error: code = Unavailable desc = error reading from server: EOF", (), NetworkFailure, "does not answer"),
        ("pull access denied, repository does not exist", (), AuthFailure, "docker login"),
        ("host/base@sha256:1: not found", (), MissingFile, "not there"),
        (
            "failed to do request: Head: dial tcp 127.0.0.1:1: connect: connection refused",
            (),
            NetworkFailure,
            "did not answer",
        ),
        ("dockerfile parse error on line 2: unknown instruction: BLAH", (), UsageError, "cannot read it"),
        ("something new", (), CheckFailed, "was not built (something new)"),
        ("", (), CheckFailed, "said nothing"),
    ],
)
def test_each_way_to_fail_has_its_error(
    said: str, output: tuple[str, ...], kind: type[SlipwayError], words: str
) -> None:
    error = failures.explain("small", said, output, "Dockerfile:3")
    assert type(error) is kind
    assert words in str(error)
    assert error.place == "small, Dockerfile:3"


@given(st.text(), st.lists(st.text(), max_size=5))
def test_any_message_becomes_an_error(said: str, output: list[str]) -> None:
    assert isinstance(failures.explain("small", said, output, ""), SlipwayError)


def test_a_builder_that_says_nothing_at_all_still_gives_an_error() -> None:
    assert "said nothing" in str(buildx.failed("small", BuildState()))


def test_a_missing_secret_file_is_said_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="build secret `ca`"):
        process.require_files({"ca": tmp_path / "none"})


def test_an_archive_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "image.tar"
    with process.written_whole(path) as part:
        part.write_bytes(b"whole")
    assert path.read_bytes() == b"whole"
    with pytest.raises(ValueError, match="broken"), process.written_whole(path) as part:
        part.write_bytes(b"half")
        raise ValueError("broken")
    assert path.read_bytes() == b"whole"
    assert list(path.parent.iterdir()) == [path]


def test_a_builder_that_wrote_nothing_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(MissingFile), process.written_whole(tmp_path / "image.tar"):
        pass


def test_a_process_gives_its_lines_in_order_and_its_code(tmp_path: Path) -> None:
    lines: list[str] = []
    assert process.run(("sh", "-c", "cat; echo err >&2; exit 3"), os.environ, b"in\n", lines.append) == 3
    assert lines == ["in\n", "err\n"]
    (tmp_path / "context").write_bytes(b"file\n")
    process.run(("cat",), os.environ, tmp_path / "context", lines.append)
    assert lines[-1] == "file\n"


def test_a_program_or_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="starting the builder"):
        process.run((str(tmp_path / "none"),), os.environ, None, print)
    with pytest.raises(MissingFile, match="reading the context"):
        process.run(("cat",), os.environ, tmp_path / "none", print)


def test_a_builder_killed_from_outside_is_told() -> None:
    with pytest.raises(CheckFailed, match="was ended by SIGKILL"):
        process.run(("sh", "-c", "kill -9 $$"), os.environ, None, print)


def test_when_the_reader_fails_the_process_ends_with_its_children(tmp_path: Path) -> None:
    pids: list[int] = []

    def stop(line: str) -> None:
        pids.extend(map(int, line.split()))
        raise KeyboardInterrupt

    # A shell that ignores the polite signal, with a child that does too.
    script = "trap '' TERM; sleep 300 & echo $$ $!; wait"
    grace, process.GRACE_S = process.GRACE_S, 0.2
    try:
        with pytest.raises(KeyboardInterrupt):
            process.run(("sh", "-c", script), os.environ, None, stop)
    finally:
        process.GRACE_S = grace
    assert len(pids) == 2
    assert not [pid for pid in pids if _runs(pid)]


def test_buildahs_lines_are_read_as_steps() -> None:
    text = (
        "[1/2] STEP 1/2: FROM host/base@sha256:"
        + "a" * 64
        + " AS build\n[1/2] STEP 2/2: RUN true\n--> Using cache 12\n"
        "[2/2] STEP 1/2: FROM host/base@sha256:" + "a" * 64 + "\n[2/2] STEP 2/2: RUN echo no\nno\n"
        'Error: building at STEP "RUN echo no": while running runtime: exit status 1\n'
    )
    state, reader = BuildState(), StepReader()
    for line in text.splitlines(keepends=True):
        for event in reader.feed(line):
            state.take(event)
    for event in reader.close(failed=True):
        state.take(event)
    assert state.cached_steps == 1
    assert state.materials == {"docker-image://host/base": "sha256:" + "a" * 64}
    assert state.failed is not None
    assert list(state.failed.output) == ["no"]
    assert state.failed.stage == "stage-2"


@given(st.lists(st.text()))
def test_any_lines_of_buildah_are_read_without_an_error(lines: list[str]) -> None:
    state, reader = BuildState(), StepReader()
    for line in lines:
        for event in reader.feed(line):
            state.take(event)


def test_a_context_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    from_outside = _tar_with(tmp_path, "../outside")
    with pytest.raises(UsageError, match="cannot be unpacked"):
        buildah.unpack(from_outside, tmp_path / "context")
    with pytest.raises(UsageError, match="cannot be unpacked"):
        buildah.unpack(b"no tar at all" * 100, tmp_path / "context")
    with pytest.raises(MissingFile):
        buildah.unpack(tmp_path / "none.tar", tmp_path / "context")


def test_the_builders_names_are_the_ones_results_are_kept_under() -> None:
    assert (BuildxBuilder.name, BuildahBuilder.name) == ("buildx", "buildah")


def _tar_with(folder: Path, name: str) -> Path:
    path = folder / "context.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo(name)
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))
    return path


def _buildx(request: BuildRequest) -> tuple[str, ...]:
    return buildx.command(request, Path("/m.json"), Path("/a/part"))


def _buildah(request: BuildRequest) -> tuple[str, ...]:
    return buildah.command(request, Path("/context"), Path("/id"), tls_verify=False)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
