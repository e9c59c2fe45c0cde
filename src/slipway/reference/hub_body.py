"""The bytes of a file as the local hub sends them, with the faults that act on them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipway.reference.hub_faults import Fault

_PIECE_BYTES = 1 << 18


class FileBody(Response):
    """Part of a file as an answer, with the faults that act on its bytes."""

    def __init__(
        self, source: Path, span: tuple[int, int], faults: list[Fault], status: int, headers: dict[str, str]
    ) -> None:
        super().__init__(status_code=status, headers=headers)
        self._source = source
        self._span = span
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        first, end = self._span
        stops = [fault for fault in self._faults if fault.kind in {"close", "stall", "slow"}]
        stop = min(stops, key=lambda fault: fault.at, default=None)
        with self._source.open("rb") as stream:
            stream.seek(first)
            place, limit = first, min(end, first + stop.at) if stop else end
            while place < limit and (piece := stream.read(min(_PIECE_BYTES, limit - place))):
                await self._send(send, self._spoil(place, piece))
                place += len(piece)
            if stop is None:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            elif stop.kind == "close":
                # The server drops the connection of an application that fails half-way.
                raise ConnectionAbortedError("injected end of connection")
            elif stop.kind == "stall":
                await _until_gone(receive)
            else:
                await self._trickle(stream.read(end - place), place, receive, send)

    async def _trickle(self, rest: bytes, place: int, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_until_gone(receive))
        for offset in range(len(rest)):
            await asyncio.wait([gone], timeout=0.05)
            if gone.done():
                return
            await self._send(send, self._spoil(place + offset, rest[offset : offset + 1]))
        gone.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    def _spoil(self, place: int, piece: bytes) -> bytes:
        """The bytes of `piece`, which stands at `place` of the file, with flips and zeros applied."""
        for fault in self._faults:
            offset = fault.at - place
            if fault.kind == "flip" and 0 <= offset < len(piece):
                piece = piece[:offset] + bytes([piece[offset] ^ 1]) + piece[offset + 1 :]
            elif fault.kind == "zero-tail" and offset < len(piece):
                kept = max(offset, 0)
                piece = piece[:kept] + bytes(len(piece) - kept)
        return piece


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
