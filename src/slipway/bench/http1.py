"""HTTP/1.1 responses cut out of socket bytes, with the arrival time of every piece kept. Pure.

Only what a streamed answer needs: a status line, headers, and a body that is chunked, of a stated length, or ends with
the connection. The caller stamps the time; this must run between two reads, so it finds the end of the body and does
nothing else: events and JSON are read after the run.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_HEAD_BYTES = 64_000
MAX_BODY_BYTES = 256_000_000


class Malformed(Exception):
    """The peer does not speak HTTP/1.1."""


class Response:
    """One response as it arrives: feed it bytes until `complete`.

    `pieces` is the body as (arrival in seconds, bytes).
    """

    def __init__(self) -> None:
        self.status = 0
        self.pieces: list[tuple[float, bytes]] = []
        self.complete = False
        self.started = False
        self._buffer = b""
        self._size_bytes = 0
        self._left = 0
        self._keep_alive = True
        self._state: Callable[[float], bool] = self._head

    def feed(self, arrival_s: float, data: bytes) -> None:
        """Take `data` that arrived at `arrival_s`.

        Raises: Malformed when it is not HTTP/1.1, or more than an answer can be.
        """
        self.started = True
        self._buffer += data
        while not self.complete and self._state(arrival_s):
            pass

    def end(self) -> bool:
        """The connection has ended: is the response whole? Only a body without a length may end like this."""
        if not self.complete and self._state == self._until_close:
            self.complete = True
        return self.complete

    @property
    def reusable(self) -> bool:
        """True when the connection can carry another request: whole, kept open, and nothing came that was not asked for."""
        return self.complete and self._keep_alive and not self._buffer

    def body(self) -> bytes:
        """The body so far."""
        return b"".join(piece for _, piece in self.pieces)

    def _head(self, _: float) -> bool:
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if len(head) > MAX_HEAD_BYTES:
            raise Malformed("the headers do not end")
        if not found:
            return False
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, _space, status = status_line.partition(" ")
        if version not in {"HTTP/1.1", "HTTP/1.0"} or not (status[:3].isascii() and status[:3].isdigit()):
            raise Malformed(f"not an HTTP/1.1 answer: {status_line[:60]!r}")
        self._buffer = rest
        if status[0] == "1":
            return True  # 100 Continue and the like: the real head follows
        self.status = int(status[:3])
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip().lower() for name, _colon, value in pairs}
        connection = headers.get("connection", "")
        self._keep_alive = "close" not in connection and (version == "HTTP/1.1" or "keep-alive" in connection)
        self._choose_framing(headers)
        return True

    def _choose_framing(self, headers: dict[str, str]) -> None:
        length = headers.get("content-length")
        if headers.get("transfer-encoding", "identity") != "identity":
            if headers["transfer-encoding"] != "chunked":
                raise Malformed(f"transfer-encoding {headers['transfer-encoding'][:40]!r} was not asked for")
            self._state = self._chunk_size
        elif self.status in {204, 304} or length == "0":
            self.complete = True
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                raise Malformed(f"content-length {length[:40]!r}")
            self._left = int(length)
            self._state = self._counted
        else:
            self._keep_alive = False
            self._state = self._until_close

    def _chunk_size(self, _: float) -> bool:
        line, found, rest = self._buffer.partition(b"\r\n")
        if len(line) > 1000:
            raise Malformed("a chunk size does not end")
        if not found:
            return False
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > 16 or digits.strip(b"0123456789abcdefABCDEF"):
            raise Malformed(f"chunk size {line[:40]!r}")
        self._buffer = rest
        self._left = int(digits, 16)
        self._state = self._chunk if self._left else self._trailer
        return True

    def _chunk(self, arrival_s: float) -> bool:
        if not self._counted_part(arrival_s):
            return False
        self._state = self._chunk_end
        return True

    def _chunk_end(self, _: float) -> bool:
        if len(self._buffer) < 2:
            return False
        if not self._buffer.startswith(b"\r\n"):
            raise Malformed("a chunk is longer than its size says")
        self._buffer = self._buffer[2:]
        self._state = self._chunk_size
        return True

    def _trailer(self, _: float) -> bool:
        line, found, rest = self._buffer.partition(b"\r\n")
        if len(line) > MAX_HEAD_BYTES:
            raise Malformed("the trailers do not end")
        if not found:
            return False
        self._buffer = rest
        self.complete = not line
        return True

    def _counted(self, arrival_s: float) -> bool:
        self.complete = self._counted_part(arrival_s)
        return False

    def _counted_part(self, arrival_s: float) -> bool:
        """Take what belongs to the stated length; True when all of it is there."""
        part = self._buffer[: self._left]
        self._buffer = self._buffer[len(part) :]
        self._left -= len(part)
        self._keep(arrival_s, part)
        return self._left == 0

    def _until_close(self, arrival_s: float) -> bool:
        part, self._buffer = self._buffer, b""
        self._keep(arrival_s, part)
        return False

    def _keep(self, arrival_s: float, part: bytes) -> None:
        self._size_bytes += len(part)
        if self._size_bytes > MAX_BODY_BYTES:
            raise Malformed(f"the body is larger than {MAX_BODY_BYTES} bytes")
        if part:
            self.pieces.append((arrival_s, part))
