"""Real registries on loopback for these tests: docker-registry itself, and a server that says whatever a test tells it to."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipway.documents import canonical_json
from slipway.images import manifests
from slipway.images.layout import Layout
from slipway.images.manifests import OCI_MANIFEST, Descriptor, Manifest
from slipway.images.registry import Limits, Registry

REGISTRY = shutil.which("docker-registry")

QUICK = Limits(connect_s=5, stall_s=2, answer_s=10, tries=3, pause_s=0.01)


@dataclass
class Sample:
    """An image for two platforms, whose layers differ and compress; `blobs` are its contents by digest."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    images: list[Manifest] = field(default_factory=list)

    def __post_init__(self) -> None:
        for platform in ("linux/amd64", "linux/arm64"):
            self.images.append(self._image(platform.partition("/")[2]))
        named = zip(self.images, ("linux/amd64", "linux/arm64/v8"), strict=True)
        self.index = manifests.index(replace(one.descriptor, platform=platform) for one, platform in named)

    def _image(self, architecture: str) -> Manifest:
        tars = [_tar(f"{architecture}-{number}") for number in range(3)]
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Cmd": ["/bin/true"]},
            "rootfs": {"type": "layers", "diff_ids": [manifests.digest_of(tar) for tar in tars]},
        }
        names = [self._blob(canonical_json(config), "application/vnd.oci.image.config.v1+json")]
        kind = "application/vnd.oci.image.layer.v1.tar+gzip"
        names += [self._blob(gzip.compress(tar, mtime=0), kind) for tar in tars]
        value = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": names[0].as_json(),
            "layers": [name.as_json() for name in names[1:]],
        }
        return manifests.parse(canonical_json(value), "sample")

    def _blob(self, data: bytes, media_type: str) -> Descriptor:
        name = manifests.describe(data, media_type)
        self.blobs[name.digest] = data
        return name

    def write(self, layout: Layout) -> Layout:
        """The sample in `layout`, whole index."""
        layout.create()
        for image in self.images:
            for blob in image.blobs:
                layout.put_blob(blob, lambda start, digest=blob.digest: iter((self.blobs[digest][start:],)))
            layout.put_manifest(image)
        layout.put_manifest(self.index)
        layout.finish(self.index)
        return layout


def _tar(seed: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        state, data = hashlib.sha256(seed.encode()), b""
        while len(data) < 40_000:
            state.update(b"more")
            data += state.digest()
        entry = tarfile.TarInfo(f"srv/{seed}")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture(scope="session")
def sample() -> Sample:
    return Sample()


@dataclass
class RealRegistry:
    """A docker-registry on loopback: its `host` with the port, and the folder of its data."""

    host: str
    data: Path


@pytest.fixture(scope="session")
def start_registry(
    tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]
) -> Iterator[Callable[..., RealRegistry]]:
    """Call it for one more real registry; `more` is added to its configuration."""
    running = []

    def start(more: str = "") -> RealRegistry:
        if REGISTRY is None:
            pytest.skip("docker-registry is not on PATH")
        folder, port = tmp_path_factory.mktemp("registry"), free_port()
        config = folder / "config.yml"
        config.write_text(
            "version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder}/data}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '127.0.0.1:{port}', secret: none}}\n{more}"
        )
        running.append(
            subprocess.Popen((REGISTRY, "serve", config), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )
        host = f"127.0.0.1:{port}"
        for _ in range(400):
            try:
                httpx.get(f"http://{host}/v2/", trust_env=False)
                break
            except httpx.TransportError:
                threading.Event().wait(0.025)
        else:
            pytest.fail("docker-registry does not answer")
        return RealRegistry(host, folder / "data")

    yield start
    for process in running:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def real(start_registry: Callable[..., RealRegistry]) -> RealRegistry:
    """One docker-registry for all tests; each uses repositories of its own."""
    return start_registry()


class Scripted:
    """A server on loopback that answers as `answer` says; it records (method, path, headers) of every request."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.answer: Callable[[Any], None] = lambda handler: say(handler, 404)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def _any(self) -> None:
                outer.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    if self.path == "/v2/" and self.command == "GET":
                        say(self, 200)
                    else:
                        outer.answer(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = _any

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that hang up are the point
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def asked(self, part: str) -> list[tuple[str, str, dict[str, str]]]:
        return [one for one in self.requests if part in one[1]]


def say(handler: Any, status: int, body: bytes = b"", length: int | None = -1, **headers: str) -> None:
    """One answer; `length` None leaves Content-Length out and ends with the connection."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    if length is None:
        handler.send_header("Connection", "close")
        handler.close_connection = True
    else:
        handler.send_header("Content-Length", str(len(body) if length < 0 else length))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)
    handler.wfile.flush()


@pytest.fixture
def scripted() -> Iterator[Callable[[], Scripted]]:
    """Call it for one more scripted server."""
    started: list[Scripted] = []

    def start(tls: ssl.SSLContext | None = None) -> Scripted:
        started.append(Scripted(tls))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A client that gives up soon."""
    with Registry(limits=QUICK) as client:
        yield client


@pytest.fixture
def tool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Call it with a command line; it must end well unless `check=False`."""

    def run(*argv: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        ran = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **env}, timeout=60, check=False)
        assert not check or ran.returncode == 0, f"{argv}: {ran.stderr}"
        return ran

    return run


@pytest.fixture
def helpers_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Call it with a name and Python text: a program of that name is then on PATH."""
    folder = tmp_path / "helpers"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, text: str) -> None:
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{text}\n")
        program.chmod(0o755)

    return write


@pytest.fixture
def answers() -> Callable[..., None]:
    """The function that writes one answer of a scripted server."""
    return say
