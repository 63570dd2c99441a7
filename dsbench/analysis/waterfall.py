"""Where one arm's gain over another comes from, in ms a token.

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
from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, arm_rank, by_setting
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
        ends = {"before_ms": self.before.json(), "after_ms": self.after.json()}
        names = ("setting", "workload", "batch", "source", "target", "flagged")
        return (
            {name: getattr(self, name) for name in names}
            | ends
            | {"parts_ms": {name: part.json() for name, part in self.parts.items()}}
        )


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
    for (setting, workload, batch), arms in points_by_arm(cells).items():
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


def points_by_arm(cells: Sequence[StoredCell]) -> dict[tuple[str, str, int], dict[str, StoredCell]]:
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
    each = {key: [np.nan_to_num(a_round(sums, sums[key])) for sums in (a, b)] for key in OF_A_ROUND}
    each_round = [sum(pair[i] for pair in each.values()) for i in (0, 1)]
    middle = (often[0] + often[1]) / 2
    accepted = (often[1] - often[0]) * (each_round[0] + each_round[1]) / 2
    rest = [b[key] / b["tokens"] - a[key] / a["tokens"] for key in ("prefill", "residual")]
    return [accepted, *(middle * (pair[1] - pair[0]) for pair in each.values()), *rest]


def a_round(sums: Mapping[str, FloatArray], what: FloatArray) -> FloatArray:
    """`what` a round; nan where none ran."""
    rounds = sums["rounds"]
    return np.asarray(np.divide(what, rounds, out=np.full(np.shape(rounds), np.nan), where=rounds > 0), np.float64)
