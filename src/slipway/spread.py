"""`fetch-models --stack`: every node of the inventory brought to the same state, and the hub asked once; `verify-models --stack`.

One node (this machine if it is one of them, else the first) fetches from the hub and serves its published folder to the others,
which fetch in parallel with the same fetcher and hash every byte themselves. Other machines are reached over the system `ssh`
with nothing but a `python3`: the fetcher goes there through the pipe, and is gone when it has run.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from slipway import models
from slipway.checkpoints import bundle, gateway, host_job, records
from slipway.checkpoints import lock as locks
from slipway.checkpoints.fetch import FetchResult
from slipway.checkpoints.fetch import fetch as fetch_one
from slipway.checkpoints.hub import Hub, hub_from_environment
from slipway.checkpoints.lock import CheckpointLock
from slipway.checkpoints.verify import LEVELS
from slipway.errors import (
    AuthFailure,
    DiskFailure,
    IntegrityMismatch,
    LockDrift,
    MissingFile,
    NetworkFailure,
    SlipwayError,
    UsageError,
    from_os_error,
)
from slipway.inventory import Node
from slipway.progress import Progress
from slipway.stacks import Checkout, Stack

Json = dict[str, Any]

SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15")

_ERRORS = {
    error.__name__: error
    for error in (AuthFailure, DiskFailure, IntegrityMismatch, LockDrift, MissingFile, NetworkFailure, UsageError)
}

_BOOT = "import sys; exec(compile(sys.stdin.buffer.read(int(sys.argv[1])), 'slipway', 'exec'))"
"""Reads the program from stdin and leaves the rest of stdin, the lifeline, to it."""

_PROGRAM = """
import base64, json, pathlib, sys, tempfile
if sys.version_info < (3, 8):
    sys.exit("python3 is %d.%d, and 3.8 is needed" % sys.version_info[:2])
sys.dont_write_bytecode = True
with tempfile.TemporaryDirectory(prefix="slipway-") as place:
    bundle = pathlib.Path(place, "fetch.pyz")
    bundle.write_bytes(base64.b64decode({bundle!r}))
    sys.path.insert(0, str(bundle))
    from slipway.checkpoints.host_job import main
    code = main(json.loads({job!r}), pathlib.Path(place))
sys.exit(code)
"""


@dataclass(frozen=True)
class Options:
    """How each node fetches: the flags of `fetch-models`. `dest` replaces the models folder of every node."""

    dest: str | None = None
    workers: int = 4
    sources: tuple[str, ...] = ()
    io: str = ""
    adopt: bool = False

    @property
    def argv(self) -> list[str]:
        """The same as the fetcher's own flags."""
        words = ["--workers", str(self.workers), *(["--io", self.io] if self.io else [])]
        words += ["--adopt"] if self.adopt else []
        return words + [word for source in self.sources for word in ("--source", source)]


@dataclass(frozen=True)
class Check:
    """How each node verifies: the flags of `verify-models`."""

    level: str = "full"
    workers: int = 2


def fetch(
    checkout: Checkout, stack: Stack, meant: Sequence[CheckpointLock], options: Options, progress: Progress
) -> tuple[list[Json], str]:
    """What every node fetched, as JSON and as text: one entry per node and lock, in the inventory's order.

    A node that fails does not keep the others from their work; all failures are told together, and the command fails.

    Raises: SlipwayError of the first node that failed, naming all of them.
    """
    if options.workers < 1:
        raise UsageError("--workers", f"must be at least 1 (got {options.workers})", "", "give a positive number")
    nodes = stack.inventory.nodes
    seed = next((node for node in nodes if node.ssh is None), nodes[0])
    others = [node for node in nodes if node is not seed]
    worker = _Worker(checkout, meant, options, progress)
    found = {seed.name: worker.from_hub(seed)}
    if others:
        with worker.served(seed) as url, ThreadPoolExecutor(len(others)) as pool:
            futures = {node.name: pool.submit(worker.from_node, node, url) for node in others}
            failures = {name: error for name, future in futures.items() if (error := future.exception())}
        _refuse(failures, len(nodes))
        found |= {name: future.result() for name, future in futures.items()}
    entries = [{"node": node.name, **entry} for node in nodes for entry in found[node.name]]
    return entries, "".join(_text(entry, len(nodes) > 1, meant) for entry in entries)


def verify(
    checkout: Checkout, stack: Stack, meant: Sequence[CheckpointLock], check: Check, progress: Progress
) -> tuple[list[Json], str]:
    """What every node has verified of its own models folder, as JSON and as text: one entry per node and lock.

    All nodes are looked at, in parallel, whatever the others find; each that agrees is noted as soon as it is done.

    Raises: SlipwayError of the first node whose checkpoints do not agree, naming all such nodes.
    """
    if check.workers < 1:
        raise UsageError("--workers", f"must be at least 1 (got {check.workers})", "", "give a positive number")
    if check.level not in LEVELS:
        raise UsageError("--level", f"is not known (got {check.level!r})", f"one of {', '.join(LEVELS)}", "choose one")
    nodes = stack.inventory.nodes
    worker = _Worker(checkout, meant, Options(), progress)
    several = len(nodes) > 1

    def one(node: Node) -> list[Json]:
        entries = worker.verified(node, check)
        for entry in entries if several else ():
            progress.note(f"{node.name}: {models.verified_text(entry)}")
        return entries

    with ThreadPoolExecutor(len(nodes)) as pool:
        futures = {node.name: pool.submit(one, node) for node in nodes}
        failures = {name: error for name, future in futures.items() if (error := future.exception())}
    _refuse(failures, len(nodes))
    entries = [{"node": node.name, **entry} for node in nodes for entry in futures[node.name].result()]
    lines = [f"{entry['node'] + ': ' if several else ''}{models.verified_text(entry)}\n" for entry in entries]
    return entries, "".join(lines)


class _Worker:
    """What is the same for all nodes."""

    def __init__(
        self, checkout: Checkout, meant: Sequence[CheckpointLock], options: Options, progress: Progress
    ) -> None:
        self._checkout = checkout
        self._meant = meant
        self._options = options
        self._progress = progress

    def from_hub(self, node: Node) -> list[Json]:
        """What `node` fetched from the hub (or the sources that were given)."""
        if node.ssh is None:
            entries, _ = models.fetch(
                self._checkout,
                self._meant,
                self._root(node),
                workers=self._options.workers,
                progress=self._progress,
                sources=self._options.sources,
                io=self._options.io,
                adopt=self._options.adopt,
            )
            return entries
        hub = hub_from_environment()
        env = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token, "HF_HUB_OFFLINE": "1" if hub.offline else None}
        return self._remote(node, env, self._options.argv)

    def from_node(self, node: Node, url: str) -> list[Json]:
        """What `node` fetched from the node that serves at `url`."""
        alone = Options(workers=self._options.workers, io=self._options.io, adopt=self._options.adopt)
        if node.ssh is None:
            results = [self._local(item, node, Hub(url)) for item in self._meant]
            return [
                {"repo": item.repo, "revision": item.revision, **asdict(result), "folder": str(result.folder)}
                for item, result in zip(self._meant, results, strict=True)
            ]
        # The address is a capability, so it goes into the environment and not into a command line; no token goes with it.
        host = urlsplit(url).hostname or ""
        env = {"HF_ENDPOINT": url, "HF_TOKEN": None, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HUB_OFFLINE": None}
        proxy = {"no_proxy": host, "NO_PROXY": host}
        return self._remote(node, {**env, "HUGGING_FACE_HUB_TOKEN": None, **proxy}, alone.argv)

    def verified(self, node: Node, check: Check) -> list[Json]:
        """What `node` found its published checkpoints to be.

        Raises: what it found wrong, with its name.
        """
        if node.ssh is not None:
            job = {**self._job(node, {}), "do": "verify", "level": check.level, "workers": check.workers}
            with _Remote(node, job, self._progress.note) as remote:
                answers = [json.loads(line) for line in remote.stdout if line.startswith("{")]
                remote.refuse(answers)
            return answers
        entries: list[Json] = []
        for item in self._meant:
            folder = self._root(node) / item.repo.rpartition("/")[2]
            try:
                found, _ = models.verify(
                    self._checkout, [item], folder, level=check.level, workers=check.workers, progress=self._progress
                )
            except SlipwayError as error:
                raise type(error)(f"{node.name}: {error.place}", error.problem, error.why, error.remedy) from error
            entries += found
        return entries

    @contextlib.contextmanager
    def served(self, node: Node) -> Iterator[str]:
        """The address at which `node` serves what it has published, while the block runs."""
        if node.ssh is None:
            try:
                with gateway.serve(host_job.published_files(self._meant, self._root(node)), node.address) as url:
                    yield url
            except OSError as error:
                raise from_os_error(error, node.address, "serving the checkpoint to the other nodes") from error
            return
        job = {**self._job(node, {}), "do": "serve", "address": node.address}
        with _Remote(node, job, self._progress.note) as remote:
            line = remote.stdout.readline()
            answer = json.loads(line) if line.startswith("{") else {}
            if "url" not in answer:
                remote.refuse([answer] if answer else [])
            yield str(answer["url"])

    def _local(self, item: CheckpointLock, node: Node, hub: Hub) -> FetchResult:
        options = self._options
        result = fetch_one(
            item,
            self._root(node),
            hub=hub,
            workers=options.workers,
            progress=self._progress,
            io=options.io,
            adopt=options.adopt,
        )
        records.remember_fetch(item, result.folder, skipped=result.skipped, progress=self._progress)
        return result

    def _remote(self, node: Node, env: dict[str, str | None], argv: list[str]) -> list[Json]:
        with _Remote(node, {**self._job(node, env), "do": "fetch", "argv": argv}, self._progress.note) as remote:
            answers = [json.loads(line) for line in remote.stdout if line.startswith("{")]
            remote.refuse(answers)
        return answers

    def _job(self, node: Node, env: dict[str, str | None]) -> Json:
        dest = self._options.dest or node.paths.models
        return {"locks": [locks.text(item) for item in self._meant], "dest": dest, "env": env}

    def _root(self, node: Node) -> Path:
        # A relative path is taken from the checkout, as the inventory says.
        return self._checkout.root / (self._options.dest or node.paths.models)


class _Remote:
    """A job on another machine; its notes go to `note`, line by line, with the node's name in front."""

    def __init__(self, node: Node, job: Json, note: Callable[[str], None]) -> None:
        self._node = node
        self._note = note
        self._last = ""
        program = _PROGRAM.format(bundle=_bundle(), job=json.dumps(job)).encode()
        command = shlex.join(("python3", "-I", "-c", _BOOT, str(len(program))))
        try:
            self._process = subprocess.Popen(
                (*SSH, node.ssh or "", command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except FileNotFoundError as error:
            raise MissingFile("ssh", "no such program", "nodes are reached with it", "install an ssh client") from error
        self._notes = threading.Thread(target=self._relay, name=f"notes of {node.name}", daemon=True)
        self._notes.start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what went wrong stands on stderr
            self._process.stdin.write(program.decode())
            self._process.stdin.flush()

    @property
    def stdout(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def __enter__(self) -> _Remote:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the lifeline, and waits until the other side has noticed."""
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._notes.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def refuse(self, answers: Sequence[Json]) -> None:
        """Nothing when the job succeeded; call it when its output has ended.

        Raises: the error that it reported, with the node's name; NetworkFailure when ssh failed.
        """
        code = self._process.wait()
        self._notes.join()
        said = next((answer for answer in answers if "error" in answer), None)
        name = self._node.name
        if said is not None:
            raise _ERRORS.get(str(said["error"]), SlipwayError)(
                f"{name}: {said['place']}", str(said["problem"]), str(said["why"]), str(said["remedy"])
            )
        if code == 0:
            return
        last = self._last[:300]
        if code == 255:
            remedy = f"try it by hand: ssh {self._node.ssh} true"
            raise NetworkFailure(name, f"ssh {self._node.ssh} failed ({last})", "no password is asked for", remedy)
        if code == 127:
            raise MissingFile(name, f"has no python3 ({last})", "the fetcher needs Python 3.8 or newer", "install it")
        raise NetworkFailure(name, f"the fetcher ended with exit code {code} ({last})", "", "run the command again")

    def _relay(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last = " ".join(line.split()) or self._last
            self._note(f"{self._node.name}: {line.rstrip()}")


@functools.cache
def _bundle() -> str:
    """The fetcher as base64 text."""
    with tempfile.TemporaryDirectory(prefix="slipway-") as place:
        bundle.write(Path(place, "fetch.pyz"))
        return base64.b64encode(Path(place, "fetch.pyz").read_bytes()).decode("ascii")


def _refuse(failures: dict[str, BaseException], nodes: int) -> None:
    """Nothing when no node failed.

    Raises: the only failure as it is, or one that names all of them, of the first one's kind.
    """
    if not failures:
        return
    first = next(iter(failures.values()))
    if len(failures) == 1 or not isinstance(first, SlipwayError):
        raise first
    lines = "".join(f"\n  {error}" for error in failures.values())
    raise type(first)(", ".join(failures), f"{len(failures)} of {nodes} nodes failed{lines}\n")


def _text(entry: Json, with_node: bool, meant: Sequence[CheckpointLock]) -> str:
    item = next(item for item in meant if (item.repo, item.revision) == (entry["repo"], entry["revision"]))
    values = {key: entry[key] for key in FetchResult.__dataclass_fields__}
    result = FetchResult(**{**values, "folder": Path(entry["folder"])})
    return f"{entry['node'] + ': ' if with_node else ''}{models.fetched_text(item, result)}\n"
