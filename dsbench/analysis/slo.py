"""Service-level objectives: which requests met them, the goodput, and the load that an objective allows.

A limit is `metric:time`, e.g. ttft:200ms,tpot:20ms; a request is good if it meets every limit. Whether a load is
allowed is read from cells that ran; between and beyond them the answer is "no data".
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dsbench.errors import UsageError
from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, arm_rank, setting_text
from dsbench.results.latency import latencies
from dsbench.results.metrics import held_slots, measured
from dsbench.stats.intervals import Interval, ratio_of_sums

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("ttft", "tpot", "itl", "e2e")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
EXAMPLE = "e.g. --slo ttft:200ms,tpot:20ms; of ttft, tpot, itl, e2e, in us, ms or s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Limits in seconds. itl: on a request's longest wait between two tokens."""

    limits: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        return ", ".join(f"{name} <= {seconds * 1e3:g} ms" for name, seconds in self.limits)


def parse_slo(text: str) -> Slo:
    """Raises UsageError for what is no limit, or a metric that is named twice."""
    found: dict[str, float] = {}
    for part in (p.strip() for p in text.split(",")):
        name, colon, limit = part.partition(":")
        name = {"e2el": "e2e"}.get(name.strip().lower(), name.strip().lower())
        if not colon:
            raise UsageError(f"SLO {part!r} is not metric:time", hint=EXAMPLE)
        if name not in METRICS:
            near = difflib.get_close_matches(name, METRICS, n=1)
            raise UsageError(f"SLO {part!r}: no metric {name!r}", hint=f"did you mean {near[0]}?" if near else EXAMPLE)
        if name in found:
            raise UsageError(f"SLO names {name} twice", hint=EXAMPLE)
        found[name] = _seconds(limit, part)
    return Slo(limits=tuple(found.items()))


def _seconds(text: str, part: str) -> float:
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*", text.lower())
    if match is None:
        raise UsageError(f"SLO {part!r}: {text.strip()!r} is no time above 0", hint=EXAMPLE)
    number, unit = float(match[1]), match[2]
    if unit not in UNITS:
        raise UsageError(f"SLO {part!r}: give the time in us, ms or s", hint=EXAMPLE)
    if not (number > 0 and math.isfinite(number)):
        raise UsageError(f"SLO {part!r}: {text.strip()!r} is no time above 0", hint=EXAMPLE)
    return number * UNITS[unit]


def meets(requests: pd.DataFrame, slo: Slo) -> NDArray[np.bool_]:
    """Which requests meet every limit. One that was cancelled does not; a limit on tokens after the first is met by an
    answer of one token. Raises UsageError for a limit on itl where no round was recorded.
    """
    values = latencies(requests)
    later = requests["output_tokens"].to_numpy() > 1
    if "itl" in dict(slo.limits):
        if "itl_max" not in requests or not np.isfinite(requests["itl_max"].to_numpy(np.float64)[later]).all():
            raise UsageError("this run kept no times of tokens, so it has no ITL", hint="set a limit on tpot")
        values["itl"] = requests["itl_max"].to_numpy(np.float64)
    good = np.ones(len(requests), bool)
    if "finish_reason" in requests:
        good = (requests["finish_reason"] != "cancelled").to_numpy(copy=True)
    for name, limit in slo.limits:
        fits = values[name] <= limit
        good &= fits | ~later if name in ("tpot", "itl") else fits
    return good


def goodput(
    requests: pd.DataFrame, slo: Slo, *, batch: int, open_loop: bool, throughput: float | None
) -> dict[str, Any]:
    """goodput: measured requests that meet the SLO over those sent; goodput_tokens: tokens a second of those alone.

    The latter is their share of the measured tokens times the throughput, without an interval in the open loop.
    """
    served = measured(requests)
    good = meets(served, slo)
    names, owner = np.unique(served["name"].to_numpy(str), return_inverse=True)
    share = ratio_of_sums(*(np.bincount(owner, weights, len(names)) for weights in (good, np.ones(len(good)))))
    tokens = served["output_tokens"].to_numpy(np.float64)
    if open_loop:
        rate = None if throughput is None else throughput * float(tokens[good].sum() / tokens.sum())
        of_good = None if rate is None else Interval(rate, None, None, len(served))
    else:
        of_good = ratio_of_sums(*held_slots(served.assign(output_tokens=tokens * good)).means(), scale=batch)
    return {key: found and found.json() for key, found in (("goodput", share), ("goodput_tokens", of_good))}


def goodput_of(stored: StoredCell, slo: Slo) -> dict[str, Any]:
    """The same of a finished cell."""
    cell, rate = stored.cell, stored.summary.get("throughput")
    return goodput(
        stored.table("requests"),
        slo,
        batch=cell.batch,
        open_loop=bool(cell.arrivals),
        throughput=rate and rate["value"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The load that an SLO allows an arm, from the loads that ran, ascending, and the share of good requests at each.

    `load`: the largest of those that, like all below it, reach the target; None where the lowest does not. `over`: the
    next one that ran, which does not; None where none ran, so that more may be allowed: no data. Loads are numbers of
    requests at a time, or, in the open loop, requests a second.
    """

    workload: str
    arm: str
    setting: str
    limit: int | None  # requests at a time, in the open loop
    target: float
    loads: tuple[float, ...]
    shares: tuple[Mapping[str, Any], ...]
    tokens: tuple[float | None, ...]  # goodput in tokens a second at each load
    flags: tuple[tuple[str, ...], ...]  # what casts doubt on each load's cell, in words

    @property
    def load(self) -> float | None:
        reached = self._reached
        return self.loads[reached - 1] if reached else None

    @property
    def over(self) -> float | None:
        return self.loads[self._reached] if self._reached < len(self.loads) else None

    @property
    def _reached(self) -> int:
        below = [share["value"] < self.target for share in self.shares]
        return below.index(True) if True in below else len(below)


def allowed(cells: Sequence[StoredCell], slo: Slo, *, target: float) -> list[Allowed]:
    """One for each workload, setting and arm; in the open loop also for each limit of requests at a time."""
    if not 0 < target <= 1:
        raise UsageError(f"the share of requests must lie in 0..1, got {target:g}", hint="e.g. --share 0.95")
    names = arm_names(cells)
    groups: dict[tuple[str, str, str, int | None], list[StoredCell]] = {}
    for stored in cells:
        cell = stored.cell
        key = (cell.workload, names[stored.folder], setting_text(replace(cell, rate=0.0)), _limit(stored))
        groups.setdefault(key, []).append(stored)
    found = []
    for (workload, arm, setting, limit), group in groups.items():
        group = sorted(group, key=_load)
        good = [goodput_of(stored, slo) for stored in group]
        found.append(
            Allowed(
                workload=workload,
                arm=arm,
                setting=setting,
                limit=limit,
                target=target,
                loads=tuple(map(_load, group)),
                shares=tuple(body["goodput"] for body in good),
                tokens=tuple(body["goodput_tokens"] and body["goodput_tokens"]["value"] for body in good),
                flags=tuple(tuple(stored.flags) for stored in group),
            )
        )
    return sorted(found, key=lambda a: (a.workload, a.setting, a.limit or 0, arm_rank(a.arm)))


def _limit(stored: StoredCell) -> int | None:
    return stored.cell.batch if stored.cell.arrivals else None


def _load(stored: StoredCell) -> float:
    return stored.cell.rate if stored.cell.arrivals else float(stored.cell.batch)


def slo_of(run: Mapping[str, Any]) -> Slo | None:
    """The SLO that the run was given, None where it was given none."""
    text = (run.get("config") or {}).get("slo")
    return parse_slo(text) if text else None
