"""Prints the results of `dsbench bench-kernels`: the ceilings, then op by op, worst size first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from dsbench.machine.kernel_time import Ceilings, Result
from dsbench.stats.intervals import Interval
from dsbench.views.numbers import bounds

HEADS = ("shape", "rows", "size", "us [95%]", "GB/s", "TFLOP/s", "limit us", "of limit", "reference / op", "notes")
LEFT = ("shape", "size", "us [95%]", "reference / op", "notes")
WIDTH = 138


def print_ceilings(ceilings: Ceilings, facts: Mapping[str, Any]) -> None:
    """One line each: this device's copy bandwidth and matrix rate, measured now."""
    print(f"{facts['environment']['device']}, {facts['dtype']}, {facts['repeats']} interleaved repeats")
    for name, value, unit, form in (
        ("copy, read + written", _scaled(ceilings.copy, 1e-9), "GB/s", ",.1f"),
        ("matrix product", _scaled(ceilings.matrix, 1e-12), "TFLOP/s", ",.3f"),
    ):
        print(f"{name:<22} {value.value:>10{form}} {bounds(value, form)} {unit}")


def print_results(found: Sequence[Result]) -> None:
    """A table, as wide as the terminal or WIDTH columns where there is none; below it what its notes mean."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    notes = list(dict.fromkeys(text for result in found for text in _notes(result)))
    table = Table(box=box.HORIZONTALS, padding=0, caption_justify="left")
    for head in HEADS:
        table.add_column(head, justify="left" if head in LEFT else "right", overflow="fold")
    for op in dict.fromkeys(result.op for result in found):
        group = sorted((r for r in found if r.op == op), key=lambda r: r.of_limit.value if r.of_limit else -1.0)
        table.add_row(f"[bold]{op}[/bold]")
        for i, result in enumerate(group):
            table.add_row(*_row(result, notes), end_section=i + 1 == len(group))
    table.caption = "\n".join(f"{i + 1}  {text}" for i, text in enumerate(notes))
    console.print(table)


def _row(result: Result, notes: Sequence[str]) -> list[str]:
    marks = ",".join(str(notes.index(text) + 1) for text in _notes(result))
    place = [result.shape, str(result.rows), result.label]
    if result.us is None or result.of_limit is None:
        return [*place, "WRONG" if result.wrong else "-", "", "", f"{result.limit_us:,.2f}", "", "", marks]
    ratio = "-" if result.ratio is None else f"{result.ratio.value:.2f} {bounds(result.ratio, '.2f')}"
    return [
        *place,
        f"{result.us.value:,.2f} {bounds(result.us, ',.2f')}",
        f"{result.gigabytes_per_second:,.1f}",
        f"{result.teraflops_per_second:,.3f}",
        f"{result.limit_us:,.2f}",
        f"{result.of_limit.value:.1%}",
        ratio,
        marks,
    ]


def _notes(result: Result) -> list[str]:
    """Notes on a row's numbers."""
    found = [*([result.wrong] if result.wrong else []), *result.notes]
    if result.us is not None and not result.exceeds_cache:
        found.append("inputs of all calls fit the cache together: their reads may be quicker than memory")
    return found


def _scaled(value: Interval, scale: float) -> Interval:
    low, high = (None if x is None else x * scale for x in (value.low, value.high))
    return Interval(value.value * scale, low, high, value.n)
