"""A run's cells side by side: one row a cell with paired comparisons, as a data frame, a CSV and a terminal table.

Arms are compared at the same workload, batch size and setting, over the prompts that both served. The best fixed
window is chosen on one half of the data and compared on the other, both ways round: its choice gains nothing by luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsbench.best_member import against_best
from dsbench.completeness import missing_cells, missing_text
from dsbench.contamination import flag_note
from dsbench.intervals import BAND, Held, Interval, paired_ratio, verdict
from dsbench.latency import PERCENTILES, SPEEDS
from dsbench.latency_table import latency_table, slo_of
from dsbench.memory_table import memory_table
from dsbench.metrics import held_in
from dsbench.plots_labels import (
    all_cells,
    arm_names,
    arm_rank,
    by_setting,
    conditions,
    finished_cells,
    is_fixed,
    loud_label,
    workload_text,
)
from dsbench.slo import goodput_of
from dsbench.store import RunStore, StoredCell, write_atomically

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary.csv"
BASES = ("static", "fixed", "none")
HEADS = (
    "R",
    "arm",
    "tau",
    "rep.",
    "window\nceiling",
    "tokens/s",
    "per user\np10",
    "vs static",
    "vs best fixed",
    "vs none",
)
LEAST_SEEN = 0.8  # a ceiling seen in fewer rounds than this is not shown: what is seen is not a fair sample
RATES = (
    "tau", "accepted", "window", "ceiling", "utilisation", "acceptance_of_drafted", "acceptance_of_scheduled",
    "flips_per_1000", "throughput", "user_speed", "user_speed_p10", *PERCENTILES,
)  # fmt: skip
SCALARS = (
    "requests", "prompts", "repeats", "output_tokens", "rounds", "repetition", "ceiling_seen", "steps", "full_steps",
    "rows_per_step", "padding_share", "idle_share", "extrapolated_share", "missed_steps",
    "compiled_steps", "fallback_steps",
    "offered_rate", "served_rate", "queue_wait", *SPEEDS[1:],
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """An arm's throughput over a base arm's, with its word; `basis` says on which data the base arm was chosen."""

    base: str
    ratio: Interval
    word: str
    basis: str = ""


def summary_frame(store: RunStore, *, band: float = BAND, seed: int = 0) -> pd.DataFrame:
    """One row a cell: parameters, numbers with _low and _high, ratios vs_static, vs_fixed, vs_none with _word.

    Seconds, tokens, tokens/s; memory: bytes, the peak of the process that ran the cells. Raises UsageError for a run
    without a finished cell.
    """
    import pandas as pd

    cells, run = all_cells(store), store.read_run()
    closed = [stored for stored in cells if not stored.cell.arrivals]
    names, found = arm_names(cells), compare_arms(closed, band=band, seed=seed)
    memory, slo = (run.get("memory") or {}).get("peak"), slo_of(run)
    rows = []
    for stored in cells:
        row: dict[str, Any] = {"arm": names[stored.folder], **asdict(stored.cell), "flags": "; ".join(stored.flags)}
        row |= _numbers(stored.summary) | {"memory": memory}
        if slo is not None:
            good = goodput_of(stored, slo)
            row |= {"slo": str(slo)} | {key: rate and rate["value"] for key, rate in good.items()}
        for base in BASES:
            row |= _versus_columns(base, found.get(stored.folder, {}).get(base))
        rows.append(row)
    return pd.DataFrame(rows)


def write_summary(store: RunStore, *, band: float = BAND, seed: int = 0) -> Path:
    """Writes the frame to summary.csv in the run's folder. Raises UsageError for a run without a finished cell."""
    path = store.folder / SUMMARY
    write_atomically(path, summary_frame(store, band=band, seed=seed).to_csv(index=False))
    return path


def compare_arms(cells: Sequence[StoredCell], *, band: float = BAND, seed: int = 0) -> dict[Path, dict[str, Versus]]:
    """Each cell's comparisons by base ("static", "fixed", "none"), by its folder; an absent base has no entry."""
    found: dict[Path, dict[str, Versus]] = {stored.folder: {} for stored in cells}
    names = arm_names(cells)
    for group in by_setting(cells).values():
        for place in sorted({(c.cell.workload, c.cell.batch) for c in group}):
            rivals = [c for c in group if (c.cell.workload, c.cell.batch) == place]
            held = {c.folder: held_in(c) for c in rivals}
            fixed = [c.folder for c in rivals if is_fixed(c.cell)]
            for stored in rivals:
                mine = found[stored.folder]
                for base in ("static", "none"):
                    other = next((c.folder for c in rivals if c.cell.mode == base), stored.folder)
                    ratio = None if other == stored.folder else _ratio(held[stored.folder], held[other], seed)
                    if ratio is not None:
                        mine[base] = Versus(base=base, ratio=ratio, word=verdict(ratio, band=band))
                best = _best_fixed(held, stored.folder, fixed, band, seed, names)
                if best is not None:
                    mine["fixed"] = best
    return found


def _ratio(arm: Held, base: Held, seed: int) -> Interval | None:
    """Throughput of one arm over another's, over the prompts that both served, repeats averaged."""
    common = sorted(set(arm.names) & set(base.names))
    (tokens, seconds), (base_tokens, base_seconds) = arm.only(common).means(), base.only(common).means()
    return paired_ratio(tokens, seconds, base_tokens, base_seconds, seed=seed)


def _best_fixed(
    held: Mapping[Path, Held], arm: Path, fixed: Sequence[Path], band: float, seed: int, names: Mapping[Path, str]
) -> Versus | None:
    """Against the fixed windows that are fastest on a half each; None where there is none, or the arm is it."""
    found = against_best(held, arm, fixed, seed=seed)
    if found is None:
        return None
    base, word = " or ".join(names[best] for best in found.best), verdict(found.ratio, band=band)
    return Versus(base=base, ratio=found.ratio, word=word, basis=found.basis)


def summary_table(store: RunStore, *, band: float = BAND, seed: int = 0) -> Table:
    """The terminal's table: per workload and batch size R each arm's numbers and paired ratios, with footnotes.

    Raises UsageError for a run without a finished cell.
    """
    cells, run = finished_cells(store), store.read_run()
    names, found = arm_names(cells), compare_arms(cells, band=band, seed=seed)
    title = f"{store.folder.name}: {conditions(run)}".rstrip(": ")
    table = Table(title=escape(title), caption_justify="left", box=box.HORIZONTALS, padding=0)
    table.add_column("workload", overflow="fold", min_width=8, max_width=14)
    for head in HEADS:
        left = head == "arm" or head.startswith("vs")
        table.add_column(head, justify="left" if left else "right", overflow="fold", vertical="top")
    groups = by_setting(cells)
    for setting, group in groups.items():
        if len(groups) > 1:
            table.add_row(*[""] * 2, f"[bold]{escape(setting)}[/bold]", end_section=False)
        ordered = sorted(group, key=lambda c: (c.cell.workload, c.cell.batch, arm_rank(names[c.folder])))
        for i, stored in enumerate(ordered):
            place = (stored.cell.workload, stored.cell.batch)
            opens = i == 0 or (ordered[i - 1].cell.workload, ordered[i - 1].cell.batch) != place
            closes = i + 1 == len(ordered) or (ordered[i + 1].cell.workload, ordered[i + 1].cell.batch) != place
            first = (escape(workload_text(place[0])), str(place[1])) if opens else ("", "")
            table.add_row(*first, *_row(stored, names[stored.folder], found[stored.folder]), end_section=closes)
    table.caption = "\n".join(_footnotes(run, groups, found, band))
    return table


def _row(stored: StoredCell, name: str, found: Mapping[str, Versus]) -> list[str]:
    body = stored.summary
    repetition = body.get("repetition")
    ceiling = body.get("ceiling") if (body.get("ceiling_seen") or 0.0) >= LEAST_SEEN else None
    return [
        name + (" !" if stored.flags else ""),
        _spread(body.get("tau")),
        "-" if repetition is None else f"{repetition:.2f}",
        f"{_plain(body.get('window'))}\n{_plain(ceiling)}",
        _spread(body.get("throughput")),
        f"{_plain(body.get('user_speed'))}\n{_plain(body.get('user_speed_p10'))}",
        *(_versus_text(base, found.get(base)) for base in BASES),
    ]


def _versus_text(base: str, found: Versus | None) -> str:
    if found is None:
        return "-"
    windows = " or ".join(name.partition(":")[2] or "G" for name in found.base.split(" or "))
    partner = f" k={windows}" if base == "fixed" else ""
    low, high = found.ratio.low, found.ratio.high
    spread = "one prompt" if low is None or high is None else f"{low:.2f}..{high:.2f}"
    return f"{found.ratio.value:.2f} {found.word}\n{spread}{partner}"


def _spread(rate: Mapping[str, Any] | None) -> str:
    if rate is None or rate["low"] is None:
        return _plain(rate)
    return f"{_plain(rate)}\n{_figure(rate['low'])}..{_figure(rate['high'])}"


def _plain(rate: Mapping[str, Any] | None) -> str:
    return "-" if rate is None else _figure(rate["value"])


def _figure(value: float) -> str:
    """About three significant figures."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _footnotes(
    run: Mapping[str, Any], groups: Mapping[str, Sequence[StoredCell]], found: Mapping[Path, Mapping[str, Versus]],
    band: float,
) -> list[str]:  # fmt: skip
    loud = loud_label(run)
    bases = sorted({v.basis for arm in found.values() for v in arm.values() if v.basis})
    flagged = flag_note([stored.flags for cells in groups.values() for stored in cells])
    notes = [f"[bold red]{loud}[/bold red]"] if loud else []
    notes.append(("Setting: " if len(groups) == 1 else "Settings: ") + escape("; or ".join(groups)) + ".")
    notes.append(
        "tau: tokens a verify round, bonus included; rep.: share of the output's 4-grams seen before in it; window: "
        "drafts that could be committed; ceiling: tau had all drafts been verified, over the rounds that show it; "
        "second lines: 95% intervals over prompts. Ratios of throughput are paired by prompt; their words stand "
        f"against a noise band of {band:.1%}."
    )
    chosen = f"chosen on {' or '.join(bases)}, compared on the other, both ways round"
    notes.append(f"Best fixed: window k (G: the whole block), {chosen}." if bases else "")
    notes.append(f"!: {escape(flagged)}." if flagged else "")
    return [note for note in notes if note]


def _versus_columns(base: str, found: Versus | None) -> dict[str, Any]:
    key = f"vs_{base}"
    values = (None,) * 5 if found is None else (*asdict(found.ratio).values(), found.word)
    columns = dict(zip((key, f"{key}_low", f"{key}_high", f"{key}_n", f"{key}_word"), values, strict=True))
    if base == "fixed":
        columns |= {"fixed_arm": found.base if found else None, "fixed_chosen_on": found.basis if found else None}
    return columns


def _numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {key: body.get(key) for key in SCALARS}
    for key in RATES:
        rate = body.get(key) or {"value": np.nan, "low": np.nan, "high": np.nan}
        row |= {key: rate["value"], f"{key}_low": rate["low"], f"{key}_high": rate["high"]}
    row["step_seconds_p50"] = (body.get("step_seconds") or {}).get("p50")
    row |= {f"share_{phase}": share for phase, share in (body.get("phase_share") or {}).items()}
    row["predicted_error"] = (body.get("predicted_error") or {}).get("median")
    row["drift"] = (body.get("drift") or {}).get("change")
    return row


def print_summary(folder: Path) -> None:
    """Prints the tables of the run in `folder` on stdout, as wide as the terminal, or 118 columns where there is none.

    Raises UsageError for a folder without a run or a run without a finished cell.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=118)
    store = RunStore(folder)
    if any(not stored.cell.arrivals for stored in all_cells(store)):
        console.print(summary_table(store))
    console.print(latency_table(store))
    memory = store.read_run().get("memory")
    if memory:
        console.print(memory_table(memory))
    lacking = missing_cells(store)
    if lacking:
        console.print(
            f"[bold red]INCOMPLETE[/bold red]: this run lacks {escape(missing_text(lacking))} (`--resume` goes on)"
        )
