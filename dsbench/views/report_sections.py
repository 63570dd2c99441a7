"""A report's sections on speed: the frontier, the verify budget, where the time goes, what drafting costs and saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dsbench.analysis.budgets import drafts_of, rows_of
from dsbench.analysis.frontier import Point, dominators, envelope, fixed_arms
from dsbench.analysis.waterfall import PARTS, Entry, Waterfall, ledger, waterfalls
from dsbench.errors import UsageError
from dsbench.results.labels import arm_names, arm_rank, workload_text
from dsbench.results.store import StoredCell
from dsbench.stats.intervals import Interval, verdict
from dsbench.views.frontier_table import standing, turns
from dsbench.views.plots_budget import draw_budgets, planned_cells
from dsbench.views.plots_frontier import draw_frontier
from dsbench.views.plots_waterfall import PAIRS, draw_waterfalls
from dsbench.views.report_headline import BASES, Against
from dsbench.views.report_parts import Picture, Section, Table, Value, interval_of
from dsbench.views.waterfall_table import needed_text

FRONTIER = (
    "A point is an arm at a batch size R. Up: more tokens a second from the machine; right: more for each user. The "
    "dashed line takes the best fixed window at each R in hindsight, the dotted one may also choose no drafts at all."
)
SERVICE = (
    "Ratios are paired by prompt. Gains at equal service are read along the arm's own curve, straight in log-log "
    "between batch sizes that ran; where the curve does not reach, there is no data and nothing is extrapolated."
)
BUDGET = (
    "Rows that the target ran, a request and round, and what came of the drafts. Drafts that fill a tier up stand "
    "behind its first row: they cost nothing once the tier is paid. Missed: trimmed, and would have been accepted."
)
FALL = (
    "Milliseconds a token of a request, in the first arm, the parts of the change, and in the second arm. The parts "
    "add up exactly; products are split at the midpoint, so no order was chosen."
)
LEDGER = (
    "Milliseconds a round. saved = delivered x a plain round - the round: above 0 drafting pays. needed: tokens a "
    "round at which it breaks even; above 100% acceptance needed, no acceptance would do at this window."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The cells of one setting, and how its pictures are labelled. `suffix` tells settings apart in names."""

    cells: Sequence[StoredCell]
    run: Mapping[str, Any]
    lines: tuple[str, ...]
    loud: str
    folder: Path | None  # where pictures are drawn before they are taken in; None: none are drawn
    suffix: str
    tiers: tuple[int, ...] | None
    points: Mapping[str, Sequence[Point]]
    arm: str  # that the report is about
    against: Sequence[Against]

    def pictures(self, draw: Callable[[Path], Sequence[Path]], alt: str) -> tuple[Picture, ...]:
        """The SVGs that `draw` writes into a folder, with the conditions behind the alt text."""
        paths = () if self.folder is None else draw(self.folder)
        said = f"{alt} {'; '.join(part for part in (self.loud, *self.lines) if part)}."
        return tuple(Picture(name=path.stem, svg=path.read_text(encoding="utf-8"), alt=said) for path in paths)


def frontier_section(scene: Scene) -> Section:
    cells, names = scene.cells, arm_names(scene.cells)
    beaten = {f"{w} {label}": by for w, own in scene.points.items() for label, by in dominators(own).items()}
    rows: list[tuple[Value, ...]] = []
    for stored in _ordered(cells):
        cell, body = stored.cell, stored.summary
        by = beaten[f"{cell.workload} {names[stored.folder]} R={cell.batch}"]
        rates = [interval_of(body.get(key)) for key in ("throughput", "user_speed", "user_speed_p10", "tau", "window")]
        rows.append(
            (
                workload_text(cell.workload),
                cell.batch,
                names[stored.folder],
                *rates,
                int(body["prompts"]),
                "yes" if not by else f"no: {by[0]}",
            )
        )
    heads = ("workload", "R", "arm", "tokens/s", "per user", "per user p10", "tau", "window", "prompts", "on frontier")
    points = Table(name=f"frontier{scene.suffix}", caption="Every point", heads=heads, rows=tuple(rows))
    stand = [f"{workload_text(w)}: {'. '.join(standing(own))}." for w, own in scene.points.items()]
    crossed = _crossings(scene)
    said = " ".join(f"{row[0]}: {row[1]}." for row in crossed.rows)
    alt = f"Throughput against per-user speed, a panel a workload. {' '.join(stand)} {said}"
    pictures = scene.pictures(
        lambda room: draw_frontier(cells, room, f"frontier{scene.suffix}", scene.lines, scene.loud, ("svg",)), alt
    )
    return Section(
        id=f"frontier{scene.suffix}",
        title="Frontier",
        text=(FRONTIER, *stand, SERVICE),
        pictures=pictures,
        tables=(_gains(scene), crossed, _envelopes(scene), points),
    )


def _crossings(scene: Scene) -> Table:
    """Where each arm overtakes plain decoding or falls behind it."""
    rows: list[tuple[Value, ...]] = []
    for workload, own in scene.points.items():
        if any(p.arm == "none" for p in own):
            rows += [(workload_text(workload), line) for line in turns(own, "none")]
    return Table(
        name=f"crossovers{scene.suffix}",
        caption="Where arms overtake plain decoding",
        heads=("workload", "what"),
        rows=tuple(rows),
    )


def _ordered(cells: Sequence[StoredCell]) -> list[StoredCell]:
    names = arm_names(cells)
    return sorted(cells, key=lambda c: (c.cell.workload, c.cell.batch, arm_rank(names[c.folder])))


def _gains(scene: Scene) -> Table:
    rows: list[tuple[Value, ...]] = []
    for one in scene.against:
        ratios: list[Value] = []
        for base in BASES:
            arm, ratio = one.ratios.get(base, ("", None))
            ratios += [ratio, "–" if ratio is None else verdict(ratio) + ("" if base in ("none",) else f", {arm}")]
        rows.append((workload_text(one.workload), one.batch, *ratios, one.at_throughput, one.at_speed))
    heads = [part for base in BASES for part in (f"over {base}", "verdict")]
    return Table(
        name=f"gains{scene.suffix}",
        caption=f"Throughput of {scene.arm} over others, and its gains at equal service",
        rows=tuple(rows),
        short=True,
        heads=("workload", "R", *heads, "speed at none's throughput", "throughput at none's speed"),
    )


def _envelopes(scene: Scene) -> Table:
    """The best fixed window at each R, with and without none among the members, in hindsight."""
    rows: list[tuple[Value, ...]] = []
    for workload, own in scene.points.items():
        fixed = fixed_arms([c for c in scene.cells if c.cell.workload == workload])
        best = {p.batch: p for p in envelope(own, lambda arm, fixed=fixed: arm in fixed)}  # type: ignore[misc]
        every = envelope(own, lambda arm, fixed=fixed: arm in fixed or arm == "none")  # type: ignore[misc]
        for point in every:
            mine = best.get(point.batch)
            rows.append(
                (
                    workload_text(workload),
                    point.batch,
                    mine.arm if mine else None,
                    float(mine.throughput[0]) if mine else None,
                    float(mine.speed[0]) if mine else None,
                    point.arm,
                    float(point.throughput[0]),
                    float(point.speed[0]),
                )
            )
    heads = ("workload", "R", "best fixed", "tokens/s", "per user", "best fixed or none", "tokens/s", "per user")
    return Table(
        name=f"envelope{scene.suffix}", caption="Best arm at each R, in hindsight", heads=heads, rows=tuple(rows)
    )


def budget_section(scene: Scene) -> Section:
    chosen = planned_cells(scene.cells)
    if not chosen:
        return Section(id=f"budget{scene.suffix}", title="Verify budget", text=("No planned arm ran.",))
    names = arm_names(chosen)
    rows: list[tuple[Value, ...]] = []
    windows: list[tuple[Value, ...]] = []
    deepest = max((len(c.summary.get("window_counts") or ()) for c in chosen), default=1)
    for stored in chosen:
        place = (workload_text(stored.cell.workload), stored.cell.batch, names[stored.folder])
        run, body = rows_of(stored.table("steps"), scene.tiers), stored.summary
        counts = body.get("window_counts") or []
        drafts = drafts_of(body, len(counts) - 1) if counts else None
        ran = (run.anchor, run.scheduled, run.free, run.seen, run.padding) if run else (None,) * 5
        came = (drafts.accepted, drafts.rejected, drafts.missed, drafts.trimmed) if drafts else (None,) * 4
        rows.append((*place, *ran, *came, interval_of(body.get("tau"))))
        total = sum(counts)
        shares = [f"{count / total:.0%}" for count in counts] if total else []
        windows.append((*place, total, *shares, *["–"] * (deepest - len(shares))))
    parts = [
        f"{w} R={b} {a}: window {_mean(c)}, delivered {_tau(c)}"
        for c in chosen
        for w, b, a in [(c.cell.workload, c.cell.batch, names[c.folder])]
    ]
    alt = (
        f"Rows that ran and what came of the drafts, a row a workload, a pair of bars a batch size. {'; '.join(parts)}."
    )
    heads = (
        "workload",
        "R",
        "arm",
        "anchor",
        "scheduled",
        "fill a tier",
        "past the window",
        "padding",
        "accepted",
        "rejected",
        "missed",
        "trimmed",
        "delivered",
    )
    pictures = scene.pictures(
        lambda room: draw_budgets(
            scene.cells, room, f"budget{scene.suffix}", scene.lines, scene.loud, ("svg",), scene.tiers
        ),
        alt,
    )
    return Section(
        id=f"budget{scene.suffix}",
        title="Verify budget",
        text=(BUDGET,),
        pictures=pictures,
        tables=(
            Table(
                name=f"budget{scene.suffix}",
                caption="Rows and drafts, a request and round",
                heads=heads,
                rows=tuple(rows),
            ),
            Table(
                name=f"windows{scene.suffix}",
                caption="How windows spread: share of rounds by drafts verified",
                heads=("workload", "R", "arm", "rounds", *map(str, range(deepest))),
                rows=tuple(windows),
            ),
        ),
    )


def _mean(stored: StoredCell) -> str:
    rate = stored.summary.get("window")
    return "not recorded" if rate is None else f"{rate['value']:.2f}"


def _tau(stored: StoredCell) -> str:
    rate = stored.summary.get("tau")
    return "not recorded" if rate is None else f"{rate['value']:.2f}"


def waterfall_section(scene: Scene) -> Section:
    pictures: list[Picture] = []
    tables: list[Table] = []
    for source, target in PAIRS:
        try:
            falls = waterfalls(scene.cells, source, target)
        except UsageError:  # an arm did not run
            continue
        alt = f"Floating bars from {source} to {target}, which add up: " + "; ".join(map(_fall_text, falls)) + "."
        draw = partial(draw_waterfalls, falls, run=scene.run, formats=("svg",))
        drawn = scene.pictures(draw, alt)
        pictures += [Picture(name=f"{p.name}{scene.suffix}", svg=p.svg, alt=p.alt) for p in drawn]
        tables.append(_fall_table(falls, scene.suffix))
    text = (FALL,) if tables else (f"The run lacks the arms: {' or '.join(f'{a} and {b}' for a, b in PAIRS)}.",)
    return Section(
        id=f"waterfall{scene.suffix}",
        title="Where the time goes",
        text=text,
        pictures=tuple(pictures),
        tables=tuple(tables),
    )


def _fall_text(fall: Waterfall) -> str:
    parts = ", ".join(f"{name} {part.value:+.3g}" for name, part in fall.parts.items())
    place = f"{workload_text(fall.workload)} R={fall.batch}"
    return f"{place} {fall.before.value:.3g} to {fall.after.value:.3g} ms a token ({parts})"


def _fall_table(falls: Sequence[Waterfall], suffix: str) -> Table:
    source, target = falls[0].source, falls[0].target
    rows = tuple(
        (
            workload_text(fall.workload),
            fall.batch,
            fall.before,
            *(fall.parts[part] for part in PARTS),
            fall.after,
            "yes" if fall.flagged else "",
        )
        for fall in falls
    )
    heads = ("workload", "R", source, *PARTS, target, "flagged")
    name = f"waterfall-{source}-{target}{suffix}".replace(":", "")
    return Table(name=name, caption=f"From {source} to {target}, ms a token", heads=heads, rows=rows)


def ledger_section(scene: Scene) -> Section:
    try:
        entries = ledger(scene.cells)
    except UsageError as problem:
        return Section(id=f"ledger{scene.suffix}", title="Break-even ledger", text=(problem.message + ".",))
    heads = (
        "workload",
        "R",
        "arm",
        "draft",
        "verify",
        "host",
        "plain",
        "saved",
        "delivered",
        "needed",
        "acceptance had",
        "acceptance needed",
        "flagged",
    )
    table = Table(
        name=f"ledger{scene.suffix}", caption="Milliseconds a round", heads=heads, rows=tuple(map(_entry, entries))
    )
    return Section(id=f"ledger{scene.suffix}", title="Break-even ledger", text=(LEDGER,), tables=(table,))


def _entry(entry: Entry) -> tuple[Value, ...]:
    rates: tuple[Interval | None, ...] = (
        entry.draft,
        entry.verify,
        entry.host,
        entry.plain,
        entry.saved,
        entry.delivered,
        entry.needed,
    )
    had = "–" if entry.had is None else f"{entry.had:.0%}"
    needed = "–" if entry.acceptance_needed is None else needed_text(entry.acceptance_needed)
    return (workload_text(entry.workload), entry.batch, entry.arm, *rates, had, needed, "yes" if entry.flagged else "")
