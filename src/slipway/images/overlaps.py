"""Wheels that write other bytes to the same path: which packages do, and whose bytes count.

    python3 overlaps.py SITE_PACKAGES           names to install again one by one, in this order
    python3 overlaps.py --check SITE_PACKAGES   exit 1 and say so where a file is not that of the package that comes last

An installer that works in parallel leaves the file of whoever was slower, so two builds of one lock may differ. Whoever needs another
package comes after it, as pip installs; else the name decides. nvidia-cutlass-dsl-libs-cu13 overwrites 99 files of -libs-base this way,
on purpose (4.5.2, seen 2026-12-01).

Run inside of images while they are built: standard library only.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Installed:
    """A package: the names of those it needs, and the hash of each file as its RECORD has them (`sha256=…`)."""

    name: str
    needs: frozenset[str]
    files: Mapping[str, str]


def installed(site_packages: Path) -> dict[str, Installed]:
    """The packages there by name, each after those that it needs; of a circle the first by name comes last."""
    found = {one.name: one for one in map(_read, sorted(site_packages.glob("*.dist-info")))}
    order: dict[str, Installed] = {}
    seen: set[str] = set()

    def take(name: str) -> None:
        if name in found and name not in seen:
            seen.add(name)
            for needed in sorted(found[name].needs):
                take(needed)
            order[name] = found[name]

    for name in sorted(found):
        take(name)
    return order


def contested(packages: Mapping[str, Installed]) -> dict[str, list[str]]:
    """Path → the packages, in their order, that have different files there."""
    owners: dict[str, list[str]] = {}
    for one in packages.values():
        for path in one.files:
            owners.setdefault(path, []).append(one.name)
    return {
        path: names for path, names in sorted(owners.items()) if len({packages[name].files[path] for name in names}) > 1
    }


def again(packages: Mapping[str, Installed]) -> list[str]:
    """The packages that must be installed again, one by one in this order, so that the last owner's files stay."""
    names = {name for owners in contested(packages).values() for name in owners}
    return [name for name in packages if name in names]


def wrong(site_packages: Path, packages: Mapping[str, Installed]) -> Iterator[str]:
    """A line for each contested path whose file is not that of its last owner."""
    for path, owners in contested(packages).items():
        expected = packages[owners[-1]].files[path]
        try:
            got = _hash(site_packages / path)
        except OSError as error:
            got = f"nothing that can be read ({error.strerror})"
        if got != expected:
            yield f"{path}: expected {expected} of {owners[-1]}, got {got}; also {', '.join(owners[:-1])} write it"


def main(arguments: Sequence[str]) -> int:
    """What the module says; the exit code."""
    *options, folder = arguments
    site_packages = Path(folder)
    packages = installed(site_packages)
    if options == ["--check"]:
        lines = list(wrong(site_packages, packages))
        print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr)  # noqa: T201 -- this is a command
        return 1 if lines else 0
    print(*again(packages), sep="\n")  # noqa: T201
    return 0


def _read(folder: Path) -> Installed:
    name, needs = folder.name.partition("-")[0], set()
    for line in (folder / "METADATA").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        if key == "Name":
            name = value.strip()
        # What only an extra needs would make circles.
        elif key == "Requires-Dist" and "extra" not in value.partition(";")[2]:
            needs.add(_normal(re.split(r"[^A-Za-z0-9._-]", value.strip(), maxsplit=1)[0]))
    with (folder / "RECORD").open(encoding="utf-8", newline="") as record:
        files = {os.path.normpath(row[0]): row[1] for row in csv.reader(record) if len(row) > 1 and row[1]}
    return Installed(_normal(name), frozenset(needs), files)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _hash(path: Path) -> str:
    state = hashlib.sha256(path.read_bytes()).digest()
    return f"sha256={base64.urlsafe_b64encode(state).decode().rstrip('=')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
