"""Every hard-won rule as data: what it applies to, what it says, why, its source, and how severe it is.

A rule that refuses stops the plan (exit 2); one that warns is printed with it. Rules look at a recipe and its roles only; what
hosts must offer is placement's business. A cell may break a rule on purpose: `allow: [{rule, reason}]`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from slipway.errors import PlanRefused
from slipway.recipe import Recipe
from slipway.rules import deployment, disaggregation, sglang, vllm
from slipway.rules.rule import Case, Rule

__all__ = ["RULES", "Case", "Finding", "Rule", "check"]

RULES: tuple[Rule, ...] = (*deployment.RULES, *sglang.RULES, *vllm.RULES, *disaggregation.RULES)


@dataclass(frozen=True)
class Finding:
    """A rule that speaks about a role of a recipe; `allowed` is the cell's reason for breaking it, where it gives one."""

    rule: Rule
    place: str
    allowed: str | None = None

    @property
    def text(self) -> str:
        """`place: what; why; what to do next`."""
        excuse = f"allowed: {self.allowed}" if self.allowed else self.rule.remedy
        return f"{self.place}: {self.rule.message}; {self.rule.why}; {excuse}"


def check(recipe: Recipe, locked: bool) -> tuple[Finding, ...]:
    """The warnings about `recipe`, and the rules it breaks on purpose, in the order of the rules.

    Raises: PlanRefused for the first rule that refuses, and for an `allow` that names no rule or one that is not broken.
    """
    findings = tuple(_findings(recipe, locked))
    for finding in findings:
        if finding.rule.severity == "refuse" and finding.allowed is None:
            rule = finding.rule
            raise PlanRefused(rule.id, finding.place, rule.message, rule.why, f"{rule.remedy} ({rule.source})")
    _refuse_idle_allowances(recipe, {finding.rule.id for finding in findings})
    return findings


def _findings(recipe: Recipe, locked: bool) -> Iterator[Finding]:
    reasons = {allowed.rule: allowed.reason for allowed in recipe.cell.allow}
    for rule in RULES:
        for role in recipe.cell.roles:
            if rule.broken(Case(recipe, role, locked)):
                place = recipe.id if rule.once else f"{recipe.id}: roles.{role.name}"
                yield Finding(rule, place, reasons.get(rule.id))
                if rule.once:
                    break


def _refuse_idle_allowances(recipe: Recipe, spoken: set[str]) -> None:
    """An allowance that allows nothing is a leftover or a typo; either way somebody believes something untrue."""
    known = [rule.id for rule in RULES]
    for allowed in recipe.cell.allow:
        place = f"{recipe.id}: allow"
        if allowed.rule not in known:
            near = difflib.get_close_matches(allowed.rule, known, n=1)
            why = f"did you mean {near[0]}?" if near else "`invoke recipes --check` names the rules"
            raise PlanRefused("allow-unknown", place, f"no rule is called {allowed.rule}", why, "correct or remove it")
        if allowed.rule not in spoken:
            why = "the cell keeps it"
            raise PlanRefused(
                "allow-idle", place, f"the rule {allowed.rule} is not broken here", why, "remove the entry"
            )
