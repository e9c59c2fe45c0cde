"""Which paths of a RUN are files of the lock, and which are build secrets: both come in as mounts that the RUN cannot write.

Source: moby/buildkit, frontend/dockerfile/instructions/commands_runmount.go, read 2026-12-01.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import normpath

from slipway.images.dockerfile_reader import Flag
from slipway.images.dockerfile_stages import Step

# `cat FILE`, or what follows a pattern that sed takes away: neither adds anything of its own.
_READS = re.compile(r"\$\(\s*(?:sed\s+-n\s+'s/[^/']*//p'|cat|<)\s*([^\s'\"$;|&<>()]+)\s*\)")


@dataclass(frozen=True)
class Mount:
    """One `--mount`; a field is None where its value cannot be known. `writable`: the RUN may change what is there."""

    kind: str | None
    target: str | None
    source: str | None
    has_from: bool
    writable: bool


def mount_fields(flag: Flag) -> dict[str, str]:
    """The fields of a `--mount`, keys in lower case; empty for another flag."""
    if flag.name != "mount":
        return {}
    # BuildKit reads a mount as a line of CSV.
    try:
        fields = next(csv.reader([flag.value]), [])
    except csv.Error:
        return {"from": flag.value}
    pairs = (part.partition("=") for part in fields)
    return {key.lower(): value for key, _, value in pairs}


def mounts(step: Step) -> tuple[Mount, ...]:
    """Every mount of a RUN."""
    return tuple(_mount(step, fields) for flag in step.instruction.flags if (fields := mount_fields(flag)))


def _mount(step: Step, fields: dict[str, str]) -> Mount:
    def field(*names: str) -> str | None:
        given = [fields[name] for name in names if name in fields]
        if not given:
            return ""
        # Two names for one field, or quotes within quotes: which of them holds is nothing to guess.
        return None if len(given) > 1 or re.search(r"[\"'\\]", given[0]) else step.value(given[0])

    kind = field("type")
    target = field("target", "dst", "destination")
    if kind == "secret" and target == "":
        name = field("id")
        target = None if name is None else f"/run/secrets/{name}"
    writable = any(fields.get(name, "false").lower() != "false" for name in ("rw", "readwrite"))
    writable = writable or any(fields.get(name, "true").lower() not in {"true", ""} for name in ("ro", "readonly"))
    return Mount(kind if kind is None else kind or "bind", target, field("source", "src"), "from" in fields, writable)


def locked(path: str, step: Step, files: Sequence[str]) -> bool:
    """Whether `path` is one of `files` of the build context, through a read-only bind mount of this RUN.

    A file with the same name elsewhere is none: the Dockerfile may have written it.
    """
    return context_path(path, step) in {normpath(file) for file in files}


def context_path(path: str, step: Step) -> str | None:
    """Which file of the build context the RUN sees at `path`; None where it is another file, or one it could change."""
    known = mounts(step)
    if not path.startswith("/") or re.search(r"[$*?\[{`]", path) or any(mount.target is None for mount in known):
        return None
    clean = normpath(path)
    above = [mount for mount in known if f"{clean}/".startswith(f"{normpath(mount.target or '/').rstrip('/')}/")]
    # With two mounts, one of them may hide the other.
    if len(above) != 1:
        return None
    (mount,) = above
    if mount.kind != "bind" or mount.has_from or mount.writable or mount.source is None:
        return None
    rest = clean.removeprefix(normpath(mount.target or "/"))
    return normpath(f"/{mount.source}/{rest}").lstrip("/")


def secret(path: str, step: Step) -> bool:
    """Whether `path` is a build secret of this RUN."""
    return any(
        mount.kind == "secret" and mount.target is not None and normpath(mount.target) == normpath(path)
        for mount in mounts(step)
    )


def secret_value(text: str, step: Step) -> bool:
    """Whether `text` is what a build secret of this RUN says, and nothing else."""
    found = _READS.fullmatch(text)
    return bool(found) and secret(found[1] if found else "", step)
