"""A chunk store in a folder, for a hub whose large files are kept in one, as the Hugging Face hub keeps them.

The library that reads such stores takes `local://FOLDER` for an address, so the whole way can be gone without a network.

Source: hf-xet 1.8.0, run 2026-11-30 and 2026-12-01.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from pathlib import Path

from slipway.errors import MissingFile

_LIBRARY = "hf_xet"
_TOKEN_LASTS_S = 3600


class ChunkStore:
    """A chunk store in `folder`.

    Raises: MissingFile when hf-xet is not installed.
    """

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec(_LIBRARY) is None:
            raise MissingFile("hf-xet", "is not installed", "it writes and reads chunk stores", "leave --xet out")
        self._folder = folder.absolute()
        self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, source: Path) -> str:
        """The name (64 hex digits) under which the store has the bytes of `source`, once they are in it."""
        # Loaded here: a hub without a store, which is the usual one, starts the faster.
        session = importlib.import_module(_LIBRARY).XetSession()
        with session.new_upload_commit(endpoint=f"local://{self._folder}") as commit:
            upload = commit.start_upload_file(str(source.absolute()))
        return str(upload.result().xet_info.hash)

    def headers(self) -> dict[str, str]:
        """What a hub answers to whoever wants to read from the store: its address, and a token with its end."""
        return {
            "X-Xet-Cas-Url": f"local://{self._folder}",
            "X-Xet-Access-Token": "of-a-local-store",
            "X-Xet-Token-Expiration": str(int(time.time()) + _TOKEN_LASTS_S),
        }
