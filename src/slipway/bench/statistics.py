"""Summaries that claim no more than the sample holds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from slipway.bench.result import Summary

MINIMUM_N = {"p50": 11, "p90": 64, "p95": 130, "p99": 662}
"""Least number of values from which a percentile is given: from here on, a value of the sample other than its largest
bounds the percentile from above with 99 % confidence. Source: MLPerf's early-stopping rule; a test recomputes it."""


def summarize(values: Iterable[float | None]) -> Summary | None:
    """The summary of the `values` that are there, or None when none is."""
    sample = sorted(value for value in values if value is not None)
    if not sample:
        return None
    n = len(sample)
    percentiles = {name: percentile(sample, int(name[1:])) if n >= least else None for name, least in MINIMUM_N.items()}
    return Summary(
        n=n,
        mean=statistics.fmean(sample),
        median=statistics.median(sample),
        sd=statistics.stdev(sample) if n > 1 else None,
        min=sample[0],
        max=sample[-1],
        too_small={
            name: f"n too small ({n} of {MINIMUM_N[name]})" for name, value in percentiles.items() if value is None
        },
        **percentiles,
    )


def percentile(ordered: list[float], percent: int) -> float:
    """The nearest-rank percentile of `ordered` (ascending, not empty): a value of the sample, never one in between."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]
