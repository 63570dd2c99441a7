"""What run.json and cell.json must look like before anybody reads them: a damaged one is said in one line. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from dsbench.results.column import Column, Kind
from dsbench.results.columns import from_source
from dsbench.results.columns_rounds import ROUNDS
from dsbench.results.columns_speed import SPEED

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
VAST = 1e300  # no number of a run is larger
MEMORY = {  # of run.json's memory: keys that a table of it needs, with their types
    "weights": {"target": int, "drafter": int, "chain": int, "packed": int},
    "pools": [{"tokens": int, "drafter": str, "target_layers": int, "drafter_layers": int}],
    "executors": [{"kind": str, "depth": int, "requests": int, "passes": int, "state": int, "graphs": int}],
    "rest": int,
    "rest_is": str,
    "peak": int,
    "peak_is": str,
}
MAYBE = ("mtp_contract", "memory", "cost_table", "trace")  # or null


def run_fault(body: Mapping[str, Any]) -> str:
    """What is wrong with a run.json, in words; "" where nothing is. What it lacks was not known when it was written."""
    for name in (*PARTS, *MAYBE):
        part = body.get(name)
        if name in body and not (isinstance(part, dict) or (part is None and name in MAYBE)):
            return f"{name!r} is no object"
    if body.get("memory") and not _fits(body["memory"], MEMORY):
        return "'memory' is damaged"
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
    return summary_fault(body["summary"], from_source("summary"))


def summary_fault(body: Mapping[str, Any], columns: Iterable[Column]) -> str:
    """What is wrong with the numbers of a cell, or of a workload in it, in words; undeclared ones are not looked at."""
    for column in columns:
        if not _sound(column, body):
            return f"{'.'.join(column.keys)!r} of the summary is damaged"
    return ""


def column_fault(table: str, column: str, values: NDArray[Any]) -> str:
    """What is wrong with a column's values, in words."""
    if column not in NUMBERS[table] or (values.dtype.kind in "biuf" and np.isfinite(values).all()):
        return ""
    return f"{table}.parquet: {column!r} holds what is no number"


def _sound(column: Column, body: Mapping[str, Any]) -> bool:
    """Whether the body may hold what it does under the column; an object that is there has all its keys."""
    *objects, last = column.keys
    found: Any = body
    for key in objects:
        found = found.get(key)
        if found is None:
            return True
        if not isinstance(found, dict) or last not in found:
            return False
    value = found.get(last)
    return not column.always if value is None else _SHAPES[column.kind](value)


def _is_rate(value: object) -> bool:
    """{value, low, high, n}; low and high both null or none of them."""
    if not isinstance(value, dict) or not {"value", "low", "high", "n"} <= set(value):
        return False
    ends = (value["low"], value["high"])
    wide = ends == (None, None) or all(_is(end, float) for end in ends)
    return wide and _is(value["value"], float) and _is_count(value["n"])


def _is_count(value: object) -> bool:
    return _is(value, int) and value >= 0  # type: ignore[operator]


def _is_depths(value: object) -> bool:
    """[{depth, trials, rate}, ...]; rate may be null."""
    return isinstance(value, list) and all(
        isinstance(row, dict)
        and all(_is_count(row.get(key)) for key in ("depth", "trials"))
        and (row.get("rate") is None or _is_rate(row["rate"]))
        for row in value
    )


def _is_parts(value: object) -> bool:
    """{workload: the numbers of its own requests and rounds}."""
    own = [c for c in ROUNDS if c.kind != "parts"] + [c for c in SPEED if c.name in ("requests", "prompts")]
    return isinstance(value, dict) and all(isinstance(p, dict) and not summary_fault(p, own) for p in value.values())


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value has a shape: a type, an object with at least these keys, or a list of one shape."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and _fits(value[key], shape[key]) for key in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(part, shape[0]) for part in value)
    return _is(value, shape)


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is(value: object, kind: type) -> bool:
    if isinstance(value, int | float) and kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool) and -VAST < value < VAST
    return isinstance(value, kind)


_SHAPES: dict[Kind, Callable[[Any], bool]] = {
    "rate": _is_rate,
    "quantile": _is_rate,
    "number": lambda value: _is(value, float),
    "count": _is_count,
    "text": lambda value: isinstance(value, str),
    "counts": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "depths": _is_depths,
    "parts": _is_parts,
}
