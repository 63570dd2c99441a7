"""Columns: how much was measured, throughput, and the speeds per user by everybody's definition."""

from __future__ import annotations

from dsbench.results.column import Column

SPEED: tuple[Column, ...] = (
    Column(name="requests", unit="requests", kind="count", formula="measured requests of all repeats", always=True),
    Column(name="prompts", unit="prompts", kind="count", formula="different prompts among them", always=True),
    Column(name="repeats", unit="repeats", kind="count", formula="repeats of the cell that finished", always=True),
    Column(
        name="output_tokens", unit="tokens", kind="count", formula="output tokens of the measured requests", always=True
    ),
    Column(
        name="throughput",
        unit="tokens/s",
        kind="rate",
        head="tokens/s",
        shown=("show", "frontier", "reading"),
        also=("tokens/s", "output throughput", "tput"),
        formula="R x sum(output tokens) / sum(finished - admitted) over measured requests: Little's law at R slots. "
        "Open loop: tokens of everybody / seconds, from the first measured arrival to the last measured end",
        others="vLLM, SGLang, AIPerf: output tokens / wall time, ramp-up and drain included. InferenceX: per GPU, "
        "total (prompt too) and output variants",
    ),
    Column(
        name="user_speed",
        unit="tokens/s/user",
        kind="rate",
        head="per user",
        shown=("show", "frontier", "reading"),
        also=("per-user speed", "per user", "interactivity", "tps/user"),
        formula="sum(n - 1) / sum(finished - first token) over measured requests, n output tokens: 1 / mean TPOT "
        "weighted by tokens",
        others="others have other values for one run: speed_by_mean_tpot and speed_by_p90_tpot (InferenceX), "
        "speed_mean_of_rates and speed_p90_of_rates (AIPerf, GenAI-Perf), speed_e2e_mean_of_rates (AIPerf, GuideLLM), "
        "speed_e2e, speed_by_p90_e2e (InferenceX AgentX), speed_by_concurrency (vLLM); all in summary.csv",
    ),
    Column(
        name="user_speed_p10",
        unit="tokens/s/user",
        kind="quantile",
        head="p10",
        under="user_speed",
        shown=("show", "frontier", "reading"),
        formula="10th percentile over prompts of (n - 1) / seconds after the first token: slow tail",
        others="InferenceX calls the slow tail P90 interactivity; AIPerf's p90 is the other end",
        also=("slow tail",),
    ),
    Column(
        name="speed_mean_of_rates",
        unit="tokens/s/user",
        kind="number",
        formula="mean over requests of 1 / TPOT: at least 1 / mean TPOT, by Jensen",
        others="AIPerf, GenAI-Perf: output token throughput per user, 1 / ITL of each request",
    ),
    Column(
        name="speed_p90_of_rates",
        unit="tokens/s/user",
        kind="number",
        formula="90th percentile over requests of 1 / TPOT: the fast tail",
        others="AIPerf, GenAI-Perf: p90 of output token throughput per user",
    ),
    Column(
        name="speed_by_mean_tpot",
        unit="tokens/s/user",
        kind="number",
        formula="1 / mean over requests of TPOT",
        others="InferenceX's interactivity: 1000 / mean TPOT in ms. vLLM, SGLang print the mean TPOT itself",
    ),
    Column(
        name="speed_by_p90_tpot",
        unit="tokens/s/user",
        kind="number",
        formula="1 / 90th percentile over requests of TPOT: the slow tail",
        others="InferenceX: P90 interactivity",
    ),
    Column(
        name="speed_e2e_mean_of_rates",
        unit="tokens/s/user",
        kind="number",
        formula="mean over requests of n / E2E, first token and waiting included",
        others="AIPerf: E2E output token throughput. GuideLLM: output tokens per second of a request",
    ),
    Column(
        name="speed_e2e",
        unit="tokens/s/user",
        kind="number",
        formula="sum(n) / sum(E2E) over requests: 1 / mean of E2E / n weighted by tokens",
        others="GuideLLM's time per output token is E2E / n",
    ),
    Column(
        name="speed_by_p90_e2e",
        unit="tokens/s/user",
        kind="number",
        formula="1 / 90th percentile over requests of E2E / n",
        others="InferenceX AgentX: the default axis",
    ),
    Column(
        name="speed_by_concurrency",
        unit="tokens/s/user",
        kind="number",
        formula="throughput / R, requests at a time (in the open loop: at most)",
        others="vLLM's Pareto plot: output throughput / configured concurrency",
    ),
    Column(
        name="offered_rate",
        unit="requests/s",
        kind="number",
        also=("request rate", "arrival rate"),
        formula="(measured requests - 1) / time between the first and the last arrival: what really came",
        others="vLLM: the configured rate, its intervals scaled so that they add up to it",
    ),
    Column(
        name="served_rate",
        unit="requests/s",
        kind="number",
        formula="throughput / mean output tokens of a request; below offered_rate the queue grows",
    ),
)
