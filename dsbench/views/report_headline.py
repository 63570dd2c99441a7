"""A run in a few sentences: the planned arm against no drafts, the best fixed window and the oracle, with intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dsbench.analysis.frontier import Point
from dsbench.analysis.gains import FIXED, FIXED_OR_NONE, ORACLE, Gains
from dsbench.analysis.versus import Versus
from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, workload_text
from dsbench.stats.intervals import WORDS, Interval
from dsbench.views.frontier.tables import turns
from dsbench.views.numbers import ends, interval_of, number, with_ends

BASES = ("none", FIXED, FIXED_OR_NONE, ORACLE)


def sentences(
    cells: Sequence[StoredCell], points: Mapping[str, Sequence[Point]], arm: str, found: Sequence[Gains]
) -> list[str]:
    """The headline of one setting."""
    lines = [_best_of(cells)]
    lines += [line for base in BASES if (line := _counted(found, arm, base))]
    lines += _at_equal_service(found, arm)
    for workload, own in points.items():
        if arm != "none" and any(p.arm == "none" for p in own):
            mine = [p for p in own if p.arm in (arm, "none")]
            lines += [f"{workload_text(workload)}: {turns(mine, 'none')[0]}."]
    return lines


def _best_of(cells: Sequence[StoredCell]) -> str:
    """Which arm wrote most at the least and at the most load."""
    names = arm_names(cells)
    parts = []
    for batch in sorted({c.cell.batch for c in cells})[:: max(1, len({c.cell.batch for c in cells}) - 1)]:
        own = [c for c in cells if c.cell.batch == batch and c.summary.get("throughput")]
        if not own:
            continue
        best = max(own, key=lambda c: float(c.summary["throughput"]["value"]))
        rate = with_ends(interval_of(best.summary["throughput"]))
        place = f"R={batch} {names[best.folder]} on {workload_text(best.cell.workload)}"
        parts.append(f"at {place} ({rate} tokens/s)")
    return "Most tokens a second: " + ("; ".join(parts) or "no data") + "."


def _counted(found: Sequence[Gains], arm: str, base: str) -> str:
    """`compact against none: FASTER in 3 of 12 cells, ...; from 0.88 [..] (chat, R=256) to ...`."""
    known = [(one, one.over[base]) for one in found if base in one.over]
    if not known:
        return ""
    counts = Counter(versus.word for _, versus in known)
    words = ", ".join(f"{word} in {counts[word]}" for word in WORDS if counts[word])
    line = f"{arm} against {base}: {words} of {len(known)} cells; throughput {_span(known)}"
    bases = sorted({versus.basis for _, versus in known if versus.basis and "fixed" in base})
    if bases == ["the same data"]:
        return line + " (chosen and compared on the same data)."
    return line + (f" (chosen on {' or '.join(bases)}, compared on the other, both ways round)." if bases else ".")


def _span(known: Sequence[tuple[Gains, Versus]]) -> str:
    """The least and the most of them, with their places."""
    least, most = (pick(known, key=lambda item: item[1].ratio.value) for pick in (min, max))
    return _place(*least) if least[0] is most[0] else f"from {_place(*least)} to {_place(*most)}"


def _place(one: Gains, versus: Versus) -> str:
    return f"{ratio_text(versus.ratio)} ({workload_text(one.workload)}, R={one.batch})"


def ratio_text(ratio: Interval) -> str:
    """`1.23x [1.20, 1.30]`."""
    return f"{number(ratio.value)}x" + (f" [{inside}]" if (inside := ends(ratio)) else ", no interval")


def _at_equal_service(found: Sequence[Gains], arm: str) -> list[str]:
    lines = []
    for name, words in (
        ("at_throughput", "At none's throughput, per-user speed of {arm} is"),
        ("at_speed", "At none's per-user speed, throughput of {arm} is"),
    ):
        known = [(one, gain) for one in found if (gain := getattr(one, name)) is not None]
        if known:
            off = len(found) - len(known)
            lines.append(
                f"{words.format(arm=arm)} {_span(known)} of none's"
                + (f"; no data for {off} of {len(found)} points (off the measured curve)." if off else ".")
            )
    return lines
