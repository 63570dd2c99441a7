"""Arrival times of requests: a renewal process with gamma intervals, or recorded times. Reproducible by seed on any
machine.

The intervals are those of `vllm bench serve`: burstiness 1 is a Poisson process, below 1 requests come in bursts,
above 1 more evenly, `inf` at a steady beat. One seed gives one sequence of quantiles, so that the same requests come in
the same pattern at every rate, only faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsbench.errors import UsageError
from dsbench.workloads.recorded import Recorded, read_recorded
from dsbench.workloads.rng import uniform

CLOSED = "closed"
RATES = "e.g. --request-rate 2,4,8; `closed` keeps the batch full"
LEAST_BURSTINESS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """`rate` requests a second in the mean. `name`: the process without its rate."""

    name: str
    rate: float
    burstiness: float = 1.0
    recorded: tuple[float, ...] = ()  # seconds after the first request, stretched to `rate`

    def seconds(self, count: int, seed: str) -> list[float]:
        """Arrival times of the first `count` requests in seconds, non-decreasing; fewer where fewer were recorded."""
        if self.recorded:
            return list(self.recorded[:count])
        if math.isinf(self.burstiness):
            return [number / self.rate for number in range(count)]
        from scipy.special import gammaincinv

        now, found = 0.0, []
        for number in range(count):
            quantile = float(gammaincinv(self.burstiness, uniform(f"arrival\0{seed}", number)))
            now += quantile / (self.burstiness * self.rate)
            found.append(now)
        return found


def parse_arrivals(
    rates: str, *, burstiness: str, file: str, used: int = 0
) -> tuple[tuple[Arrivals | None, ...], Recorded | None]:
    """The loads that are named, None for the closed loop; and the recorded file, if one is given.

    rates: "2,4,closed", "" for the closed loop alone or, with a file, for its own rate. `used`: of a file's arrivals,
    how many a run takes (0: all); its rate is theirs, since what comes after is never offered. UsageError for what is
    no rate or no file.
    """
    shape = _burstiness(burstiness)
    recorded = read_recorded(Path(file).expanduser()) if file else None
    own = None if recorded is None else _recorded_load(file, recorded, used)
    if own is not None and shape != 1:
        raise UsageError("recorded arrivals have a burstiness of their own", hint="leave --burstiness out")
    if not rates.strip():
        if shape != 1:
            raise UsageError("--burstiness needs a rate", hint=RATES)
        return (own,), recorded
    loads: list[Arrivals | None] = []
    for part in dict.fromkeys(p.strip() for p in rates.split(",")):
        if part == CLOSED:
            loads.append(None)
        elif own is not None:
            rate = _rate(part, rates)
            times = tuple(s * own.rate / rate for s in own.recorded)
            loads.append(replace(own, rate=rate, recorded=times))
        else:
            loads.append(Arrivals(name=_name(shape), rate=_rate(part, rates), burstiness=shape))
    return tuple(dict.fromkeys(loads)), recorded


def _recorded_load(file: str, recorded: Recorded, used: int) -> Arrivals:
    times: Sequence[float] = recorded.seconds or ()
    if not times:
        raise UsageError(f"{file}: no arrival times in it", hint="it needs a column `seconds`")
    offered = times[: used or len(times)]
    if offered[-1] == 0:
        which = "all requests arrive" if len(offered) == len(times) else f"its first {len(offered)} requests arrive"
        raise UsageError(f"{file}: {which} at once, so it has no rate", hint="give later ones a later time")
    name = f"{recorded.name} ({recorded.digest})"
    return Arrivals(name=name, rate=(len(offered) - 1) / offered[-1], recorded=tuple(times))


def _burstiness(text: str) -> float:
    try:
        shape = float(text or 1)
    except ValueError:
        shape = math.nan
    if not shape >= LEAST_BURSTINESS:
        raise UsageError(
            f"burstiness must be >= {LEAST_BURSTINESS:g}, got {text}",
            hint="1 is Poisson, below 1 in bursts, inf a steady beat",
        )
    return shape


def _name(burstiness: float) -> str:
    if math.isinf(burstiness):
        return "constant"
    return "Poisson" if burstiness == 1 else f"gamma {burstiness:g}"


def _rate(part: str, spec: str) -> float:
    try:
        rate = float(part)
    except ValueError:
        raise UsageError(f"request rate {spec!r}: {part!r} is no number", hint=RATES) from None
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"request rate {spec!r}: must be finite and above 0, got {part}", hint=RATES)
    return rate
