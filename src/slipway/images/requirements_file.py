"""The packages that a hashed requirements lock names, as `uv pip compile --generate-hashes` writes it. Pure.

Strict on purpose: a line that is not understood could install something, so nothing is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from packaging.markers import InvalidMarker, Marker

from slipway.errors import UsageError

LINUX_X86_64 = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
"""What markers are held against, besides the Python version: the only platform that engine images are built for."""

_NAME = r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[A-Za-z0-9._, -]*\])?"
_REQUIREMENT = re.compile(rf"{_NAME}\s*(?:===?\s*(?P<version>[A-Za-z0-9.!+_-]+)|@\s*(?P<url>\S+))")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class PythonPackage:
    """One locked package; any file with one of `sha256` may be installed. `url` where it is not from an index."""

    name: str
    version: str
    sha256: tuple[str, ...]
    url: str = ""


def python_packages(text: str, place: object, python: str = "3.12") -> tuple[PythonPackage, ...]:
    """What the lock `text` installs on Linux, x86-64, for Python `python` (as `3.12`), sorted by name.

    Raises: UsageError for a line without exact version or without sha256, and for one that is not understood.
    """
    found = dict[str, PythonPackage]()
    for number, line in _lines(text):
        package = _package(line, f"{place}:{number}", python)
        if package is None:
            continue
        if package.name in found:
            raise _unusable(f"{place}:{number}", f"names {package.name} again", "each package once")
        found[package.name] = package
    return tuple(found[name] for name in sorted(found))


def normal_name(name: str) -> str:
    """`name` as indexes compare it. Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _lines(text: str) -> list[tuple[int, str]]:
    """Logical lines with the number of their first physical one, without comments."""
    found, held, began = list[tuple[int, str]](), "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        bare = re.sub(r"(?:^|\s)#.*$", "", line).strip()
        if not held:
            began = number
        if bare.endswith("\\"):
            held += bare[:-1] + " "
        elif held + bare:
            found.append((began, (held + bare).strip()))
            held = ""
    return found


def _package(line: str, place: str, python: str) -> PythonPackage | None:
    """The package of a line; None where its marker does not hold on our platform."""
    requirement, *options = re.split(r"\s+(?=--hash=)", line)
    hashes = [_HASH.fullmatch(option) for option in options]
    match = _REQUIREMENT.match(requirement)
    rest = requirement[match.end() :].strip() if match else ""
    if match is None or not all(hashes) or (rest and not rest.startswith(";")):
        raise _unusable(place, f"is not understood (got {ascii(line)[1:-1][:80]})", "NAME==VERSION --hash=sha256:…")
    if rest and not _holds(rest[1:].strip(), place, python):
        return None
    digests = tuple(sorted({found[1] for found in hashes if found}))
    url = match["url"] or ""
    of_url = re.search(r"#(?:.*&)?sha256=([0-9a-f]{64})", url)
    if of_url and not digests:
        digests = (of_url[1],)
    if not digests:
        raise _unusable(place, f"has no sha256 for {match['name']}", "every package has one")
    version = match["version"] or _version_in(url, place)
    return PythonPackage(normal_name(match["name"]), version, digests, url.partition("#")[0])


def _holds(marker: str, place: str, python: str) -> bool:
    environment = {**LINUX_X86_64, "python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    try:
        return Marker(marker).evaluate({**environment, "implementation_version": f"{python}.0"})
    except InvalidMarker:
        raise _unusable(
            place, f"has a marker that is none (got {ascii(marker)[1:-1][:80]})", "as PEP 508 has it"
        ) from None


def _version_in(url: str, place: str) -> str:
    """The version in the name of the wheel at `url`."""
    parts = unquote(urlsplit(url).path.rpartition("/")[2]).split("-")
    if len(parts) < 5 or not url.partition("#")[0].endswith(".whl"):
        raise _unusable(place, "names an address of no wheel", "NAME @ https://…/NAME-VERSION-….whl#sha256=…")
    return parts[1]


def _unusable(place: str, problem: str, why: str) -> UsageError:
    return UsageError(place, problem, why, "compile it anew with uv pip compile --generate-hashes")
