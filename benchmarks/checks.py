"""What the checks without download cost: structure and stat of a checkpoint of M.1's size, and a full re-hash.

    python benchmarks/checks.py [--runs 9] [--shards 8] [--shard-mib 1024] [--root DIR]

The large checkpoint is sparse: 91 shards, 51,456 tensors, 450 GB that take some MB. The re-hash reads warm files with as many
workers as there are cores, and is compared with hashing the same bytes in memory on one core. Prints JSON: medians, and the
best run, since neighbours on the same cores only ever make a run slower.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from slipway.checkpoints import publish, structure
from slipway.checkpoints.digests import OnDisk, digests_on_disk
from slipway.checkpoints.pins import digest_of, silent
from slipway.checkpoints.plain_lock import PlainFile, PlainLock
from slipway.checkpoints.verify import verify

SHARDS, LAYERS, EXPERTS = 91, 67, 256
SHAPE = [1024, 4096]
CHUNK_BYTES = 64 << 20


def make_large(folder: Path) -> PlainLock:
    """A lock, once `folder` holds sparse shards with the names and counts of Laguna-M.1's experts and a manifest of them."""
    size = SHAPE[0] * SHAPE[1] * 2
    names = [
        f"model.layers.{layer + 3}.mlp.experts.{expert}.{matrix}_proj.weight"
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for matrix in ("gate", "up", "down")
    ]
    folder.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for shard in range(SHARDS):
        path, mine = folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors", names[shard::SHARDS]
        header = {
            name: {"dtype": "BF16", "shape": SHAPE, "data_offsets": [n * size, (n + 1) * size]}
            for n, name in enumerate(mine)
        }
        text = json.dumps(header, separators=(",", ":")).encode()  # as the format's own library writes
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + size * len(mine))
        weight_map |= dict.fromkeys(mine, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    files = tuple(
        PlainFile(path.name, path.stat().st_size, sha256=hashlib.sha256(path.name.encode()).hexdigest())
        for path in sorted(folder.iterdir())
    )
    lock = PlainLock("bench/Laguna-large", "a" * 40, files)
    chunks = {
        file.path: {end: digest_of(file) for end in range(CHUNK_BYTES, file.size_bytes, CHUNK_BYTES)} for file in files
    }
    publish.write_manifest(lock, folder, chunks)
    return lock


def make_warm(folder: Path, shards: int, shard_mib: int) -> list[PlainFile]:
    """Files that begin with random bytes, in the page cache."""
    folder.mkdir()
    files = []
    for number in range(shards):
        data = random.Random(number).randbytes(1 << 20) * shard_mib
        (folder / f"{number}").write_bytes(data)
        files.append(PlainFile(f"{number}", len(data), sha256=hashlib.sha256(data).hexdigest()))
    os.sync()  # what is still being written out would be measured too
    return files


def timed(work: Callable[[], object], runs: int) -> dict[str, float]:
    """Median and best of wall and CPU seconds, those of processes that it has started and waited for included."""
    walls, cpus = [], []
    for _ in range(runs):
        wall_s, cpu_s = time.monotonic(), sum(os.times()[:4])
        work()
        walls.append(time.monotonic() - wall_s)
        cpus.append(sum(os.times()[:4]) - cpu_s)
    return {
        "wall_ms": round(statistics.median(walls) * 1e3, 1),
        "best_wall_ms": round(min(walls) * 1e3, 1),
        "cpu_ms": round(statistics.median(cpus) * 1e3, 1),
        "best_cpu_ms": round(min(cpus) * 1e3, 1),
    }


def main() -> None:
    """Measure everything and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--shard-mib", type=int, default=1024)
    parser.add_argument("--root", type=Path, help="folder for everything written (default: a temporary one)")
    given = parser.parse_args()
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(dir=given.root) as place:
        large = Path(place, "large")
        lock = make_large(large)
        said: dict[str, object] = {"load": os.getloadavg()[0], "cores": cores}
        said["structure"] = timed(lambda: structure.check(large, digests_known=True), given.runs)
        said["stat"] = timed(lambda: verify(lock, large, level="stat"), given.runs)
        warm = Path(place, "warm")
        files = make_warm(warm, given.shards, given.shard_mib)
        total, block = sum(file.size_bytes for file in files), bytes(1 << 20)

        def in_memory() -> None:
            state = hashlib.sha256()
            for _ in range(total // cores >> 20):
                state.update(block)

        one, whole = [], []
        for _ in range(given.runs):  # in turn, so that both meet the same neighbours
            one.append(timed(in_memory, 1))
            whole.append(
                timed(lambda: digests_on_disk([OnDisk(warm / file.path, file) for file in files], cores, silent, ""), 1)
            )
        # Per core so many bytes in the time of `one`; all cores together could have hashed everything in that time.
        said["re-hash of the cores' rate"] = {
            "wall, median": round(
                statistics.median(a["wall_ms"] / b["wall_ms"] for a, b in zip(one, whole, strict=True)), 2
            ),
            "wall, best": round(min(a["wall_ms"] for a in one) / min(b["wall_ms"] for b in whole), 2),
            "cpu, median": round(
                statistics.median(a["cpu_ms"] * cores / b["cpu_ms"] for a, b in zip(one, whole, strict=True)), 2
            ),
        }
        print(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
