"""Runs the missing repeats of a sweep in a random order, and stores what each leaves. No torch.

Arms of a (workload, batch size) are interleaved within a repeat, in random order: a block. A block stays on one device,
so that its arms are compared on the same one.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dsbench.analysis.summary import write_summary
from dsbench.errors import UsageError
from dsbench.results.contamination import repeat_flags
from dsbench.results.metrics import cell_summary
from dsbench.results.store import Cell, RunStore, StoredCell
from dsbench.within import Deadline

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One repeat of one cell: the unit that is lost and measured again when a worker dies."""

    key: str  # the cell's folder
    cell: Cell
    number: int  # of the repeat
    place: int  # in the sweep's order


Block = tuple[Task, ...]
FOREIGN = 50  # flips of 1,000 tokens; bfloat16 on short texts makes a few
Point = Sequence[tuple[str, Cell]]  # the arms of a (workload, batch size), with their keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The outcome of a repeat: its tables (steps, rounds, requests), facts for repeat.json, memory use so far."""

    tables: Mapping[str, pd.DataFrame]
    facts: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] | None = None


class Launcher(Protocol):
    """Measures tasks: in this process, or on workers elsewhere."""

    def work(
        self, blocks: Sequence[Block], began: Callable[[Task], None], receive: Callable[[Task, Measured], None]
    ) -> list[Task]:
        """Measures every task, and returns those it gave up. `began` and `receive` are called in this process."""


class Watcher(Protocol):
    """Follows the progress of a sweep."""

    def began(self, task: Task) -> None: ...

    def ended(self, task: Task, measured: Measured) -> None: ...


def order_of(points: Sequence[Point], *, repeats: int, seed: int) -> list[Block]:
    """Every repeat of every cell, once. Depends on its arguments alone, so that a resumed sweep has the same order."""
    blocks: list[Block] = []
    place = 0
    for point in points:
        for number in range(repeats):
            first = point[0][1]
            rng = random.Random(
                f"{seed} {first.workload} {first.batch} {number}" + (f" {first.rate}" if first.arrivals else "")
            )
            block = []
            for key, cell in rng.sample(list(point), len(point)):
                block.append(Task(key=key, cell=cell, number=number, place=place))
                place += 1
            blocks.append(tuple(block))
    return blocks


def order_facts(order: Sequence[Block]) -> list[dict[str, Any]]:
    """The order as run.json keeps it."""
    return [
        {
            "workload": b[0].cell.workload,
            "batch": b[0].cell.batch,
            "repeat": b[0].number,
            "modes": [task.cell.mode for task in b],
        }
        for b in order
    ]


@contextmanager
def writing(folder: Path, *, resume: bool, notice: Callable[[str], None]) -> Iterator[RunStore]:
    """Opens and locks the run's store; removes incomplete files of a killed process.

    Raises UsageError for a folder that cannot be written, holds a run unless that is resumed, or is being written to.
    """
    if (folder / "run.json").exists() and not resume:
        raise UsageError(f"{folder} already holds a run", hint="--resume goes on with it, or name another --out")
    store = RunStore(folder, create=True)
    try:
        with store.locked():
            for lost in store.mend():
                notice(f"{lost} could not be read: it is measured again")
            yield store
    finally:
        store.forget()


def missing(store: RunStore, points: Sequence[Point], repeats: int) -> int:
    """Repeats that are still to be measured."""
    return sum(len(set(range(repeats)) - store.repeats(key)) for point in points for key, _ in point)


def run_missing(
    store: RunStore,
    points: Sequence[Point],
    body: Mapping[str, Any],
    launcher: Launcher,
    watcher: Watcher,
    *,
    repeats: int,
    seed: int,
    blocks: Mapping[str, int],
    deadline: Deadline | None = None,
) -> tuple[list[Task], list[Block]]:
    """Writes run.json, measures the repeats that the store lacks, writes their cells and summary.csv.

    body: run.json; blocks: draft tokens a round by mode. Returns the tasks that were given up, and what is left out for
    the deadline's sake: then the first repeats of all points come before the second ones.
    """
    order = order_of(points, repeats=repeats, seed=seed)
    body, code = {**body, "order": order_facts(order)}, body.get("code", "")
    store.write_run(body)
    done = {key: set(store.repeats(key)) for point in points for key, _ in point}

    def finish_cell(key: str, cell: Cell) -> None:
        if done[key] >= set(range(repeats)):
            write_cell(store, key, cell, block=blocks[cell.mode], code=code)

    def receive(task: Task, measured: Measured) -> None:
        store.write_repeat(task.key, measured.tables, number=task.number, facts={"place": task.place, **measured.facts})
        done[task.key].add(task.number)
        finish_cell(task.key, task.cell)
        if measured.memory is not None:
            store.write_run({**body, "memory": measured.memory})
        watcher.ended(task, measured)

    for key, cell in itertools.chain(*points):
        if not store.tells(key, done[key], code):
            finish_cell(key, cell)
    left = [tuple(task for task in block if task.number not in done[task.key]) for block in order]
    left, pace = [block for block in left if block], Pace(deadline or Deadline())
    if pace.deadline.given:
        left.sort(key=lambda block: block[0].number)
        given_up = [lost for block in pace.fitting(left) for lost in launcher.work([block], watcher.began, receive)]
        for key, cell in itertools.chain(*points):
            if done[key] and not store.tells(key, done[key], code):
                write_cell(store, key, cell, block=blocks[cell.mode], code=code)
    else:
        given_up = launcher.work(left, watcher.began, receive)
    if store.cells():
        write_summary(store)
    return given_up, pace.left_out


class Pace:
    """How long blocks take, as they are measured; which of those to come still fit."""

    def __init__(self, deadline: Deadline) -> None:
        self.deadline = deadline
        self.left_out: list[Block] = []
        self._took: dict[tuple[str, int, float], list[float]] = {}  # seconds a task, by place

    def fitting(self, blocks: Sequence[Block]) -> Iterator[Block]:
        """Those that fit into what is left, and the first; each is measured before the next is asked for."""
        for i, block in enumerate(blocks):
            if i and self.seconds_of(block) > self.deadline.left():
                self.left_out.append(block)
                continue
            begin = self.deadline.clock()
            yield block
            took = (self.deadline.clock() - begin) / len(block)
            self._took.setdefault(_place(block), []).append(took)

    def seconds_of(self, block: Block) -> float:
        """As long a task as at its own place before; else as at the place most like it, more for a larger batch."""
        own = self._took.get(_place(block))
        if own:
            return len(block) * max(own)
        batch = block[0].cell.batch
        near = min(self._took, key=lambda place: abs(math.log(place[1] / batch)))
        return len(block) * max(self._took[near]) * max(1.0, batch / near[1])


def _place(block: Block) -> tuple[str, int, float]:
    cell = block[0].cell
    return cell.workload, cell.batch, cell.rate


def left_out_text(blocks: Sequence[Block]) -> str:
    """What a deadline left out, in words: repeats and batch sizes by workload."""
    found: dict[tuple[str, int], list[str]] = {}
    for block in blocks:
        load = f"batch {block[0].cell.batch}" + (f" at {block[0].cell.rate:g}/s" if block[0].cell.arrivals else "")
        found.setdefault((block[0].cell.workload, block[0].number), []).append(load)
    return "; ".join(f"{name}, repeat {n + 1}: {', '.join(loads)}" for (name, n), loads in found.items())


def write_cell(store: RunStore, key: str, cell: Cell, *, block: int, code: str) -> None:
    """The cell's numbers and flags from its repeats. block: draft tokens a round; code: digest of what was measured."""
    stored = StoredCell(folder=store.cell_folder(key), cell=cell, status="done", summary={}, flags=[])
    tables = [stored.table(name) for name in ("steps", "rounds", "requests")]
    summary = cell_summary(*tables, batch=cell.batch, block=block, open_loop=bool(cell.arrivals))
    flags = [*summary["flags"], *text_flags(summary), *repeat_flags(stored.facts())]
    store.write_cell(key, cell, summary, flags, code=code)


def text_flags(summary: Mapping[str, Any]) -> list[str]:
    """Rounding flips a token in some hundreds; a model whose pinned text is another's flips many of them."""
    flips = (summary.get("flips_per_1000") or {}).get("value")
    if flips is None or flips <= FOREIGN:
        return []
    return [f"the pinned text is not this model's: it would have written {flips:.0f} of 1,000 tokens otherwise"]
