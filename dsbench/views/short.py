"""`show --short`: a run in one table of 80 columns, one sentence and the path of its picture. Computes nothing."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsbench.analysis.summary import summary_frame
from dsbench.results.labels import arm_rank
from dsbench.results.store import RunStore

WIDTH = 80
HEAD = "{:<18} {:>4}  {:<11} {:>8} {:>8}  {:>7} {:>7}  {}"
WORDS = ("vs_fixed_word", "vs_none_word")
UNSAID = "-"


def print_short(run: Path) -> None:
    """Raises UsageError for a run without a finished cell."""
    store = RunStore(run)
    rows = [{str(name): value for name, value in row.items()} for row in summary_frame(store).to_dict("records")]
    label = "SIMULATED: " if (store.read_run().get("labels") or {}).get("simulated") else ""
    print(HEAD.format("workload", "R", "arm", "tokens/s", "per user", "/ none", "/ best", "vs best").rstrip())
    for row in sorted(rows, key=lambda r: (r["workload"], r["batch"], arm_rank(r["arm"]))):
        print(_line(row))
    print(textwrap.fill(f"{label}{sentence(rows)}", WIDTH))
    pictures = sorted((run / "plots").glob("frontier*.png"))
    if pictures:
        print(f"picture: {pictures[0]}")


def sentence(rows: Sequence[dict[str, Any]]) -> str:
    """What compact is against decoding without drafts and against the best fixed window, where they were run."""
    mine = [row for row in rows if row["mode"] == "compact"]
    if not mine:
        return "No compact arm was run."
    parts = []
    for base, name in (("vs_none", "no drafts"), ("vs_fixed", "the best fixed window")):
        ratios = {row["batch"]: row[base] for row in mine if _known(row.get(base))}
        if ratios:
            low, high = min(ratios, key=lambda r: ratios[r]), max(ratios, key=lambda r: ratios[r])
            least = f"{ratios[low]:.2f} (R = {low}) to " if low != high else ""
            parts.append(f"{least}{ratios[high]:.2f} (R = {high}) times as fast as {name}")
    if not parts:
        return "compact was compared with no other arm."
    flagged = sum(bool(row["flags"]) for row in rows)
    doubt = f"; {flagged} of {len(rows)} cells are flagged (!)" if flagged else ""
    return f"compact is {', '.join(parts)}{doubt}. More: dsbench show --wide"


def _line(row: dict[str, Any]) -> str:
    word = next((row[name] for name in WORDS if isinstance(row.get(name), str)), UNSAID)
    cells = (
        str(row["workload"])[:18],
        str(row["batch"]),
        (str(row["arm"]) + ("!" if row["flags"] else ""))[:11],
        *(_number(row.get(name), ".1f") for name in ("throughput", "user_speed")),
        *(_number(row.get(name), ".2f") for name in ("vs_none", "vs_fixed")),
        word,
    )
    return HEAD.format(*cells).rstrip()


def _known(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _number(value: Any, form: str) -> str:
    return format(value, form) if _known(value) else UNSAID
