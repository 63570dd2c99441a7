"""Seconds per phase. On a GPU each phase ends with a synchronisation, so that its time is its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

PHASES = ("draft", "plan", "pack", "verify", "accept", "commit")
HOLD = 800_000  # cycles: longer than a host takes to answer and to launch, .4 ms at 2 GHz


class PhaseTimer:
    """Wall-clock of named phases since the last `reset`. `now` counts from when the timer was made.

    `around`: what a phase, and the wait after it, run within.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.around: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext()
        self.reset()

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def reset(self) -> None:
        """All phases at 0: one that runs inside another, as in a captured graph, takes no time of its own."""
        self.seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        with self.around(name):
            yield
        if self._device.type == "cuda":
            with self.around("wait"):
                torch.cuda.synchronize(self._device)
        self.seconds[name] += time.perf_counter() - begin


class Clock:
    """Seconds of a loop since it was made: the wall's or, where it is `counted`, those it is told of, and no others."""

    def __init__(self, *, counted: bool = False) -> None:
        self._counted, self._seconds, self._origin = counted, 0.0, time.perf_counter()

    def now(self) -> float:
        return self._seconds if self._counted else time.perf_counter() - self._origin

    def count(self, seconds: float) -> None:
        self._seconds += seconds

    def rest(self, until: float) -> None:
        """Nothing happens until then."""
        if self._counted:
            self._seconds = max(self._seconds, until)
        else:
            sleep_until(self.now, until)


def sleep_until(now: Callable[[], float], until: float) -> None:
    """Lets the cores go until the clock says `until`; it wakes up late rather than early."""
    while (left := until - now()) > 0:
        time.sleep(left)


def hold(device: torch.device) -> None:
    """Keeps a device at work that counts for nothing, so that what its host launches meanwhile follows at once."""
    if device.type == "cuda":
        sleep: Any = torch.cuda._sleep
        sleep(HOLD)


Stamp = Any  # a CUDA event, or seconds


def stamp(device: torch.device) -> Stamp:
    """Now, in the order of the device's work."""
    if device.type != "cuda":
        return time.perf_counter()
    make: Any = torch.cuda.Event
    event = make(enable_timing=True)
    event.record()
    return event


def passed(mark: Stamp) -> bool:
    return isinstance(mark, float) or bool(mark.query())


def between(first: Stamp, last: Stamp) -> float:
    """Seconds between two stamps that have passed."""
    return last - first if isinstance(first, float) else float(first.elapsed_time(last)) / 1e3
