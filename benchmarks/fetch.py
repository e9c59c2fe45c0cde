"""Our fetch against `hf download` with `hf cache verify` or `sha256sum`, side by side on this machine.

    python benchmarks/fetch.py [--shards 8] [--shard-mib 256] [--runs 5] [--tls] [--workers 4] [--before PYZ] [--root DIR]

A static server with sendfile stands in for the hub's storage, so that it takes few cycles from its clients; metadata comes
from the local hub. Every client is a process of its own; its CPU time is that of the process and its children. Hashing the
same number of bytes in memory is run beside them: where neighbours share a core, every figure grows with it. Prints one JSON
line per run and a table of medians with ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from slipway.checkpoints import bundle
from slipway.checkpoints import lock as locks
from slipway.reference.hub import serve
from slipway.reference.hub_sample import write_shard

REPO = "bench/Laguna-bench"
ROWS_PER_MIB = (1 << 20) // 128


def make_repository(folder: Path, shards: int, shard_mib: int) -> None:
    """Nothing; `folder` then holds a sharded checkpoint of random bytes."""
    folder.mkdir(parents=True)
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        tensor = f"model.layers.{number}.weight"
        write_shard(folder / name, {tensor: (shard_mib * ROWS_PER_MIB, 64)}, seed=number)
        weight_map[tensor] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text('{"model_type": "laguna"}')


class Front(BaseHTTPRequestHandler):
    """Answers files with sendfile, or through TLS, and hands everything else to the local hub."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        parts = self.path.split("?")[0].split("/")
        if "resolve" not in parts:
            self.forward()
            return
        path = self.server.folder.joinpath(*parts[parts.index("resolve") + 2 :])
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), int(last) + 1 if last else size
        self.send_response(206 if "Range" in self.headers else 200)
        file = self.server.digests[path.name]
        self.send_header("X-Repo-Commit", self.server.revision)
        self.send_header("ETag", f'"{file.sha256 or file.git_sha1}"')
        if file.sha256:
            self.send_header("X-Linked-Etag", f'"{file.sha256}"')
            self.send_header("X-Linked-Size", str(size))
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if with_body:
            self.wfile.flush()
            with path.open("rb") as stream:
                self.connection.sendfile(stream, start, end - start)

    def forward(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        request = urllib.request.Request(self.server.hub + self.path, self.rfile.read(length) or None)
        request.add_header("Content-Type", self.headers.get("Content-Type", ""))
        try:
            with urllib.request.urlopen(request) as answer:
                status, body = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def serve_front(pipe: int, hub: str, folder: Path, lock_path: Path, tls: tuple[str, str] | None) -> None:
    """Serve until killed; the port is written to `pipe`."""
    lock = locks.read(lock_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    server.daemon_threads = True
    server.hub, server.folder, server.revision = hub, folder, lock.revision  # type: ignore[attr-defined]
    server.digests = {Path(file.path).name: file for file in lock.files}  # type: ignore[attr-defined]
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    os.write(pipe, f"{server.server_address[1]}\n".encode())
    server.serve_forever()


def certificate(folder: Path) -> tuple[str, str]:
    """A self-made certificate for 127.0.0.1 and its key."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=127.0.0.1"]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return str(cert), str(key)


def measure(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Wall seconds, CPU seconds and largest memory of `command` and its children."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        began_s = time.monotonic()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = {
            "wall_s": time.monotonic() - began_s,
            "cpu_s": used.ru_utime + used.ru_stime,
            "rss_mb": used.ru_maxrss * 1024 / 1e6,
            "failed": "" if done.returncode == 0 else (done.stderr + done.stdout)[-2000:],
        }
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = json.loads(pipe.read())
    os.waitpid(child, 0)
    if said.pop("failed", ""):
        raise SystemExit(f"{command[:3]} failed: {said}")
    return said


def clients(place: Path, lock: Path, given: argparse.Namespace) -> dict[str, list[str]]:
    """Each contender's command line; all write below `place`/out."""
    out, python = place / "out", sys.executable
    hf = str(Path(python).with_name("hf"))
    flags = ["--lock", str(lock), "--dest", str(out), "--quiet", "--workers", str(given.workers)]
    bundles = {"slipway": place / "fetch.pyz", **({"slipway before": given.before} if given.before else {})}
    ours = {
        f"{name} {label}": [python, "-I", str(path), *flags, "--io", io]
        for name, path in bundles.items()
        for label, io in (("buffered", "buffered"), ("O_DIRECT", "direct"))
    }
    download = f"{hf} download {REPO} --local-dir {out}/m >/dev/null"
    revision = locks.read(lock).revision
    verify = f"{hf} cache verify {REPO} --revision {revision} --local-dir {out}/m >/dev/null"
    return {
        **ours,
        "hf download + hf cache verify": ["sh", "-ec", f"{download}; {verify}"],
        "hf download + sha256sum": ["sh", "-ec", f"{download}; sha256sum {out}/m/*.safetensors >/dev/null"],
    }


def run(given: argparse.Namespace, place: Path) -> dict[str, list[dict[str, float]]]:
    """The runs of every contender, interleaved."""
    served = place / "served"
    make_repository(served / REPO, given.shards, given.shard_mib)
    bundle.write(place / "fetch.pyz")
    size = sum(path.stat().st_size for path in (served / REPO).iterdir())
    runs: dict[str, list[dict[str, float]]] = {}
    with serve(served) as hub:
        lock = place / "bench.lock.json"
        locks.write(locks.resolve(REPO, "main", endpoint=hub.url, token=None), lock)
        tls = certificate(place) if given.tls else None
        reader, writer = os.pipe()
        front = os.fork()
        if front == 0:
            serve_front(writer, hub.url, served / REPO, lock, tls)
        try:
            port = int(os.fdopen(reader).readline())
            url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
            environment = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(place / "home"), "HF_HUB_DISABLE_XET": "1"}
            environment |= {
                "HF_HUB_DISABLE_TELEMETRY": "1",
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                "PYTHONDONTWRITEBYTECODE": "",
            }
            environment |= {"HF_HUB_DISABLE_UPDATE_CHECK": "1"}
            if tls:
                environment |= {"SSL_CERT_FILE": tls[0], "REQUESTS_CA_BUNDLE": tls[0]}
            contenders = clients(place, lock, given)
            hashing = (
                f"import hashlib; h, b = hashlib.sha256(), bytes(1 << 20); [h.update(b) for _ in range({size >> 20})]"
            )
            contenders["SHA-256 alone (yardstick)"] = [sys.executable, "-c", hashing]
            contenders = {name: argv for name, argv in contenders.items() if given.only in name}
            for _ in range(given.runs):
                for name, command in contenders.items():
                    one = measure(command, environment)
                    one["cpu_s_per_gb"] = one["cpu_s"] / size * 1e9
                    runs.setdefault(name, []).append(one)
                    print(json.dumps({"client": name, "load": os.getloadavg()[0], **one}), flush=True)
                    if (place / "out").exists():
                        subprocess.run(["chmod", "-R", "u+w", place / "out"], check=True)
                        shutil.rmtree(place / "out")
                        os.sync()
        finally:
            os.kill(front, signal.SIGKILL)
            os.waitpid(front, 0)
    return runs


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    """Medians as a Markdown table, with ratios to the first contender."""
    keys = ("wall_s", "cpu_s_per_gb", "rss_mb")
    median = {name: {key: statistics.median(one[key] for one in ones) for key in keys} for name, ones in runs.items()}
    lines = [
        "| client | wall s | cpu-s/GB | RSS MB | CPU vs buffered | wall vs buffered |",
        "|---|---|---|---|---|---|",
    ]
    first = next(iter(median.values()))
    for name, got in median.items():
        ratios = f"{got['cpu_s_per_gb'] / first['cpu_s_per_gb']:.2f}× | {got['wall_s'] / first['wall_s']:.2f}×"
        lines.append(f"| {name} | {got['wall_s']:.2f} | {got['cpu_s_per_gb']:.2f} | {got['rss_mb']:.0f} | {ratios} |")
    return "\n".join(lines)


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--shard-mib", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tls", action="store_true", help="serve over TLS")
    parser.add_argument("--only", default="", help="contenders whose name holds this text")
    parser.add_argument(
        "--before", type=Path, help="the fetcher as an earlier version bundled it, to run beside this one"
    )
    parser.add_argument("--root", type=Path, help="folder for everything written (default: a temporary one)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.root) as place:
        print(table(run(given, Path(place))))


if __name__ == "__main__":
    main()
