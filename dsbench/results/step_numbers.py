"""The numbers of a cell's steps: seconds, where they went, what the cost table predicted of them. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsbench.results.columns_steps import PHASES

if TYPE_CHECKING:
    import pandas as pd

DRIFT_LIMIT = 0.05
DRIFT_STEPS = 8  # fewer full steps in a repeat than this say nothing of drift


def measured_steps(steps: pd.DataFrame, seen: pd.DataFrame) -> pd.DataFrame:
    """Steps in which a measured request took part; all of them where no round was recorded."""
    table = steps if "rep" in steps else steps.assign(rep=0)
    if seen.empty:
        return table
    return table.merge(seen[["rep", "step"]].drop_duplicates(), on=["rep", "step"], how="inner")


def step_numbers(steps: pd.DataFrame, batch: int | None) -> dict[str, Any]:
    """Numbers of the steps whose `batch` slots were all occupied; `full_steps` is their share. None: all of them.

    Where rounds overlap, a request that has ended has its slot until that is known: the step is one of `batch`.
    """
    occupied = steps["occupied" if "occupied" in steps and batch is not None else "requests"]
    full = steps[occupied == batch] if batch is not None else steps[occupied > 0]
    share = (len(full) / len(steps) if len(steps) else 0.0) if batch is not None else None
    body: dict[str, Any] = {"steps": len(steps), "full_steps": share}
    body |= dict(zip(("fallback_steps", "fallback"), fallbacks(steps), strict=True))
    if full.empty:
        return body | {"step_seconds": None, "phase_share": None, "predicted_error": None, "drift": None}
    seconds, rows = full["seconds"].to_numpy(np.float64), full["rows"].to_numpy(np.float64)
    p10, p50, p90 = (float(q) for q in np.quantile(round_seconds(full), [0.1, 0.5, 0.9]))
    shares = {name: float(full[f"{name}_seconds"].sum() / seconds.sum()) for name in PHASES}
    return body | {
        "step_seconds": {"p10": p10, "p50": p50, "p90": p90, "n": len(full)},
        "phase_share": shares | {"other": 1.0 - sum(shares.values())},
        "rows_per_step": float(rows.mean()),
        "padding_share": float(full["padding"].sum() / full["tier"].sum()),
        "idle_share": float(full["idle_seconds"].sum() / seconds.sum()) if "idle_seconds" in full else None,
        "extrapolated_share": float(full["extrapolated"].astype(bool).mean()),
        "missed_steps": int((full["misses"] > 0).sum()),
        "compiled_steps": int((full["compiles"] > 0).sum()),
        "predicted_error": _predicted_error(full),
        "drift": _drift(full) if batch is not None else None,
    }


def fallbacks(steps: pd.DataFrame) -> tuple[int, str]:
    """How many steps came after a failure of what chooses windows, and what failed; (0, "") where nothing did."""
    if "fallback" not in steps:
        return 0, ""
    said = [text for text in steps["fallback"] if text]
    return len(said), said[0] if said else ""


def round_seconds(steps: pd.DataFrame) -> NDArray[np.float64]:
    """Seconds of each step without the prompts that ran before it: what a cost table predicts."""
    seconds = steps["seconds"].to_numpy(np.float64)
    return seconds - steps["prefill_seconds"].to_numpy(np.float64) if "prefill_seconds" in steps else seconds


def _predicted_error(full: pd.DataFrame) -> dict[str, Any] | None:
    """Median of |predicted / measured - 1| and of its signed form; None for an arm without a cost table."""
    ratio = full["predicted_seconds"].to_numpy(np.float64) / round_seconds(full)
    ratio = ratio[np.isfinite(ratio)]
    if not len(ratio):
        return None
    return {"median": float(np.median(np.abs(ratio - 1))), "bias": float(np.median(ratio - 1)), "n": len(ratio)}


def _drift(full: pd.DataFrame) -> dict[str, Any] | None:
    """Median step time in the last quarter of a repeat over that in its first, -1; the median over repeats.

    Where the cost table predicted all steps, times are those over what it predicted: an arm may choose shorter
    rounds than before.
    """
    changes = []
    for _, part in full.sort_values("step").groupby("rep"):
        seconds, quarter = round_seconds(part), len(part) // 4
        predicted = part["predicted_seconds"].to_numpy(np.float64)
        seconds = seconds / predicted if (predicted > 0).all() else seconds
        if len(part) >= DRIFT_STEPS:
            changes.append(float(np.median(seconds[-quarter:]) / np.median(seconds[:quarter]) - 1))
    if not changes:
        return None
    change = float(np.median(changes))
    return {"change": change, "drifts": abs(change) > DRIFT_LIMIT, "repeats": len(changes)}
