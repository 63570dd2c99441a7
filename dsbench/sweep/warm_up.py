"""Warm-up: unmeasured steps until their pace no longer changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.records import StepRecord
from dsbench.runtime.request import Request
from dsbench.runtime.watch.device_errors import named_device_errors

WINDOW = 8  # full steps
FULL = 0.9  # of the slots hold a request: where rounds overlap, prompts wait for each other a few rounds
FLAT = 0.03  # a change from window to window of less than this, or of less than its noise, is none
SIGMAS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """Result of a warm-up. `paces`: tokens/s of its windows, in order; `flat`: whether the last two agree."""

    steps: int
    seconds: float
    paces: tuple[float, ...]
    flat: bool


def warm_up(engine: Engine, requests: Iterable[Request], concurrency: int) -> WarmUp:
    """Runs `requests`, `concurrency` at a time, until the pace is flat or none is left to keep the slots full.

    Those still running then are left running. Seconds are those of the steps; prompts do not count. Raises
    EnvironmentRefused for a device that fails.
    """
    with named_device_errors():
        return _warm(engine, requests, concurrency)


def _warm(engine: Engine, requests: Iterable[Request], concurrency: int) -> WarmUp:
    source, waiting = iter(requests), list[Request]()
    full: list[StepRecord] = []
    seen = 0
    while True:
        room = concurrency - len(engine.running)
        waiting += islice(source, max(0, room - len(waiting)))
        if room > 0 and waiting:
            waiting = [*engine.admit(waiting[:room]), *waiting[room:]]
            if len(engine.running) < concurrency and not waiting:
                continue  # some ended at once, or none is left: the source says
        if len(engine.running) < concurrency:
            return _outcome(engine.steps, full)
        engine.step()
        fresh, seen = engine.steps[seen:], len(engine.steps)
        for record in fresh:
            full += [record] if record.requests >= FULL * concurrency else []
            if len(full) >= 2 * WINDOW and len(full) % WINDOW == 0 and is_flat(full):
                return _outcome(engine.steps, full)


def is_flat(steps: Sequence[StepRecord]) -> bool:
    """Whether the last window's pace is that of the one before, within FLAT or the noise of both."""
    if len(steps) < 2 * WINDOW:
        return False
    before, after = _pace(steps[-2 * WINDOW : -WINDOW]), _pace(steps[-WINDOW:])
    noise = math.hypot(before[1], after[1])
    return abs(math.log(after[0] / before[0])) <= max(FLAT, SIGMAS * noise)


def _pace(steps: Sequence[StepRecord]) -> tuple[float, float]:
    """Tokens/s of a window and the standard error of its logarithm, steps taken as independent."""
    seconds = [max(s.seconds - s.prefill_seconds, 1e-9) for s in steps]
    tokens = max(sum(s.delivered for s in steps), 1)
    pace = tokens / sum(seconds)
    off = [s.delivered - pace * t for s, t in zip(steps, seconds, strict=True)]
    return pace, math.sqrt(sum(x * x for x in off) * len(steps) / (len(steps) - 1)) / tokens


def _outcome(steps: Sequence[StepRecord], full: Sequence[StepRecord]) -> WarmUp:
    whole = len(full) - len(full) % WINDOW
    windows = [full[i : i + WINDOW] for i in range(0, whole, WINDOW)]
    return WarmUp(
        steps=len(steps),
        seconds=sum(s.seconds for s in steps),
        paces=tuple(_pace(w)[0] for w in windows),
        flat=is_flat(full[:whole]),
    )
