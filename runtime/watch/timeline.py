"""A timeline of host and device work on one clock: spans of named phases.

A span on the device lies between two stamps around the work that a phase issues (a replay, or an eager pass), so it
begins when the device is free for it and ends with its last kernel. On a CPU the device is the same thread. On CUDA
every span is an NVTX range too: ranges inside a captured region vanish on replay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dsbench.runtime.watch.timing import Stamp, between, stamp

Row = Literal["host", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A phase of a round: from `begin` to `end`, seconds on the timeline's clock."""

    row: Row
    name: str
    round: int
    begin: float
    end: float


class Timeline:
    """A recorder to hand to an engine (`record`), which sets `round`. Spans of a row never overlap.

    `slack`: largest error in seconds between the device's clock and the host's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.round = device, 0
        self._host: list[Span] = []
        self._marks: list[tuple[str, int, Stamp, Stamp]] = []
        self._nvtx: Any = torch.cuda.nvtx if device.type == "cuda" else None
        self._wait()
        stamp(device)  # the first event takes longer
        self._wait()
        before = time.perf_counter()
        self._zero = stamp(device)
        self._wait()
        after = time.perf_counter()
        if device.type != "cuda":
            before = after = self._zero
        self._origin, self.slack = (before + after) / 2, (after - before) / 2

    @contextmanager
    def span(self, name: str, *, device: bool = False) -> Iterator[None]:
        """Records a phase of the host; `device`: also the device time of the work it issues."""
        number = self.round
        if self._nvtx is not None:
            self._nvtx.range_push(f"{name} {number}")
        begin = time.perf_counter()
        first = stamp(self.device) if device else None
        try:
            yield
        finally:
            if device:
                self._marks.append((name, number, first, stamp(self.device)))
            end = time.perf_counter()
            self._host.append(Span(row="host", name=name, round=number, begin=self._at(begin), end=self._at(end)))
            if self._nvtx is not None:
                self._nvtx.range_pop()

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Records the device time of work issued inside a host span."""
        if self._nvtx is not None:
            self._nvtx.range_push(f"{name} {self.round}: device")
        first = stamp(self.device)
        try:
            yield
        finally:
            self._marks.append((name, self.round, first, stamp(self.device)))
            if self._nvtx is not None:
                self._nvtx.range_pop()

    def spans(self) -> list[Span]:
        """All spans, ordered by begin; synchronises the device."""
        self._wait()
        done = [
            Span(row="device", name=name, round=number, begin=between(self._zero, a), end=between(self._zero, b))
            for name, number, a, b in self._marks
        ]
        return sorted([*self._host, *done], key=lambda s: (s.begin, s.end))

    def _at(self, seconds: float) -> float:
        return seconds - self._origin

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def spanned(timeline: Timeline | None, name: str, *, device: bool = False) -> AbstractContextManager[None]:
    """`timeline.span` where there is a timeline, else a null context."""
    return nullcontext() if timeline is None else timeline.span(name, device=device)


def working(timeline: Timeline | None, name: str) -> AbstractContextManager[None]:
    """`timeline.work` where there is a timeline, else a null context."""
    return nullcontext() if timeline is None else timeline.work(name)
