"""Builds by a real dockerd: the same bytes twice, inputs refused, and each way in which a build is cut short."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import CheckFailed, DiskFailure, IntegrityMismatch, MissingFile, NetworkFailure, UsageError
from slipway.images import image_gates, layers, oci_archive
from slipway.images.builders import BuildRequest, capabilities, unlocked_materials
from slipway.images.builders.buildx import BuildxBuilder
from slipway.images.image_gates import Leak

from .conftest import digest_of

pytestmark = pytest.mark.needs("docker")

Requested = Callable[..., BuildRequest]

LINES = ("ARG SOURCE_DATE_EPOCH", "COPY a.txt /a.txt", "RUN mkdir /made && echo hi > /made/b", "USER 65532")
FILES = {"a.txt": b"text\n"}


def test_two_builds_without_cache_are_the_same_to_the_byte(
    docker: Any, request_for: Requested, small_base: Any, tmp_path: Path
) -> None:
    request = request_for(*LINES, files=FILES, no_cache=True, compression="zstd", labels={"lock": "1"})
    first = BuildxBuilder().build(request)
    second = BuildxBuilder().build(replace(request, archive=tmp_path / "second.tar"))
    assert first.config_digest == second.config_digest
    assert first.diff_ids == second.diff_ids
    assert first.manifest_digest == second.manifest_digest
    assert request.archive.read_bytes() == second.archive.read_bytes()
    assert first.cached_steps == 0
    assert first.versions["dockerd"].startswith("26.")
    assert unlocked_materials(first, {small_base.digest}) == ()
    assert unlocked_materials(first, ()) == (
        f"docker-image://{small_base.ref.partition('@')[0]} ({small_base.digest})",
    )
    image = oci_archive.read(first.archive)
    assert image.alone
    assert oci_archive.is_plain(image, small_base.epoch, small_base.digest)
    assert image.process["Labels"] == {"lock": "1"}
    assert not image_gates.runs_as_root(image)
    made = layers.listing(image, 2)
    assert (made["made/b"].mtime_s, made["made/b"].mode) == (request.epoch, 0o644)
    again = BuildxBuilder().build(replace(request, no_cache=False))
    assert again.config_digest == first.config_digest
    assert again.cached_steps == 2
    # The archive is one that Docker itself takes, by the identity that was computed.
    docker.run("load", "--input", str(first.archive))
    try:
        ran = docker.run("run", "--rm", "--network=host", request.name, "cat", "/made/b", "/a.txt")
        assert ran.stdout == "hi\ntext\n"
    finally:
        docker.run("image", "rm", "--force", request.name)


@pytest.mark.usefixtures("docker")
def test_the_manifest_has_the_plain_form_in_every_compression(request_for: Requested, small_base: Any) -> None:
    for compression in ("gzip", "uncompressed"):
        image = oci_archive.read(
            BuildxBuilder().build(request_for(*LINES, files=FILES, compression=compression)).archive
        )
        assert image.alone
        assert oci_archive.is_plain(image, small_base.epoch, small_base.digest)


def test_a_push_keeps_the_digest(docker: Any, request_for: Requested, registry: str) -> None:
    built = BuildxBuilder().build(request_for(*LINES, files=FILES))
    place = f"docker://{registry}/build-test/push"
    subprocess.run(
        (
            "skopeo",
            "copy",
            "--quiet",
            "--preserve-digests",
            "--dest-tls-verify=false",
            f"oci-archive:{built.archive}",
            f"{place}:1",
        ),
        check=True,
        capture_output=True,
    )
    told = subprocess.run(
        ("skopeo", "inspect", "--raw", "--tls-verify=false", f"{place}@{built.manifest_digest}"),
        check=True,
        capture_output=True,
    ).stdout
    assert digest_of(told) == built.manifest_digest
    assert json.loads(told)["config"]["digest"] == built.config_digest


def test_a_failing_run_is_one_error_with_its_last_lines(docker: Any, request_for: Requested) -> None:
    request = request_for("RUN for i in $(seq 30); do echo line $i; done; exit 7")
    with pytest.raises(CheckFailed) as caught:
        BuildxBuilder().build(request)
    told = str(caught.value)
    assert told.startswith("slipway-test/small:1, Dockerfile:3: a RUN ended with code 7; its last lines are\n")
    assert "| line 30\n" in told
    assert told.count("| line") == 10
    assert not request.archive.exists()
    assert list(request.archive.parent.glob(".*part")) == []


@pytest.mark.parametrize(
    ("lines", "kind", "words"),
    [
        (("BLAH x",), UsageError, "unknown instruction: BLAH"),
        (("COPY missing /x",), UsageError, "a file is not in the context"),
        (("COPY --from=127.0.0.1:9/none:1 /x /x",), NetworkFailure, "connection refused"),
    ],
)
def test_what_cannot_be_built_says_why(
    docker: Any, request_for: Requested, lines: tuple[str, ...], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=re.escape(words)):
        BuildxBuilder().build(request_for(*lines))


def test_the_policy_lets_only_locked_sources_through(
    docker: Any, request_for: Requested, small_base: Any, served: str
) -> None:
    session = {"action": "ALLOW", "selector": {"identifier": "http://buildkit-session/*"}}
    base = {"action": "ALLOW", "selector": {"identifier": f"docker-image://{small_base.ref}"}}
    deny = {"action": "DENY", "selector": {"identifier": "*"}}
    policy = {"version": 1, "rules": [deny, session, base]}
    BuildxBuilder().build(request_for("RUN true", source_policy=policy))
    with pytest.raises(CheckFailed, match="takes in what the lock does not name"):
        BuildxBuilder().build(request_for(f"ADD {served}/file.bin /x", source_policy=policy))
    with pytest.raises(CheckFailed, match="takes in what the lock does not name"):
        BuildxBuilder().build(request_for("RUN true", source_policy={"version": 1, "rules": [deny, session]}))


def test_every_input_is_a_material_with_the_digest_that_was_enforced(
    docker: Any, request_for: Requested, small_base: Any, served: str
) -> None:
    digest = digest_of(b"data\n")
    lines = (f"ADD --checksum={digest} {served}/file.bin /x", f"ADD {served}/file.bin /y")
    built = BuildxBuilder().build(request_for(*lines))
    # The same URL twice, once without a checksum: what is not checked decides.
    assert unlocked_materials(built, {small_base.digest, digest}) in {(f"{served}/file.bin (no digest)",), ()}
    with pytest.raises(IntegrityMismatch, match="digest mismatch"):
        BuildxBuilder().build(request_for(f"ADD --checksum={digest_of(b'other')} {served}/file.bin /x"))


def test_a_secret_reaches_run_and_nothing_else(docker: Any, request_for: Requested, tmp_path: Path) -> None:
    secret = tmp_path / "odd, name.crt"
    secret.write_bytes(b"secret-of-ours-0123456789\n")
    lines = ("RUN --mount=type=secret,id=ca,target=/run/ca.crt wc -c < /run/ca.crt > /size",)
    built = BuildxBuilder().build(request_for(*lines, secrets={"ca": secret}))
    image = oci_archive.read(built.archive)
    assert image_gates.inspect(image, {"ca": secret.read_bytes()}).leaks == ()
    copied = ("RUN --mount=type=secret,id=ca,target=/run/ca.crt cp /run/ca.crt /etc/kept",)
    leaked = oci_archive.read(BuildxBuilder().build(request_for(*copied, secrets={"ca": secret})).archive)
    assert image_gates.inspect(leaked, {"ca": secret.read_bytes()}).leaks == (Leak("ca", "layer 1: etc/kept"),)


def test_a_full_disk_leaves_no_archive(docker: Any, request_for: Requested, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.geteuid() or subprocess.run(("mount", "-t", "tmpfs", "-o", "size=1m", "none", small), check=False).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        with pytest.raises(DiskFailure, match="no space left"):
            BuildxBuilder().build(request_for("RUN true", archive=small / "image.tar"))
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(("umount", small), check=True)


def test_a_daemon_that_dies_under_the_build_is_a_network_failure(
    docker: Any, request_for: Requested, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with _Wire(docker.host.removeprefix("unix://"), tmp_path / "wire.sock") as wire:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{wire.path}")
        request = request_for("RUN echo under way; sleep 9871", no_cache=True)
        with pytest.raises(NetworkFailure, match="does not answer"):
            BuildxBuilder().build(request)
    assert not request.archive.exists()


def test_ctrl_c_ends_the_build_and_what_runs_in_it(docker: Any, request_for: Requested, tmp_path: Path) -> None:
    request = request_for("RUN echo under way; sleep 9872", no_cache=True)
    context = tmp_path / "context.tar"
    assert isinstance(request.context, bytes)
    context.write_bytes(request.context)
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from slipway.images.builders import BuildRequest\nfrom slipway.images.builders.buildx import BuildxBuilder\n"
        "from slipway.progress import Lines\n"
        "BuildxBuilder().build(BuildRequest(context=Path(sys.argv[1]), archive=Path(sys.argv[2]), name='t', epoch=1, "
        "build_args={'BASE': sys.argv[3]}, network='host', no_cache=True), Lines(sys.stderr))\n"
    )
    argv = (sys.executable, "-c", program, str(context), str(request.archive), request.build_args["BASE"])
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True) as process:
        _until(lambda: _runs("sleep 9872"))
        process.send_signal(signal.SIGINT)
        # Python's own code for an interrupt that nobody catches; the command line turns it into 130.
        assert process.wait(timeout=30) == -signal.SIGINT
    _until(lambda: not _runs("sleep 9872"))
    assert not request.archive.exists()
    assert list(tmp_path.glob(".*part")) == []


def test_without_buildx_or_daemon_that_is_said(docker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    capabilities.check(os.environ)
    with pytest.raises(MissingFile, match="docker buildx: is not installed"):
        capabilities.check({**os.environ, "DOCKER_CONFIG": str(tmp_path / "none")})
    with pytest.raises(NetworkFailure, match="the Docker daemon does not answer"):
        capabilities.check({**os.environ, "DOCKER_HOST": f"unix://{tmp_path / 'none.sock'}"})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a server on loopback that has `file.bin`, which says `data`."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file.bin").write_bytes(b"data\n")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Wire:
    """A socket that leads to another one until it is cut, as when the daemon at its end dies."""

    def __init__(self, target: str, path: Path) -> None:
        self.target = target
        self.path = path
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)

    def __enter__(self) -> _Wire:
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.path.unlink(missing_ok=True)

    def _watch(self) -> None:
        _until(lambda: _runs("sleep 9871"))
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self.target)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return


def _runs(words: str) -> bool:
    """Whether a process with this command line exists."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().replace(b"\0", b" ").strip() == words.encode():
                return True
        except OSError:
            continue
    return False


def _until(holds: Callable[[], bool]) -> None:
    waited = threading.Event()
    for _ in range(600):
        if holds():
            return
        waited.wait(0.1)
    pytest.fail("did not happen within a minute")
