"""Rules about checkpoints, images, evidence and access, whatever the engine."""

from __future__ import annotations

from slipway.engines import reference, router, sglang, vllm
from slipway.rules.rule import BLACKWELL, Case, Rule

TYPED_FLAGS = {"vllm": vllm.TYPED_FLAGS, "sglang": sglang.TYPED_FLAGS, "reference": reference.TYPED_FLAGS}

PAIRS = {
    "4bbfc285f2f8b3b6b526274c133b7b17aae6c8cb": "5e07c246915c86dc6920fead03d019989224f2ba",  # S-2.1 INT4
    "07614121b31898586430f189d27a25a0be310843": "723794750422b3efbf3a7b3af76dffb4ba035943",  # S-2.1 NVFP4, 256K
}
"""Target revision → the drafter revision it was seen to work with in public.

Source: poolside's repositories and their discussions, read 2026-11-30.
"""


def _spelled_twice(case: Case) -> bool:
    typed = router.TYPED_FLAGS if case.role.name == "router" else TYPED_FLAGS[case.recipe.engine]
    return bool(typed & case.role.flags.keys())


def _drafter_of_another_precision(case: Case) -> bool:
    spec = case.recipe.cell.speculation
    if spec is None:
        return False
    target = case.recipe.cell.checkpoint.repo
    base, dash, suffix = target.rpartition("-")
    quantized = suffix in {"FP8", "INT4", "NVFP4"}
    return spec.drafter.repo != (f"{base}-DFlash{dash}{suffix}" if quantized else f"{target}-DFlash")


def _known_mismatch(case: Case) -> bool:
    spec = case.recipe.cell.speculation
    known = PAIRS.get(case.recipe.cell.checkpoint.revision or "")
    return spec is not None and known is not None and spec.drafter.revision != known


def _unpinned(case: Case) -> bool:
    return any(checkpoint.revision is None for checkpoint in case.recipe.checkpoints)


def _drifting_image(case: Case) -> bool:
    cell = case.recipe.cell
    images = (
        [cell.image, *(variant.image for variant in cell.transfer.fabrics.values())] if cell.transfer else [cell.image]
    )
    return any(image and "@sha256:" not in image and not image.startswith("build:") for image in images)


def _is_count(name: str) -> bool:
    return name.startswith("max-num-") or name in {"max-running-requests", "max-total-tokens", "max-prefill-tokens"}


def _indivisible(case: Case) -> bool:
    shape, tp = case.recipe.architecture, case.role.tp
    if case.role.name == "router":
        return False
    parts = (shape.heads_full, shape.heads_windowed, shape.experts * shape.expert_ffn)
    return any(part % tp for part in parts) or (shape.kv_heads % tp != 0 and tp % shape.kv_heads != 0)


def _small_shm(case: Case) -> bool:
    container = case.recipe.cell.container
    shares = case.recipe.cell.image is not None and case.recipe.cell.gpus(case.role) > 1
    return shares and container.ipc != "host" and (container.shm_size_gib or 0) < 16


RULES: tuple[Rule, ...] = (
    Rule(
        "typed-flag-spelled-twice",
        "refuse",
        _spelled_twice,
        "a flag that Slipway writes from a typed field also stands in flags",
        "the engine would take whichever comes last, and the checks look at the typed field",
        "set the typed field and remove the flag",
        "docs/recipe-reference.md",
    ),
    Rule(
        "tp-does-not-divide",
        "refuse",
        _indivisible,
        "the heads or experts do not divide by tp",
        "every rank takes an equal part of them; KV heads may be fewer than ranks only when they divide the ranks",
        "set tp to 1, 2, 4 or 8",
        "vLLM 0.25.1 and sglang 0.5.18, model loading",
    ),
    Rule(
        "context-beyond-model",
        "refuse",
        lambda case: (case.role.context_tokens or 0) > case.recipe.architecture.max_context_tokens,
        "context_tokens is more than the model has positions for",
        "positions beyond were never trained; engines refuse, or answer nonsense when forced",
        "lower context_tokens to the architecture's max_context_tokens",
        "the checkpoint's max_position_embeddings",
    ),
    Rule(
        "count-not-positive",
        "refuse",
        lambda case: any(
            _is_count(name) and isinstance(value, int) and value < 1 for name, value in case.role.flags.items()
        ),
        "a count in flags is zero or negative",
        "the engine's parser takes any integer and fails later, or not at all",
        "write a positive number",
        "vLLM 0.25.1 and sglang 0.5.18, argument parsers",
    ),
    Rule(
        "image-tag-drifts",
        "refuse",
        _drifting_image,
        "the image is named by a tag",
        "tags move: `latest` of this engine changed under published recipes",
        "name it by digest, as name:tag@sha256:…",
        "https://github.com/sgl-project/sglang/pull/31610",
        once=True,
    ),
    Rule(
        "nvfp4-needs-blackwell",
        "refuse",
        lambda case: case.recipe.cell.quantization == "nvfp4" and case.recipe.cell.hardware not in BLACKWELL,
        "NVFP4 on hardware without it",
        "FP4 tensor cores came with Blackwell",
        "choose the FP8 or BF16 recipe",
        "cookbook cells: NVFP4 stands under B200, B300, GB200 and GB300 only",
        once=True,
    ),
    Rule(
        "drafter-precision",
        "refuse",
        _drafter_of_another_precision,
        "the drafter was made for another precision of the target",
        "each drafter is calibrated for one; another is loaded and serves, and accepts 0 to 0.2 %",
        "use the drafter whose name ends like the target's",
        "https://huggingface.co/poolside/Laguna-S-2.1-DFlash-INT4/discussions/9",
        once=True,
    ),
    Rule(
        "drafter-revision",
        "refuse",
        _known_mismatch,
        "the drafter's revision does not belong to the target's",
        "after a re-upload of the target alone acceptance fell to 0 % without any error",
        "pin target and drafter as the pair they were published as",
        "https://huggingface.co/poolside/Laguna-S-2.1-INT4/discussions/1",
        once=True,
    ),
    Rule(
        "revision-unpinned",
        "warn",
        _unpinned,
        "a checkpoint's revision is not pinned",
        "repositories were re-uploaded under the same name with other sizes, templates and context lengths",
        "run `invoke lock-models` and write the commit into the recipe",
        "https://huggingface.co/poolside/Laguna-S-2.1-NVFP4/discussions/22",
        once=True,
    ),
    Rule(
        "checkpoint-unlocked",
        "warn",
        lambda case: not case.locked,
        "no lock file names the sha256 of every file of this checkpoint",
        "shards of the right size were served corrupt, and `hf download` does not compare content",
        "run `invoke lock-models` for it before launching",
        "https://github.com/huggingface/huggingface_hub/issues/3643",
        once=True,
    ),
    Rule(
        "shared-memory",
        "warn",
        _small_shm,
        "tensor parallelism in a container with little shared memory",
        "Docker gives 64 MB; NCCL runs out of it, often only under load",
        "set container.ipc: host, or shm_size_gib: 16 or more",
        "https://github.com/vllm-project/vllm/issues/1710",
    ),
    Rule(
        "cached-tokens-unproven",
        "warn",
        lambda case: (
            (case.serves_with("vllm") and not case.has("enable-prompt-tokens-details"))
            or (case.serves_with("sglang") and not case.has("enable-cache-report"))
        ),
        "usage will not report cached tokens",
        "a gate cannot prove from the answer that its prompt was fresh, and falls back to the server's counters",
        "add enable-prompt-tokens-details (vLLM) or enable-cache-report (SGLang) to flags",
        "run on vLLM 0.25.1 and SGLang 0.5.16, 2026-11-30",
    ),
    Rule(
        "metrics-off",
        "warn",
        lambda case: case.serves_with("sglang") and not case.has("enable-metrics"),
        "the server will export no metrics",
        "token counters and KV-transfer counters are the evidence of some gates",
        "add enable-metrics to flags",
        "sglang 0.5.18, srt/server_args.py",
    ),
    Rule(
        "public-without-key",
        "warn",
        lambda case: case.role.bind in {"0.0.0.0", "::"},  # noqa: S104 (compared, not bound)
        "the server listens on every address and asks for no key",
        "whoever reaches the port can use the GPUs",
        "keep it behind a firewall, a private network or an authenticating proxy",
        "https://docs.vllm.ai/en/latest/usage/security.html",
        once=True,
    ),
)
