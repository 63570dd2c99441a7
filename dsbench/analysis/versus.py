"""A run's arms against each other: the throughput of each over static's, none's and the best fixed window's.

Arms are compared at the same workload, batch size and setting, over the prompts that both served. The best fixed
window is chosen on one half of the data and compared on the other, both ways round: its choice gains nothing by luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, by_setting, is_fixed
from dsbench.results.metrics import held_in
from dsbench.stats.best_member import against_best
from dsbench.stats.intervals import BAND, Held, Interval, paired_ratio, verdict

BASES = ("static", "fixed", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """An arm's throughput over a base arm's, with its word; `basis` says on which data the base arm was chosen."""

    base: str
    ratio: Interval
    word: str
    basis: str = ""


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
