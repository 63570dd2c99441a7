"""A run's memory ledger (ledger.py) for a terminal. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

WEIGHTS = {"target": "target", "drafter": "drafter", "chain": "chain drafter", "packed": "copies laid out for oneDNN"}


def memory_table(body: Mapping[str, Any]) -> Table:
    """The ledger for a terminal, MiB; parts of nothing are left out."""
    table = Table(title="memory [MiB]", title_justify="left", box=box.HORIZONTALS, padding=(0, 1))
    table.add_column("part")
    table.add_column("of", overflow="fold")
    table.add_column("MiB", justify="right")
    for part, of, mebibytes in memory_rows(body):
        table.add_row(part, of, f"{mebibytes:,.1f}")
    return table


def memory_rows(body: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Part, of what, MiB; parts of nothing are left out."""
    rows: list[tuple[str, str, int]] = [("weights", words, body["weights"][name]) for name, words in WEIGHTS.items()]
    for pool in body["pools"]:
        where = f"{pool['tokens']} tokens, drafter {pool['drafter'][:12]}"
        rows.append(("KV pages", f"target's layers; {where}", pool["target_layers"]))
        rows.append(("KV pages", f"drafter's layers; {where}", pool["drafter_layers"]))
    for made in body["executors"]:
        where = f"{made['kind']}, depth {made['depth']}, {made['requests']} requests"
        rows.append(("draft state, seats", where, made["state"]))
        rows.append(("captured graphs", f"{where}: {made['passes']} passes", made["graphs"]))
    rows.append(("rest of the peak", body["rest_is"], body["rest"]))
    rows.append(("peak", body["peak_is"], body["peak"]))
    rows.append(("outside torch", "context, kernels, graphs' nodes, others", body.get("outside_torch", 0)))
    return [(part, of, count / 2**20) for part, of, count in rows if count]
