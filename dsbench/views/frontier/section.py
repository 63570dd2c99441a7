"""The frontier as the command `dsbench frontier` prints it, and as a section of a report."""

from __future__ import annotations

from pathlib import Path

from dsbench.analysis.gains import gains, points_by_workload
from dsbench.errors import UsageError
from dsbench.results.labels import arm_names, arm_rank, by_setting, finished_cells, workload_text
from dsbench.results.store import RunStore
from dsbench.views.frontier.picture import draw_frontier
from dsbench.views.frontier.tables import crossings_table, envelope_table, gains_table, points_table, standing, turns
from dsbench.views.report_parts import Scene, Section
from dsbench.views.tables import chosen, console, print_of_run, setting_note

FRONTIER = (
    "A point is an arm at a batch size R. Up: more tokens a second from the machine; right: more for each user. The "
    "dashed line takes the best fixed window at each R in hindsight, the dotted one may also choose no drafts at all."
)
CHOICE = (
    "Over the best fixed window, over it or none: over the best window of one size (or no drafts at all) at this R, "
    "chosen on one half of the data and compared on the other, both ways round; over oracle: over the planner that "
    "knows the text."
)
SERVICE = (
    "Ratios are paired by prompt. Gains at equal service are read along the arm's own curve, straight in log-log "
    "between batch sizes that ran; where the curve does not reach, there is no data and nothing is extrapolated."
)
TIES = "dominated: another point is better on one axis by more than the noise band of 2%, and not worse on the other"


def show_frontier(folder: Path, *, arm: str, base: str, workload: str) -> None:
    """Prints the gains of `arm` on stdout, then who lies on the frontier and where arms overtake `base`."""
    store, out = RunStore(folder), console()
    cells = chosen(finished_cells(store), workload, "")
    known = sorted(set(arm_names(cells).values()), key=arm_rank)
    for missing in (name for name in (arm, base) if name not in known):
        raise UsageError(f"no data: arm {missing!r} is not in this run", hint=f"it has {', '.join(known)}")
    for setting, group in by_setting(cells).items():
        points = points_by_workload(group)
        table = gains_table(gains(group, points, arm, base), arm, base)
        notes = [setting_note([setting]), CHOICE, SERVICE]
        print_of_run(table, store, f"{arm} on the frontier, base arm {base}", notes)
        for name, own in points.items():
            out.print(workload_text(name), style="bold", markup=False)
            for line in [*standing(own), *turns(own, base)]:
                out.print(f"  {line}", highlight=False, markup=False)
        out.print(TIES, highlight=False)


def frontier_section(scene: Scene) -> Section:
    """The picture, the gains of the report's arm, crossings, envelope and every point."""
    suffix, points = scene.suffix, scene.points
    stand = [f"{workload_text(w)}: {'. '.join(standing(own))}." for w, own in points.items()]
    crossed = crossings_table(points, "none", suffix=suffix)
    said = " ".join(f"{row[0]}: {row[1]}." for row in crossed.rows)
    alt = f"Throughput against per-user speed, a panel a workload. {' '.join(stand)} {said}"
    name = f"frontier{suffix}"
    return Section(
        id=name,
        title="Frontier",
        text=(FRONTIER, *stand, SERVICE),
        pictures=scene.pictures(
            lambda room: draw_frontier(scene.cells, room, name, scene.lines, scene.loud, ("svg",)), alt
        ),
        tables=(
            gains_table(scene.gains, scene.arm, "none", suffix=suffix),
            crossed,
            envelope_table(scene.cells, points, suffix=suffix),
            points_table(scene.ordered(), points, suffix=suffix),
        ),
    )
