"""What a bench was asked to do and what it found: documents, so that a result can be read again and compared."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, model_validator

from slipway.documents import Document
from slipway.errors import UsageError

Number = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
"""A time, rate or count that was measured; the bounds keep a damaged file from reaching the plots."""

Count = Annotated[int, Field(ge=0, le=10**12)]


class Load(Document):
    """A closed loop: `concurrency` streams, each sending its next request when the last one ended.

    `seed` fixes the words of the prompts; each prompt still begins with a nonce of this run, so that no prefix cache
    is hit however often a load is repeated. `frame_usage` asks for usage with every frame (exact first-frame counts on
    vLLM; SGLang 0.5.16 takes the option and sends none). `request` adds fields to each request.

    Raises: UsageError when the numbers cannot be meant.
    """

    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int
    seed: int = 0
    api: Literal["chat", "completions"] = "chat"
    temperature: float = 0.0
    warmup_requests: int = 1
    warmup_wave: bool = True
    frame_usage: bool = False
    request: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _can_be_meant(self) -> Self:
        for name in ("concurrency", "requests", "input_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    option, f"must be at least 1 (got {getattr(self, name)})", "", "give a positive number"
                )
        if self.warmup_requests < 0:
            raise UsageError("warmup_requests", f"must not be negative (got {self.warmup_requests})")
        if self.requests < self.concurrency:
            raise UsageError(
                "--requests",
                f"must be at least the concurrency {self.concurrency} (got {self.requests})",
                "otherwise the claimed number of streams is never reached",
                "raise --requests or lower --concurrency",
            )
        return self


class Summary(Document):
    """One measured quantity over `n` values. A percentile is null where n is too small to bound it (see `statistics`)."""

    n: Count
    mean: Number
    median: Number
    sd: Number | None
    min: Number
    max: Number
    p50: Number | None
    p90: Number | None
    p95: Number | None
    p99: Number | None
    too_small: dict[str, str] = Field(default_factory=dict)


class CrossCheck(Document):
    """One way in which a wrong number would show; `ok` is null where the server gives nothing to compare with."""

    id: str
    ok: bool | None
    detail: str


class RequestRecord(Document):
    """One measured request. Times are ms; offsets count from the sending of the request, `start_ms` from the run's start.

    `first_frame_tokens` is how many tokens the first token frame held; `first_frame_known_by` says how that is known:
    `frame usage` (the server's running count), `one token per frame` (frames == tokens) or `share of text`
    (its share of the characters, bounded so that each later frame still has a token).
    """

    index: Count
    stream: Count
    completed: bool
    reason: str = ""
    detail: str = ""
    start_ms: Number
    connect_ms: Number | None = None
    ttft_any_ms: Number | None = None
    ttft_visible_ms: Number | None = None
    decode_ms_per_token: Number | None = None
    e2e_ms: Number | None = None
    client_wall_tok_s: Number | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    reasoning_tokens: Count | None = None
    finish_reason: str | None = None
    first_frame_tokens: Count | None = None
    first_frame_known_by: Literal["frame usage", "one token per frame", "share of text"] | None = None
    frames_ms: tuple[Number, ...] = ()


class BenchResult(Document):
    """What one run found. Rates count completed requests only, over the wall time of all.

    ttft_any_ms          sent → first frame with tokens of any kind (role frames hold none)
    ttft_visible_ms      sent → first frame that is not reasoning
    decode_ms_per_token  (last − first token frame) ÷ (tokens − tokens in the first frame)
    frame_gap_ms         between token frames, all requests pooled; not a token's time under speculation
    e2e_ms               sent → end of the stream
    client_wall_tok_s    tokens ÷ e2e, per request
    mean_concurrency     Little: the time that requests were open ÷ wall time
    """

    model_config = ConfigDict(serialize_by_alias=True)

    schema_: Literal["slipway/bench-result/v1"] = Field("slipway/bench-result/v1", alias="schema")
    created_at: AwareDatetime
    url: str
    model: str
    load: Load
    client: str
    prompt_length_by: Literal["tokenize", "words"]
    wall_s: Number
    completed: Count
    failed: Count
    failures: dict[str, Count]
    finish_reasons: dict[str, Count]
    prompt_tokens: Count
    completion_tokens: Count
    cached_tokens: Count | None
    output_throughput: Number
    request_throughput: Number
    mean_concurrency: Number
    ttft_any_ms: Summary | None
    ttft_visible_ms: Summary | None
    decode_ms_per_token: Summary | None
    frame_gap_ms: Summary | None
    e2e_ms: Summary | None
    client_wall_tok_s: Summary | None
    warmup_requests: Count
    warmup_failed: Count
    reconnects: Count
    loop_lag_ms: Number
    cross_checks: tuple[CrossCheck, ...]
    requests: tuple[RequestRecord, ...]

    @model_validator(mode="after")
    def _counts_follow_from_requests(self) -> Self:
        completed = sum(record.completed for record in self.requests)
        if (self.completed, self.failed) != (completed, len(self.requests) - completed):
            message = "completed and failed do not follow from the requests"
            raise ValueError(message)
        return self
