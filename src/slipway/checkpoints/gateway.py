"""Published or mirrored files over HTTP, read-only, with Range: what other nodes, and the fetcher itself, download from.

One address answers in the two layouts that the fetcher asks in: `/<owner>/<name>/resolve/<revision>/<path>` as a hub does, and
`/<owner>/<name>/<revision>/<path>`. Only files of the locks it was made for are served. Its address ends in a random part, so
that being on the same network is not enough to read gated weights.

Standard library only; it runs on hosts too, sent there as text.
"""

from __future__ import annotations

import re
import secrets
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple  # noqa: UP035 -- older Pythons run it
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Opener = Callable[[int], "AbstractContextManager[IO[bytes]]"]
"""Opens a file at the byte given."""

Files = Dict[Tuple[str, str, str], Tuple[int, Opener]]  # noqa: UP006
"""(repository, revision, path) → size in bytes and how to open it."""

_PIECE_BYTES = 1 << 20
_IDLE_S = 120.0
"""How long a connection may neither ask nor take anything."""


class Gone(Exception):
    """The bytes of a file can no longer be had; the connection ends, and the fetcher tries again or gives up."""


@contextmanager
def serve(files: Files, address: str = "127.0.0.1", token: Optional[str] = None) -> Iterator[str]:  # noqa: UP045
    """The base address under which `files` are served on `address`, at a port of the system's choice, while the block runs.

    Raises: OSError when `address` is not one of this machine's.
    """
    secret = secrets.token_urlsafe(16) if token is None else token
    server = _Server(files, address, secret)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="gateway", daemon=True)
    thread.start()
    try:
        host = f"[{address}]" if ":" in address else address
        yield f"http://{host}:{server.server_address[1]}/{secret}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, files: Files, address: str, secret: str) -> None:
        self.files = files
        self.secret = secret
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that goes away is no event; what it could not get it says itself."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "slipway-gateway"
    sys_version = ""
    timeout = _IDLE_S
    server: _Server

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: whoever runs the gateway reports what was fetched."""

    def _answer(self, *, with_body: bool) -> None:
        found = self._file()
        if found is None:
            self._refuse(404)
            return
        size, opener = found
        span = _span(self.headers.get("Range", ""), size)
        if span is None:
            self._refuse(416, f"bytes */{size}")
            return
        start, end = span
        partial = span != (0, size)
        self.send_response(206 if partial else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.end_headers()
        if with_body:
            self._body(opener, start, end)

    def _body(self, opener: Opener, start: int, end: int) -> None:
        # Whatever goes wrong now, the only way to say so is to end the connection early.
        self.close_connection = True
        try:
            with opener(start) as stream:
                left = end - start
                while left:
                    piece = stream.read(min(_PIECE_BYTES, left))
                    if not piece:
                        return
                    self.wfile.write(piece)
                    left -= len(piece)
        except (OSError, Gone):
            return
        self.close_connection = False

    def _refuse(self, status: int, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def _file(self) -> Optional[Tuple[int, Opener]]:  # noqa: UP006, UP045
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/")[1:]]
        if len(parts) < 5 or not secrets.compare_digest(parts[0].encode(), self.server.secret.encode()):
            return None
        repo, rest = f"{parts[1]}/{parts[2]}", parts[3:]
        for revision, path in ((rest[0], rest[1:]), (rest[1], rest[2:])):
            found = self.server.files.get((repo, revision, "/".join(path)))
            if found is not None:
                return found
        return None


def _span(header: str, size: int) -> Optional[Tuple[int, int]]:  # noqa: UP006, UP045
    """First byte and end of what `header` asks of `size` bytes; None when it cannot be answered.

    A header that cannot be read, or asks for several ranges, is answered with everything, as RFC 9110 allows.
    """
    match = re.fullmatch(r"bytes=(\d{1,19})-(\d{0,19})", header.strip())
    if match is None:
        return 0, size
    start, last = int(match[1]), int(match[2]) if match[2] else size - 1
    if start >= size or last < start:
        return None
    return start, min(last + 1, size)
