"""The bench: a closed loop of streamed requests, measured where the bytes arrive, and its cross-checks.

`run` is the one entry. `client` moves bytes, `records` judges answers after the run, `statistics` summarises,
`crosschecks` looks for the ways in which such numbers have been wrong.
"""

from __future__ import annotations

import json
import platform
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from slipway import __version__
from slipway.bench.client import Target, drive
from slipway.bench.crosschecks import Circumstances, cross_checks, generated_tokens
from slipway.bench.prompts import PromptMaker
from slipway.bench.records import gaps_ms, records
from slipway.bench.result import BenchResult, CrossCheck, Load, RequestRecord, Summary
from slipway.bench.statistics import summarize
from slipway.endpoint import Client, Endpoint
from slipway.errors import CheckFailed, EngineFailed
from slipway.progress import Progress, silent

__all__ = ["BenchResult", "CrossCheck", "Load", "RequestRecord", "Summary", "refuse_failed", "run", "sentence"]

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

COUNTER_WAIT_S = 2.0
"""How long the server's token counter may lag behind its answers."""


def run(endpoint: Endpoint, load: Load, *, progress: Progress = silent) -> BenchResult:
    """What `load` on `endpoint` measured, warm-up not counted. Failed requests are in the result, not raised.

    Raises: NetworkFailure, AuthFailure when the endpoint cannot be asked at all; CheckFailed when it lists its models and
    the asked one is none of them, before anything is sent to it; UsageError when prompts cannot be as
    short as asked; KeyboardInterrupt on Ctrl-C, with every connection closed.
    """
    target = Target.of(endpoint, PATHS[load.api])
    with Client(endpoint) as client:
        served = _served(client)
        if served is not None:
            client.refuse_unserved(served)
        maker = PromptMaker(client, load)
        warmup = _warm_up(target, maker, load, endpoint, progress)
        bodies = _bodies(maker, load, endpoint, load.requests, progress)
        before = client.metrics()
        label = f"bench {load.requests} requests at {load.concurrency} streams"
        with progress.track(label, total=load.requests, unit="requests") as advance:
            exchanges, lag_s = drive(target, bodies, load.concurrency, advance)
        measured = records(exchanges, endpoint)
        after = _metrics_after(client, before, measured)
    wall_s = max(exchange.end_s for exchange in exchanges) - min(exchange.sent_s for exchange in exchanges)
    open_s = sum(exchange.end_s - exchange.sent_s for exchange in exchanges)
    around = Circumstances(
        model=endpoint.model,
        served=served,
        metrics_before=before,
        metrics_after=after,
        overhead_tokens=maker.overhead_tokens,
        counted_prompts=maker.by == "tokenize",
        mean_concurrency=open_s / wall_s if wall_s else 0.0,
        lag_ms=lag_s * 1000,
    )
    run_facts = {
        "created_at": datetime.now(UTC),
        "url": endpoint.url,
        "prompt_length_by": maker.by,
        "wall_s": round(wall_s, 6),
        "warmup_requests": len(warmup),
        "warmup_failed": sum(not record.completed for record in warmup),
        "reconnects": sum(exchange.reconnected for exchange in exchanges),
    }
    return _result(load, measured, around, run_facts)


def sentence(result: BenchResult) -> str:
    """The result in one sentence."""
    failures = "".join(f", {count} x {reason}" for reason, count in sorted(result.failures.items()))
    ttft = f", TTFT {result.ttft_any_ms.median:.0f} ms" if result.ttft_any_ms else ""
    decode = f", {result.decode_ms_per_token.median:.1f} ms per token" if result.decode_ms_per_token else ""
    done = f"{result.completed} of {len(result.requests)} requests completed{failures}"
    return f"{done}, {result.output_throughput:.0f} tok/s{ttft}{decode} (medians)"


def refuse_failed(result: BenchResult) -> None:
    """Nothing when every request completed.

    Raises: CheckFailed with the reasons and how often each came.
    """
    if result.failed:
        details = {one.reason: f" ({one.detail})" for one in reversed(result.requests) if one.reason and one.detail}
        reasons = "; ".join(
            f"{count} x {reason}{details.get(reason, '')}" for reason, count in sorted(result.failures.items())
        )
        problem = f"{result.failed} of {result.failed + result.completed} requests failed"
        raise CheckFailed(f"bench of {result.url}", problem, reasons, "the figures above count completed requests only")


def _served(client: Client) -> tuple[str, ...] | None:
    try:
        return client.models()
    except (CheckFailed, EngineFailed):
        return None


def _warm_up(
    target: Target, maker: PromptMaker, load: Load, endpoint: Endpoint, progress: Progress
) -> list[RequestRecord]:
    """Requests that are sent and not counted: some alone, then one wave as wide as the load (kernels compile per width)."""
    waves = [1] * load.warmup_requests + ([load.concurrency] if load.warmup_wave else [])
    sent: list[RequestRecord] = []
    with progress.track("bench warm-up", total=sum(waves), unit="requests") as advance:
        for width in waves:
            bodies = [_body(maker.prompt(), load, endpoint.model) for _ in range(width)]
            sent += records(drive(target, bodies, width, advance)[0], endpoint)
    return sent


def _bodies(maker: PromptMaker, load: Load, endpoint: Endpoint, count: int, progress: Progress) -> list[bytes]:
    made = []
    with progress.track("bench prompts", total=count, unit="prompts") as advance:
        for _ in range(count):
            made.append(_body(maker.prompt(), load, endpoint.model))
            advance(1)
    return made


def _body(prompt: str, load: Load, model: str) -> bytes:
    asked: dict[str, Any] = (
        {"messages": [{"role": "user", "content": prompt}]} if load.api == "chat" else {"prompt": prompt}
    )
    options = {"include_usage": True, **({"continuous_usage_stats": True} if load.frame_usage else {})}
    fields = {
        "model": model,
        **asked,
        "max_tokens": load.output_tokens,
        "temperature": load.temperature,
        "stream": True,
        "stream_options": options,
        "ignore_eos": True,
    }
    return json.dumps({**fields, **load.request}).encode()


def _metrics_after(client: Client, before: str | None, measured: Sequence[RequestRecord]) -> str | None:
    """The metrics once the token counter has caught up with the answers, or after COUNTER_WAIT_S."""
    start = generated_tokens(before)
    if start is None:
        return None
    expected = sum(record.completion_tokens or 0 for record in measured if record.completed)
    after = client.metrics()
    for _ in range(round(COUNTER_WAIT_S / 0.1)):
        if (generated_tokens(after) or 0) - start >= expected:
            break
        threading.Event().wait(0.1)
        after = client.metrics()
    return after


def _result(
    load: Load, measured: Sequence[RequestRecord], around: Circumstances, run_facts: dict[str, Any]
) -> BenchResult:
    completed = [record for record in measured if record.completed]
    tokens = sum(record.completion_tokens or 0 for record in completed)
    cached = [record.cached_tokens for record in completed if record.cached_tokens is not None]
    wall_s = run_facts["wall_s"]
    summaries: dict[str, Any] = {
        name: summarize(getattr(record, name) for record in completed) for name in _PER_REQUEST
    }
    return BenchResult(
        **run_facts,
        model=around.model,
        load=load,
        client=f"slipway {__version__}, Python {platform.python_version()}, asyncio sockets",
        completed=len(completed),
        failed=len(measured) - len(completed),
        failures=dict(Counter(record.reason for record in measured if not record.completed)),
        finish_reasons=dict(Counter(record.finish_reason or "none" for record in measured)),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in completed),
        completion_tokens=tokens,
        cached_tokens=sum(cached) if cached else None,
        output_throughput=round(tokens / wall_s, 3) if wall_s else 0.0,
        request_throughput=round(len(completed) / wall_s, 4) if wall_s else 0.0,
        mean_concurrency=round(around.mean_concurrency, 3),
        frame_gap_ms=summarize(gap for record in completed for gap in gaps_ms(record)),
        loop_lag_ms=round(around.lag_ms, 3),
        cross_checks=cross_checks(load, measured, around),
        requests=tuple(measured),
        **summaries,
    )


_PER_REQUEST = ("ttft_any_ms", "ttft_visible_ms", "decode_ms_per_token", "e2e_ms", "client_wall_tok_s")
