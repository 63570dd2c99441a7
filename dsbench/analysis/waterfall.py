"""Where one arm's gain over another comes from, in ms a token, and what a round of drafting costs and saves.

Time a token t = held / tokens of a request (= batch size / throughput) = r (d + v + p + h) + f + e: rounds a token r;
draft, verify, padding and host time a round; prefill and what is left over a token (`analysis.accounts`). From arm A
to arm B a product's change is split at the midpoint, D(r s) = Dr (sA + sB) / 2 + (rA + rB) / 2 Ds (the Shapley value of
two factors: there is no order to choose): the parts add up to tB - tA exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsbench.analysis.accounts import OF_A_ROUND, Account, FloatArray, account_of
from dsbench.errors import UsageError
from dsbench.results.labels import arm_names, arm_rank, by_setting
from dsbench.results.store import StoredCell
from dsbench.stats.intervals import Interval, bootstrap_rows

PARTS = ("accepted length", *OF_A_ROUND, "prefill", "residual")
MS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """From one arm to another at a point: ms a token before and after, and the parts of the change, which add up."""

    setting: str
    workload: str
    batch: int
    source: str
    target: str
    before: Interval
    after: Interval
    parts: Mapping[str, Interval]
    flagged: bool

    def json(self) -> dict[str, Any]:
        whole = {"before_ms": self.before.json(), "after_ms": self.after.json()}
        names = ("setting", "workload", "batch", "source", "target", "flagged")
        return (
            {name: getattr(self, name) for name in names}
            | whole
            | {"parts_ms": {name: part.json() for name, part in self.parts.items()}}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The break-even ledger of an arm at a point. Milliseconds a round; None where plain decoding was not measured.

    `plain`: a round of arm none. `saved` = delivered x plain - the round: above 0 drafting pays. `needed`: tokens
    delivered a round at which it breaks even, the round / plain; (needed - 1) / window is the acceptance of scheduled
    drafts that it takes, above 1 where no acceptance would do.
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
    plain: Interval | None
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
        for name in ("draft", "verify", "host", "delivered", "plain", "saved", "needed"):
            rate = getattr(self, name)
            body[name] = None if rate is None else rate.json()
        return body | {"had": self.had, "acceptance_needed": self.acceptance_needed, "flagged": self.flagged}


def waterfalls(cells: Sequence[StoredCell], source: str, target: str, *, seed: int = 0) -> list[Waterfall]:
    """One a (setting, workload, batch) that ran both arms. Raises UsageError where none did, or an arm is unknown."""
    names = arm_names(cells)
    known = sorted(set(names.values()), key=arm_rank)
    for arm in (source, target):
        if arm not in known:
            raise UsageError(f"no data: arm {arm!r} is not in this run", hint=f"it has {', '.join(known)}")
    if source == target:
        raise UsageError("a waterfall needs two arms", hint=f"this run has {', '.join(known)}")
    found = []
    for (setting, workload, batch), arms in _points(cells).items():
        if source in arms and target in arms:
            pair = arms[source], arms[target]
            fall = _waterfall(account_of(pair[0]), account_of(pair[1]), seed)
            if fall is not None:
                before, after, parts = fall
                flagged = any(stored.flags for stored in pair)
                found.append(
                    Waterfall(
                        setting=setting,
                        workload=workload,
                        batch=batch,
                        source=source,
                        target=target,
                        before=before,
                        after=after,
                        parts=parts,
                        flagged=flagged,
                    )
                )
    if not found:
        raise UsageError(f"no data: {source} and {target} share no prompt at any workload and batch size")
    return found


def _points(cells: Sequence[StoredCell]) -> dict[tuple[str, str, int], dict[str, StoredCell]]:
    """Cells by (setting, workload, batch), then by arm."""
    names = arm_names(cells)
    points: dict[tuple[str, str, int], dict[str, StoredCell]] = {}
    for setting, group in by_setting(cells).items():
        for stored in sorted(group, key=lambda c: (c.cell.workload, c.cell.batch, arm_rank(names[c.folder]))):
            point = points.setdefault((setting, stored.cell.workload, stored.cell.batch), {})
            point[names[stored.folder]] = stored
    return points


def _waterfall(source: Account, target: Account, seed: int) -> tuple[Interval, Interval, dict[str, Interval]] | None:
    """Before, after and the parts, over the prompts that both served. None without a common prompt."""
    common = sorted(set(source.names) & set(target.names))
    if not common:
        return None
    one, other = source.only(common), target.only(common)

    def estimate(index: Any) -> FloatArray:
        a, b = one.at(index), other.at(index)
        return MS * np.stack([a["held"] / a["tokens"], b["held"] / b["tokens"], *changes(a, b)])

    before, after, *parts = bootstrap_rows(estimate, len(common), seed=seed)
    return before, after, dict(zip(PARTS, parts, strict=True))


def changes(a: Mapping[str, FloatArray], b: Mapping[str, FloatArray]) -> list[FloatArray]:
    """The change of seconds a token from sums `a` to sums `b`, in PARTS; the formula is the module's.

    Where no round ran (answers of one token), a round took nothing.
    """
    often = [sums["rounds"] / sums["tokens"] for sums in (a, b)]
    each = {key: [np.nan_to_num(_a_round(sums, sums[key])) for sums in (a, b)] for key in OF_A_ROUND}
    whole = [sum(pair[i] for pair in each.values()) for i in (0, 1)]
    middle = (often[0] + often[1]) / 2
    accepted = (often[1] - often[0]) * (whole[0] + whole[1]) / 2
    rest = [b[key] / b["tokens"] - a[key] / a["tokens"] for key in ("prefill", "residual")]
    return [accepted, *(middle * (pair[1] - pair[0]) for pair in each.values()), *rest]


def _a_round(sums: Mapping[str, FloatArray], what: FloatArray) -> FloatArray:
    """`what` a round; nan where none ran."""
    rounds = sums["rounds"]
    return np.asarray(np.divide(what, rounds, out=np.full(np.shape(rounds), np.nan), where=rounds > 0), np.float64)


def ledger(cells: Sequence[StoredCell], *, seed: int = 0) -> list[Entry]:
    """An entry an arm that drafts, at every point. Raises UsageError where no arm drafts."""
    found = []
    for (setting, workload, batch), arms in _points(cells).items():
        accounts = {arm: account_of(stored) for arm, stored in arms.items()}
        plain = accounts.get("none")
        for arm, stored in arms.items():
            if arm != "none" and accounts[arm].sums["rounds"].any():
                rates = _entry(accounts[arm], plain, seed)
                window = (stored.summary.get("window") or {}).get("value")
                place: dict[str, Any] = {"setting": setting, "workload": workload, "batch": batch, "arm": arm}
                found.append(Entry(**place, **rates, window=window, flagged=bool(stored.flags)))
    if not found:
        raise UsageError("no data: no round of this run drafts", hint="sweep e.g. --mode none,static,compact")
    return found


def _entry(arm: Account, plain: Account | None, seed: int) -> dict[str, Any]:
    """The rates of an entry, over the prompts that the arm and plain decoding share (the arm's own without that)."""
    common = sorted(set(arm.names) & set(plain.names)) if plain is not None else []
    mine, base = (arm.only(common), plain.only(common)) if plain is not None and common else (arm, None)

    def estimate(index: Any) -> FloatArray:
        sums = mine.at(index)
        draft, verify, padding, host = (MS * _a_round(sums, sums[key]) for key in OF_A_ROUND)
        delivered = _a_round(sums, sums["tokens"] - sums["requests"])
        rows = [draft, verify + padding, host, delivered]
        if base is not None:
            other = base.at(index)
            step = MS * _a_round(other, sum((other[key] for key in OF_A_ROUND), np.zeros(())))
            whole = draft + verify + padding + host
            rows += [step, delivered * step - whole, whole / step]
        return np.stack(rows)

    names = ("draft", "verify", "host", "delivered", "plain", "saved", "needed")
    found = bootstrap_rows(estimate, len(mine.names), seed=seed)
    return dict.fromkeys(names) | dict(zip(names, found, strict=False))
