"""What a plan says about its images: one that must be built, one that nobody knows, and one that the host's driver cannot run."""

from __future__ import annotations

from collections.abc import Iterator

from slipway.errors import PlanRefused
from slipway.images import driver_gate
from slipway.images.catalogue import BUILD, Catalogue, KnownImage
from slipway.images.spec import Cuda
from slipway.inventory import Inventory, Node
from slipway.placement import Placed
from slipway.plan.model import PlanWarning, Process
from slipway.recipe import Recipe

NVIDIA_SMI = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"


def with_built_image(process: Process, catalogue: Catalogue) -> Process:
    """`process` with its `build:…` image's name, and the digest of what was built, so that another build is another deployment."""
    known = catalogue.of(process.image) if process.image and process.image.startswith(BUILD) else None
    if known is None:
        return process
    return process.model_copy(update={"image_digest": known.built_digest, "image_name": known.local_name})


def about_images(recipe: Recipe, processes: tuple[Process, ...], catalogue: Catalogue) -> Iterator[PlanWarning]:
    """Images that must be built first. Raises: PlanRefused for one that images/ has no variant of."""
    for image in sorted({p.image for p in processes if p.image and p.image.startswith(BUILD)}):
        known = catalogue.of(image)
        if known is None:
            names = ", ".join(_build_name(item) for item in catalogue.images) or "none"
            remedy = "correct the name, or add the variant to images/<engine>/image.yaml"
            raise PlanRefused("image-unknown", recipe.id, f"{image} is no image of images/", f"known: {names}", remedy)
        if known.built_digest is None:
            commands = ", then ".join(f"`{command}`" for command in known.build_commands)
            message = f"{recipe.id}: {image} must be built first: no published image has what this fabric or cell needs; run {commands}"
            yield PlanWarning(rule="image-not-built", message=message, source=f"images/{known.engine}/image.yaml")


def about_drivers(
    placed: tuple[Placed, ...], processes: tuple[Process, ...], hosts: Inventory, catalogue: Catalogue
) -> Iterator[PlanWarning]:
    """What is to say about each node's driver and the CUDA of the image that runs on its GPUs.

    Raises: PlanRefused (driver-too-old) where the driver cannot run it.
    """
    seen: set[tuple[str, str]] = set()
    for item, process in zip(placed, processes, strict=True):
        if not item.gpu_indices or process.image is None or (item.node.name, process.image) in seen:
            continue
        seen.add((item.node.name, process.image))
        known = catalogue.of(process.image)
        if known is None:
            yield _image_not_known(hosts, item.node, process.image)
        elif known.cuda:
            models = [item.node.gpus[index].model for index in item.gpu_indices]
            yield from _about_driver(hosts, item.node, (process.image, known.cuda), models, catalogue)


def _about_driver(
    hosts: Inventory, node: Node, image: tuple[str, Cuda], models: list[str], catalogue: Catalogue
) -> Iterator[PlanWarning]:
    place, (ref, cuda) = f"inventory {hosts.name}: node {node.name}", image
    name = ref.partition("@")[0]
    if node.driver is None:
        needs = catalogue.drivers.minimum(cuda.version)
        wanted = f", which needs {needs} or newer" if needs else ""
        message = (
            f"{place}: its driver is not known, so it was not compared with CUDA {cuda.version} of {name}{wanted}; "
            f"write `driver:` there as `{NVIDIA_SMI}` prints it"
        )
        yield PlanWarning(rule="driver-unknown", message=message, source="images/cuda-drivers.yaml")
        return
    verdict = driver_gate.check(cuda, node.driver, models, catalogue.drivers)
    if verdict is None:
        return
    said = f"{verdict.problem} (image {name})"
    if verdict.severity == "refuse":
        raise PlanRefused("driver-too-old", place, said, verdict.why, verdict.remedy)
    message = f"{place}: {said}; {verdict.why}; {verdict.remedy}"
    yield PlanWarning(rule="driver-older-than-cuda", message=message, source=verdict.source)


def _image_not_known(hosts: Inventory, node: Node, image: str) -> PlanWarning:
    message = (
        f"inventory {hosts.name}: node {node.name}: its driver was not compared with the CUDA of {image.partition('@')[0]}, "
        "which no images/*/image.yaml describes; add it there as a variant"
    )
    return PlanWarning(rule="image-cuda-unknown", message=message, source="images/")


def _build_name(image: KnownImage) -> str:
    return f"{BUILD}{image.engine}" + ("" if image.name == "default" else f"-{image.name}")
