"""Wheels that write other bytes to the same path: which packages do, and whose bytes count.

    python3 overlaps.py SITE_PACKAGES           names to install again one by one, in this order
    python3 overlaps.py --check SITE_PACKAGES   exit 1 and say so where a file is not that of the package that comes last

Exit 2 where that cannot be told: no such folder, two packages of one name, a RECORD that cannot be read.

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
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class Installed:
    """A package: the names of those it needs, and the hash of each file as its RECORD has them (`sha256=…`, empty if it has none).

    What another platform needs counts too: it can only decide who comes first.
    """

    name: str
    needs: frozenset[str]
    files: Mapping[str, str]


def installed(site_packages: Path) -> dict[str, Installed]:
    """The packages there by name, each after those that it needs; of a circle the first by name comes last.

    Raises: ValueError for what cannot be read as packages, OSError.
    """
    found: dict[str, Installed] = {}
    for folder in sorted(path for path in site_packages.iterdir() if path.name.endswith(".dist-info")):
        one = _read(folder)
        if one.name in found:
            raise ValueError(f"{folder}: is a second package named {one.name}; an installer leaves one of them")
        found[one.name] = one
    order: dict[str, Installed] = {}
    seen: set[str] = set()
    # A stack of our own: a chain of needs may be longer than Python's.
    waiting = [(name, False) for name in sorted(found, reverse=True)]
    while waiting:
        name, ready = waiting.pop()
        if ready:
            order[name] = found[name]
        elif name in found and name not in seen:
            seen.add(name)
            waiting.append((name, True))
            waiting += [(needed, False) for needed in sorted(found[name].needs, reverse=True)]
    return order


def contested(packages: Mapping[str, Installed]) -> dict[str, list[str]]:
    """Path → the packages, in their order, that have different files there, or files that their RECORD gives no hash of."""
    owners: dict[str, list[str]] = {}
    for one in packages.values():
        for path in one.files:
            owners.setdefault(path, []).append(one.name)
    found = {}
    for path, names in sorted(owners.items()):
        hashes = {packages[name].files[path] for name in names}
        if len(names) > 1 and (len(hashes) > 1 or "" in hashes):
            found[path] = names
    return found


def again(packages: Mapping[str, Installed]) -> list[str]:
    """The packages that must be installed again, one by one in this order, so that the last owner's files stay."""
    names = {name for owners in contested(packages).values() for name in owners}
    return [name for name in packages if name in names]


def wrong(site_packages: Path, packages: Mapping[str, Installed]) -> Iterator[str]:
    """A line for each contested path whose file is not, or cannot be proved to be, that of its last owner."""
    for path, owners in contested(packages).items():
        expected = packages[owners[-1]].files[path]
        if not expected:
            yield f"{path}: {owners[-1]} gives no hash of it, and {', '.join(owners[:-1])} write it too"
            continue
        try:
            got = _hash(site_packages / path, expected.partition("=")[0])
        except OSError as error:
            got = f"nothing that can be read ({error.strerror})"
        if got != expected:
            yield f"{path}: expected {expected} of {owners[-1]}, got {got}; also {', '.join(owners[:-1])} write it"
    files = {path: one.name for one in packages.values() for path in one.files}
    for path, owner in sorted(files.items()):
        for parent in PurePosixPath(path).parents:
            if str(parent) in files:
                yield f"{path}: is a file of {owner}, and {parent} is one of {files[str(parent)]}"


def main(arguments: Sequence[str]) -> int:
    """What the module says; the exit code."""
    options, folders = [one for one in arguments if one.startswith("-")], [one for one in arguments if one[:1] != "-"]
    if len(folders) != 1 or options not in ([], ["--check"]):
        return _said(f"overlaps.py [--check] SITE_PACKAGES (got {' '.join(arguments) or 'nothing'})")
    site_packages = Path(folders[0])
    try:
        packages = installed(site_packages)
        lines = list(wrong(site_packages, packages)) if options else []
    except (OSError, ValueError, csv.Error) as error:  # a NUL or other bytes than UTF-8 are a ValueError
        return _said(f"{site_packages}: {error}")
    if options:
        print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr)  # noqa: T201 -- this is a command
        return 1 if lines else 0
    print(*again(packages), sep="\n")  # noqa: T201
    return 0


def _said(problem: str) -> int:
    print(problem, file=sys.stderr)  # noqa: T201
    return 2


def _read(folder: Path) -> Installed:
    # Licences in it are folded over many lines, and one that begins with " Name:" is no field.
    metadata = HeaderParser().parsestr((folder / "METADATA").read_text(encoding="utf-8", errors="replace"))
    name, needs = metadata["Name"] or folder.name.partition("-")[0], set()
    for value in metadata.get_all("Requires-Dist", []):
        # What only an extra needs would make circles.
        if not re.search(r"\bextra\s*[=!~]", value.partition(";")[2]):
            needs.add(_normal(re.split(r"[^A-Za-z0-9._-]", value.strip(), maxsplit=1)[0]))
    files: dict[str, str] = {}
    place = f"{folder.parent.resolve()}/"
    try:
        with (folder / "RECORD").open(encoding="utf-8", newline="") as record:
            for row in csv.reader(record):
                # Bytecode is written anew afterwards.
                if len(row) > 1 and not row[0].endswith(".pyc"):
                    path = os.path.normpath(row[0] if row[0].startswith("/") else place + row[0])
                    files[path[len(place) :] if path.startswith(place) else os.path.relpath(path, place)] = row[1]
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{folder.name}/RECORD: cannot be read ({error})") from None
    return Installed(_normal(name), frozenset(needs), files)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _hash(path: Path, algorithm: str) -> str:
    if algorithm not in hashlib.algorithms_available:
        return f"no {algorithm}, which is not known here"
    state = hashlib.new(algorithm, path.read_bytes()).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(state).decode().rstrip('=')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
