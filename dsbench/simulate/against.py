"""Simulated against measured: how far off a simulation is, cell by cell, and which part of the time is off. No torch.

The error of a cell is simulated / measured throughput - 1, over the prompts that both served; over all of each where
they share none (a run has more prompts than the trace, and takes them in turn). Its parts are those of a
waterfall from the measured to the simulated time a token, in percent of the measured: they add up to the change of the
time, whose sign is opposite to that of throughput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsbench.analysis.accounts import Account, account_of
from dsbench.analysis.waterfall import PARTS, changes
from dsbench.errors import EnvironmentRefused
from dsbench.results.labels import arm_rank
from dsbench.results.store import StoredCell

KEPT = "against.json"  # in the simulated run's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """One cell. Errors are relative; `parts`: change of the time a token by PARTS, relative to the measured time."""

    workload: str
    batch: int
    arm: str
    measured: float  # tokens/s
    simulated: float
    parts: Mapping[str, float]
    prompts: int  # that both served, 0: none, so that other texts are compared
    flags: str  # of the measured cell

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Of several cells: median and 95th percentile of the size of the error, median error, mean of each part."""

    cells: int
    median: float
    p95: float
    bias: float
    parts: Mapping[str, float]


def misses(simulated: Sequence[StoredCell], measured: Sequence[StoredCell]) -> list[Miss]:
    """A cell that both have, in the tables' order. Raises EnvironmentRefused where there is none."""
    real = {(c.cell.workload, c.cell.batch, c.cell.mode): c for c in measured}
    found = []
    for mine in sorted(simulated, key=lambda c: (c.cell.workload, c.cell.batch, arm_rank(c.cell.mode))):
        place = (mine.cell.workload, mine.cell.batch, mine.cell.mode)
        if place in real:
            found.append(_miss(mine, real[place]))
    if not found:
        raise EnvironmentRefused(
            "the measured run shares no cell with the simulation", hint="simulate its modes, batch sizes and workloads"
        )
    return found


def _miss(mine: StoredCell, its: StoredCell) -> Miss:
    a, b = account_of(its), account_of(mine)
    common = sorted(set(a.names) & set(b.names))
    before, after = _sums(a, common or a.names), _sums(b, common or b.names)
    held = float(before["held"] / before["tokens"])
    parts = {name: float(part) / held for name, part in zip(PARTS, changes(before, after), strict=True)}
    cell = its.cell
    return Miss(
        workload=cell.workload,
        batch=cell.batch,
        arm=cell.mode,
        measured=cell.batch / held,
        simulated=cell.batch * float(after["tokens"] / after["held"]),
        parts=parts,
        prompts=len(common),
        flags="; ".join(its.flags),
    )


def _sums(account: Account, names: Sequence[str]) -> dict[str, Any]:
    own = account.only(names)
    return own.at(np.arange(len(names)))


def errors(found: Sequence[Miss]) -> Errors:
    size = np.abs([one.error for one in found])
    return Errors(
        cells=len(found),
        median=float(np.median(size)),
        p95=float(np.quantile(size, 0.95)),
        bias=float(np.median([one.error for one in found])),
        parts={name: float(np.mean([one.parts[name] for one in found])) for name in PARTS},
    )


def by_arm(found: Sequence[Miss]) -> dict[str, Errors]:
    arms = sorted({one.arm for one in found}, key=arm_rank)
    return {arm: errors([one for one in found if one.arm == arm]) for arm in arms}


def as_json(found: Sequence[Miss], run: str) -> dict[str, Any]:
    """What is kept beside the simulated run."""

    def words(one: Errors) -> dict[str, Any]:
        return {"cells": one.cells, "median": one.median, "p95": one.p95, "bias": one.bias, "parts": dict(one.parts)}

    return {
        "against": run,
        "all": words(errors(found)),
        "by_arm": {arm: words(e) for arm, e in by_arm(found).items()},
        "cells": [
            {
                "workload": one.workload,
                "batch": one.batch,
                "arm": one.arm,
                "measured": one.measured,
                "simulated": one.simulated,
                "error": one.error,
                "parts": dict(one.parts),
                "prompts": one.prompts,
                "flags": one.flags,
            }
            for one in found
        ],
    }
