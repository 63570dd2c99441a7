"""Counts kernel compilations in this process: one during a measurement would be part of the measured time."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from numba.core import event as numba_event

events: Any = numba_event


@dataclass(slots=True)
class CompileCount:
    """Grows by one with each kernel that Triton or numba compiles, or numba reads from its cache."""

    total: int = 0

    def saw(self, **_: Any) -> None:
        self.total += 1


class Listener(events.Listener):  # type: ignore[misc]
    """Counts numba's compilations as they begin, nested ones included."""

    def __init__(self, count: CompileCount) -> None:
        self.count = count

    def on_start(self, event: Any) -> None:
        self.count.saw()

    def on_end(self, event: Any) -> None:
        pass


@functools.cache
def compile_count() -> CompileCount:
    """The process-wide counter. Takes Triton's only compile hook; a hook that was set before still runs."""
    count = CompileCount()
    events.register("numba:compile", Listener(count))
    try:
        from triton import knobs
    except ImportError:
        return count
    before = knobs.runtime.jit_post_compile_hook

    def hook(**seen: Any) -> Any:
        count.saw()
        return None if before is None else before(**seen)

    knobs.runtime.jit_post_compile_hook = hook
    return count
