"""An arm against a base, the best fixed window and the oracle at each batch size; its gains at equal service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsbench.analysis.frontier import Point, against_best, fixed_arms, gain_at, oracle_arms, points_of
from dsbench.analysis.versus import Versus
from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, arm_rank
from dsbench.stats.intervals import Interval, verdict

FIXED, FIXED_OR_NONE, ORACLE = "best fixed window", "best fixed window or none", "oracle"
PLANNED = ("compact", "cap-accept")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """An arm at a point. `over`: its throughput over the base arm's, by the base's name, and over FIXED, FIXED_OR_NONE
    and ORACLE, where they ran; their `base` names the arms that were best.
    """

    workload: str
    batch: int
    over: Mapping[str, Versus]
    at_throughput: Versus | None  # per-user speed over the base's, at the base's throughput
    at_speed: Versus | None  # throughput over the base's, at the base's per-user speed


def main_arm(cells: Sequence[StoredCell]) -> str:
    """The arm that a report is about: compact or a variant of it, else cap-accept, else the longest fixed window."""
    names = sorted(set(arm_names(cells).values()), key=arm_rank)
    for kind in PLANNED:
        found = [n for n in names if n.split(" ")[0].partition(":")[0] == kind and not n.endswith(":oracle")]
        if found:
            return found[0]
    return names[-1]


def points_by_workload(cells: Sequence[StoredCell]) -> dict[str, list[Point]]:
    """The points of one setting."""
    workloads = sorted({c.cell.workload for c in cells})
    return {name: points_of([c for c in cells if c.cell.workload == name]) for name in workloads}


def gains(
    cells: Sequence[StoredCell], points: Mapping[str, Sequence[Point]], arm: str, base: str = "none"
) -> list[Gains]:
    """One a workload and batch size that the arm ran, in the tables' order; cells and points of one setting."""
    found = []
    for workload, own in points.items():
        mine = [c for c in cells if c.cell.workload == workload]
        curve = [p for p in own if p.arm == arm]
        for batch in sorted({p.batch for p in curve}):
            here = next((p for p in own if (p.arm, p.batch) == (base, batch)), None)
            ahead = [None if here is None or arm == base else gain_at(curve, here, a) for a in ("throughput", "speed")]
            found.append(
                Gains(
                    workload=workload,
                    batch=batch,
                    over=_over(mine, batch, arm, base),
                    at_throughput=_judged(ahead[0]),
                    at_speed=_judged(ahead[1]),
                )
            )
    return found


def _over(cells: Sequence[StoredCell], batch: int, arm: str, base: str) -> dict[str, Versus]:
    """Throughput over each base that ran at this batch size."""
    names = arm_names(cells)
    rivals = {names[c.folder]: c for c in cells if c.cell.batch == batch}
    fixed = [name for name in fixed_arms(cells) if name != arm]
    members = {base: [base], FIXED: fixed, FIXED_OR_NONE: [*fixed, "none"], ORACLE: oracle_arms(cells)}
    found = {}
    for title, group in members.items():
        best = against_best(rivals, arm, [name for name in group if name in rivals and name != arm])
        if best is not None:
            word = "" if title == base else " or ".join(best.best)
            found[title] = Versus(base=word, ratio=best.ratio, word=verdict(best.ratio), basis=best.basis)
    return found


def _judged(ratio: Interval | None) -> Versus | None:
    return None if ratio is None else Versus(base="", ratio=ratio, word=verdict(ratio))
