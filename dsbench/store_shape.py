"""What run.json and cell.json must look like before anybody reads them: a damaged one is said in one line. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_type_hints

PARTS = ("config", "contract", "environment", "labels")  # of run.json
COLUMNS = {  # without which a table is another one
    "steps": {"step", "seconds"}, "rounds": {"step", "request", "delivered"}, "requests": {"name", "finished"},
}  # fmt: skip
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
    return ""


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
