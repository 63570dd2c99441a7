"""What casts doubt on a repeat besides its records: how it was warmed, what the machine did meanwhile. No torch.

Facts are those of repeat.json (`warm_up.py`, `machine.py`); a cell is flagged where any of its repeats is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

OTHERS = 0.05  # of the cores' time: other processes that take more are said
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?%?")
SLOWER = 0.9  # a clock that falls below this share of its highest within a repeat is said


def repeat_flags(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """In words, the worst repeat of each kind."""
    warm, machine = ([fact[name] for fact in facts if fact.get(name)] for name in ("warm_up", "machine"))
    flags = []
    unready = [w for w in warm if not w["flat"]]
    if unready:
        flags.append(f"not yet flat after {max(w['steps'] for w in unready)} steps of warm-up")
    busy = max((m["others"] for m in machine if m.get("others") is not None), default=0.0)
    if busy > OTHERS:
        flags.append(f"other processes took {busy:.0%} of the cores")
    crowd = max((m.get("gpu_processes") or 0 for m in machine), default=0)
    if crowd > 1:
        flags.append(f"{crowd} processes held the GPU")
    clocks = [m for m in machine if m.get("clock_low") and m.get("clock_high")]
    drop = min((m["clock_low"] / m["clock_high"] for m in clocks), default=1.0)
    if drop < SLOWER:
        flags.append(f"the clock fell to {drop:.0%} of its highest")
    reasons = sorted({reason for m in machine for reason in m.get("throttled", ())})
    return flags + ([f"throttled: {', '.join(reasons)}"] if reasons else [])


def flag_counts(flags_by_cell: Sequence[Sequence[str]]) -> list[str]:
    """Kinds of flags with the number of cells that have them, most first; of a number in them, its least and most."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for flags in flags_by_cell:
        for kind, flag in {NUMBER.sub("{}", flag): flag for flag in flags}.items():
            kinds[kind].append(flag)
    most = sorted(kinds.values(), key=len, reverse=True)
    return [f"{_spanned(flags)} ({len(flags)} cell{'s' * (len(flags) > 1)})" for flags in most]


def _spanned(flags: Sequence[str]) -> str:
    """Flags that differ in their numbers alone, as one."""
    spans = []
    for numbers in zip(*(NUMBER.findall(flag) for flag in flags), strict=True):
        ranked = sorted(set(numbers), key=lambda number: float(number.strip("%")))
        spans.append(" to ".join(ranked[:: max(1, len(ranked) - 1)]))
    return NUMBER.sub(lambda _: spans.pop(0), flags[0])


def flag_note(flags_by_cell: Sequence[Sequence[str]]) -> str:
    """One line for a picture or a table; empty where no cell is flagged."""
    flagged = sum(map(bool, flags_by_cell))
    kinds = "; ".join(flag_counts(flags_by_cell))
    return f"{flagged} of {len(flags_by_cell)} cells are flagged: {kinds}" if flagged else ""
