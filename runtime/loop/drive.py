"""Driving an engine: slots are back-filled from one queue until what is measured has ended.

The closed loop has everybody waiting from the start, so that its slots are always full; in the open loop a request may
take a slot once it has come, whether the engine is ready for it or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsbench.errors import UsageError
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.records import StepRecord
from dsbench.runtime.request import Request
from dsbench.runtime.watch.device_errors import named_device_errors


def run_closed_loop(
    engine: Engine,
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
    run_open_loop(engine, queue, [0.0] * len(queue), concurrency=concurrency, until=until, on_step=on_step)


def run_open_loop(
    engine: Engine,
    queue: Sequence[Request],
    arrivals: Sequence[float],
    *,
    concurrency: int,
    until: frozenset[int] | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
) -> list[float]:
    """Like the closed loop, but request i comes `arrivals[i]` seconds after the start; they never fall.

    Those that find `concurrency` requests running wait in order. Returns when each came by the schedule, in seconds on
    the engine's clock: the engine may be late for it, and latencies count from there.
    """
    if concurrency < 1:
        raise UsageError(f"batch must be >= 1, got {concurrency}")
    begin = engine.now()
    times = [begin + seconds for seconds in arrivals]
    with named_device_errors():
        _run(engine, queue, times, concurrency, until, on_step)
    return times


def _run(
    engine: Engine,
    queue: Sequence[Request],
    times: Sequence[float],
    concurrency: int,
    until: frozenset[int] | None,
    on_step: Callable[[StepRecord], None] | None,
) -> None:
    open_ids = set(until if until is not None else (r.id for r in queue))
    waiting: list[Request] = []
    come = seen = 0
    while open_ids:
        now = engine.now() if come < len(queue) else 0.0
        while come < len(queue) and times[come] <= now:
            waiting.append(queue[come])
            come += 1
        room = concurrency - len(engine.running)
        if room > 0 and waiting:
            refused = engine.admit(waiting[:room])
            assert engine.running or len(refused) < min(room, len(waiting)) or not refused, "no request fits the pool"
            waiting = refused + waiting[room:]
        if engine.running:
            record = engine.step()
            if on_step is not None and record is not None:
                on_step(record)
        elif come < len(queue) and not waiting:
            engine.rest(times[come])
        open_ids -= {r.request for r in engine.finished[seen:]}
        seen = len(engine.finished)
        there = engine.running or waiting or come < len(queue)
        assert there or not open_ids, f"requests {sorted(open_ids)[:5]} never finished"
