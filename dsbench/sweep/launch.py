"""Launchers of a sweep: measure the repeats in this process, or on a pool of workers that may die. No torch.

A worker has one device and runs one task at a time. It is given a full block of tasks; a task whose worker dies is run
again on another worker, so that only that repeat is lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dsbench.sweep.order import Block, Measured, Task

ATTEMPTS = 3  # a task whose worker died this often is given up


class Bench(Protocol):
    """Measures repeats, one at a time, on one device."""

    def repeat(self, task: Task) -> Measured: ...


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Measures in this process."""

    bench: Bench

    def work(
        self, blocks: Sequence[Block], began: Callable[[Task], None], receive: Callable[[Task, Measured], None]
    ) -> list[Task]:
        for block in blocks:
            for task in block:
                began(task)
                receive(task, self.bench.repeat(task))
        return []


class WorkerPool(Protocol):
    """Workers, known by number."""

    def add(self) -> int:
        """Adds an idle worker; returns its number."""

    def start(self, worker: int, task: Task) -> None:
        """Starts a task on an idle worker."""

    def wait(self) -> tuple[int, Measured | None]:
        """Waits for the next worker that ends its task; returns its number and the outcome, None if it died."""


@dataclass(frozen=True, slots=True)
class PoolLauncher:
    """Measures on `count` workers of a pool; replaces those that die."""

    pool: WorkerPool
    count: int

    def work(
        self, blocks: Sequence[Block], began: Callable[[Task], None], receive: Callable[[Task, Measured], None]
    ) -> list[Task]:
        waiting, given_up, deaths = deque(map(deque, blocks)), list[Task](), Counter[Task]()
        assigned: dict[int, deque[Task]] = {}  # the rest of each worker's block, its current task first

        def deal(worker: int, block: deque[Task]) -> None:
            block = block or (waiting.popleft() if waiting else block)
            if block:
                assigned[worker] = block
                began(block[0])
                self.pool.start(worker, block[0])

        for _ in range(min(self.count, len(blocks))):
            deal(self.pool.add(), deque())
        while assigned:
            worker, measured = self.pool.wait()
            block = assigned.pop(worker)
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
                deal(self.pool.add(), block)
        return given_up
