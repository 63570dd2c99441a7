"""The frontier in tables and sentences: gains over others, who stands where, the envelope, every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsbench.analysis.frontier import Crossing, Point, crossings, dominators, envelope, fixed_arms
from dsbench.analysis.gains import FIXED, FIXED_OR_NONE, ORACLE, Gains
from dsbench.results.cells import StoredCell
from dsbench.results.columns import BY_NAME, shown_in, value_of
from dsbench.results.labels import arm_names, arm_rank, workload_text
from dsbench.views.numbers import interval_of, with_ends
from dsbench.views.tables import Table, Value

NO_DATA = "no data"  # off the arm's curve, or the base did not run


def gains_table(found: Sequence[Gains], arm: str, base: str, *, suffix: str = "") -> Table:
    """A row a workload and batch size: the arm's throughput over others', and its gains at equal service."""
    bases = (base, FIXED, FIXED_OR_NONE, ORACLE)
    rows: list[tuple[Value, ...]] = []
    for one in found:
        ratios: list[Value] = [one.over.get(name) for name in bases]
        service: list[Value] = [ahead or NO_DATA for ahead in (one.at_throughput, one.at_speed)]
        rows.append((workload_text(one.workload), one.batch, *ratios, *service))
    return Table(
        name=f"gains{suffix}",
        caption=f"Throughput of {arm} over others, and its gains at equal service",
        heads=(
            "workload",
            "R",
            *(f"over {name}" for name in bases),
            f"speed at {base}'s throughput",
            f"throughput at {base}'s speed",
        ),
        rows=tuple(rows),
        short=True,
        place=1,
    )


def points_table(cells: Sequence[StoredCell], points: Mapping[str, Sequence[Point]], *, suffix: str = "") -> Table:
    """Every point, and whether it lies on the frontier; cells in the order of rows."""
    names, columns = arm_names(cells), shown_in("frontier")
    beaten = {f"{w} {label}": by for w, own in points.items() for label, by in dominators(own).items()}
    rows: list[tuple[Value, ...]] = []
    for stored in cells:
        cell, body = stored.cell, stored.summary
        by = beaten[f"{cell.workload} {names[stored.folder]} R={cell.batch}"]
        rates = [interval_of(value_of(column, body)) for column in columns]
        place = (workload_text(cell.workload), cell.batch, names[stored.folder])
        rows.append((*place, *rates, int(body["prompts"]), "yes" if not by else f"no: {by[0]}"))
    heads = tuple(f"{BY_NAME[c.under].title} {c.title}" if c.under else c.title for c in columns)
    return Table(
        name=f"frontier{suffix}",
        caption="Every point",
        heads=("workload", "R", "arm", *heads, "prompts", "on frontier"),
        rows=tuple(rows),
        place=2,
    )


def crossings_table(points: Mapping[str, Sequence[Point]], base: str, *, suffix: str = "") -> Table:
    """Where each arm overtakes the base or falls behind it, by workload."""
    rows = [(workload_text(w), line) for w, own in points.items() if _ran(own, base) for line in turns(own, base)]
    return Table(
        name=f"crossovers{suffix}",
        caption=f"Where arms overtake {base}",
        heads=("workload", "what"),
        rows=tuple(rows),
        place=1,
    )


def _ran(points: Sequence[Point], arm: str) -> bool:
    return any(point.arm == arm for point in points)


def envelope_table(cells: Sequence[StoredCell], points: Mapping[str, Sequence[Point]], *, suffix: str = "") -> Table:
    """The best fixed window at each R, with and without none among the members, in hindsight."""
    rows: list[tuple[Value, ...]] = []
    for workload, own in points.items():
        fixed = frozenset(fixed_arms([c for c in cells if c.cell.workload == workload]))
        best = {p.batch: p for p in envelope(own, fixed.__contains__)}
        for point in envelope(own, (fixed | {"none"}).__contains__):
            rows.append((workload_text(workload), point.batch, *_best(best.get(point.batch)), *_best(point)))
    heads = ("workload", "R", "best fixed", "tokens/s", "per user", "best fixed or none", "tokens/s", "per user")
    caption = "Best arm at each R, in hindsight"
    return Table(name=f"envelope{suffix}", caption=caption, heads=heads, rows=tuple(rows), place=1)


def _best(point: Point | None) -> tuple[Value, Value, Value]:
    return (point.arm, float(point.throughput[0]), float(point.speed[0])) if point else (None, None, None)


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
    """`overtakes between R=1 and R=8, near 3.10 [2.20, 4.00]`."""
    word = "overtakes" if found.gains else "falls behind"
    return f"{word} between R={found.low} and R={found.high}, near {with_ends(found.batch)}"
