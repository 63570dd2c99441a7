"""A report's section on a simulated run: what it leaves out, and how far it is off a measured run."""

from __future__ import annotations

import json
from typing import Any

from dsbench.analysis.waterfall import PARTS
from dsbench.results.labels import workload_text
from dsbench.results.store import RunStore
from dsbench.simulate.against import KEPT
from dsbench.views.plots_against import draw_against
from dsbench.views.report_parts import Section, Table, Value
from dsbench.views.report_sections import Scene

TITLE = "Simulated against measured"
ALONE = (
    "Times come from a cost table on a virtual clock; plans are the real planner's, acceptance is recorded. Nothing "
    "was measured here. `dsbench simulate --against RUN` says how far such a run is off a measured one."
)
OFF = (
    "Error: simulated / measured throughput - 1. Parts: change of the time a token from measured to simulated, in "
    "percent of the measured; they add up. Prompts have no times of their own in a table: verify passes of as "
    "many rows stand for them. A table from before slots were timed prices shallow drafts as whole blocks."
)


def simulated_section(scene: Scene, store: RunStore) -> Section:
    path = store.folder / KEPT
    if not path.exists():
        return Section(id=f"simulated{scene.suffix}", title=TITLE, text=(ALONE,))
    body: dict[str, Any] = json.loads(path.read_text())
    whole = body["all"]
    told = (
        f"Against {body['against']}: {whole['cells']} cells, median error {whole['median']:.1%}, 95% within "
        f"{whole['p95']:.1%}, bias {whole['bias']:+.1%}."
    )
    arms = "; ".join(f"{arm} {one['median']:.1%}" for arm, one in body["by_arm"].items())
    pictures = scene.pictures(
        lambda room: draw_against(body, room, f"against{scene.suffix}", scene.lines, scene.loud, ("svg",)),
        f"Simulated over measured throughput, a point a cell. {told} Median error by arm: {arms}.",
    )
    return Section(
        id=f"simulated{scene.suffix}",
        title=TITLE,
        text=(told, OFF),
        pictures=pictures,
        tables=(_arms(body, scene.suffix), _cells(body, scene.suffix)),
    )


def _arms(body: dict[str, Any], suffix: str) -> Table:
    rows: list[tuple[Value, ...]] = [
        (arm, one["cells"], 100 * one["median"], 100 * one["p95"], 100 * one["bias"], *_parts(one))
        for arm, one in [("all", body["all"]), *body["by_arm"].items()]
    ]
    heads = ("arm", "cells", "median error %", "95% within %", "bias %", *PARTS)
    return Table(name=f"against-arms{suffix}", caption="By arm", heads=heads, rows=tuple(rows), short=True)


def _cells(body: dict[str, Any], suffix: str) -> Table:
    rows: list[tuple[Value, ...]] = [
        (
            workload_text(c["workload"]),
            c["batch"],
            c["arm"],
            c["measured"],
            c["simulated"],
            100 * c["error"],
            *_parts(c),
            c["prompts"],
            c["flags"],
        )
        for c in body["cells"]
    ]
    heads = ("workload", "R", "arm", "measured tokens/s", "simulated", "error %", *PARTS, "shared prompts", "flags")
    return Table(name=f"against{suffix}", caption="By cell", heads=heads, rows=tuple(rows))


def _parts(one: dict[str, Any]) -> list[Value]:
    return [100 * float(one["parts"][name]) for name in PARTS]
