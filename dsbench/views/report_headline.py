"""A run in a few sentences: the planned arm against no drafts, the best fixed window and the oracle, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsbench.analysis.frontier import Point, against_best, fixed_arms, gain_at, oracle_arms, points_of
from dsbench.results.labels import arm_names, arm_rank, workload_text
from dsbench.results.store import StoredCell
from dsbench.stats.intervals import WORDS, Interval, verdict
from dsbench.views.frontier_table import turns

PLANNED = ("compact", "cap-accept")
BASES = ("none", "best fixed window", "best fixed window or none", "oracle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """An arm at a point: its throughput over each base's (by BASES), with the base's arm, and gains at equal service.

    `basis`: on which part of the data the best fixed window was chosen.
    """

    workload: str
    batch: int
    ratios: Mapping[str, tuple[str, Interval]]
    at_throughput: Interval | None  # per-user speed over none's, at none's throughput
    at_speed: Interval | None  # throughput over none's, at none's per-user speed
    basis: str


def main_arm(cells: Sequence[StoredCell]) -> str:
    """The arm that a report is about: compact or a variant of it, else cap-accept, else the longest fixed window."""
    names = sorted(set(arm_names(cells).values()), key=arm_rank)
    for kind in PLANNED:
        found = [n for n in names if n.split(" ")[0].partition(":")[0] == kind and not n.endswith(":oracle")]
        if found:
            return found[0]
    return names[-1]


def points_by_workload(cells: Sequence[StoredCell]) -> dict[str, list[Point]]:
    workloads = sorted({c.cell.workload for c in cells})
    return {name: points_of([c for c in cells if c.cell.workload == name]) for name in workloads}


def against(cells: Sequence[StoredCell], points: Mapping[str, Sequence[Point]], arm: str) -> list[Against]:
    """One a workload and batch size that the arm ran, in the tables' order."""
    names, found = arm_names(cells), []
    for workload in points:
        own = [c for c in cells if c.cell.workload == workload]
        curve = [p for p in points[workload] if p.arm == arm]
        for batch in sorted({p.batch for p in curve}):
            rivals = {names[c.folder]: c for c in own if c.cell.batch == batch}
            fixed = [n for n in fixed_arms(own) if n in rivals and n != arm]
            plain = [n for n in ("none",) if n in rivals and n != arm]
            oracle = [n for n in oracle_arms(own) if n in rivals and n != arm]
            best = {
                base: against_best(rivals, arm, members)
                for base, members in zip(BASES, (plain, fixed, [*fixed, *plain], oracle), strict=True)
            }
            here = next((p for p in points[workload] if (p.arm, p.batch) == ("none", batch)), None)
            gains = [
                None if here is None or arm == "none" else gain_at(curve, here, axis)
                for axis in ("throughput", "speed")
            ]
            chosen = best[BASES[1]]
            found.append(
                Against(
                    workload=workload,
                    batch=batch,
                    at_throughput=gains[0],
                    at_speed=gains[1],
                    ratios={base: (" or ".join(one.best), one.ratio) for base, one in best.items() if one is not None},
                    basis=chosen.basis if chosen else "",
                )
            )
    return found


def sentences(
    cells: Sequence[StoredCell], points: Mapping[str, Sequence[Point]], arm: str, found: Sequence[Against]
) -> list[str]:
    """The headline of one setting."""
    lines = [_best_of(cells)]
    lines += [line for base in BASES if (line := _counted(found, arm, base))]
    lines += _at_equal_service(found, arm)
    for workload, own in points.items():
        if arm != "none" and any(p.arm == "none" for p in own):
            mine = [p for p in own if p.arm in (arm, "none")]
            lines += [f"{workload_text(workload)}: {turns(mine, 'none')[0]}."]
    return lines


def _best_of(cells: Sequence[StoredCell]) -> str:
    """Which arm wrote most at the least and at the most load."""
    names = arm_names(cells)
    parts = []
    for batch in sorted({c.cell.batch for c in cells})[:: max(1, len({c.cell.batch for c in cells}) - 1)]:
        own = [c for c in cells if c.cell.batch == batch and c.summary.get("throughput")]
        if not own:
            continue
        best = max(own, key=lambda c: float(c.summary["throughput"]["value"]))
        rate = best.summary["throughput"]
        spread = "" if rate["low"] is None else f" [{rate['low']:,.0f}, {rate['high']:,.0f}]"
        parts.append(
            f"at R={batch} {names[best.folder]} on {workload_text(best.cell.workload)} "
            f"({rate['value']:,.0f}{spread} tokens/s)"
        )
    return "Most tokens a second: " + ("; ".join(parts) or "no data") + "."


def _counted(found: Sequence[Against], arm: str, base: str) -> str:
    """`compact against none: FASTER in 3 of 12 cells, ...; from 0.88 [..] (chat, R=256) to ...`."""
    known = [(one, *one.ratios[base]) for one in found if base in one.ratios]
    if not known:
        return ""
    counts = Counter(verdict(ratio) for _, _, ratio in known)
    words = ", ".join(f"{word} in {counts[word]}" for word in WORDS if counts[word])
    least, most = (pick(known, key=lambda item: item[2].value) for pick in (min, max))
    line = f"{arm} against {base}: {words} of {len(known)} cells; throughput {_span(least, most)}"
    bases = sorted({one.basis for one, _, _ in known if one.basis and "fixed" in base})
    if bases == ["the same data"]:
        return line + " (chosen and compared on the same data)."
    return line + (f" (chosen on {' or '.join(bases)}, compared on the other, both ways round)." if bases else ".")


def _span(least: tuple[Against, str, Interval], most: tuple[Against, str, Interval]) -> str:
    return _ratio(*least) if least[0] is most[0] else f"from {_ratio(*least)} to {_ratio(*most)}"


def _ratio(one: Against, _: str, ratio: Interval) -> str:
    return f"{ratio_text(ratio)} ({workload_text(one.workload)}, R={one.batch})"


def ratio_text(ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x, no interval"
    return f"{ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}]"


def _at_equal_service(found: Sequence[Against], arm: str) -> list[str]:
    lines = []
    for name, words in (
        ("at_throughput", "At none's throughput, per-user speed of {arm} is"),
        ("at_speed", "At none's per-user speed, throughput of {arm} is"),
    ):
        known = [(one, "", gain) for one in found if (gain := getattr(one, name)) is not None]
        if known:
            least, most = (pick(known, key=lambda item: item[2].value) for pick in (min, max))
            off = len(found) - len(known)
            lines.append(
                f"{words.format(arm=arm)} {_span(least, most)} of none's"
                + (f"; no data for {off} of {len(found)} points (off the measured curve)." if off else ".")
            )
    return lines
