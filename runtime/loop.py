"""Driving an engine at a fixed concurrency: slots are back-filled from one queue until what is measured has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dsbench.errors import UsageError
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.device_errors import named_device_errors
from dsbench.runtime.records import RequestRecord, RoundRecord, StepRecord
from dsbench.runtime.request import Request
from dsbench.runtime.timeline import Timeline


class Loop(Protocol):
    """What runs requests round by round: the engine that waits for each, or the overlapped one."""

    config: EngineConfig
    steps: list[StepRecord]
    finished: list[RequestRecord]

    @property
    def rounds(self) -> Sequence[RoundRecord]: ...

    @property
    def running(self) -> Sequence[Request]: ...

    def admit(self, requests: Sequence[Request]) -> list[Request]: ...

    def step(self) -> StepRecord | None: ...

    def cancel(self, request: Request) -> None:
        """Ends a running request where it is, between two steps; others are left alone."""

    def record(self, timeline: Timeline | None) -> None:
        """Tells the timeline of every phase from here on; None: nobody."""

    def close(self) -> None: ...


def run_closed_loop(
    engine: Loop,
    queue: Sequence[Request],
    *,
    concurrency: int,
    until: frozenset[int] | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
) -> None:
    """Keeps `concurrency` requests running, in queue order, until the requests `until` (all, if None) have finished.

    Requests still running then are left where they are: the engine is to be closed. Raises EnvironmentRefused for a
    device that fails.
    """
    if concurrency < 1:
        raise UsageError(f"batch must be >= 1, got {concurrency}")
    with named_device_errors():
        _run(engine, queue, concurrency, until, on_step)


def _run(
    engine: Loop, queue: Sequence[Request], concurrency: int, until: frozenset[int] | None,
    on_step: Callable[[StepRecord], None] | None,
) -> None:  # fmt: skip
    waiting = list(queue)
    open_ids = set(until if until is not None else (r.id for r in queue))
    seen = 0
    while open_ids:
        room = concurrency - len(engine.running)
        if room > 0 and waiting:
            refused = engine.admit(waiting[:room])
            assert engine.running or len(refused) < min(room, len(waiting)) or not refused, "no request fits the pool"
            waiting = refused + waiting[room:]
        if engine.running:
            record = engine.step()
            if on_step is not None and record is not None:
                on_step(record)
        open_ids -= {r.request for r in engine.finished[seen:]}
        seen = len(engine.finished)
        assert engine.running or waiting or not open_ids, f"requests {sorted(open_ids)[:5]} never finished"
