"""What a comparison says of one drafter, into its folder: card.json and README.md. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsbench.acceptance import ALL
from dsbench.drafters_file import Comparison, DrafterEntry
from dsbench.errors import UsageError
from dsbench.intervals import Interval
from dsbench.profiles.card import card_text


def write_card(folder: Path, comparison: Comparison, entry: DrafterEntry) -> Path:
    """Rewrites the folder's README.md with what was measured. Raises UsageError for a folder without a card."""
    path = folder / "card.json"
    if not path.is_file():
        raise UsageError(f"drafter folder {folder} has no card.json", hint="only `dsbench train` writes one")
    card = json.loads(path.read_text()) | {"measured": measured(comparison, entry)}
    path.write_text(json.dumps(card, indent=1) + "\n")
    readme = folder / "README.md"
    readme.write_text(card_text(card))
    return readme


def measured(comparison: Comparison, entry: DrafterEntry) -> dict[str, Any]:
    """Accepted lengths of the drafter, acceptance by depth of it and of the others beside it, draft times of all."""
    rows = list(comparison.acceptances())
    lengths = [
        {
            "event": str(row.event), "workload": row.workload, "tau": _interval(row.tau), "rounds": row.rounds,
            "repetition": round(row.repetition, 4),
        }
        for drafter, row in rows
        if drafter is entry
    ]  # fmt: skip
    depths = [
        {
            "event": str(row.event), "drafter": drafter.name, "trials": list(row.trials),
            "conditional": [None if c is None else _interval(c) for c in row.conditional],
        }
        for drafter, row in rows
        if row.workload == ALL
    ]  # fmt: skip
    times = [
        {
            "device": t.environment.get("device", "unknown"), "executor": t.executor, "drafter": drafter.name,
            "batch": t.batch, "depth": t.depth, "milliseconds": _interval(t.milliseconds),
        }
        for drafter in comparison.drafters
        for t in drafter.times
        if t.what == "propose" and t.depth == drafter.block
    ]  # fmt: skip
    return {
        "conditions": dict(comparison.conditions), "workloads": comparison.workloads(), "lengths": lengths,
        "depths": depths, "times": times,
    }  # fmt: skip


def _interval(found: Interval) -> list[float | None]:
    return [None if x is None else round(x, 6) for x in (found.value, found.low, found.high)]
