"""The exact Debian packages that an image adds to its base: asked of apt inside the base, hashed as they arrive."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from slipway.errors import IntegrityMismatch
from slipway.images import oci_archive
from slipway.images.builders import Builder, BuildRequest
from slipway.images.context import pack
from slipway.images.layers import entries
from slipway.images.lock import LockedDeb
from slipway.progress import Progress, silent

_ANSWER = "debs.txt"
_LINE = re.compile(r"([0-9a-f]{64}) (\d+) ([a-z0-9][a-z0-9+.-]+) (\S+) (\S+)")
_MOST_ANSWER_BYTES = 1 << 20
_QUESTION = """\
ARG BASE
FROM ${BASE} AS ask
ARG NAMES
RUN --mount=type=secret,id=apt-sources,target=/run/secrets/apt-sources \\
    if [ -s /run/secrets/apt-sources ]; then \\
        set -- -o Dir::Etc::SourceList=/run/secrets/apt-sources -o Dir::Etc::SourceParts=-; \\
    fi; \\
    rm -f /etc/apt/apt.conf.d/docker-clean && mkdir /out && : >/out/debs.txt \\
    && apt-get "$@" -qq update \\
    && apt-get "$@" -qq install -y --no-install-recommends --download-only ${NAMES} \\
    && cd /var/cache/apt/archives \\
    && for deb in *.deb; do \\
        [ -e "$deb" ] || continue; \\
        printf '%s %s %s\\n' "$(sha256sum <"$deb" | cut -d' ' -f1)" "$(stat -c %s "$deb")" \\
            "$(dpkg-deb --showformat='${Package} ${Version} ${Architecture}' -W "$deb")" >>/out/debs.txt; \\
    done
FROM scratch
COPY --from=ask /out/debs.txt /debs.txt
"""


def resolve(
    builder: Builder, request: BuildRequest, names: Sequence[str], work: Path, progress: Progress = silent
) -> list[LockedDeb]:
    """What `apt-get install` of `names` would add to the base of `request` now, dependencies included, sorted by name;
    nothing where the base has all of them.

    Of `request` the build argument BASE, the platform, the secrets and the network are used. The cache is not: an answer of
    last month would be taken for one of today.

    Raises: NetworkFailure when the archive does not answer, and as the builder does.
    """
    if not names:
        return []
    context = pack(work, (), {"Dockerfile": _QUESTION.encode()}, request.epoch)
    asked = replace(
        request,
        context=context.tar,
        archive=work / "debs.tar",
        name="slipway/debs",
        dockerfile="Dockerfile",
        build_args={"BASE": request.build_args["BASE"], "NAMES": " ".join(sorted(names))},
        source_policy=None,
        no_cache=True,
        compression="gzip",
    )
    try:
        builder.build(asked, progress)
        answer = _answer(asked.archive)
    finally:
        asked.archive.unlink(missing_ok=True)
    return sorted((parsed(line) for line in answer.splitlines()), key=lambda deb: deb.name)


def parsed(line: str) -> LockedDeb:
    """One line of the answer. Raises: IntegrityMismatch for a line of another form."""
    match = _LINE.fullmatch(line)
    if not match:
        raise IntegrityMismatch(
            "apt's answer", f"is not understood (got {line[:120]!a})", "", "report it with the base"
        )
    sha256, size, name, version, architecture = match.groups()
    return LockedDeb(name=name, version=version, architecture=architecture, sha256=sha256, size_bytes=int(size))


def files(debs: Sequence[LockedDeb]) -> dict[str, bytes]:
    """What the Dockerfile reads: `debs.txt` for apt (name=version) and `debs.sha256` for sha256sum."""
    exact = "".join(f"{deb.name}={deb.version}\n" for deb in debs)
    sums = "".join(
        f"{deb.sha256}  {deb.name}_{deb.version.replace(':', '%3a')}_{deb.architecture}.deb\n" for deb in debs
    )
    return {"debs.txt": exact.encode(), "debs.sha256": sums.encode()}


def _answer(archive: Path) -> str:
    image = oci_archive.read(archive)
    for index in range(len(image.layers)):
        for entry, stream in entries(image, index):
            if entry.name == _ANSWER and stream is not None:
                return stream.read(_MOST_ANSWER_BYTES).decode("utf-8", "replace")
    raise IntegrityMismatch(archive, f"has no {_ANSWER}", "the build that asks apt writes it", "run it again")
