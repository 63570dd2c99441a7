"""What a round of drafting costs and saves: the table, its command and its section of a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dsbench.analysis.break_even import BreakEven, break_even
from dsbench.errors import UsageError
from dsbench.results.labels import finished_cells, workload_text
from dsbench.results.store import RunStore
from dsbench.views.numbers import percent
from dsbench.views.report_parts import Scene, Section
from dsbench.views.tables import Table, Value, chosen, print_of_run, setting_note

TITLE = "Break-even of drafting"
NOTE = (
    "Milliseconds a round. no draft: a round of arm none; saved = delivered x a no-draft round - the round: above 0 "
    "drafting pays (prefill left out). needed: tokens delivered a round at which it breaks even; above 100% acceptance "
    "needed, no acceptance would do at this window."
)
ACCEPTANCE = "acceptance: of scheduled drafts, had and needed. ±: half the 95% interval over prompts."
RATES = ("draft", "verify", "host", "no_draft", "saved", "delivered", "needed")


def show_break_even(folder: Path, *, workload: str, batch: str, as_json: bool) -> None:
    """Prints the break-even of a run's arms on stdout."""
    store = RunStore(folder)
    found = break_even(chosen(finished_cells(store), workload, batch))
    if as_json:
        print(json.dumps([one.json() for one in found], indent=2))
        return
    notes = [setting_note([one.setting for one in found]), NOTE, ACCEPTANCE]
    print_of_run(break_even_table(found), store, TITLE, notes)


def break_even_table(found: Sequence[BreakEven], *, suffix: str = "") -> Table:
    """A row an arm that drafts at a point."""
    return Table(
        name=f"break-even{suffix}",
        caption="Milliseconds a round",
        heads=(
            "workload",
            "R",
            "arm",
            *(name.replace("_", " ") for name in RATES),
            "acceptance had",
            "acceptance needed",
            "flagged",
        ),
        rows=tuple(map(_row, found)),
        place=2,
        signed=frozenset({"saved"}),
        half=True,
    )


def _row(one: BreakEven) -> tuple[Value, ...]:
    return (
        workload_text(one.workload),
        one.batch,
        one.arm,
        *(getattr(one, name) for name in RATES),
        percent(one.had),
        needed_text(one.acceptance_needed),
        "yes" if one.flagged else "",
    )


def needed_text(acceptance: float | None) -> str:
    """The acceptance at which drafting breaks even; any where it would even if no draft were accepted."""
    return "any" if acceptance is not None and acceptance <= 0 else percent(acceptance)


def break_even_section(scene: Scene) -> Section:
    """The table of one setting."""
    name = f"break-even{scene.suffix}"
    try:
        found = break_even(scene.cells)
    except UsageError as problem:
        return Section(id=name, title=TITLE, text=(problem.message + ".",))
    return Section(id=name, title=TITLE, text=(NOTE,), tables=(break_even_table(found, suffix=scene.suffix),))
