"""The frontier on a terminal: `dsbench frontier RUN`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsbench.analysis.frontier import (
    Crossing,
    Point,
    against_best,
    crossings,
    dominators,
    fixed_arms,
    gain_at,
    oracle_arms,
    points_of,
)
from dsbench.errors import UsageError
from dsbench.results.labels import arm_names, arm_rank, by_setting, finished_cells, workload_text
from dsbench.results.store import RunStore, StoredCell
from dsbench.stats.best_member import AgainstBest
from dsbench.stats.intervals import Interval, verdict
from dsbench.views.waterfall_table import WIDTH, chosen, new_table

NOTE = (
    "vs best fixed, vs fixed or none: throughput over the best window of one size (or no drafts at all) at this R, "
    "chosen on one half of the data and compared on the other, both ways round; over oracle: over the planner that "
    "knows the text. At the base arm's throughput: per-user speed over the base's at this R, read along the arm's "
    "curve at equal tokens/s; at its speed: throughput, read at equal per-user speed. no data: off the curve; nothing "
    "is extrapolated."
)
TIES = "dominated: another point is better on one axis by more than the noise band of 2%, and not worse on the other"


def show_frontier(folder: Path, *, arm: str, base: str, workload: str) -> None:
    """Prints the gains of `arm` on stdout, then who lies on the frontier and where arms overtake `base`."""
    store = RunStore(folder)
    cells = chosen(finished_cells(store), workload, "")
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    known = sorted(set(arm_names(cells).values()), key=arm_rank)
    for missing in (name for name in (arm, base) if name not in known):
        raise UsageError(f"no data: arm {missing!r} is not in this run", hint=f"it has {', '.join(known)}")
    for setting, group in by_setting(cells).items():
        workloads = {name: [c for c in group if c.cell.workload == name] for name in sorted(_names(group))}
        points = {name: points_of(mine) for name, mine in workloads.items()}
        console.print(frontier_table(workloads, points, store, setting, arm, base))
        for name in workloads:
            console.print(f"[bold]{escape(workload_text(name))}[/bold]")
            for line in [*standing(points[name]), *turns(points[name], base)]:
                console.print(f"  {line}", highlight=False)
        console.print(TIES, highlight=False)


def _names(cells: Sequence[StoredCell]) -> set[str]:
    return {stored.cell.workload for stored in cells}


def frontier_table(
    workloads: Mapping[str, Sequence[StoredCell]],
    points: Mapping[str, Sequence[Point]],
    store: RunStore,
    setting: str,
    arm: str,
    base: str,
) -> Table:
    """A row a workload and batch size: the arm's ratios."""
    table = new_table(f"{arm} on the frontier, base arm {base}", store, [f"Setting: {setting}.", NOTE])
    for head in ("vs best fixed", "vs fixed or none", "over oracle", "at base's\nthroughput", "at base's\nspeed"):
        table.add_column(head, vertical="top")
    for name, cells in workloads.items():
        names = arm_names(cells)
        curve = [p for p in points[name] if p.arm == arm]
        batches = sorted({p.batch for p in curve})
        for batch in batches:
            rivals = {names[c.folder]: c for c in cells if c.cell.batch == batch}
            fixed = [other for other in fixed_arms(cells) if other in rivals]
            plain = [other for other in ("none",) if other in rivals]
            oracle = [other for other in oracle_arms(cells) if other in rivals and other != arm]
            here = next((p for p in points[name] if (p.arm, p.batch) == (base, batch)), None)
            table.add_row(
                escape(workload_text(name)) if batch == batches[0] else "",
                str(batch),
                *(_best(against_best(rivals, arm, members)) for members in (fixed, [*fixed, *plain], oracle)),
                *(
                    _ratio(None if here is None or base == arm else gain_at(curve, here, axis))
                    for axis in ("throughput", "speed")
                ),
                end_section=batch == batches[-1],
            )
    return table


def _best(found: AgainstBest[str] | None) -> str:
    return "-" if found is None else f"{_ratio(found.ratio)}, {' or '.join(found.best)}"


def _ratio(rate: Interval | None) -> str:
    """The ratio, its word, its interval; "no data" where there is none."""
    if rate is None:
        return "no data"
    if rate.low is None or rate.high is None:
        return f"{rate.value:.2f}\nno interval"
    return f"{rate.value:.2f} {verdict(rate)}\n{rate.low:.2f}..{rate.high:.2f}"


def standing(points: Sequence[Point]) -> list[str]:
    """Which points lie on the frontier, and which arms have none there."""
    found = dominators(points)
    order = sorted(points, key=lambda p: (p.batch, arm_rank(p.arm)))
    best: dict[int, list[str]] = {}
    for point in order:
        if not found[point.label]:
            best.setdefault(point.batch, []).append(point.arm)
    lines = ["on the frontier: " + "; ".join(f"R={batch} {', '.join(arms)}" for batch, arms in best.items())]
    there = {arm for arms in best.values() for arm in arms}
    never = [arm for arm in dict.fromkeys(p.arm for p in order) if arm not in there]
    return lines + ([f"dominated at every R: {', '.join(sorted(never, key=arm_rank))}"] if never else [])


def turns(points: Sequence[Point], base: str) -> list[str]:
    """Per arm, where it overtakes the base or falls behind it, or that it does not."""
    other = [p for p in points if p.arm == base]
    lines = []
    for arm in sorted({p.arm for p in points} - {base}, key=arm_rank):
        found, words = crossings([p for p in points if p.arm == arm], other)
        if found:
            lines.append(f"{arm} against {base}: " + "; ".join(turn_text(crossing) for crossing in found))
        else:
            clear = sorted({word for word in words.values() if word in ("FASTER", "SLOWER")})
            where = ", ".join(f"R={batch}" for batch, word in words.items() if clear and word == clear[0])
            fact = f"{clear[0]} at {where}" if clear else "nowhere clearly faster or slower"
            lines.append(f"{arm} against {base}: no crossing; {fact}")
    return lines


def turn_text(found: Crossing) -> str:
    """`overtakes between R=1 and R=8, near 3.1 [2.2, 4.0]`."""
    rate, word = found.batch, "overtakes" if found.gains else "falls behind"
    interval = "" if rate.low is None or rate.high is None else f" [{rate.low:.3g}, {rate.high:.3g}]"
    return f"{word} between R={found.low} and R={found.high}, near {rate.value:.3g}{interval}"
