"""`python3 oci_layout.py ROOTFS.tar LAYOUT EPOCH`: the tar as a one-layer image in an OCI layout.

The same tar and epoch give the same digests: `created` is the epoch and the gzip header carries neither time nor name.
`docker import` would stamp the current time. Writes LAYOUT/digest for the shell.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path


def main(rootfs: Path, layout: Path, epoch: int) -> None:
    """Write the OCI layout of one root file system; `epoch` is its creation in seconds."""
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    def document(value: object, media_type: str) -> dict[str, object]:
        return blob(json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), media_type)

    tar = rootfs.read_bytes()
    layer = blob(gzip.compress(tar, compresslevel=1, mtime=0), "layer.v1.tar+gzip")
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "Cmd": ["/bin/bash"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}"]},
        "history": [{"created": created, "created_by": "a tar of files"}],
    }
    media_type = "application/vnd.oci.image.manifest.v1+json"
    told = document(config, "config.v1+json")
    manifest = document(
        {"schemaVersion": 2, "mediaType": media_type, "config": told, "layers": [layer]}, "manifest.v1+json"
    )
    index = {
        "schemaVersion": 2,
        "manifests": [{**manifest, "annotations": {"org.opencontainers.image.ref.name": "base"}}],
    }
    (layout / "index.json").write_text(json.dumps(index, sort_keys=True))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "digest").write_text(f"{manifest['digest']}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
