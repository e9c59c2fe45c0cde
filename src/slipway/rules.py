"""Every hard-won rule as data: what it applies to, what it says, why, its source, and how severe it is.

A rule that refuses stops the plan (exit 2); one that warns is printed with it. Rules look at a recipe and its role only;
what hosts must offer is placement's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from slipway.engines import reference, router, sglang, vllm
from slipway.errors import PlanRefused
from slipway.recipe import Recipe, Role

TYPED_FLAGS = {"vllm": vllm.TYPED_FLAGS, "sglang": sglang.TYPED_FLAGS, "reference": reference.TYPED_FLAGS}


@dataclass(frozen=True)
class Case:
    """What a rule is asked about: one role of a recipe, and whether its checkpoints are locked."""

    recipe: Recipe
    role: Role
    locked: bool

    @property
    def version(self) -> tuple[int, ...]:
        """The engine's release numbers, as (0, 5, 18)."""
        return release(self.recipe.engine_version)

    @property
    def typed_flags(self) -> frozenset[str]:
        """The flags that Slipway writes itself for this role."""
        return router.TYPED_FLAGS if self.role.name == "router" else TYPED_FLAGS[self.recipe.engine]

    def is_server_of(self, engine: str) -> bool:
        """Whether the role is a server of `engine`, not its router."""
        return self.recipe.engine == engine and self.role.name != "router"

    def has(self, flag: str) -> bool:
        """Whether the role sets the switch `flag`."""
        return self.role.flags.get(flag) is True


@dataclass(frozen=True)
class Rule:
    """One rule: it speaks where `broken` is true."""

    id: str
    severity: Literal["refuse", "warn"]
    broken: Callable[[Case], bool]
    message: str
    why: str
    remedy: str
    source: str


@dataclass(frozen=True)
class Finding:
    """A rule that speaks about a role of a recipe."""

    rule: Rule
    place: str

    @property
    def text(self) -> str:
        """`place: what; why; what to do next`."""
        return f"{self.place}: {self.rule.message}; {self.rule.why}; {self.rule.remedy}"


RULES: tuple[Rule, ...] = (
    Rule(
        "typed-flag-spelled-twice",
        "refuse",
        lambda case: bool(case.typed_flags & case.role.flags.keys()),
        "a flag that Slipway writes from a typed field also stands in flags",
        "the engine would take whichever comes last, and the checks look at the typed field",
        "set the typed field and remove the flag",
        "docs/recipes.md, typed fields",
    ),
    Rule(
        "sglang-yarn-scale",
        "refuse",
        lambda case: case.recipe.engine == "sglang" and case.version < (0, 5, 18),
        "this SGLang release squares Laguna's YaRN attention scale",
        "answers stay fluent and GSM8K loses about 20 points; mended in 0.5.18",
        "pin SGLang 0.5.18 or newer",
        "https://github.com/sgl-project/sglang/pull/33558",
    ),
    Rule(
        "pd-unequal-parallelism",
        "refuse",
        lambda case: case.role.name == "decode" and _differs_from_prefill(case),
        "prefill and decode differ in tp, pp, page size or KV dtype",
        "KV pages are copied as they are, so both sides must have the same layout",
        "set the same values on both roles",
        "https://github.com/sgl-project/sglang/pull/28737",
    ),
    Rule(
        "dflash-memory-headroom",
        "refuse",
        lambda case: (
            case.recipe.engine == "vllm"
            and case.recipe.cell.speculation is not None
            and case.recipe.cell.requires.gpu_memory_gib <= 24
            and (case.role.gpu_memory_fraction or 0.92) >= 0.90
        ),
        "DFlash with gpu_memory_fraction 0.90 or more on 24 GB",
        "the drafter's buffer of the first generation ran out of memory there",
        "use 0.87",
        "https://github.com/tonyd2wild/Laguna-S-2.1-INT4-DFlash-4x-RTX3090-200-tok-s",
    ),
    Rule(
        "checkpoint-unlocked",
        "warn",
        lambda case: not case.locked,
        "no lock file names the sha256 of every file of this checkpoint",
        "shards of the right size were served corrupt, and repositories were re-uploaded under the same name",
        "run `invoke lock-models` for it before launching",
        "https://github.com/huggingface/huggingface_hub/issues/3643",
    ),
    Rule(
        "thinking-unstated",
        "warn",
        lambda case: (
            case.recipe.engine == "vllm"
            and case.recipe.cell.parsers.reasoning == "poolside_v1"
            and case.recipe.cell.thinking is None
        ),
        "the default for thinking is not stated",
        "vLLM's poolside_v1 parser passes think tags through into the content where the chat template thinks by default",
        "set thinking: true or false",
        "vLLM 0.25.1, reasoning/deepseek_v3_reasoning_parser.py",
    ),
    Rule(
        "cached-tokens-unproven",
        "warn",
        lambda case: (
            (case.recipe.engine == "vllm" and not case.has("enable-prompt-tokens-details"))
            or (case.is_server_of("sglang") and not case.has("enable-cache-report"))
        ),
        "usage will not report cached tokens",
        "a gate cannot prove from the answer that its prompt was fresh, and falls back to the server's counters",
        "add enable-prompt-tokens-details (vLLM) or enable-cache-report (SGLang) to flags",
        "measured on vLLM 0.25.1 and SGLang 0.5.16, 2026-11-30",
    ),
    Rule(
        "metrics-off",
        "warn",
        lambda case: case.is_server_of("sglang") and not case.has("enable-metrics"),
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
        "https://github.com/tonyd2wild/Laguna-S-2.1-INT4-DFlash-4x-RTX3090-200-tok-s",
    ),
)


def check(recipe: Recipe, locked: bool) -> tuple[Finding, ...]:
    """The warnings about `recipe`, in the order of the rules.

    Raises: PlanRefused for the first rule that refuses.
    """
    findings = tuple(_findings(recipe, locked))
    for finding in findings:
        if finding.rule.severity == "refuse":
            rule = finding.rule
            raise PlanRefused(rule.id, finding.place, rule.message, rule.why, f"{rule.remedy} ({rule.source})")
    return findings


def _findings(recipe: Recipe, locked: bool) -> Iterator[Finding]:
    for rule in RULES:
        for role in recipe.cell.roles:
            if rule.broken(Case(recipe, role, locked)):
                yield Finding(rule, f"{recipe.id}: roles.{role.name}")
                if rule.id == "checkpoint-unlocked":
                    break  # said of the recipe, not of each role


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of `version`: (0, 5, 15) for 0.5.15.post1."""
    numbers: list[int] = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _differs_from_prefill(case: Case) -> bool:
    prefill = case.recipe.cell.role("prefill")
    shape = ("tp", "pp", "page_size_tokens", "kv_dtype")
    return prefill is not None and any(getattr(prefill, name) != getattr(case.role, name) for name in shape)
