"""Builds by buildah: digests of its own, the same twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import CheckFailed, UsageError
from slipway.images import oci_archive, verify_image
from slipway.images.builders import BuildRequest, unlocked_materials
from slipway.images.builders.buildah import BuildahBuilder

pytestmark = pytest.mark.needs("docker")

Requested = Callable[..., BuildRequest]


def test_two_builds_without_cache_have_the_same_digests_and_a_third_is_cached(
    request_for: Requested, buildah_storage: Path, small_base: Any, tmp_path: Path
) -> None:
    builder = BuildahBuilder(storage=buildah_storage, tls_verify=False)
    lines = ("ARG SOURCE_DATE_EPOCH", "COPY a.txt /a.txt", "RUN mkdir /made && echo hi > /made/b", "USER 65532")
    request = request_for(*lines, files={"a.txt": b"text\n"}, no_cache=True, compression="gzip", labels={"lock": "1"})
    first = builder.build(request)
    second = builder.build(replace(request, archive=tmp_path / "second.tar"))
    assert (first.config_digest, first.diff_ids, first.manifest_digest) == (
        second.config_digest,
        second.diff_ids,
        second.manifest_digest,
    )
    assert verify_image.differences(oci_archive.read(first.archive), oci_archive.read(second.archive)).equal
    image = oci_archive.read(first.archive)
    assert image.alone
    assert oci_archive.is_plain(image, small_base.epoch, small_base.digest)
    assert first.versions["buildah"]
    assert unlocked_materials(first, {small_base.digest}) == ()
    cached = builder.build(replace(request, no_cache=False))
    assert cached.config_digest == first.config_digest
    assert cached.cached_steps >= 2


def test_a_failing_run_is_one_error_with_its_last_lines(request_for: Requested, buildah_storage: Path) -> None:
    request = request_for("RUN echo before; exit 7", compression="gzip")
    with pytest.raises(CheckFailed) as caught:
        BuildahBuilder(storage=buildah_storage, tls_verify=False).build(request)
    assert "| before\n" in str(caught.value)
    assert "code 7" in str(caught.value)
    assert not request.archive.exists()


def test_layers_that_it_cannot_write_are_refused_beforehand(request_for: Requested) -> None:
    with pytest.raises(UsageError, match="cannot write uncompressed layers"):
        BuildahBuilder().build(request_for("RUN true"))
