"""What run.json and cell.json must look like before anybody reads them: a damaged one is said in one line. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from dsbench.results.latency import PERCENTILES

PARTS = ("config", "contract", "environment", "labels")  # of run.json
COLUMNS = {  # without which a table is another one
    "steps": {"step", "seconds"},
    "rounds": {"step", "request", "delivered"},
    "requests": {"name", "finished"},
}
NUMBERS = {  # columns of nothing else, wherever they are
    "steps": {"step", "seconds"},
    "rounds": {"step", "request", "delivered"},
    "requests": {"admitted", "first_token", "finished", "output_tokens"},
}
RATES = {  # of a summary: a value with its interval, or null
    "throughput",
    "user_speed",
    "user_speed_p10",
    "tau",
    "accepted",
    "window",
    "ceiling",
    "utilisation",
    "flips_per_1000",
    *PERCENTILES,
}
FIGURES = {  # a number, or null
    "requests",
    "prompts",
    "repeats",
    "output_tokens",
    "rounds",
    "repetition",
    "ceiling_seen",
    "steps",
    "full_steps",
    "fallback_steps",
    "rows_per_step",
    "padding_share",
    "idle_share",
    "extrapolated_share",
    "missed_steps",
    "compiled_steps",
}
OBJECTS = {"step_seconds", "phase_share", "drift"}  # or null
VAST = 1e300  # no number of a run is larger
MAYBE = ("mtp_contract", "memory", "cost_table", "trace")  # or null


def run_fault(body: Mapping[str, Any]) -> str:
    """What is wrong with a run.json, in words; "" where nothing is. What it lacks was not known when it was written."""
    for name in (*PARTS, *MAYBE):
        part = body.get(name)
        if name in body and not (isinstance(part, dict) or (part is None and name in MAYBE)):
            return f"{name!r} is no object"
    sets = body.get("workloads", [])
    named = isinstance(sets, list) and all(isinstance(w, dict) and {"name", "digest"} <= set(w) for w in sets)
    return "" if named else "'workloads' is no list of workloads"


def cell_fault(body: Any, kind: type) -> str:
    """What is wrong with a cell.json whose parameters are fields of the dataclass `kind`, in words."""
    if not isinstance(body, dict):
        return "it is no object"
    for name, wanted in (("parameters", dict), ("summary", dict), ("flags", list), ("status", str)):
        if not isinstance(body.get(name), wanted):
            return f"{name!r} is no {wanted.__name__}"
    if not all(isinstance(flag, str) for flag in body["flags"]):
        return "a flag is no text"
    given, types = body["parameters"], _types(kind)
    for field in fields(kind):
        if field.name not in given:
            if field.default is MISSING:
                return f"it lacks the parameter {field.name!r}"
        elif not _is(given[field.name], types[field.name]):
            return f"parameter {field.name!r} is no {types[field.name].__name__}"
    return next(
        (f"{name!r} of the summary is damaged" for name, x in body["summary"].items() if not _told(name, x)), ""
    )


def column_fault(table: str, column: str, values: NDArray[Any]) -> str:
    """What is wrong with a column's values, in words."""
    if column not in NUMBERS[table] or (values.dtype.kind in "biuf" and np.isfinite(values).all()):
        return ""
    return f"{table}.parquet: {column!r} holds what is no number"


def _told(name: str, value: object) -> bool:
    """Whether a summary may hold the value under this name."""
    if value is None or name not in RATES | FIGURES | OBJECTS:
        return True
    if name in FIGURES:
        return _is(value, float)
    if name in OBJECTS or not isinstance(value, dict):
        return isinstance(value, dict)
    ends = (value[key] for key in ("low", "high") if value.get(key) is not None)
    return all(_is(x, float) for x in (value.get("value"), *ends))


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is(value: object, kind: type) -> bool:
    if isinstance(value, int | float) and kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool) and -VAST < value < VAST
    return isinstance(value, kind)
