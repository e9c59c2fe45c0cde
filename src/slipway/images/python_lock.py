"""The Python packages of an image as one hashed requirements file: exact version and the sha256 of exactly the wheel that fits.

uv resolves, since it can do so for another platform and as of a past day; which uv is pinned, since releases resolve
differently. The tool itself is fetched by pip, and its wheel's sha256 goes into the lock.
"""

from __future__ import annotations

import hashlib
import os
import platform as machine
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from slipway.errors import NetworkFailure, PlanRefused, from_os_error
from slipway.images.requirements_file import python_packages
from slipway.images.spec import Packages
from slipway.progress import Progress, silent

HEADER = "# Written by `invoke lock-image`: one wheel each, by sha256, dependencies included; no index address.\n"
_CHANGES_THE_ANSWER = {"UV_PRERELEASE", "UV_RESOLUTION", "UV_OVERRIDE", "UV_CONSTRAINT", "UV_EXCLUDE_NEWER"}
_NETWORK_WORDS = ("connect", "dns", "timed out", "certificate", "network", "tls", "fetch")
_TIMEOUT_S = 900


@dataclass(frozen=True)
class Wheel:
    """One line of the lock; `size_bytes` None where the index does not say it."""

    name: str
    version: str
    sha256: str
    size_bytes: int | None


@dataclass(frozen=True)
class PythonLock:
    """A resolved set: the file's text and what it amounts to."""

    text: str
    wheels: tuple[Wheel, ...]

    @property
    def sha256(self) -> str:
        """64 hex digits of the file's bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def wheels_bytes(self) -> int | None:
        """What all wheels weigh together, or None where one of them is not known."""
        sizes = [wheel.size_bytes for wheel in self.wheels]
        return None if None in sizes else sum(size for size in sizes if size)


def resolve(packages: Packages, platform: str, tools: Path, progress: Progress = silent) -> PythonLock:
    """The lock of `packages` for `platform` (linux/amd64); uv is put below the folder `tools` where it is not there yet.

    Raises: PlanRefused when no set of wheels satisfies the pins, NetworkFailure, DiskFailure.
    """
    uv = _uv(packages.uv, tools, progress)
    place = ", ".join(packages.requirements)
    architecture = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}[platform]
    argv = (
        str(uv), "pip", "compile", "-", "--format", "pylock.toml", "--no-header", "--quiet", "--no-config", "--no-cache",
        "--python-version", packages.python, "--python-platform", f"{architecture}-manylinux_{packages.glibc.replace('.', '_')}",
        "--only-binary", ":all:", "--exclude-newer", packages.exclude_newer, *(() if packages.dependencies else ("--no-deps",)),
    )  # fmt: skip
    with progress.track(f"resolving {place}", unit="sets"):
        ran = _run(argv, "\n".join(packages.requirements) + "\n")
    if ran.returncode:
        raise _refused(place, ran.stderr)
    order = preference(packages.python, architecture, packages.glibc)
    wheels = tuple(_wheel(package, place, order) for package in tomllib.loads(ran.stdout)["packages"])
    return PythonLock(text(wheels), wheels)


def text(wheels: tuple[Wheel, ...]) -> str:
    """The requirements file: sorted by name, one hash each, so that equal sets give equal bytes."""
    ordered = sorted(wheels, key=lambda wheel: wheel.name)
    return HEADER + "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in ordered)


def read(path: Path) -> dict[str, str]:
    """Package → version of a lock file. Raises: MissingFile, DiskFailure, UsageError for a line that pins nothing."""
    try:
        written = path.read_text()
    except OSError as error:
        raise from_os_error(error, path, "reading the Python lock") from error
    return {package.name: package.version for package in python_packages(written, path)}


def environment(caller: Mapping[str, str]) -> dict[str, str]:
    """What the resolver sees: pip's index and certificate under uv's names, and nothing that changes what is resolved."""
    env = {name: value for name, value in caller.items() if name not in _CHANGES_THE_ANSWER}
    for ours, theirs in (("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), ("SSL_CERT_FILE", "PIP_CERT")):
        if caller.get(theirs):
            env.setdefault(ours, caller[theirs])
    # A company's own authority is in the system's store; older releases know the second name.
    return {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", **env}


def _wheel(package: dict[str, Any], place: str, order: Mapping[Tag, int]) -> Wheel:
    """The wheel of a resolved package that pip would choose: uv names all that fit the platform, in no order.

    A package may have one that brings its library and one for any platform that expects the system's.
    """
    ranked = sorted(
        (
            min(order.get(tag, len(order)) for tag in parse_wheel_filename(_file_name(wheel))[3]),
            _file_name(wheel),
            wheel,
        )
        for wheel in package.get("wheels", [])
    )
    if not ranked:
        why = "only wheels are installed: a source package would build something that no hash names"
        raise PlanRefused("wheels-only", place, f"{package['name']} has no wheel", why, "choose another version")
    best = ranked[0][2]
    return Wheel(package["name"], package["version"], best["hashes"]["sha256"], best.get("size"))


def _file_name(wheel: Mapping[str, Any]) -> str:
    return unquote(str(wheel.get("name") or wheel["url"]).rpartition("/")[2])


def preference(python: str, architecture: str, glibc: str) -> dict[Tag, int]:
    """Wheel tags in the order in which installers prefer them, best is 0. Source: PEP 425, PEP 600."""
    newest = int(glibc.partition(".")[2])
    platforms = [f"manylinux_2_{minor}_{architecture}" for minor in range(newest, 4, -1)]
    for old, name in ((17, "manylinux2014"), (12, "manylinux2010"), (5, "manylinux1")):
        platforms.insert(platforms.index(f"manylinux_2_{old}_{architecture}") + 1, f"{name}_{architecture}")
    platforms.append(f"linux_{architecture}")
    version = tuple(int(part) for part in python.split("."))
    found = [
        *cpython_tags(version, platforms=platforms),
        *compatible_tags(version, f"cp{python.replace('.', '')}", platforms),
    ]
    return {tag: rank for rank, tag in reversed(list(enumerate(found)))}


def _uv(version: str, tools: Path, progress: Progress) -> Path:
    """The uv of exactly this version, fetched once through pip with the machine's own settings."""
    folder = tools / f"uv-{version}-{machine.machine()}"
    binary = folder / "bin" / "uv"
    if not binary.exists():
        argv = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
                "--only-binary", ":all:", "--target", str(folder), f"uv=={version}")  # fmt: skip
        with progress.track(f"fetching uv {version}", unit="packages"):
            ran = _run(argv, "")
        if ran.returncode or not binary.exists():
            said = ran.stderr.strip().splitlines()
            why = said[-1] if said else "pip said nothing"
            raise NetworkFailure(f"uv {version}", "could not be installed", why, "check pip's index, then run it again")
    return binary


def _run(argv: tuple[str, ...], stdin: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=environment(os.environ),
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise NetworkFailure(argv[0], f"did not end in {_TIMEOUT_S} s", "the index may hang", "run it again") from None
    except OSError as error:
        raise from_os_error(error, argv[0], "running the resolver") from error


def _refused(place: str, stderr: str) -> PlanRefused | NetworkFailure:
    said = " ".join(line.strip() for line in stderr.splitlines() if line.strip())[:600]
    if any(word in said.lower() for word in _NETWORK_WORDS) and "No solution found" not in said:
        return NetworkFailure(place, "the package index did not answer as it must", said, "check the index settings")
    why = said or "the resolver gave no reason"
    return PlanRefused(
        "wheels-only", place, "no set of wheels satisfies the pins", why, "change the pins in image.yaml"
    )
