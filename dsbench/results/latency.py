"""What a user waits for: TTFT, TPOT, ITL and E2E of each request, and the speeds per user that tools make of them.

All count from `arrived`: when the request came by the schedule, whether or not the engine was ready for it; at fixed
concurrency, when it took its slot. Seconds. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsbench.results.columns_latency import LATENCIES, SHARES
from dsbench.stats.intervals import quantiles_over

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
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


def gaps(requests: pd.DataFrame, rounds: pd.DataFrame, steps: pd.DataFrame) -> tuple[FloatArray, NDArray[np.intp]]:
    """The waits for every request's second and later tokens, and whose each is: a row of `requests`, ascending.

    The tokens of a round come together (0, ..., 0, gap). Nothing of a request of which no round was recorded. Tables of
    several repeats have a `rep` column each.
    """
    if rounds.empty or "read" not in steps:
        return np.empty(0), np.empty(0, np.intp)
    keys = ["rep"] if all("rep" in table for table in (requests, rounds, steps)) else []
    first = requests[[*keys, "request", "first_token"]].assign(row=np.arange(len(requests)))
    seen = rounds[[*keys, "step", "request", "delivered"]].merge(steps[[*keys, "step", "read"]], on=[*keys, "step"])
    seen = seen.merge(first, on=[*keys, "request"]).sort_values(["row", "step"])
    row, read = seen["row"].to_numpy(np.intp), seen["read"].to_numpy(np.float64)
    opens = np.diff(row, prepend=-1) != 0
    before = np.where(opens, seen["first_token"].to_numpy(np.float64), np.concatenate([[0.0], read[:-1]]))
    delivered = seen["delivered"].to_numpy(np.int64)
    brings = delivered > 0
    waits = np.zeros(int(delivered.sum()))
    waits[np.cumsum(delivered[brings]) - 1] = np.maximum(read - before, 0.0)[brings]
    return waits, np.repeat(row, delivered)


def with_latencies(requests: pd.DataFrame, rounds: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The requests with columns ttft, tpot, e2e and OWN_GAPS; nan where there is none."""
    own = _own_quantiles(*gaps(requests, rounds, steps), len(requests), (*SHARES.values(), 1.0))
    return requests.assign(**latencies(requests), **dict(zip(OWN_GAPS, own, strict=True)))


def _own_quantiles(values: FloatArray, row: NDArray[np.intp], rows: int, shares: Sequence[float]) -> FloatArray:
    """Quantiles [shares, rows] of the values of each row, by numpy's linear rule; nan where it has none."""
    ranked = values[np.lexsort((values, row))]
    count = np.bincount(row, minlength=rows)
    begin, some = np.cumsum(count) - count, count > 0
    found = np.full((len(shares), rows), np.nan)
    for out, share in zip(found, shares, strict=True):
        at = share * (count[some] - 1)
        low, high = (ranked[begin[some] + rank.astype(np.intp)] for rank in (np.floor(at), np.ceil(at)))
        out[some] = low + (at - np.floor(at)) * (high - low)
    return found


def percentiles(
    served: pd.DataFrame, rounds: pd.DataFrame, steps: pd.DataFrame, *, seed: int = 0
) -> dict[str, dict[str, Any] | None]:
    """Percentiles over requests, of ITL over tokens, with intervals over prompts; None where too few were seen."""
    _, names = np.unique(served["name"].to_numpy(str), return_inverse=True)  # numbers are sorted faster
    waits, row = gaps(served, rounds, steps)
    samples = {name: (values, names) for name, values in latencies(served).items()} | {"itl": (waits, names[row])}
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
        later.sum() / (later * pace).sum(),
        np.mean(1 / pace),
        np.quantile(1 / pace, 0.9),
        1 / np.mean(pace),
        1 / np.quantile(pace, 0.9),
        np.mean(tokens / e2e),
        tokens.sum() / e2e.sum(),
        1 / np.quantile(per_token, 0.9),
        throughput / concurrency,
    )
    return dict(zip(SPEEDS, map(float, values), strict=True))


SPEEDS = (
    "user_speed",
    "speed_mean_of_rates",
    "speed_p90_of_rates",
    "speed_by_mean_tpot",
    "speed_by_p90_tpot",
    "speed_e2e_mean_of_rates",
    "speed_e2e",
    "speed_by_p90_e2e",
    "speed_by_concurrency",
)
