"""Numbers that an arrival process alone has: what came, what was served of it, how long it queued, what was written.

In the open loop slots may be empty, so Little's law at R slots says nothing of the throughput. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.stats.intervals import Interval

if TYPE_CHECKING:
    import pandas as pd

LEAST_SERVED = 0.9


def open_rates(served: pd.DataFrame, steps: pd.DataFrame) -> dict[str, Any]:
    """Numbers of the open loop. `throughput`: tokens a second of everybody who ran while measured requests came or ran.

    That is from the first arrival to the last end, and at least the measured requests times their mean interval. Tokens
    of the steps in it, first tokens added in the measured requests' proportion. `queue_wait`: mean seconds for a slot.
    """
    steps = steps if "rep" in steps else steps.assign(rep=0)
    written, length, came, spans = 0.0, 0.0, 0, 0.0
    for rep, own in served.groupby("rep"):
        arrived = own["arrived"].to_numpy(np.float64)
        first, last = float(arrived.min()), float(arrived.max())
        interval = (last - first) / (len(own) - 1) if len(own) > 1 else 0.0
        end = max(float(own["finished"].max()), last + interval)
        read = steps.loc[steps["rep"] == rep, "read"]
        inside = steps.loc[read.index[(read > first) & (read <= end)], "delivered"]
        written, length = written + float(inside.sum()), length + end - first
        came, spans = came + len(own) - 1, spans + last - first
    tokens, later = served["output_tokens"].sum(), served["output_tokens"].sum() - len(served)
    every = written * tokens / later if later else float(tokens)
    rate = every / length if length else None
    waits = (served["admitted"] - served["arrived"]).to_numpy(np.float64)
    return {
        "throughput": None if rate is None else Interval(rate, None, None, int(served["rep"].nunique())).json(),
        "offered_rate": came / spans if spans else None,
        "served_rate": None if rate is None or not spans else rate / float(served["output_tokens"].mean()),
        "queue_wait": float(waits.mean()),
    }


def open_flags(body: Mapping[str, Any]) -> list[str]:
    """Whether requests came faster than they were served, in words."""
    served, offered = body["served_rate"], body["offered_rate"]
    if not served or served >= LEAST_SERVED * offered:
        return []
    pace = f"served {served:.3g} of {offered:.3g} requests a second that came"
    return [f"{pace}: the queue grew, so latencies depend on how long it ran"]
