"""One blob on its way into a registry: mounted from another repository, sent whole, or sent in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import urlencode

from slipway.errors import IntegrityMismatch, NetworkFailure
from slipway.images.image_name import ImageName
from slipway.images.manifests import Descriptor
from slipway.images.registry_wire import Answer, Ask, Wire

_WHOLE_BYTES = 8 << 20
"""Up to this size a blob goes with the request that ends its upload; a larger one before it, in one request as docker does."""


class Upload:
    """The upload of one blob to the repository of `name`; `read` gives its bytes from the start each time it is called."""

    def __init__(
        self, wire: Wire, name: ImageName, descriptor: Descriptor, read: Callable[[], Iterator[bytes]]
    ) -> None:
        self._wire = wire
        self._name = name
        self._blob = descriptor
        self._read = read
        self._ask = Ask("POST", name.registry, f"/v2/{name.repository}/blobs/uploads/", name.repository, push=True)

    def run(self, mount_from: str | None) -> str:
        """`mounted` or `sent`.

        Raises: IntegrityMismatch, AuthFailure, NetworkFailure, and what reading raises.
        """
        more_s = self._wire.limits.sent_s(self._blob.size_bytes)
        return self._wire.again(self._name.place, lambda: self._attempt(mount_from), more_s)

    def _attempt(self, mount_from: str | None) -> str:
        begun = self._begin(mount_from)
        if begun.status == 201:
            self._check(begun)
            return "mounted"
        place = self._onward(begun)
        chunk_bytes = self._wire.limits.chunk_bytes
        if chunk_bytes is not None:
            place = self._send_pieces(place, max(chunk_bytes, _least(begun)))
            self._check(self._step("PUT", self._ended(place)))
        elif self._blob.size_bytes <= _WHOLE_BYTES:
            self._check(self._step("PUT", self._ended(place), self._read, self._blob.size_bytes))
        else:
            sent = self._step("PATCH", place, self._read, self._blob.size_bytes)
            self._check(self._step("PUT", self._ended(self._onward(sent))))
        return "sent"

    def _begin(self, mount_from: str | None) -> Answer:
        ask = replace(self._ask, headers={"Content-Length": "0"})
        if mount_from is not None:
            query = urlencode({"mount": self._blob.digest, "from": mount_from})
            ask = replace(ask, path=f"{ask.path}?{query}", mount_from=mount_from)
        return self._once(ask)

    def _send_pieces(self, place: str, chunk_bytes: int) -> str:
        """Where the upload goes on after every piece is there."""
        at = 0
        for piece in _pieces(self._read(), chunk_bytes):
            span = f"{at}-{at + len(piece) - 1}"
            sent = self._step("PATCH", place, piece, len(piece), {"Content-Range": span})
            place, at = self._onward(sent), at + len(piece)
        return place

    def _step(
        self,
        method: str,
        place: str,
        content: bytes | Callable[[], Iterator[bytes]] | None = None,
        length: int = 0,
        more: dict[str, str] | None = None,
    ) -> Answer:
        headers = {"Content-Length": str(length), "Content-Type": "application/octet-stream", **(more or {})}
        return self._once(replace(self._ask, method=method, path=place, headers=headers, content=content))

    def _once(self, ask: Ask) -> Answer:
        """One try: after a failed step the whole upload begins anew, since nobody knows how much of it has arrived."""
        with self._wire.once(replace(ask, allowed=frozenset())) as response:
            return Answer(response.status_code, response.headers, b"", str(response.url))

    def _onward(self, answer: Answer) -> str:
        location = answer.headers.get("location", "")
        if not location:
            raise NetworkFailure(self._name.place, "takes no upload: it names no place for it", "Location is required")
        return self._wire.onward(self._ask, location, answer.url)

    def _ended(self, place: str) -> str:
        return f"{place}{'&' if '?' in place else '?'}{urlencode({'digest': self._blob.digest})}"

    def _check(self, answer: Answer) -> None:
        said = answer.headers.get("docker-content-digest", self._blob.digest)
        if answer.status != 201 or said != self._blob.digest:
            problem = f"has kept {ascii(said)[1:-1][:80]} (HTTP {answer.status})"
            raise IntegrityMismatch(
                self._name.place, problem, f"{self._blob.digest} was sent", "ask who runs the registry"
            )


def _least(answer: Answer) -> int:
    said = answer.headers.get("oci-chunk-min-length", "")
    return int(said) if said.isdigit() and len(said) < 12 else 0


def _pieces(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of `size`, the last one perhaps shorter."""
    held = bytearray()
    for chunk in chunks:
        held += chunk
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
