"""Who measures the repeats: this process, or workers that may die. No torch.

A worker has one device and one task at a time. Blocks are dealt to workers whole; a task whose worker dies is begun
again on another worker, so that what was lost is that one repeat.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dsbench.sweep.order import Block, Measured, Task

ATTEMPTS = 3  # a task that took this many workers with it is given up


class Bench(Protocol):
    """What measures repeats, one at a time, on one device."""

    def repeat(self, task: Task) -> Measured: ...


@dataclass(frozen=True, slots=True)
class Here:
    """A crew of one: this process."""

    bench: Bench

    def work(
        self, blocks: Sequence[Block], began: Callable[[Task], None], receive: Callable[[Task, Measured], None]
    ) -> list[Task]:
        for block in blocks:
            for task in block:
                began(task)
                receive(task, self.bench.repeat(task))
        return []


class Staff(Protocol):
    """Workers by number."""

    def hire(self) -> int:
        """A new worker."""

    def start(self, worker: int, task: Task) -> None:
        """Has an idle worker begin a task."""

    def wait(self) -> tuple[int, Measured | None]:
        """The next worker that ends its task, and the outcome; None: it died of it, or otherwise."""


@dataclass(frozen=True, slots=True)
class Workers:
    """A crew of `count` workers."""

    staff: Staff
    count: int

    def work(
        self, blocks: Sequence[Block], began: Callable[[Task], None], receive: Callable[[Task, Measured], None]
    ) -> list[Task]:
        waiting, given_up, deaths = deque(map(deque, blocks)), list[Task](), Counter[Task]()
        hands: dict[int, deque[Task]] = {}  # what each worker has left of its block, its present task first

        def deal(worker: int, block: deque[Task]) -> None:
            block = block or (waiting.popleft() if waiting else block)
            if block:
                hands[worker] = block
                began(block[0])
                self.staff.start(worker, block[0])

        for _ in range(min(self.count, len(blocks))):
            deal(self.staff.hire(), deque())
        while hands:
            worker, measured = self.staff.wait()
            block = hands.pop(worker)
            task = block.popleft()
            if measured is not None:
                receive(task, measured)
                deal(worker, block)
                continue
            deaths[task] += 1
            if deaths[task] < ATTEMPTS:
                block.appendleft(task)
            else:
                given_up.append(task)
            if block or waiting:
                deal(self.staff.hire(), block)
        return given_up
