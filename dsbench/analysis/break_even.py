"""What a round of drafting costs and saves, and what acceptance it would take to break even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsbench.analysis.accounts import OF_A_ROUND, Account, FloatArray, account_of
from dsbench.analysis.waterfall import MS, a_round, points_by_arm
from dsbench.errors import UsageError
from dsbench.results.cells import StoredCell
from dsbench.stats.intervals import Interval, bootstrap_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """An arm that drafts, at a point. Milliseconds a round; None where no drafts at all, arm none, was not measured.

    `no_draft`: a round of arm none. `saved` = delivered x no_draft - the round: above 0 drafting pays. `needed`: tokens
    delivered a round at which it breaks even, the round / no_draft; (needed - 1) / window is the acceptance of
    scheduled drafts that it takes, above 1 where no acceptance would do.
    """

    setting: str
    workload: str
    batch: int
    arm: str
    draft: Interval
    verify: Interval
    host: Interval
    delivered: Interval
    window: float | None
    no_draft: Interval | None
    saved: Interval | None
    needed: Interval | None
    flagged: bool

    @property
    def had(self) -> float | None:
        """Acceptance of scheduled drafts, as it was."""
        return (self.delivered.value - 1) / self.window if self.window else None

    @property
    def acceptance_needed(self) -> float | None:
        return (self.needed.value - 1) / self.window if self.window and self.needed else None

    def json(self) -> dict[str, Any]:
        body: dict[str, Any] = {name: getattr(self, name) for name in ("setting", "workload", "batch", "arm", "window")}
        for name in ("draft", "verify", "host", "delivered", "no_draft", "saved", "needed"):
            rate = getattr(self, name)
            body[name] = None if rate is None else rate.json()
        return body | {"had": self.had, "acceptance_needed": self.acceptance_needed, "flagged": self.flagged}


def break_even(cells: Sequence[StoredCell], *, seed: int = 0) -> list[BreakEven]:
    """One an arm that drafts, at every point. Raises UsageError where no arm drafts."""
    found = []
    for (setting, workload, batch), arms in points_by_arm(cells).items():
        accounts = {arm: account_of(stored) for arm, stored in arms.items()}
        none = accounts.get("none")
        for arm, stored in arms.items():
            if arm != "none" and accounts[arm].sums["rounds"].any():
                rates = _rates(accounts[arm], none, seed)
                window = (stored.summary.get("window") or {}).get("value")
                place: dict[str, Any] = {"setting": setting, "workload": workload, "batch": batch, "arm": arm}
                found.append(BreakEven(**place, **rates, window=window, flagged=bool(stored.flags)))
    if not found:
        raise UsageError("no data: no round of this run drafts", hint="sweep e.g. --mode none,static,compact")
    return found


def _rates(arm: Account, none: Account | None, seed: int) -> dict[str, Any]:
    """Its rates, over the prompts that the arm and arm none share (the arm's own without that)."""
    common = sorted(set(arm.names) & set(none.names)) if none is not None else []
    mine, base = (arm.only(common), none.only(common)) if none is not None and common else (arm, None)

    def estimate(index: Any) -> FloatArray:
        sums = mine.at(index)
        draft, verify, padding, host = (MS * a_round(sums, sums[key]) for key in OF_A_ROUND)
        delivered = a_round(sums, sums["tokens"] - sums["requests"])
        rows = [draft, verify + padding, host, delivered]
        if base is not None:
            other = base.at(index)
            step = MS * a_round(other, sum((other[key] for key in OF_A_ROUND), np.zeros(())))
            took = draft + verify + padding + host
            rows += [step, delivered * step - took, took / step]
        return np.stack(rows)

    names = ("draft", "verify", "host", "delivered", "no_draft", "saved", "needed")
    found = bootstrap_rows(estimate, len(mine.names), seed=seed)
    return dict.fromkeys(names) | dict(zip(names, found, strict=False))
