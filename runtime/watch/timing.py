"""Phase timers, clocks and device stamps. On a GPU each timed phase ends with a synchronisation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

PHASES = ("draft", "plan", "pack", "verify", "accept", "commit")
HOLD = 800_000  # cycles, .4 ms at 2 GHz: longer than a host takes to launch


class PhaseTimer:
    """Wall-clock of named phases since the last `reset`. `now` counts from when the timer was made.

    `around`: a context manager entered for each phase and for the wait after it.
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
        """Sets all phases to 0."""
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
    """Seconds since it was made: wall-clock or, if `counted`, the sum of what was passed to `count`."""

    def __init__(self, *, counted: bool = False) -> None:
        self._counted, self._seconds, self._origin = counted, 0.0, time.perf_counter()

    def now(self) -> float:
        return self._seconds if self._counted else time.perf_counter() - self._origin

    def count(self, seconds: float) -> None:
        self._seconds += seconds

    def rest(self, until: float) -> None:
        """Sleeps until that second; a counted clock jumps to it."""
        if self._counted:
            self._seconds = max(self._seconds, until)
        else:
            sleep_until(self.now, until)


def sleep_until(now: Callable[[], float], until: float) -> None:
    """Sleeps until the clock reads `until` or a little later."""
    while (left := until - now()) > 0:
        time.sleep(left)


def hold(device: torch.device) -> None:
    """Occupies a CUDA device for HOLD cycles, so that work launched meanwhile runs back to back."""
    if device.type == "cuda":
        sleep: Any = torch.cuda._sleep
        sleep(HOLD)


Stamp = Any  # a CUDA event, or seconds


def stamp(device: torch.device) -> Stamp:
    """The current point in the device's stream: a recorded CUDA event, or host seconds on a CPU."""
    if device.type != "cuda":
        return time.perf_counter()
    make: Any = torch.cuda.Event
    event = make(enable_timing=True)
    event.record()
    return event


def passed(mark: Stamp) -> bool:
    """Whether the device has reached the stamp; does not wait."""
    return isinstance(mark, float) or bool(mark.query())


def between(first: Stamp, last: Stamp) -> float:
    """Seconds between two stamps; both must have passed."""
    return last - first if isinstance(first, float) else float(first.elapsed_time(last)) / 1e3
