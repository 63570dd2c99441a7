"""`compare` and `noise`: two runs, or two arms of one, cell by cell against this machine's noise. No torch.

A cell is FASTER or SLOWER where its whole interval lies beyond the noise band, SAME where inside, else UNCLEAR. The
comparison as a whole passes where no cell can be slower beyond noise, fails where one is, and else is inconclusive.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsbench.analysis.compare_pairs import Pairing, Side, open_sides, pair_cells
from dsbench.analysis.noise_band import Band, band_of, find_band, pairs_within
from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.profiles.contract import check_contract
from dsbench.results.cells import Cell, StoredCell
from dsbench.results.labels import finished_cells
from dsbench.results.metrics import held_in
from dsbench.results.store import RunStore
from dsbench.stats.block_noise import Measured, Sides, Spread, measure, prior_of, same_texts, weigh
from dsbench.stats.intervals import LEAST_PROMPTS_JUDGED, Held, verdict

TABLES = ("requests", "steps", "rounds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One pair of cells. `cell` is A's."""

    cell: Cell
    modes: tuple[str, str]
    measured: Measured
    word: str
    could_be_slower: bool  # the interval reaches below the noise band, or there is none, or it is of too few prompts
    tokens_per_second: tuple[float, float]  # over all repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """B against A."""

    labels: tuple[str, str]
    band: Band
    prior: str  # where the block noise that cells share comes from
    results: tuple[Compared, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        if any(r.word == "SLOWER" for r in self.results):
            return 3
        return 4 if any(r.could_be_slower for r in self.results) else 0


def compare(
    first: str, second: str, *, home: Path, allow: Collection[str] = (), band: float | None = None, seed: int = 0
) -> Comparison:
    """Compares RUN or RUN:MODE with another. `band` overrides the machine's noise band (relative).

    Raises UsageError for what does not exist, EnvironmentRefused naming what makes the two not comparable.
    """
    if band is not None and not 0 <= band < 1:
        raise UsageError(f"band must lie in 0..1, got {band:g}", hint="0.02 is two percent")
    a, b = open_sides(first, second)
    pairing = pair_cells(a, b, allow=allow)
    kind = "arms" if pairing.together else "runs"
    found = find_band(home, b.contract, kind)
    if band is not None:
        found = Band(value=band, kind=kind, prior=found.prior, source="given by --band", targets=found.targets)
    weighed = [(pair, *_weighed(*pair, pairing.together, seed)) for pair in pairing.pairs]
    own = prior_of([sides.spread for _, sides, _ in weighed])
    prior = own or found.prior
    source = "the cells of this comparison" if own else "this machine's A/A runs" if prior else "each cell alone"
    notes = [*pairing.notes, *_table_notes(a, b), *_text_notes(weighed, (a.label, b.label))]
    return Comparison(
        labels=(a.label, b.label),
        band=found,
        prior=source,
        results=tuple(_judged(pair, sides, speeds, prior, found.value, seed) for pair, sides, speeds in weighed),
        notes=tuple(notes + _band_notes(found, a, weighed)),
    )


Weighed = tuple[tuple[StoredCell, StoredCell], Sides, tuple[float, float]]


def _weighed(a: StoredCell, b: StoredCell, together: bool, seed: int) -> tuple[Sides, tuple[float, float]]:
    mine, its = held_in(a), held_in(b)
    paired = a.cell.text == b.cell.text == "pinned" and same_texts(mine, its)
    sides = weigh(mine, its, together=together, paired=paired, seed=seed)
    if sides is None:
        where = f"{a.cell.workload} at batch {a.cell.batch}"
        raise EnvironmentRefused(f"the cells of {where} share no prompt", hint="run both over the same prompts")
    return sides, (a.cell.batch * mine.speed, b.cell.batch * its.speed)


def _judged(
    pair: tuple[StoredCell, StoredCell],
    sides: Sides,
    speeds: tuple[float, float],
    prior: Spread | None,
    band: float,
    seed: int,
) -> Compared:
    found = measure(sides, prior, band=band, seed=seed)
    low = found.ratio.low if found.ratio.n >= LEAST_PROMPTS_JUDGED else None
    return Compared(
        cell=pair[0].cell,
        modes=(pair[0].cell.mode, pair[1].cell.mode),
        measured=found,
        word=verdict(found.ratio, band=band),
        could_be_slower=low is None or low < 1 / (1 + band),
        tokens_per_second=speeds,
    )


def _table_notes(a: Side, b: Side) -> list[str]:
    """Only `requests` is read here; a run without the others is noted, since `plot` and `show` need more."""
    notes = []
    for side in (a, b):
        absent = [name for name in TABLES if not all(stored.has(name) for stored in side.cells)]
        words = f"{side.store.folder.name} was kept without {' and '.join(absent)}: not needed here"
        notes += [words] if absent and words not in notes else []
    return notes


def _text_notes(weighed: Sequence[Weighed], labels: tuple[str, str]) -> list[str]:
    apart = sum(not sides.paired for _, sides, _ in weighed)
    if not apart:
        return []
    return [f"{apart} of {len(weighed)} cells of {labels[0]} and {labels[1]} wrote other texts: not paired by prompt"]


def _band_notes(band: Band, side: Side, weighed: Sequence[Weighed]) -> list[str]:
    target = (side.run.get("labels") or {}).get("target", "")
    notes = []
    if band.targets and target not in band.targets:
        notes.append(f"the A/A runs behind the noise band were of {', '.join(band.targets)}, not of {target}")
    if band.source == "default" and band.kind == "runs":
        notes.append("drift between two runs is not known here: `dsbench noise RUN RUN` measures it on A/A runs")
    if any(sides.spread is None for _, sides, _ in weighed) and band.prior is None:
        simulated = (side.run.get("labels") or {}).get("simulated")
        notes.append(
            "a simulation is one repeat without noise: `dsbench show` and `dsbench frontier` compare its arms"
            if simulated
            else "one repeat says nothing of its own noise: run with --repeats 2 or more"
        )
    return notes


def measure_bands(runs: Sequence[Path]) -> tuple[list[Band], Mapping[str, str]]:
    """Bands from A/A data, and the contract: arms from each run's own repeats, runs from every two of `runs`.

    Raises EnvironmentRefused for runs of different contracts or sources, UsageError for too few pairs.
    """
    stores = [RunStore(path) for path in runs]
    bodies = [store.read_run() for store in stores]
    contract, code = bodies[0]["contract"], bodies[0].get("code")
    for path, body in zip(runs[1:], bodies[1:], strict=True):
        check_contract(contract, body["contract"], what=str(path), hint="A/A runs are of one and the same thing")
        check_contract({"sources": str(code)}, {"sources": str(body.get("code"))}, what=str(path))
    held = [{stored.folder: held_in(stored) for stored in finished_cells(store)} for store in stores]
    targets = [str((bodies[0].get("labels") or {}).get("target", "unknown"))]
    within = [pair for run in held for cell in run.values() if (pair := pairs_within(cell)) is not None]
    repeats = min(cell.tokens.shape[1] for run in held for cell in run.values())
    bands = []
    if within or len(runs) == 1:
        ratios, spreads = [ratio for ratio, _ in within], [spread for _, spread in within]
        bands.append(band_of("arms", ratios, spreads, repeats=repeats // 2, targets=targets))
    if len(runs) > 1:
        bands.append(_runs_band(runs, held, repeats, targets))
    return bands, contract


def _runs_band(runs: Sequence[Path], held: Sequence[Mapping[Path, Held]], repeats: int, targets: Sequence[str]) -> Band:
    ratios: list[float] = []
    spreads: list[Spread | None] = []
    for left, right in itertools.combinations(range(len(runs)), 2):
        a, b = open_sides(str(runs[left]), str(runs[right]))
        pairing: Pairing = pair_cells(a, b)
        for mine, its in pairing.pairs:
            one, other = held[left][mine.folder], held[right][its.folder]
            sides = weigh(one, other, together=False, paired=same_texts(one, other), draws=1)
            if sides is not None:
                ratios.append(sides.log_ratio)
                spreads.append(sides.spread)
    return band_of("runs", [r for r in ratios if math.isfinite(r)], spreads, repeats=repeats, targets=targets)


def as_json(found: Comparison) -> dict[str, Any]:
    """What --json prints."""
    return {
        "a": found.labels[0],
        "b": found.labels[1],
        "exit_code": found.exit_code,
        "band": {"value": found.band.value, "kind": found.band.kind, "source": found.band.source},
        "block_noise_from": found.prior,
        "notes": list(found.notes),
        "cells": [
            {
                "workload": r.cell.workload,
                "batch": r.cell.batch,
                "modes": list(r.modes),
                "verdict": r.word,
                "tokens_per_second": list(r.tokens_per_second),
                **r.measured.json(),
            }
            for r in found.results
        ],
    }
