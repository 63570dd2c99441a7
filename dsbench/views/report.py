"""`report`: a run as one self-contained HTML file, or as Markdown for a pull request. No torch, no network.

A run that lacks cells is refused by name, unless what is there is asked for; then the report says what it lacks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.analysis.gains import gains, main_arm, points_by_workload
from dsbench.errors import IncompleteRun
from dsbench.profiles.cost import load_cost_table
from dsbench.results.cells import StoredCell
from dsbench.results.completeness import begun, missing_cells, missing_text
from dsbench.results.labels import by_setting, conditions, finished_cells, loud_label
from dsbench.results.store import RunStore, write_atomically
from dsbench.views.against import simulated_section
from dsbench.views.break_even import break_even_section
from dsbench.views.budget.section import budget_section
from dsbench.views.frontier.section import frontier_section
from dsbench.views.memory import memory_section
from dsbench.views.prediction import prediction_section
from dsbench.views.report_conditions import condition_list, flags_section, reading_section
from dsbench.views.report_headline import sentences
from dsbench.views.report_html import as_html
from dsbench.views.report_markdown import as_markdown
from dsbench.views.report_parts import Report, Scene, Section
from dsbench.views.style import style
from dsbench.views.waterfall import waterfall_section
from dsbench.writing import file_to_write

if TYPE_CHECKING:
    import pandas as pd


SECTIONS = (frontier_section, budget_section, waterfall_section, break_even_section)  # of each setting, in this order


def write_report(folder: Path, *, out: Path | None, markdown: bool, partial: bool) -> None:
    """Writes RUN/report.html and prints its path, or prints Markdown; `out` names another file for either.

    Raises UsageError for a folder without a run or a finished cell, or a file that cannot be written; IncompleteRun,
    naming what is missing, for a run that was not finished, unless `partial`.
    """
    store = RunStore(folder)
    path = out if out is not None or markdown else folder / "report.html"
    file_to_write(path)
    report = make_report(store, partial=partial, pictures=not markdown)
    text = as_markdown(report) if markdown else as_html(report)
    if path is None:
        print(text, end="")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    print(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCell(StoredCell):
    """A cell whose small tables are read once, since every section reads them; nobody changes a table."""

    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def table(self, name: str) -> pd.DataFrame:
        if name == "rounds":
            return StoredCell.table(self, name)
        if name not in self.kept:
            self.kept[name] = StoredCell.table(self, name)
        found: pd.DataFrame = self.kept[name]
        return found


def make_report(store: RunStore, *, partial: bool = False, pictures: bool = True) -> Report:
    """Everything a report says, with its pictures or without. Raises as `write_report` does."""
    run = store.read_run()
    cells = [KeptCell(**{f.name: getattr(c, f.name) for f in fields(StoredCell)}) for c in finished_cells(store)]
    missing = missing_cells(store)
    if missing and not partial:
        started = begun(store)
        raise IncompleteRun(
            f"{store.folder} lacks {len(missing)} {'cell' if len(missing) == 1 else 'cells'}: {missing_text(missing)}"
            + (f"; {started} begun" if started else ""),
            hint="`dsbench sweep --resume` finishes it; --partial reports what is there",
        )
    lacks = f"INCOMPLETE: this run lacks {missing_text(missing, most=20)}" if missing else ""
    loud = "; ".join(part for part in (loud_label(run), lacks) if part)
    headline: list[str] = []
    sections: list[Section] = []
    groups = by_setting(cells)
    table = store.folder / "cost.json"
    tiers = load_cost_table(table).tiers if table.exists() else None
    with tempfile.TemporaryDirectory() as room, style():
        for number, (setting, group) in enumerate(groups.items(), start=1):
            suffix = f"-{number}" if len(groups) > 1 else ""
            scene = _scene(group, run, setting, loud, Path(room) if pictures else None, suffix, tiers)
            lead = f"{setting}: " if suffix else ""
            headline += [lead + line for line in sentences(group, scene.points, scene.arm, scene.gains)]
            parts = [
                frontier_section(scene),
                budget_section(scene),
                waterfall_section(scene),
                break_even_section(scene),
            ]
            simulated = (run.get("labels") or {}).get("simulated")
            parts.append(simulated_section(scene, store) if simulated else prediction_section(scene, store))
            sections += [_named(part, setting if suffix else "") for part in parts]
    sections += [memory_section(run), flags_section(cells), reading_section()]
    flagged = next(s for s in sections if s.id == "flags").text[0].split(";")[0] + "."
    headline.insert(0 if any(c.flags for c in cells) else len(headline), flagged)  # doubts come first
    return Report(
        title=f"{(run.get('labels') or {}).get('target') or 'a run'}: {store.folder.resolve().name}",
        where=conditions(run),
        loud=loud,
        headline=tuple(headline),
        conditions=condition_list(run, cells, loud),
        sections=tuple(sections),
    )


def _scene(
    group: Sequence[StoredCell],
    run: dict[str, Any],
    setting: str,
    loud: str,
    folder: Path | None,
    suffix: str,
    tiers: tuple[int, ...] | None,
) -> Scene:
    points, arm = points_by_workload(group), main_arm(group)
    return Scene(
        cells=group,
        run=run,
        lines=(conditions(run), setting),
        loud=loud,
        folder=folder,
        suffix=suffix,
        tiers=tiers,
        points=points,
        arm=arm,
        gains=gains(group, points, arm),
    )


def _named(section: Section, setting: str) -> Section:
    if not setting:
        return section
    return replace(section, title=f"{section.title}: {setting}")
