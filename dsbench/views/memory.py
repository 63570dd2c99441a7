"""What took a run's memory, as deploy's memory.py counts it: the table and its section of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsbench.views.report_parts import Section
from dsbench.views.tables import Table

WEIGHTS = {"target": "target", "drafter": "drafter", "chain": "chain drafter", "packed": "copies laid out for oneDNN"}
HEADS = ("part", "of", "MiB")


def memory_table(body: Mapping[str, Any]) -> Table:
    """A row a part; parts of nothing are left out."""
    rows: list[tuple[str, str, int]] = [("weights", words, body["weights"][name]) for name, words in WEIGHTS.items()]
    for pool in body["pools"]:
        where = f"{pool['tokens']} tokens, drafter {pool['drafter'][:12]}"
        rows.append(("KV pages", f"target's layers; {where}", pool["target_layers"]))
        rows.append(("KV pages", f"drafter's layers; {where}", pool["drafter_layers"]))
    for made in body["executors"]:
        where = f"{made['kind']}, depth {made['depth']}, {made['requests']} requests"
        rows.append(("draft state, slots", where, made["state"]))
        rows.append(("captured graphs", f"{where}: {made['passes']} passes", made["graphs"]))
    rows.append(("rest of the peak", body["rest_is"], body["rest"]))
    rows.append(("peak", body["peak_is"], body["peak"]))
    rows.append(("outside torch", "context, kernels, graphs' nodes, others", body.get("outside_torch", 0)))
    found = tuple((part, of, count / 2**20) for part, of, count in rows if count)
    return Table(name="memory", caption="memory [MiB]", heads=HEADS, rows=found)


def memory_section(run: Mapping[str, Any]) -> Section:
    """The memory of a run whose run.json keeps it."""
    body = run.get("memory")
    if not body:
        return Section(id="memory", title="Memory", text=("This run keeps no memory.",))
    return Section(id="memory", title="Memory", tables=(memory_table(body),))
