"""How numbers are written, in every table, picture and sentence: about three significant figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dsbench.stats.intervals import Interval

NONE = "–"  # where there is no number


def number(value: float | None, *, sign: bool = False) -> str:
    """Three decimals at most, thousands apart; no sign before a zero; a dash for none, nan and infinity."""
    if value is None or not math.isfinite(value):
        return NONE
    if isinstance(value, int):
        return f"{value:{'+' if sign else ''},}"
    size = abs(value)
    places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    text = f"{value:{'+' if sign else ''},.{places}f}"
    return text.lstrip("+-") if not float(text.replace(",", "")) else text


def percent(value: float | None, places: int = 0, *, sign: bool = False) -> str:
    """A share in percent."""
    return NONE if value is None else f"{value:{'+' if sign else ''}.{places}%}"


def ends(found: Interval, show: Callable[[float], str] = number, *, between: str = ", ", none: str = "") -> str:
    """`low, high` of its interval; `none` where there is none."""
    if found.low is None or found.high is None:
        return none
    return f"{show(found.low)}{between}{show(found.high)}"


def with_ends(found: Interval | None, show: Callable[[float], str] = number, *, none: str = "") -> str:
    """`value [low, high]`; the value and `none` where there is no interval, a dash where there is no value."""
    if found is None:
        return NONE
    inside = ends(found, show)
    return show(found.value) + (f" [{inside}]" if inside else none)


def bounds(found: Interval, form: str) -> str:
    """`[low, high]` in a fixed format, for columns of text; the count where there is no interval."""
    inside = ends(found, partial(_in_form, form=form))
    return f"[{inside}]" if inside else f"(n = {found.n})"


def _in_form(value: float, form: str) -> str:
    return format(value, form)


def span(values: Sequence[int]) -> str:
    """`3` or `3 to 9`."""
    least, most = min(values), max(values)
    return f"{least}" if least == most else f"{least} to {most}"


def reach(found: Sequence[Interval]) -> list[list[float]]:
    """Distances from the values to the ends of their intervals, for error bars: [below, above], each [values]."""
    below = [0.0 if r.low is None else max(0.0, r.value - r.low) for r in found]
    above = [0.0 if r.high is None else max(0.0, r.high - r.value) for r in found]
    return [below, above]


def interval_of(rate: Mapping[str, Any] | None) -> Interval | None:
    """A rate of a cell's summary, {value, low, high, n}, as an Interval."""
    return None if rate is None else Interval(float(rate["value"]), rate["low"], rate["high"], rate["n"])
