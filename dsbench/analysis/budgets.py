"""The verify budget in rows and drafts a request and round: what was run, and what came of the drafted block.

Rows come from the steps, so they are there also in a run without its rounds; what came of the drafts is in the cell's
summary. Units: rows or drafts, per request and round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

LEAST_SEEN = 0.8  # a ceiling seen in fewer rounds than this is no fair sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What the target ran, summing to tier / R.

    `scheduled` drafts open a tier of the cost table or are priced row by row; `filler` drafts fill a tier up, which
    costs nothing once its first row is in it; `seen` are verified past the window, to see the ceiling; `padding` ran
    for nobody, or for requests that had ended.
    """

    anchor: float
    scheduled: float
    filler: float
    seen: float
    padding: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What came of a block of drafts, summing to G and the bonus.

    `missed`: trimmed, and would have been accepted; `trimmed`: the rest beyond the window. Where too few rounds show
    the ceiling (`seen`: the share that does) `missed` is None and lies in `trimmed`.
    """

    bonus: float
    accepted: float
    rejected: float
    missed: float | None
    trimmed: float
    seen: float


def rows_of(steps: pd.DataFrame, tiers: Sequence[int] | None) -> Rows | None:
    """Of the steps that ran at least one request; None where none did. `tiers` are those of the cost table."""
    table = steps[steps["requests"] > 0]
    if table.empty:
        return None
    requests, rows, tier, budget = (table[name].to_numpy(np.float64) for name in ("requests", "rows", "tier", "budget"))
    drafts = rows - requests
    granted = np.minimum(budget, drafts)
    filler = np.zeros(len(table))
    if tiers:
        below = np.concatenate([[0], np.sort(np.asarray(tiers))])
        opened = below[np.searchsorted(below, rows, side="left") - 1] + 1  # the tier's first row
        filler = np.clip(rows - np.maximum(opened, requests), 0, granted)
    per = 1 / requests.sum()
    return Rows(
        anchor=1.0,
        scheduled=float((granted - filler).sum() * per),
        filler=float(filler.sum() * per),
        seen=float((drafts - granted).sum() * per),
        padding=float((np.maximum(tier, rows) - rows).sum() * per),
    )


def drafts_of(body: Mapping[str, Any], block: int) -> Drafts | None:
    """From a cell's summary, or a workload's part of it. None where no round was recorded."""
    if not body.get("window") or not body.get("accepted"):
        return None
    accepted, window = body["accepted"]["value"], body["window"]["value"]
    seen, ceiling, used = body.get("ceiling_seen") or 0.0, body.get("ceiling"), body.get("utilisation")
    missed = None
    if ceiling and used and seen >= LEAST_SEEN:
        missed = min(max(0.0, ceiling["value"] * (1 - used["value"])), block - window)
    return Drafts(
        bonus=1.0,
        accepted=accepted,
        rejected=window - accepted,
        missed=missed,
        trimmed=block - window - (missed or 0.0),
        seen=seen,
    )
