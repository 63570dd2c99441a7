"""A comparison in sentences: one a cell, then the noise, then one line for all. Computes nothing but percents."""

from __future__ import annotations

from collections import Counter

from dsbench.analysis.compare import Compared, Comparison
from dsbench.analysis.noise_band import Band
from dsbench.results.labels import workload_text
from dsbench.stats.intervals import WORDS, Interval
from dsbench.views.numbers import number, percent


def report(found: Comparison) -> list[str]:
    """Lines for the terminal."""
    lines = [f"{result.word:<8} {sentence(result, found.labels)}" for result in found.results]
    lines += ["", f"noise band: {found.band.words()}; block noise from {found.prior}", *detectable(found)]
    lines += [f"note: {note}" for note in found.notes]
    return lines


def sentence(result: Compared, labels: tuple[str, str]) -> str:
    """`B is 3.1% [1.2, 5.0] faster than A at batch 64 on chat (8674 -> 8943 tokens/s)`."""
    a, b = labels
    cell, ratio = result.cell, result.measured.ratio
    where = f"at batch {cell.batch} on {workload_text(cell.workload)}"
    if result.modes[0] == result.modes[1] and not a.endswith(result.modes[0]):
        where += f", {result.modes[0]}"
    where += " ({} -> {} tokens/s)".format(*map(number, result.tokens_per_second))
    if result.word == "FASTER":
        return f"{b} is {_percent(ratio)} faster than {a} {where}"
    if result.word == "SLOWER":
        return f"{b} is {_percent(ratio, down=True)} slower than {a} {where}"
    change = _percent(ratio, sign=True)
    if result.word == "SAME":
        return f"{b} is as fast as {a} {where}: {change}"
    return f"{b} against {a} {where}: {change}"


def detectable(found: Comparison) -> list[str]:
    """The minimum detectable effect at these repeats."""
    sizes = sorted(r.measured.detectable for r in found.results if r.measured.detectable is not None)
    if not sizes:
        return []
    least, most = (min(r.measured.repeats[side] for r in found.results) for side in (0, 1))
    repeats = f"{least}" if least == most else f"{least} and {most}"
    seen = f"{_effect(sizes[len(sizes) // 2])} in the median cell, {_effect(sizes[-1])} in the noisiest"
    return [f"found 4 times in 5 at {repeats} repeats: a true difference of {seen}"]


def summary(found: Comparison) -> str:
    """One line, with the counts and what the exit code says."""
    counts = Counter(result.word for result in found.results)
    counted = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    many = len(found.results)
    cells = f"{many} cell{'s' if many > 1 else ''}"
    a, b = found.labels
    if found.exit_code == 3:
        return f"{b} against {a}: {cells}, {counted}: slower beyond noise"
    if found.exit_code == 4:
        doubtful = sum(result.could_be_slower for result in found.results)
        return f"{b} against {a}: {cells}, {counted}: inconclusive, {doubtful} could be slower"
    return f"{b} against {a}: {cells}, {counted}: none is slower beyond noise"


def band_line(band: Band) -> str:
    """What `dsbench noise` says of a band it measured."""
    return (
        f"{band.kind}: 95% of {band.pairs} A/A pairs of {', '.join(band.targets)} lie within {percent(band.value, 2)}, "
        f"half of them within {percent(band.median, 2)} ({band.repeats} repeats a side)"
    )


def _percent(ratio: Interval, *, down: bool = False, sign: bool = False) -> str:
    """The change in percent with its interval; `down`: as a loss."""

    def change(value: float) -> float:
        return (1 - value) if down else value - 1

    inside = [change(end) for end in (ratio.low, ratio.high) if end is not None]
    wide = f" [{', '.join(f'{100 * end:.1f}' for end in sorted(inside))}]" if len(inside) == 2 else ""
    return percent(change(ratio.value), 1, sign=sign) + wide


def _effect(size: float) -> str:
    return percent(size, 1) if size < 1 else f"{1 + size:.0f}x"
