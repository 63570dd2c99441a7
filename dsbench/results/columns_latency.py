"""Columns: what a user waits for, a percentile a column, and the requests that meet an SLO."""

from __future__ import annotations

from dsbench.results.column import Column

LATENCIES = ("ttft", "tpot", "itl", "e2e")
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
PERCENTILES = tuple(f"{name}_{point}" for name in LATENCIES for point in SHARES)
OVER = {"itl": "output tokens of all requests"}  # the others: over requests

QUANTITIES: tuple[Column, ...] = (
    Column(
        name="ttft",
        unit="s",
        kind="term",
        source="",
        also=("time to first token",),
        formula="first token - arrived. arrived: when the schedule says that it comes, however late the engine is for "
        "it; at fixed concurrency, when it took its slot. Percentiles over requests",
        others="tools that send a request once a slot is free leave its wait out (coordinated omission); servers' "
        "tools count the network too",
    ),
    Column(
        name="tpot",
        unit="s/token",
        kind="term",
        source="",
        also=("time per output token",),
        formula="(E2E - TTFT) / (n - 1) of a request; none for an answer of one token. Percentiles over requests",
        others="vLLM, SGLang, MLPerf: the same, requests weighted equally. GuideLLM: E2E / n, first token included",
    ),
    Column(
        name="itl",
        unit="s",
        kind="term",
        source="",
        also=("inter-token latency", "itl_max"),
        formula="time from one output token to the next; the tokens of one round come together, so 0, 0, ..., gap. "
        "Percentiles over tokens of all requests; in requests.parquet over the request's own; SLOs limit the longest",
        others="vLLM: one sample a chunk, so about tau x TPOT under speculation. SGLang: gap / new tokens. AIPerf, "
        "GuideLLM: per-request mean, which is TPOT. LLMPerf: TTFT included",
    ),
    Column(
        name="e2e",
        unit="s",
        kind="term",
        source="",
        also=("latency", "e2el"),
        formula="finished - arrived of a request (see ttft). Percentiles over requests",
        others="servers' tools count the network too",
    ),
)


def _percentile(quantity: Column, point: str) -> Column:
    """A percentile of a quantity: its interval resamples prompts."""
    over = OVER.get(quantity.name, "measured requests")
    return Column(
        name=f"{quantity.name}_{point}",
        unit=quantity.unit,
        kind="quantile",
        shown=("latency",),
        head=quantity.name.upper(),
        formula=f"{point.removeprefix('p')}th percentile of {quantity.name.upper()} over {over}; see {quantity.name} "
        "and percentile",
    )


LATENCY: tuple[Column, ...] = (
    *QUANTITIES,
    *(_percentile(quantity, point) for quantity in QUANTITIES for point in SHARES),
    Column(
        name="queue_wait",
        unit="s",
        kind="number",
        formula="mean of admitted - arrived over measured requests: waiting for a slot; open loop",
    ),
    Column(name="slo", unit="words", kind="text", source="slo", formula="the limits of --slo that goodput is of"),
    Column(
        name="goodput",
        unit="share",
        kind="rate",
        source="slo",
        formula="measured requests that meet every limit of --slo / those sent. An answer of one token meets limits on "
        "TPOT and ITL",
        others="vLLM, SGLang, AIPerf: good requests a second; a one-token answer passes in vLLM and SGLang, fails in "
        "AIPerf. inference-perf: / successful ones. MLPerf: the largest Poisson rate whose p99 meets the limits",
    ),
    Column(
        name="goodput_tokens",
        unit="tokens/s",
        kind="rate",
        source="slo",
        formula="throughput x the share of the tokens that belong to requests which meet every limit of --slo",
    ),
)
