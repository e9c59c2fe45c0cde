"""The fetcher as one file: `python -m slipway.checkpoints.bundle --out fetch.pyz`, then `python3 -I fetch.pyz` on a host.

It holds what `host_command` needs and nothing else: standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.durable import write_durably
from slipway.errors import from_os_error

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGE = Path(__file__).resolve().parents[1]

MODULES = (
    "__init__", "durable", "errors", "checkpoints/__init__", "checkpoints/digests", "checkpoints/early",
    "checkpoints/fetch",    "checkpoints/findings", "checkpoints/gateway",
    "checkpoints/header_scan", "checkpoints/host_command", "checkpoints/host_job", "checkpoints/hub",
    "checkpoints/io_choice", "checkpoints/mapped", "checkpoints/part", "checkpoints/pins", "checkpoints/plain_lock", "checkpoints/publish",
    "checkpoints/records", "checkpoints/reuse", "checkpoints/safetensors_header", "checkpoints/sources",
    "checkpoints/staging", "checkpoints/structure", "checkpoints/transfer", "checkpoints/transport",
    "checkpoints/verify",
)  # fmt: skip
"""What is in it; a module that one of these needs and that is missing here fails a test."""

_MAIN = '''
import sys
from zipimport import zipimporter

class Once(zipimporter):
    """Compiles each module once. zipimport itself also does it to learn the name of its file, a tenth of a second in all."""
    def get_filename(self, name):
        place = self.archive + "/" + self.prefix + name.rpartition(".")[2]
        return place + ("/__init__.py" if self.is_package(name) else ".py")

sys.path_hooks.insert(0, Once)
sys.path_importer_cache.pop(sys.path[0], None)
from slipway.checkpoints.host_command import main
sys.exit(main())
'''
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest date a zip file can hold: equal sources make equal bundles."""


def write(out: Path) -> int:
    """How many bytes `out` has: a zipapp, equal for equal sources.

    Raises: DiskFailure, MissingFile.
    """
    members = [(f"slipway/{name}.py", (_PACKAGE / f"{name}.py").read_bytes()) for name in MODULES]
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as bundle:
            for name, data in [("__main__.py", _MAIN.encode()), *members]:
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                bundle.writestr(entry, data)
        data = b"#!/usr/bin/env python3\n" + temporary.read_bytes()
        temporary.unlink()
    except OSError as error:
        raise from_os_error(error, out, "writing the bundle") from error
    write_durably(out, data, 0o755)
    return len(data)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the bundle."""
    parser = argparse.ArgumentParser(prog="slipway.checkpoints.bundle", description=write.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="file to write, as fetch.pyz")
    given = parser.parse_args(argv)
    print(f"{given.out}: {write(given.out)} bytes", file=sys.stderr)  # noqa: T201 -- this is a command


if __name__ == "__main__":
    main()
