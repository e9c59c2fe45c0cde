"""What the image commands do: each returns a document for `--json` and the text for people."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from slipway.errors import DocumentError, IntegrityMismatch, LockDrift, MissingFile, UsageError
from slipway.images import building, inputs, lock, locking, mirror, papers, signing
from slipway.images.builders import Builder, Compression, compression_for, version_of
from slipway.images.builders.buildah import BuildahBuilder
from slipway.images.builders.buildx import BuildxBuilder
from slipway.images.image_name import is_loopback, parse, parse_mirrors
from slipway.images.inputs import Place, Settings
from slipway.images.lock import ImageLock
from slipway.images.locking import World
from slipway.images.registry import registry_from
from slipway.images.spec import UpstreamSource
from slipway.images.stores import Place as StorePlace
from slipway.images.stores import parse_destination, parse_place
from slipway.progress import Progress, human_bytes

SECRETS = {
    "ca": ("SLIPWAY_BUILD_CA", "PIP_CERT", "SSL_CERT_FILE"),
    "pip-conf": ("SLIPWAY_BUILD_PIP_CONF", "PIP_CONFIG_FILE"),
    "apt-sources": ("SLIPWAY_BUILD_APT_SOURCES",),
}
"""Build secret → the variables that may name its file, first one wins. They reach RUN only, and leave no trace."""

MIRRORS = "SLIPWAY_REGISTRY_MIRRORS"
NETWORK = "SLIPWAY_BUILD_NETWORK"

Answer = tuple[dict[str, Any], str]


@dataclass(frozen=True)
class Options:
    """How a command was called; `oldest_docker` is the oldest node's Docker, which decides the compression unless that is given.

    `replace`: a tag that is pushed to may move.
    """

    builder: str = "docker"
    no_cache: bool = False
    push: str | None = None
    sign: Path | None = None
    secrets: tuple[str, ...] = ()
    oldest_docker: str | None = None
    compression: str | None = None
    replace: bool = False


def lock_image(
    place: Place,
    options: Options,
    progress: Progress,
    *,
    base: str | None = None,
    check: bool = False,
    offline: bool = False,
) -> Answer:
    """The lock, written; with `check` compared with what stands there, and nothing written; `offline` asks no registry.

    Raises: as `locking.resolve`; with `check` LockDrift when anything moved.
    """
    with registry_from() as registry:
        settings = settings_from(os.environ, options)
        world = World(
            None if offline else registry,
            lambda: builder(options.builder, place),
            settings,
            place.root / ".slipway" / "tools",
        )
        before = _before(place, check, progress)
        if check and before is None:
            raise MissingFile(
                place.lock, "no such lock", "there is nothing to compare", f"run invoke lock-image {place.flags}"
            )
        named = base or (_own_base(place, before) if check else None)
        made = locking.resolve(place, world, named, progress, before.base if before else None)
    found = locking.changes(place, before, made) if before else ()
    if check:
        locking.refuse_changed(place, found)
        return made.lock.as_json(), f"{place.lock}: nothing moved\n"
    written = locking.write(place, made)
    return written.as_json(), _locked_text(place, written, found if before else None)


def _before(place: Place, check: bool, progress: Progress) -> ImageLock | None:
    """The lock that is there; one that was edited or cannot be read is replaced with a word, but never compared with."""
    if not place.lock.exists():
        return None
    try:
        return lock.read_any(place.lock)
    except (LockDrift, DocumentError) as error:
        if check:
            raise
        problem = error.problem if isinstance(error, LockDrift) else "is no lock that can be read"
        progress.note(f"{place.lock}: {problem}; it is written anew")
        return None


def _own_base(place: Place, before: ImageLock | None) -> str | None:
    """The base that the lock was made with instead of image.yaml's, as it was named; None where it is image.yaml's own."""
    source = place.spec().source
    if before is None or isinstance(source, UpstreamSource):
        return None
    name = before.base.ref.partition("@")[0]
    if name == source.base.partition("@")[0]:
        return None
    # A base that was named by digest alone has nothing that could move.
    return name if ":" in name.rpartition("/")[2] else before.base.ref


def build_image(place: Place, options: Options, progress: Progress) -> Answer:
    """The image, built, checked, and pushed where asked to.

    Raises: as `building.build`, `mirror.run` and, before anything is built, `Cosign.require_key`.
    """
    settings = settings_from(os.environ, options)
    if options.push:
        parse_destination(options.push)
    if options.sign:
        # A tag that is published and then cannot be signed would stand there unsigned.
        signing.refuse_no_private_key(options.sign)
        signing.find().require_key(options.sign)
    built = building.build(
        place, builder(options.builder, place), settings, no_cache=options.no_cache, progress=progress
    )
    document = {
        **built.result.as_json(),
        "archive": str(built.archive),
        "seconds": round(built.seconds, 2),
        "cached_steps": built.cached_steps,
        "repeats_the_lock": built.known,
        "checks": list(built.checks),
        "pushed": None,
    }
    text = _built_text(place, built)
    made = lock.read_any(place.lock)
    document["sbom"] = str(papers.write_sbom(place, made))
    text += f"  SBOM             {document['sbom']}\n"
    if options.push:
        sent, said = _pushed(place, made, built, options, progress)
        document["pushed"] = {"to": options.push, "digest": sent.digest, **said.__dict__}
        text += f"pushed {options.push}, digest {sent.digest} ({sent.counted()})\n"
        text += (
            f"  attached         SBOM {said.sbom}, provenance {said.provenance}{'; signed' if said.signed else ''}\n"
        )
    return document, text


def _pushed(
    place: Place, made: ImageLock, built: building.Built, options: Options, progress: Progress
) -> tuple[mirror.Mirrored, papers.Said]:
    """The image in the registry, with what is said about it."""
    assert options.push
    # What the lock recorded, so that the papers are the same whichever machine pushes.
    result = made.result(built.result.builder) or built.result
    with registry_from() as registry:
        # By the digest that was checked: what else the archive names is not sent, and nothing is said of another image.
        checked = built.result.manifest_digest
        start = StorePlace("archive", None, built.archive, checked)
        end = parse_destination(options.push)
        sent = mirror.run(start, end, registry, mirror.Options(replace=options.replace), progress)
        refuse_other(options.push, sent.digest, checked)
        pinned = parse(options.push).at(digest=sent.digest)
        return sent, papers.say(place, made, result, pinned, registry, options.sign)


def refuse_other(place: str, sent: str, checked: str) -> None:
    """Nothing when the image that was `sent` is the one that was `checked`. Raises: IntegrityMismatch."""
    if sent != checked:
        why = f"{checked} was checked"
        raise IntegrityMismatch(place, f"got another image ({sent})", why, "do not run it; build and push again")


def check_pushed(place: Place, ref: str, key: Path | None) -> Answer:
    """What was proved about the image at `ref`. Raises: as `papers.check_pushed`."""
    if key:
        signing.refuse_no_public_key(key)
    made = lock.read(place.images, place.engine, place.variant, place.spec())
    with registry_from() as registry:
        said = papers.check_pushed(place, made, ref, registry, key)
    return {"image": ref, "proved": list(said)}, "".join(f"{line}\n" for line in said)


def show_build(place: Place, options: Options) -> Answer:
    """The build as the lock has it, without asking anybody: every input, and what was proved about it.

    Raises: LockDrift and DocumentError for whatever a build would be refused for.
    """
    made = lock.read(place.images, place.engine, place.variant, place.spec())
    settings = settings_from(os.environ, options)
    request = inputs.request(place, made, settings, archive=place.archive, no_cache=options.no_cache)
    document = {
        **made.as_json(),
        "inputs_digest": made.inputs_digest,
        "name": request.name,
        "labels": dict(request.labels),
    }
    return document, "\n".join(_shown(place, made)) + "\n"


def verify_image(place: Place, options: Options, progress: Progress) -> Answer:
    """A rebuild without cache, held against the lock. Raises: IntegrityMismatch with what differs, and as `building.verify`."""
    settings = settings_from(os.environ, options)
    compared = building.verify(place, builder(options.builder, place), settings, progress)
    building.refuse_different(place, compared)
    result = compared.built.result
    document = {**result.as_json(), "same": True, "seconds": round(compared.built.seconds, 2)}
    return document, (
        f"the same image again: config digest {result.config_digest}, {len(result.diff_ids)} layers, "
        f"rebuilt in {compared.built.seconds:.1f} s\n"
    )


def mirror_image(
    place: Place, way: mirror.Options, progress: Progress, *, to: str, source: str | None = None
) -> Answer:
    """The built image, or `source`, copied to a registry, a layout or an archive.

    Raises: as `mirror.run`; for the built image also as `building.require_here`.
    """
    start = source or f"archive:{place.archive}"
    if not source and not place.archive.exists():
        why = "the image has not been built here"
        raise MissingFile(place.archive, "no such image", why, f"run invoke build-image {place.flags}, or give --from")
    made = None if source else lock.read(place.images, place.engine, place.variant, place.spec())
    here = building.require_here(place, made) if made else None
    begin = StorePlace("archive", None, place.archive, here.manifest_digest) if here else parse_place(start)
    end = parse_destination(to)
    if made and end.path and end.ref is None:
        end = replace(end, ref=inputs.tag(made))  # a built image has no other name yet
    with registry_from() as registry:
        said = papers.about(place, made, end, here.manifest_digest) if made and here else ()
        sent = mirror.run(begin, end, registry, way, progress, said)
        if here:
            refuse_other(to, sent.digest, here.manifest_digest)
    document = {**sent.__dict__, "from": start, "to": str(end), "attached": list(sent.attached)}
    named = str(replace(end, ref=sent.name)) if end.path else str(end)
    return document, f"{named}: digest {sent.digest}, {sent.counted()}\n"


def refuse_unmeant(needs: Mapping[str, bool], **given: str | None) -> None:
    """Nothing when no flag was given an empty value, and each sentence in `needs` is false. Raises: UsageError, CLI's words."""
    for flag, value in given.items():
        if value is not None and not value.strip():
            raise UsageError(f"--{flag}", "is empty", "", "give it a value, or leave it out")
    for problem, is_so in needs.items():
        if is_so:
            flag, _, rest = problem.partition(" ")
            raise UsageError(flag, rest, "", "leave one of them out, or add what is missing")


def builder(name: str, place: Place) -> Builder:
    """The builder called `name`; buildah speaks plain HTTP with a registry on this machine, as Docker does by itself.

    Raises: UsageError.
    """
    if name == "docker":
        return BuildxBuilder()
    if name == "buildah":
        source = place.spec().source
        base = source.ref if isinstance(source, UpstreamSource) else source.base
        with contextlib.suppress(LockDrift, DocumentError, MissingFile):  # whoever builds reads the lock anyway
            base = lock.read_any(place.lock).base.ref
        return BuildahBuilder(tls_verify=not is_loopback(parse(base).registry))
    raise UsageError("--builder", f"is not known (got {name!a})", "known: docker, buildah", "choose one of them")


def settings_from(environ: Mapping[str, str], options: Options) -> Settings:
    """What this machine adds: secrets by flag or variable, the network of RUN, mirrors, and a compression every node reads.

    Raises: UsageError for a secret that no Dockerfile of ours asks for, or without a file.
    """
    secrets = {
        name: Path(environ[variable])
        for name, variables in SECRETS.items()
        for variable in reversed(variables)
        if environ.get(variable)
    }
    for given in options.secrets:
        name, equals, path = given.partition("=")
        if name not in SECRETS or not equals or not path:
            raise UsageError(
                "--secret",
                f"is not understood (got {given!a})",
                f"NAME=FILE; names: {', '.join(SECRETS)}",
                "correct it",
            )
        secrets[name] = Path(path)
        if not secrets[name].is_file():
            raise MissingFile("--secret", f"{name} has no such file (got {path})", "", "correct the path")
    return Settings(
        secrets=secrets,
        mirrors=parse_mirrors(environ.get(MIRRORS, "")),
        network=_network(environ.get(NETWORK) or "default"),
        compression=_compression(options),
    )


def _network(name: str) -> str:
    """The network of RUN. Raises: UsageError."""
    if name not in {"default", "host", "none"}:
        raise UsageError(NETWORK, f"is not known (got {name!a})", "known: default, host, none", "choose one of them")
    return name


def _compression(options: Options) -> Compression:
    """What was asked for, or what every node reads. Raises: UsageError."""
    if options.oldest_docker is not None and not version_of(options.oldest_docker):
        why = "it decides whether nodes read zstd"
        raise UsageError("--oldest-docker", f"is no version (got {options.oldest_docker!a})", why, "write it as 26.1.5")
    if options.compression is None:
        return compression_for(options.oldest_docker)
    for known in get_args(Compression):
        if options.compression == known:
            return cast("Compression", known)
    known_ones = ", ".join(get_args(Compression))
    raise UsageError(
        "--compression", f"is not known (got {options.compression!a})", f"known: {known_ones}", "choose one"
    )


def _locked_text(place: Place, made: ImageLock, found: tuple[str, ...] | None) -> str:
    lines = [f"wrote {place.lock}", *_shown(place, made)]
    if found is not None:
        lines += ["changed since the lock before:" if found else "nothing changed since the lock before"]
        lines += [f"  {line}" for line in found]
    return "\n".join(lines) + "\n"


def _built_text(place: Place, built: building.Built) -> str:
    said = "the same as the lock has it" if built.known else f"recorded in {place.lock}; commit it"
    lines = [
        f"built {inputs.tag(built.lock)} in {built.seconds:.1f} s ({built.cached_steps} steps from cache)"
        if built.ran
        else f"{inputs.tag(built.lock)} is built already: nothing has changed",
        f"  config digest    {built.result.config_digest} ({said})",
        f"  manifest digest  {built.result.manifest_digest} ({built.result.compression})",
        f"  size             {human_bytes(built.result.size_bytes)} in {len(built.result.diff_ids)} layers",
        f"  checked          {'; '.join(built.checks)}",
        f"  archive          {built.archive}",
    ]
    return "\n".join(lines) + "\n"


def _shown(place: Place, made: ImageLock) -> Iterator[str]:
    yield f"{made.engine} {made.variant}: engine {made.engine_version}, image {inputs.tag(made)}"
    yield f"  lock           {made.inputs_digest}"
    yield f"  base           {made.base.ref}" + (f", made {made.base.created}" if made.base.created else "")
    if made.git:
        yield f"  repository     {made.git.repository}"
        yield f"  commit         {made.git.commit}" + (
            f" ({made.git.base_commit} with pull requests on top)" if made.git.commit != made.git.base_commit else ""
        )
        yield f"  tree           {made.git.tree}, archive sha256 {made.git.archive_sha256}"
        for one in made.git.pull_requests:
            how = f"merged by {one.merge_commit}" if one.merge_commit else f"put on top at {one.head}"
            yield f"  proved         #{one.number} {how}: {one.subject}"
        yield f"  proved         {made.git.assertions} assertion(s) about the files at that commit"
    if made.packages:
        size = f", {human_bytes(made.packages.wheels_bytes)}" if made.packages.wheels_bytes else ""
        yield f"  packages       {made.packages.count} wheels{size}, {made.packages.file} sha256 {made.packages.sha256}"
        yield f"  resolved by    uv {made.packages.uv} for Python {made.packages.python}, as of {made.packages.exclude_newer}"
    if made.debs:
        size = human_bytes(sum(deb.size_bytes for deb in made.debs))
        yield f"  debs           {len(made.debs)} packages, {size}, each by version and sha256"
    yield f"  Dockerfile     images/{place.engine}/{place.spec().dockerfile} sha256 {made.dockerfile_sha256}"
    yield f"  context        sha256 {made.context_sha256}"
    yield f"  epoch          {made.epoch}"
    if made.cuda:
        yield f"  CUDA           {made.cuda.version}, for {', '.join(made.gpu_architectures) or 'any GPU'}"
    for result in made.results:
        yield f"  expected       {result.config_digest} from {result.builder} ({result.version})"
    if not made.results:
        yield "  expected       nothing yet: the first build records it"
