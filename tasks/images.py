"""Engine images: locked, built, proved, mirrored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from invoke import Context, task

from tasks.checkout import JSON, ROOT

if TYPE_CHECKING:
    from slipway.images.inputs import Place

ENGINE = "sglang, vllm or reference"
VARIANT = "which of the engine's images (default: default)"
BUILDER = "docker or buildah"
PASSED = "NAME=FILE, may be given again: ca, pip-conf or apt-sources; seen by RUN, in no layer"


@task(
    name="lock-image",
    auto_shortflags=False,  # one letter would mean other things from command to command
    help={
        "engine": ENGINE,
        "variant": VARIANT,
        "base": "another base image than image.yaml names, as registry/name:tag",
        "offline": "ask no registry; for a base that image.yaml pins by digest",
        "check": "compare with the lock instead of writing it; exit 3 when anything moved",
        "builder": BUILDER,
        "secret": PASSED,
        "json": JSON,
    },
    iterable=["secret"],
)
def lock_image(
    _: Context,
    engine: str,
    variant: str = "default",
    base: str | None = None,
    offline: bool = False,
    check: bool = False,
    builder: str = "docker",
    secret: list[str] | None = None,
    json: bool = False,
) -> None:
    """Turn image.yaml into exact bytes: base by digest, wheels and Debian packages by sha256, pull requests proved."""
    from slipway import cli
    from slipway.images import actions

    with cli.command(json) as output:
        actions.refuse_unmeant({}, base=base)
        options = actions.Options(builder=builder, secrets=tuple(secret or ()))
        place = _place(engine, variant)
        output.result(*actions.lock_image(place, options, output.progress, base=base, check=check, offline=offline))


@task(
    name="build-image",
    auto_shortflags=False,  # one letter would mean other things from command to command
    help={
        "engine": ENGINE,
        "variant": VARIANT,
        "dry-run": "show the resolved build instead, without any network",
        "push": "also send it to a registry, as registry/name:tag, with SBOM and provenance",
        "replace": "with --push: let a tag there move from another image",
        "sign": "with --push: sign it with this cosign key file (its password in COSIGN_PASSWORD)",
        "no-cache": "run every step again",
        "builder": BUILDER,
        "secret": PASSED,
        "oldest-docker": "version of the oldest node's Docker; below 23 layers are gzip instead of zstd",
        "compression": "zstd, gzip or uncompressed; the last is quick, for an image that stays on this machine",
        "json": JSON,
    },
    iterable=["secret"],
)
def build_image(
    _: Context,
    engine: str,
    variant: str = "default",
    dry_run: bool = False,
    push: str | None = None,
    replace: bool = False,
    sign: str | None = None,
    no_cache: bool = False,
    builder: str = "docker",
    secret: list[str] | None = None,
    oldest_docker: str | None = None,
    compression: str | None = None,
    json: bool = False,
) -> None:
    """Build exactly what the lock says, look into the image, and hold it against the lock."""
    from slipway import cli
    from slipway.errors import UsageError
    from slipway.images import actions

    with cli.command(json) as output:
        actions.refuse_unmeant({}, push=push, sign=sign)
        if replace and not push:
            raise UsageError("--replace", "needs --push", "only a tag can move", "add --push REF, or leave it out")
        if sign and not push:
            raise UsageError(
                "--sign", "needs --push", "a signature is kept beside the image in its registry", "add --push REF"
            )
        key = Path(sign) if sign else None
        options = actions.Options(
            builder, no_cache, push, key, tuple(secret or ()), oldest_docker, compression, replace
        )
        place = _place(engine, variant)
        if dry_run:
            output.result(*actions.show_build(place, options))
            return
        output.result(*actions.build_image(place, options, output.progress))


@task(
    name="verify-image",
    auto_shortflags=False,  # one letter would mean other things from command to command
    help={
        "engine": ENGINE,
        "variant": VARIANT,
        "pushed": "do not build: prove that this image of a registry is the lock's, with its papers",
        "key": "with --pushed: also check its signature with this public key file",
        "drift": "do not build: show what a fresh lock would change; exit 3 when anything moved",
        "builder": BUILDER,
        "secret": PASSED,
        "compression": "as build-image was told; it does not change the config digest",
        "json": JSON,
    },
    iterable=["secret"],
)
def verify_image(
    _: Context,
    engine: str,
    variant: str = "default",
    pushed: str | None = None,
    key: str | None = None,
    drift: bool = False,
    builder: str = "docker",
    secret: list[str] | None = None,
    compression: str | None = None,
    json: bool = False,
) -> None:
    """Build again without any cache and prove that it is the same image; name the files that differ when it is not."""
    from slipway import cli
    from slipway.images import actions

    with cli.command(json) as output:
        needs = {
            "--key needs --pushed: a signature is kept beside the image in its registry": bool(key and not pushed),
            "--drift does not go with --pushed: the one asks what the lock stands for, the other about one image": bool(
                drift and pushed
            ),
        }
        actions.refuse_unmeant(needs, pushed=pushed, key=key)
        options = actions.Options(builder, secrets=tuple(secret or ()), compression=compression)
        place = _place(engine, variant)
        if drift:
            output.result(*actions.lock_image(place, options, output.progress, check=True))
            return
        if pushed:
            output.result(*actions.check_pushed(place, pushed, Path(key) if key else None))
            return
        output.result(*actions.verify_image(place, options, output.progress))


@task(
    name="mirror-image",
    auto_shortflags=False,  # one letter would mean other things from command to command
    help={
        "to": "where the image is to be: registry/name:tag, or layout:FOLDER or archive:FILE on a disk that is carried over",
        "from": "what to copy: a registry's image, layout:FOLDER or archive:FILE",
        "platform": "only this platform of an index, as linux/amd64",
        "replace": "let a tag at the destination move",
        "engine": ENGINE,
        "variant": VARIANT,
        "json": JSON,
    },
)
def mirror_image(
    _: Context,
    to: str,
    from_: str | None = None,
    engine: str = "",
    variant: str = "default",
    platform: str | None = None,
    replace: bool = False,
    json: bool = False,
) -> None:
    """Copy an image with its signature, SBOM and provenance; digests stay, and what is there is not sent again."""
    from slipway import cli
    from slipway.errors import UsageError
    from slipway.images import actions, mirror

    with cli.command(json) as output:
        actions.refuse_unmeant({}, to=to, platform=platform)
        if bool(from_) == bool(engine):
            raise UsageError("mirror-image", "must be told what to copy", "", "give one of --engine and --from")
        place = _place(engine or "reference", variant)
        way = mirror.Options(platform=platform, replace=replace)
        output.result(*actions.mirror_image(place, way, output.progress, to=to, source=from_))


def _place(engine: str, variant: str) -> Place:
    from slipway.images.inputs import Place

    return Place(ROOT, engine, variant)
