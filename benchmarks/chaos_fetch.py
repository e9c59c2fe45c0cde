"""The fetch under kills, flipped bits and power cuts: nothing wrong is ever published, and no flip goes unseen.

    python benchmarks/chaos_fetch.py [--kills 200] [--flips 1000] [--cuts 50] [--seed 1] [--root DIR]

Kills: SIGKILL at a random moment of a fetch, which the next one continues. Flips: one random bit in a published folder, mtime
restored (`verify` must name the file), in flight at every try (must be refused), or in flight once (must be repaired).

Power cuts (root only): the store lies on an ext4 file system in an image file; at a random moment the file system below is
frozen and the image copied. The copy holds what had reached the device; dirty pages of the store's own file system, which
no fsync covered, are lost, as when the power fails. The device itself does not reorder writes here. The copy is mounted
(ext4 replays its journal), judged, and the fetch goes on in it.

Prints one JSON document; exit 1 when anything wrong was published or a flip was not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.checkpoints import lock as locks
from slipway.checkpoints import part, publish
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import Hub as HubAddress
from slipway.checkpoints.part import Io
from slipway.checkpoints.transfer import Patience
from slipway.checkpoints.verify import verify
from slipway.errors import IntegrityMismatch, SlipwayError
from slipway.reference.hub import Hub, serve
from slipway.reference.hub_faults import Fault
from slipway.reference.hub_sample import write_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipway.checkpoints.lock import CheckpointLock

REPO = "chaos/Laguna-chaos"
CHUNK = 1 << 20

_PROGRAM = """
import sys
from pathlib import Path
from slipway.checkpoints import plain_lock
from slipway.checkpoints.fetch import fetch
from slipway.checkpoints.hub import Hub
from slipway.checkpoints.part import Io
lock, root, url, direct = sys.argv[1:]
lock = plain_lock.read(Path(lock))
print("go", flush=True)
fetch(lock, Path(root), hub=Hub(url), io=Io(direct=direct == "1", keep_cached=direct == "0", chunk_bytes=1 << 20))
"""


class Chaos:
    """One repository, one hub, and what was counted."""

    def __init__(self, place: Path, hub: Hub, lock: CheckpointLock, seed: int) -> None:
        self.place = place
        self.hub = hub
        self.lock = lock
        self.lock_path = place / "chaos.lock.json"
        locks.write(lock, self.lock_path)
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def judge(self, root: Path, when: str) -> bool:
        """Whether the checkpoint is published; every folder that stat takes for whole must be right in every byte."""
        link = root / "Laguna-chaos"
        folders = [folder for folder in (root / ".store" / REPO).glob(f"{self.lock.revision}*") if folder.is_dir()]
        trusted = [folder for folder in folders if publish.survey(self.lock, folder).intact]
        if link.is_symlink():
            trusted.append(link)
        for folder in trusted:
            try:
                verify(self.lock, folder, level="full")
            except SlipwayError as error:
                self.wrong.append(f"{when}: {error}")
        return link.is_symlink()

    def start(self, root: Path) -> subprocess.Popen[bytes]:
        """A fetch in a process of its own, about to begin."""
        direct = str(self.random.randrange(2))
        command = [sys.executable, "-c", _PROGRAM, str(self.lock_path), str(root), self.hub.url, direct]
        environment = {**os.environ, "PYTHONPATH": str(Path(part.__file__).parents[2])}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout
        process.stdout.readline()
        return process

    def one_fetch_s(self) -> float:
        """How long an undisturbed fetch takes here."""
        root = self.place / "calm"
        process = self.start(root)
        began_s = time.monotonic()
        process.communicate()
        if process.returncode or not self.judge(root, "an undisturbed fetch"):
            raise SystemExit("an undisturbed fetch failed; nothing can be told about disturbed ones")
        remove(root)
        return time.monotonic() - began_s

    def kill(self, times: int) -> None:
        """SIGKILL at random moments; what is left is continued until it is published, then all begins anew."""
        root, pause, whole_s = self.place / "killed", threading.Event(), self.one_fetch_s() if times else 0
        for number in range(times):
            with self.start(root) as process:
                pause.wait(self.random.uniform(0, whole_s * 1.05))
                process.kill()
            self.counts["kills"] += 1
            self.counts["kills while it ran"] += process.returncode == -9
            if process.returncode not in {0, -9}:
                self.wrong.append(f"kill {number}: the fetch failed by itself")
            if self.judge(root, f"kill {number}"):
                self.counts["published before or despite the kill"] += 1
                remove(root)
            else:
                left = root.glob(".store/.staging/*/parts/*.part")
                self.counts["kills that left proved chunks"] += any(part.read_journal(path) for path in left)
                self.hub.requests.clear()
        self.complete(root, "after the last kill")

    def complete(self, root: Path, when: str) -> None:
        """An undisturbed fetch over what is left must publish the right bytes."""
        try:
            fetch(self.lock, root, hub=HubAddress(self.hub.url), io=Io(chunk_bytes=CHUNK))
        except SlipwayError as error:
            self.wrong.append(f"{when}: {error}")
        if not self.judge(root, when):
            self.wrong.append(f"{when}: nothing was published")

    def flip(self, times: int) -> None:
        """Random single bits; eight of ten on disk, one in flight at every try, one in flight once."""
        root = self.place / "flipped"
        if times:
            self.complete(root, "before the flips")
        for number in range(times):
            place = self.random.randrange(sum(file.size_bytes for file in self.lock.files))
            if number % 10 == 0:
                # Small files are small targets; they are hit as well.
                place = self.random.randrange(sum(f.size_bytes for f in self.lock.files if f.size_bytes < 1 << 16))
                files = sorted(self.lock.files, key=lambda file: file.size_bytes)
            else:
                files = list(self.lock.files)
            for file in files:
                if place < file.size_bytes:
                    break
                place -= file.size_bytes
            self.counts["flips"] += 1
            if number % 10 < 8:
                seen = self.flip_on_disk(root / "Laguna-chaos", file.path, place)
            else:
                seen = self.flip_in_flight(file.path, place, once=number % 10 == 9)
            self.counts["flips seen"] += seen
            if not seen:
                self.wrong.append(f"flip {number} of {file.path} at {place} was not seen")

    def flip_on_disk(self, folder: Path, name: str, place: int) -> bool:
        """Whether a full check names the file; size and mtime are what they were."""
        path = folder / name
        bit, status = 1 << self.random.randrange(8), path.stat()
        invert(path, place, bit)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        try:
            verify(self.lock, folder)
        except IntegrityMismatch as error:
            return name in str(error)
        finally:
            invert(path, place, bit)
        return False

    def flip_in_flight(self, name: str, place: int, *, once: bool) -> bool:
        """Whether the fetch refuses the file, or repairs it when the flip does not come again."""
        root = self.place / "flight"
        self.hub.faults.add(Fault(f"GET .*/{name}$", "flip", at=place, times=1 if once else None))
        patience = Patience(wait=lambda _: None)
        try:
            fetch(self.lock, root, hub=HubAddress(self.hub.url), io=Io(chunk_bytes=CHUNK), patience=patience)
            return once and self.judge(root, "flip in flight")
        except IntegrityMismatch as error:
            return not once and name in str(error) and not (root / "Laguna-chaos").exists()
        finally:
            self.hub.faults.clear()
            remove(root)

    def cut(self, times: int) -> None:
        """Power cuts, each on a fresh file system, and the fetch that follows when the power is back."""
        whole_s, pause = self.one_fetch_s() if times else 0, threading.Event()
        for number in range(times):
            snapshot = self.place / "after.img"
            with disk(self.place) as (below, inner):
                process = self.start(inner / "models")
                pause.wait(self.random.uniform(0, whole_s * 1.3))
                subprocess.run(["fsfreeze", "-f", below], check=True)
                try:
                    subprocess.run(["cp", "--sparse=always", below / "inner.img", snapshot], check=True)
                finally:
                    subprocess.run(["fsfreeze", "-u", below], check=True)
                process.kill()
                process.communicate()
            self.counts["cuts"] += 1
            with mounted(snapshot, self.place / "later") as later:
                root = later / "models"
                self.counts["cuts after publication"] += self.judge(root, f"cut {number}")
                for left in root.glob(".store/.staging/*/parts/*.part"):
                    self.counts["cuts that left proved chunks"] += bool(part.read_journal(left))
                self.complete(root, f"after cut {number}")
            snapshot.unlink()


def invert(path: Path, place: int, bit: int) -> None:
    """Nothing; one bit of `path` is another."""
    path.chmod(0o600)
    with path.open("r+b") as stream:
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ bit]))
    path.chmod(0o444)


def remove(root: Path) -> None:
    """Nothing; `root` is gone, read-only folders too."""
    if root.exists():
        subprocess.run(["chmod", "-R", "u+w", root], check=True)
        shutil.rmtree(root)


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    """`image` mounted at `place`; nothing that only ext4's guesses would save is saved."""
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop,noauto_da_alloc", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@contextmanager
def disk(place: Path) -> Iterator[tuple[Path, Path]]:
    """A fresh file system inside another that can be frozen: the mount points of the lower and the upper one."""
    lower = place / "lower.img"
    make_image(lower, 700)
    with mounted(lower, place / "below") as below:
        make_image(below / "inner.img", 256)
        with mounted(below / "inner.img", place / "inner") as inner:
            yield below, inner
    lower.unlink()


def make_image(path: Path, mib: int) -> None:
    """Nothing; `path` is then an empty ext4 file system."""
    with path.open("wb") as stream:
        stream.truncate(mib << 20)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", path], check=True)


def main() -> int:
    """1 when something wrong was published or not seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=80_000, help="128 bytes each, in the largest shard")
    parser.add_argument("--root", type=Path, help="folder for everything written (default: a temporary one)")
    given = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir=given.root) as name:
        place = Path(name)
        write_sample(place / "served" / REPO, rows=given.rows)
        with serve(place / "served") as hub:
            chaos = Chaos(place, hub, locks.resolve(REPO, "main", endpoint=hub.url, token=None), given.seed)
            chaos.kill(given.kills)
            chaos.flip(given.flips)
            chaos.cut(given.cuts)
            for folder in ("killed", "flipped"):
                remove(place / folder)
    said = {**chaos.counts, "wrong": chaos.wrong, "seed": given.seed, "seconds": round(time.monotonic() - began_s)}
    print(json.dumps(said, indent=1))
    return 1 if chaos.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
