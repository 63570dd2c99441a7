"""Seconds per phase. On a GPU each phase ends with a synchronisation, so that its time is its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PhaseTimer:
    """Wall-clock of named phases since the last `reset`. `now` counts from when the timer was made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._origin = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        return time.perf_counter() - self._origin

    def reset(self) -> None:
        self.seconds = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
