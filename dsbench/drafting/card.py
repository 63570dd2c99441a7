"""Writes the results of a comparison into a drafter's folder: card.json and README.md. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsbench.analysis.acceptance import ALL
from dsbench.drafting.results_file import Comparison, DrafterEntry
from dsbench.errors import UsageError
from dsbench.profiles.card import card_text
from dsbench.profiles.files import write_whole
from dsbench.stats.intervals import Interval

CARD, README = "card.json", "README.md"
DAMAGED = "restore it, or leave --cards out"


def read_card(folder: Path) -> dict[str, Any]:
    """The folder's card less what was measured. Raises UsageError for a card that is missing or cannot be rewritten."""
    path, readme = folder / CARD, folder / README
    if not path.is_file():
        raise UsageError(f"drafter folder {folder} has no {CARD}", hint="only `dsbench train` writes one")
    if readme.is_dir():
        raise UsageError(f"cannot write {readme}: it is a folder")
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(card, dict):
            raise TypeError("it is no JSON object")
        kept = {name: value for name, value in card.items() if name != "measured"}
        card_text(kept).encode()
    except KeyError as problem:
        raise UsageError(f"{path} is damaged: field {problem} is missing", hint=DAMAGED) from None
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror}") from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        raise UsageError(f"{path} is damaged: {problem}", hint=DAMAGED) from None
    return kept


def write_card(folder: Path, comparison: Comparison, entry: DrafterEntry) -> Path:
    """Rewrites card.json and README.md with the measurements, each atomically. Raises as `read_card`."""
    card = read_card(folder) | {"measured": measured(comparison, entry)}
    text = card_text(card)
    write_whole(folder / CARD, json.dumps(card, indent=1) + "\n")
    write_whole(folder / README, text)
    return folder / README


def measured(comparison: Comparison, entry: DrafterEntry) -> dict[str, Any]:
    """Accepted lengths of the drafter, acceptance by depth of it and of the others beside it, draft times of all."""
    rows = list(comparison.acceptances())
    lengths = [
        {
            "event": str(row.event),
            "workload": row.workload,
            "tau": _interval(row.tau),
            "rounds": row.rounds,
            "repetition": round(row.repetition, 4),
        }
        for drafter, row in rows
        if drafter is entry
    ]
    depths = [
        {
            "event": str(row.event),
            "drafter": drafter.name,
            "trials": list(row.trials),
            "conditional": [None if c is None else _interval(c) for c in row.conditional],
        }
        for drafter, row in rows
        if row.workload == ALL
    ]
    times = [
        {
            "device": t.environment.get("device", "unknown"),
            "executor": t.executor,
            "drafter": drafter.name,
            "batch": t.batch,
            "depth": t.depth,
            "milliseconds": _interval(t.milliseconds),
        }
        for drafter in comparison.drafters
        for t in drafter.times
        if t.what == "propose" and t.depth == drafter.block
    ]
    return {
        "conditions": dict(comparison.conditions),
        "workloads": comparison.workloads(),
        "lengths": lengths,
        "depths": depths,
        "times": times,
    }


def _interval(found: Interval) -> list[float | None]:
    return [None if x is None else round(x, 6) for x in (found.value, found.low, found.high)]
