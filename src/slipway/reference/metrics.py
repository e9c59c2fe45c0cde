"""What the engine counts, as Prometheus text under the names of the engine it stands in for."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Labels = Mapping[str, str]

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
"""Label values of `vllm:request_success_total`.

Source: /metrics of vLLM 0.25.1, recorded 2026-11-30.
"""

_VLLM_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)
_SGLANG_TTFT_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
_LATENCY_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TRANSFER_MB = (1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0, 10000.0)


class Counted(Protocol):
    """A sequence, as far as the counters look at it."""

    prompt_ids: NDArray[np.int32]
    cached_tokens: int
    made: list[int]
    arrived_s: float


class Histogram:
    """A cumulative histogram, of seconds unless its name says otherwise."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def samples(self, name: str, labels: Labels) -> Iterable[str]:
        """The lines of the text format."""
        seen = 0
        for edge, count in zip([*map(str, self._edges), "+Inf"], self._counts, strict=True):
            seen += count
            yield _sample(f"{name}_bucket", {**labels, "le": edge}, seen)
        yield _sample(f"{name}_count", labels, seen)
        yield _sample(f"{name}_sum", labels, self._sum)


@dataclass
class EngineStats:
    """Counters of one engine; written by its worker thread alone, read by anyone."""

    ttft: Histogram
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv_used_tokens: int = 0
    finishes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISH_REASONS, 0))
    token_gap: Histogram = field(default_factory=lambda: Histogram(_LATENCY_S))
    e2e: Histogram = field(default_factory=lambda: Histogram(_LATENCY_S))
    queue: Histogram = field(default_factory=lambda: Histogram(_LATENCY_S))
    transferred_mb: Histogram = field(default_factory=lambda: Histogram(_TRANSFER_MB))
    """KV that a prefill server handed over, in decimal MB a request."""

    def started(self, job: Counted) -> None:
        """A sequence left the queue; its prompt was looked up in the prefix cache."""
        self.prompt_tokens += job.prompt_ids.size
        self.cached_tokens += job.cached_tokens
        self.queue.observe(time.monotonic() - job.arrived_s)

    def first_token(self, job: Counted, after_s: float) -> None:
        """Its first token was chosen."""
        self.generation_tokens += 1
        self.ttft.observe(after_s)

    def next_token(self, gap_s: float) -> None:
        """Another token was chosen, `gap_s` after the one before."""
        self.generation_tokens += 1
        self.token_gap.observe(gap_s)

    def finished(self, reason: str, job: Counted) -> None:
        """It ended."""
        self.finishes[reason] += 1
        self.e2e.observe(time.monotonic() - job.arrived_s)


@dataclass(frozen=True)
class EngineFacts:
    """What the metrics say about the engine besides its counters."""

    model_name: str
    block_size_tokens: int
    kv_pool_tokens: int
    max_model_len_tokens: int
    prefix_caching: bool = True


def vllm_stats() -> EngineStats:
    """Empty counters with vLLM's buckets."""
    return EngineStats(Histogram(_VLLM_TTFT_S))


def sglang_stats() -> EngineStats:
    """Empty counters with SGLang's buckets."""
    return EngineStats(Histogram(_SGLANG_TTFT_S))


def vllm_text(stats: EngineStats, facts: EngineFacts) -> str:
    """The text that vLLM's /metrics would give, as far as the gates read it.

    Source: /metrics of vLLM 0.25.1, recorded 2026-11-30.
    """
    labels = {"engine": "0", "model_name": facts.model_name}
    computed = stats.prompt_tokens - stats.cached_tokens
    lines: list[str] = []

    def simple(name: str, kind: str, value: float, extra: Labels | None = None) -> None:
        lines.extend([f"# TYPE vllm:{name} {kind}", _sample(f"vllm:{name}", {**labels, **(extra or {})}, value)])

    simple("num_requests_running", "gauge", stats.running)
    simple("num_requests_waiting", "gauge", stats.waiting)
    simple("kv_cache_usage_perc", "gauge", stats.kv_used_tokens / facts.kv_pool_tokens)
    simple("prefix_cache_queries_total", "counter", stats.prompt_tokens)
    simple("prefix_cache_hits_total", "counter", stats.cached_tokens)
    simple("prompt_tokens_total", "counter", stats.prompt_tokens)
    simple("prompt_tokens_cached_total", "counter", stats.cached_tokens)
    simple("generation_tokens_total", "counter", stats.generation_tokens)
    simple("num_preemptions_total", "counter", 0)
    lines.append("# TYPE vllm:prompt_tokens_by_source_total counter")
    for source, count in (("local_compute", computed), ("local_cache_hit", stats.cached_tokens)):
        lines.append(_sample("vllm:prompt_tokens_by_source_total", {**labels, "source": source}, count))
    lines.append("# TYPE vllm:request_success_total counter")
    for reason, count in stats.finishes.items():
        lines.append(_sample("vllm:request_success_total", {**labels, "finished_reason": reason}, count))
    for name, histogram in (
        ("time_to_first_token_seconds", stats.ttft),
        ("inter_token_latency_seconds", stats.token_gap),
        ("e2e_request_latency_seconds", stats.e2e),
        ("request_queue_time_seconds", stats.queue),
    ):
        lines.append(f"# TYPE vllm:{name} histogram")
        lines.extend(histogram.samples(f"vllm:{name}", labels))
    simple("cache_config_info", "gauge", 1, _cache_config(facts))
    return "\n".join(lines) + "\n"


def sglang_text(stats: EngineStats, facts: EngineFacts, mode: str = "unified") -> str:
    """The text that SGLang's /metrics would give, as far as the gates read it; `mode` is unified, prefill or decode.

    Source: /metrics of SGLang 0.5.16, recorded 2026-11-30.
    """
    model = {"engine_type": mode, "model_name": facts.model_name}
    rank = {**model, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    hit_rate = stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0
    lines: list[str] = []

    def simple(name: str, kind: str, labels: Labels, value: float) -> None:
        lines.extend([f"# TYPE sglang:{name} {kind}", _sample(f"sglang:{name}", labels, value)])

    simple("max_total_num_tokens", "gauge", rank, facts.kv_pool_tokens)
    simple("page_size", "gauge", rank, facts.block_size_tokens)
    simple("num_pages", "gauge", rank, facts.kv_pool_tokens // facts.block_size_tokens)
    simple("context_len", "gauge", rank, facts.max_model_len_tokens)
    simple("num_running_reqs", "gauge", rank, stats.running)
    simple("num_queue_reqs", "gauge", rank, stats.waiting)
    simple("num_used_tokens", "gauge", rank, stats.kv_used_tokens)
    simple("token_usage", "gauge", rank, stats.kv_used_tokens / facts.kv_pool_tokens)
    simple("cache_hit_rate", "gauge", rank, hit_rate)
    simple("prompt_tokens_total", "counter", model, stats.prompt_tokens)
    simple("generation_tokens_total", "counter", model, stats.generation_tokens)
    simple("cached_tokens_total", "counter", {**model, "cache_source": "device"}, stats.cached_tokens)
    finished = sum(stats.finishes.values())
    simple("num_requests_total", "counter", model, finished)
    simple("num_aborted_requests_total", "counter", model, stats.finishes["abort"])
    for name, histogram, labels in (
        ("time_to_first_token_seconds", stats.ttft, model),
        ("inter_token_latency_seconds", stats.token_gap, model),
        ("e2e_request_latency_seconds", stats.e2e, model),
        ("queue_time_seconds", stats.queue, rank),
        *((("kv_transfer_total_mb", stats.transferred_mb, rank),) if mode == "prefill" else ()),
    ):
        lines.append(f"# TYPE sglang:{name} histogram")
        lines.extend(histogram.samples(f"sglang:{name}", labels))
    return "\n".join(lines) + "\n"


def _cache_config(facts: EngineFacts) -> dict[str, str]:
    return {
        "block_size": str(facts.block_size_tokens),
        "cache_dtype": "auto",
        "enable_prefix_caching": str(facts.prefix_caching),
        "kv_cache_max_concurrency": str(facts.kv_pool_tokens / facts.max_model_len_tokens),
        "kv_cache_size_tokens": str(facts.kv_pool_tokens),
        "num_gpu_blocks": str(facts.kv_pool_tokens // facts.block_size_tokens),
    }


def _sample(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted(labels.items()))
    return f"{name}{{{shown}}} {float(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
