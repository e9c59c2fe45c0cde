"""A hub on loopback: the part of the Hugging Face HTTP API that huggingface_hub uses, served out of a folder.

`ROOT/<owner>/<name>/` is the repository `owner/name` at `main`. A revision is computed from the files, so a change to a
file moves `main`. Run it with `python -m slipway.reference.hub --root DIR --port N`, or in a test with `serve`.

Source: huggingface_hub 2.4.0 (hf_api.py, file_download.py, utils/_http.py), read 2026-11-30.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from slipway.errors import MissingFile, SlipwayError, UsageError
from slipway.reference.hub_body import FileBody
from slipway.reference.hub_faults import BODY_KINDS, Fault, Faults
from slipway.reference.hub_tree import LFS_FROM_BYTES, Blob, Commit, Repositories
from slipway.reference.hub_xet import ChunkStore


@dataclass(frozen=True)
class Options:
    """How the hub behaves: `gated` repositories need one of `tokens`; `redirect` sends LFS files to another host name; with
    `xet`, a folder, they are kept in a chunk store there as well."""

    tokens: frozenset[str] = frozenset()
    gated: frozenset[str] = frozenset()
    redirect: bool = False
    lfs_from_bytes: int = LFS_FROM_BYTES
    xet: Path | None = None


@dataclass(frozen=True)
class Seen:
    """One request as the hub met it; `authorized` says whether it carried an Authorization header."""

    method: str
    path: str
    host: str
    range: str
    authorized: bool


@dataclass
class Hub:
    """A running hub: where it is, what it was asked, and the faults in force."""

    url: str
    faults: Faults
    requests: list[Seen] = field(default_factory=list)


@contextmanager
def serve(root: Path, *, faults: Sequence[Fault] = (), options: Options | None = None) -> Iterator[Hub]:
    """A hub serving `root` on a free port of 127.0.0.1 while the `with` block runs.

    Raises: MissingFile when `root` is no folder.
    """
    hub = Hub("", Faults(tuple(faults)))
    server = uvicorn.Server(_config(build(root, hub, options or Options())))
    listener = _listen(0)
    hub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    thread = threading.Thread(target=server.run, args=([listener],), name="hub", daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def build(root: Path, hub: Hub, options: Options) -> Starlette:
    """The hub's ASGI application.

    Raises: MissingFile when `root` is no folder.
    """
    if not root.is_dir():
        raise MissingFile(root, "no such folder", "a hub serves ROOT/<owner>/<name>/", "create it or correct --root")
    store = ChunkStore(options.xet) if options.xet else None
    answers = _Answers(Repositories(root, options.lfs_from_bytes, store), hub, options, store)
    model = "/api/models/{owner}/{name}"
    return Starlette(
        routes=[
            Route(model, answers.info),
            Route(model + "/revision/{revision:path}", answers.info),
            Route(model + "/tree/{revision}", answers.tree),
            Route(model + "/tree/{revision}/{path:path}", answers.tree),
            Route(model + "/paths-info/{revision:path}", answers.paths_info, methods=["POST"]),
            Route(model + "/xet-read-token/{revision:path}", answers.xet_token),
            Route("/{owner}/{name}/resolve/{revision}/{path:path}", answers.resolve, methods=["GET", "HEAD"]),
            Route("/cdn/{owner}/{name}/{revision}/{path:path}", answers.storage, methods=["GET", "HEAD"]),
        ],
        exception_handlers={_Refusal: _refused},
    )


class _Refusal(Exception):
    """An answer that is an error, with the code that the client library reads."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {}), **(headers or {})}


async def _refused(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, _Refusal)
    return JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)


class _Answers:
    """One method per endpoint."""

    def __init__(self, repositories: Repositories, hub: Hub, options: Options, store: ChunkStore | None) -> None:
        self._repositories = repositories
        self._store = store
        self._hub = hub
        self._options = options

    async def info(self, request: Request) -> Response:
        repo, commit = await self._commit(request)
        blobs = request.query_params.get("blobs", "").lower() in {"true", "1"}
        gated = "manual" if repo in self._options.gated else False
        return JSONResponse(
            {
                "_id": commit.revision[:24],
                "id": repo,
                "modelId": repo,
                "sha": commit.revision,
                "private": False,
                "gated": gated,
                "disabled": False,
                "cardData": commit.card(),
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [blob.as_sibling(blobs=blobs) for blob in commit.blobs.values()],
            }
        )

    async def tree(self, request: Request) -> Response:
        _, commit = await self._commit(request)
        below = request.path_params.get("path", "").strip("/")
        recursive = request.query_params.get("recursive", "").lower() in {"true", "1"}
        entries = commit.entries(below, recursive=recursive)
        if not entries and below:
            raise _Refusal(404, "EntryNotFound", "Entry not found")
        return JSONResponse(entries)

    async def paths_info(self, request: Request) -> Response:
        _, commit = await self._commit(request)
        paths = parse_qs((await request.body()).decode()).get("paths", [])
        everything = {entry["path"]: entry for entry in commit.entries("", recursive=True)}
        return JSONResponse([everything[path] for path in paths if path in everything])

    async def xet_token(self, request: Request) -> Response:
        await self._commit(request)
        if self._store is None:
            raise _Refusal(404, "", "No chunk store")
        return JSONResponse({}, headers=self._store.headers())

    async def resolve(self, request: Request) -> Response:
        repo, commit = await self._commit(request)
        blob = self._blob(request, commit)
        headers = {"X-Repo-Commit": commit.revision, "ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"}
        if blob.sha256:
            headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size_bytes)}
            if blob.xet_hash:
                route = f"{self._hub.url}/api/models/{repo}/xet-read-token/{commit.revision}"
                headers |= {"X-Xet-Hash": blob.xet_hash, "X-Xet-Refresh-Route": route}
            if self._options.redirect:
                # Another host name for the same server, as a content network is: the token must not follow.
                place = f"http://localhost:{request.url.port}/cdn/{repo}/{commit.revision}/{quote(blob.path)}"
                return Response(status_code=302, headers={**headers, "Location": place})
        return self._body(request, blob, headers)

    async def storage(self, request: Request) -> Response:
        self._meet(request)
        repo = "{owner}/{name}".format_map(request.path_params)
        commit = await run_in_threadpool(self._repositories.at, repo, request.path_params["revision"])
        if commit is None:
            raise _Refusal(403, "", "signature expired")
        blob = self._blob(request, commit)
        return self._body(request, blob, {"ETag": f'"{blob.etag}"', "Accept-Ranges": "bytes"})

    def _meet(self, request: Request) -> str:
        """Remember the request, and refuse it where a fault says so; its "METHOD /path"."""
        headers = request.headers
        asked = f"{request.method} {request.url.path}"
        seen = Seen(
            request.method,
            request.url.path,
            headers.get("host", ""),
            headers.get("range", ""),
            "authorization" in headers,
        )
        self._hub.requests.append(seen)
        for fault in self._hub.faults.met(asked, "status", "gated"):
            if fault.kind == "gated":
                raise _Refusal(403, "GatedRepo", "Access to this model is restricted")
            raise _Refusal(fault.status, "", f"injected {fault.status}", _rate_limit(fault))
        return asked

    async def _commit(self, request: Request) -> tuple[str, Commit]:
        """The repository and the commit that the request names, once it may be read."""
        asked = self._meet(request)
        repo = "{owner}/{name}".format_map(request.path_params)
        folder = self._repositories.folder(repo)
        if folder is None:
            raise _Refusal(404, "RepoNotFound", "Repository not found")
        if repo in self._options.gated:
            self._authorize(request)
        for fault in self._hub.faults.met(asked, "main-moves"):
            folder = fault.folder or folder
        revision = request.path_params.get("revision", "main")
        head = await run_in_threadpool(self._repositories.head, repo, folder)
        if revision in {"main", head.revision}:
            return repo, head
        known = await run_in_threadpool(self._repositories.at, repo, revision)
        if known is None:
            raise _Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, known

    def _authorize(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not token:
            raise _Refusal(401, "GatedRepo", "Access to this model is restricted; log in first")
        if scheme.lower() != "bearer" or token not in self._options.tokens:
            raise _Refusal(401, "", "Invalid credentials in Authorization header")

    def _blob(self, request: Request, commit: Commit) -> Blob:
        blob = commit.blobs.get(request.path_params["path"])
        if blob is None:
            raise _Refusal(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit.revision})
        return blob

    def _body(self, request: Request, blob: Blob, headers: dict[str, str]) -> Response:
        asked = f"{request.method} {request.url.path}"
        faults = self._hub.faults.met(asked, *BODY_KINDS) if request.method == "GET" else []
        size = min([blob.size_bytes, *(fault.at for fault in faults if fault.kind == "short-length")])
        wanted = request.headers.get("range", "")
        if wanted and self._hub.faults.met(asked, "ignore-range"):
            wanted = ""
        span = _range(wanted, size)
        if span is None:
            raise _Refusal(416, "", "Requested range not satisfiable", {"Content-Range": f"bytes */{size}"})
        first, end = span
        headers = {**headers, "Content-Length": str(end - first), "Content-Type": "application/octet-stream"}
        if wanted and span != (0, size):
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
        status = 206 if "Content-Range" in headers else 200
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers)
        return FileBody(blob.source, span, faults, status, headers)


def _range(header: str, size: int) -> tuple[int, int] | None:
    """First byte and end of what a Range `header` asks of `size` bytes; None when it cannot be answered."""
    unit, _, spans = header.partition("=")
    first, dash, last = spans.partition("-")
    if unit.strip() != "bytes" or not dash or not (first + last).isdigit():
        return 0, size  # a header that cannot be read is ignored, as RFC 9110 says
    if not first:
        return (max(size - int(last), 0), size) if int(last) and size else None
    if int(first) >= size or (last and int(last) < int(first)):
        return None
    return int(first), min(int(last) + 1, size) if last else size


def _rate_limit(fault: Fault) -> dict[str, str]:
    """The headers that tell a client when to come back."""
    if fault.retry_after_s is None:
        return {}
    headers = {"Retry-After": str(fault.retry_after_s)}
    if fault.status == 429:
        headers["RateLimit"] = f'"api";r=0;t={fault.retry_after_s}'
        headers["RateLimit-Policy"] = '"fixed window";"api";q=500;w=300'
    return headers


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        place = f"127.0.0.1:{port}"
        raise UsageError(place, f"cannot listen ({error.strerror})", "", "choose a free --port, or 0") from error
    return listener


def _config(application: Any) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=1,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted; a token for gated repositories comes from SLIPWAY_HUB_TOKEN, never from argv."""
    parser = argparse.ArgumentParser(prog="slipway.reference.hub", description=main.__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder with <owner>/<name>/ inside")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--gated", action="append", default=[], metavar="OWNER/NAME")
    parser.add_argument("--xet", type=Path, help="keep LFS files in a chunk store in this folder too")
    parser.add_argument("--redirect", action="store_true", help="answer LFS files with a redirect to another host name")
    given = parser.parse_args(argv)
    token = os.environ.get("SLIPWAY_HUB_TOKEN", "")
    options = Options(frozenset({token} - {""}), frozenset(given.gated), given.redirect, xet=given.xet)
    hub = Hub("", Faults())
    try:
        application = build(given.root, hub, options)
        listener = _listen(given.port)
    except SlipwayError as error:
        print(error, file=sys.stderr)  # noqa: T201 -- this is a command
        raise SystemExit(error.exit_code) from None
    hub.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(hub.url, flush=True)  # noqa: T201 -- the one line that a caller of a free port needs
    uvicorn.Server(_config(application)).run([listener])


if __name__ == "__main__":
    main()
