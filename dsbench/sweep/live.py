"""Progress of a sweep on stderr: a table on a terminal, elsewhere one line a repeat."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from dsbench.results.cells import Cell
from dsbench.results.metrics import AFTER_A_FAILURE, held_slots, measured
from dsbench.results.open_loop import open_rates
from dsbench.results.step_numbers import fallbacks
from dsbench.sweep.order import Measured, Task
from dsbench.writing import note

RUNNING, WAITING = "...", "-"


class Lines:
    """A line for each repeat that ended: tokens/s of its cell by the repeats so far, as the run's table has it."""

    def __init__(self) -> None:
        self._seen: dict[str, list[Measured]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        pass

    def began(self, task: Task) -> None:
        pass

    def ended(self, task: Task, measured: Measured) -> None:
        cell = task.cell
        self._seen.setdefault(task.key, []).append(measured)
        pace = pace_of(self._seen[task.key], cell)
        note(
            f"{cell.workload:>10}  batch {cell.batch:<3} {cell.mode:<12} repeat {task.number + 1}: {pace:7.1f} tokens/s"
        )
        _tell_failures(measured)


class Grid:
    """The table of the current workload: a row a batch size, a column an arm, tokens/s of the repeats so far.

    total: repeats to run.
    """

    def __init__(self, console: Console, modes: Sequence[str], batches: Sequence[int], *, total: int) -> None:
        self._modes, self._batches, self._total = modes, batches, total
        self._workload, self._seen = "", dict[tuple[str, int, str], list[Measured]]()
        self._paces: dict[tuple[str, int, str], float] = {}
        self._running: set[tuple[str, int, str]] = set()
        self._begin, self._ended = time.monotonic(), 0
        self._live = Live(console=console, auto_refresh=False, transient=True, get_renderable=self.table)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *why: object) -> None:
        self._live.stop()

    def began(self, task: Task) -> None:
        self._workload = task.cell.workload
        self._running.add(_place(task))
        self._live.refresh()

    def ended(self, task: Task, measured: Measured) -> None:
        self._ended += 1
        self._running.discard(_place(task))
        self._seen.setdefault(_place(task), []).append(measured)
        self._paces[_place(task)] = pace_of(self._seen[_place(task)], task.cell)
        _tell_failures(measured)
        self._live.refresh()

    def table(self) -> Group:
        minutes = (time.monotonic() - self._begin) / 60
        left = f", about {minutes / self._ended * (self._total - self._ended):.0f} min left" if self._ended else ""
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("R", justify="right")
        for mode in self._modes:
            table.add_column(mode, justify="right")
        for batch in self._batches:
            table.add_row(str(batch), *(self._text((self._workload, batch, mode)) for mode in self._modes))
        return Group(f"{self._workload}: tokens/s, {self._ended} of {self._total} repeats{left}", table)

    def _text(self, place: tuple[str, int, str]) -> str:
        pace = self._paces.get(place)
        return (("" if pace is None else f"{pace:.0f}") + (RUNNING if place in self._running else "")) or WAITING


def progress(modes: Sequence[str], batches: Sequence[int], *, total: int) -> Grid | Lines:
    """A grid where stderr is a terminal, lines where it is not. total: repeats to run."""
    console = Console(stderr=True)
    return Grid(console, modes, batches, total=total) if console.is_terminal else Lines()


def pace_of(repeats: Sequence[Measured], cell: Cell) -> float:
    """Tokens/s of the cell by these repeats: the number that the run's table will show."""
    import pandas as pd

    steps, served = (
        pd.concat([m.tables[name].assign(rep=i) for i, m in enumerate(repeats)], ignore_index=True)
        for name in ("steps", "requests")
    )
    if cell.arrivals:
        rate = open_rates(measured(served), steps)["throughput"]
        return float(rate["value"]) if rate else 0.0
    return cell.batch * held_slots(served).speed


def _tell_failures(measured: Measured) -> None:
    steps = measured.tables["steps"]
    failed, what = fallbacks(steps)
    if failed:
        note(f"{failed} of {len(steps)} steps {AFTER_A_FAILURE}: {what}")


def _place(task: Task) -> tuple[str, int, str]:
    return task.cell.workload, task.cell.batch, task.cell.mode
