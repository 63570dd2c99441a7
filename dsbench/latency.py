"""What a user waits for: TTFT, TPOT, ITL and E2E of each request, and the speeds per user that tools make of them.

All count from `arrived`: when the request came by the schedule, whether or not the engine was ready for it; at fixed
concurrency, when it took its slot. Seconds. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsbench.intervals import quantiles_over

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
LATENCIES = ("ttft", "tpot", "itl", "e2e")
PERCENTILES = tuple(f"{name}_{point}" for name in LATENCIES for point in SHARES)
OWN_GAPS = ("itl_p50", "itl_p95", "itl_p99", "itl_max")  # of one request


def latencies(requests: pd.DataFrame) -> dict[str, FloatArray]:
    """ttft, tpot and e2e of each request; the tpot of a one-token answer is nan."""
    arrived, first, finished = (
        requests[name].to_numpy(np.float64)
        for name in ("arrived" if "arrived" in requests else "admitted", "first_token", "finished")
    )
    later = requests["output_tokens"].to_numpy(np.float64) - 1
    tpot = np.divide(finished - first, later, out=np.full(len(later), np.nan), where=later > 0)
    return {"ttft": first - arrived, "tpot": tpot, "e2e": finished - arrived}


def gaps(requests: pd.DataFrame, rounds: pd.DataFrame, steps: pd.DataFrame) -> list[FloatArray]:
    """For each request the waits for its second and later tokens: the tokens of a round come together (0, ..., 0, gap).

    Empty where no round of it was recorded. Tables of several repeats have a `rep` column each.
    """
    none = np.empty(0)
    if rounds.empty or "read" not in steps:
        return [none] * len(requests)
    keys = ["rep"] if all("rep" in table for table in (requests, rounds, steps)) else []
    seen = rounds[[*keys, "step", "request", "delivered"]].merge(steps[[*keys, "step", "read"]], on=[*keys, "step"])
    seen = seen.merge(requests[[*keys, "request", "first_token"]], on=[*keys, "request"]).sort_values("step")
    found: dict[Any, FloatArray] = {}
    for key, own in seen.groupby([*keys, "request"]):
        delivered = own["delivered"].to_numpy(np.int64)
        told = own["read"].to_numpy(np.float64)
        waits = np.maximum(np.diff(told, prepend=own["first_token"].iloc[0]), 0.0)
        waits, delivered = waits[delivered > 0], delivered[delivered > 0]
        samples = np.zeros(int(delivered.sum()))
        samples[np.cumsum(delivered) - 1] = waits
        found[key] = samples
    every = zip(*(requests[name] for name in [*keys, "request"]), strict=True)
    return [found.get(key, none) for key in every]


def with_latencies(requests: pd.DataFrame, rounds: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The requests with columns ttft, tpot, e2e and OWN_GAPS; nan where there is none."""
    shares = [*SHARES.values(), 1.0]
    rows = [np.quantile(g, shares) if len(g) else np.full(4, np.nan) for g in gaps(requests, rounds, steps)]
    own = np.reshape(rows, (len(requests), 4)).T
    return requests.assign(**latencies(requests), **dict(zip(OWN_GAPS, own, strict=True)))


def percentiles(
    served: pd.DataFrame, rounds: pd.DataFrame, steps: pd.DataFrame, *, seed: int = 0
) -> dict[str, dict[str, Any] | None]:
    """PERCENTILES over requests, of ITL over tokens, with intervals over prompts; None where too few were seen."""
    names = served["name"].to_numpy(str)
    each = gaps(served, rounds, steps)
    pooled = np.concatenate(each) if each else np.empty(0)
    samples = {name: (values, names) for name, values in latencies(served).items()}
    samples["itl"] = (pooled, np.repeat(names, [len(g) for g in each]))
    found: dict[str, dict[str, Any] | None] = {}
    for name in LATENCIES:
        values, owners = samples[name]
        there = np.isfinite(values)
        rates = quantiles_over(values[there], owners[there], tuple(SHARES.values()), seed=seed)
        found |= {f"{name}_{p}": None if r is None else r.json() for p, r in zip(SHARES, rates, strict=True)}
    return found


def user_speeds(
    tokens: FloatArray, seconds: Mapping[str, FloatArray], *, throughput: float, concurrency: float
) -> dict[str, float]:
    """Tokens a second of a user by the definitions in use, of requests with these tokens [n] and `latencies` [n].

    The keys are explained by `dsbench explain`. Answers of one token have no TPOT and are left out where it is needed;
    nan where nothing is left. throughput: tokens a second of all; concurrency: how many ran.
    """
    tpot, e2e = seconds["tpot"], seconds["e2e"]
    moving = np.isfinite(tpot) & (tpot > 0)
    pace, later = tpot[moving], tokens[moving] - 1
    if not len(pace):
        return dict.fromkeys(SPEEDS, float("nan"))
    per_token = e2e / tokens
    values = (
        later.sum() / (later * pace).sum(), np.mean(1 / pace), np.quantile(1 / pace, 0.9), 1 / np.mean(pace),
        1 / np.quantile(pace, 0.9), np.mean(tokens / e2e), tokens.sum() / e2e.sum(), 1 / np.quantile(per_token, 0.9),
        throughput / concurrency,
    )  # fmt: skip
    return dict(zip(SPEEDS, map(float, values), strict=True))


SPEEDS = (
    "user_speed", "speed_mean_of_rates", "speed_p90_of_rates", "speed_by_mean_tpot", "speed_by_p90_tpot",
    "speed_e2e_mean_of_rates", "speed_e2e", "speed_by_p90_e2e", "speed_by_concurrency",
)  # fmt: skip
