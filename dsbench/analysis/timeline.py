"""Some rounds of a run as spans, and what they come to: the device's idle gaps, a Chrome trace, plain numbers.

A view runs from the end of the device's last work of the round before it to the end of the last work of its last
round, so that it holds exactly `rounds` gaps between rounds; idle + busy = total. Seconds from the view's begin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dsbench.errors import DsbenchError
from dsbench.results.store import write_atomically
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.request import Request
from dsbench.runtime.watch.timeline import Span, Timeline

TICK = 5e-6  # seconds by which neighbours may seem to overlap: the device's clock counts in steps
COLD, WARM = 4, 8  # rounds before those that are shown: until kernels are compiled, until the loop runs ahead again


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`rounds` rounds of a run; spans lie within [0, seconds], those of a row in order and side by side.

    slack: seconds by which the rows of host and device may be off against each other.
    """

    name: str
    rounds: int
    seconds: float
    spans: tuple[Span, ...]
    slack: float = 0.0
    compiles: int = 0  # kernels compiled in these rounds: their times are then no times of a steady run

    def row(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.row == name]

    @property
    def gaps(self) -> list[tuple[float, float]]:
        """Begin and end of every stretch in which the device ran no phase."""
        ends = [0.0, *(s.end for s in self.row("device"))]
        begins = [*(s.begin for s in self.row("device")), self.seconds]
        return [(end, begin) for end, begin in zip(ends, begins, strict=True) if begin > end]

    @property
    def idle(self) -> float:
        return sum(end - begin for begin, end in self.gaps)

    @property
    def busy(self) -> float:
        return sum(s.end - s.begin for s in self.row("device"))

    @property
    def idle_a_round(self) -> float:
        return self.idle / self.rounds

    @property
    def idle_share(self) -> float:
        return self.idle / self.seconds


def view_rounds(
    engine: Engine, queue: Sequence[Request], *, batch: int, rounds: int, name: str, device: torch.device
) -> View:
    """Runs the queue at `batch` requests, and views `rounds` rounds after a warm-up.

    The clocks are set after the first rounds, which compile: events far apart in time are less exact.
    """
    waiting = _run_until(engine, queue, batch, COLD)
    timeline = Timeline(device)
    engine.record(timeline)
    first = COLD + WARM + engine.config.lag
    _run_until(engine, waiting, batch, first + rounds)
    spans, compiles = timeline.spans(), sum(s.compiles for s in engine.steps[first : first + rounds])
    engine.record(None)
    engine.close()
    view = view_of(spans, first=first, rounds=rounds, name=name, slack=timeline.slack)
    return replace(view, compiles=compiles)


def rounds_needed(rounds: int, lag: int) -> int:
    """Rounds that `view_rounds` launches at most."""
    return COLD + WARM + 2 * lag + rounds


def _run_until(engine: Engine, queue: Sequence[Request], batch: int, steps: int) -> list[Request]:
    """Keeps `batch` requests running until `steps` rounds have been read; returns those that still wait."""
    waiting = list(queue)
    while len(engine.steps) < steps:
        room = batch - len(engine.running)
        if room > 0 and waiting:
            waiting = engine.admit(waiting[:room]) + waiting[room:]
        if engine.running:
            engine.step()
        elif not waiting:
            raise DsbenchError(f"all requests ended before {steps} rounds were run", hint="give a larger --max-tokens")
    return waiting


def view_of(spans: Sequence[Span], *, first: int, rounds: int, name: str, slack: float = 0.0) -> View:
    """Rounds `first` (at least 1) and the `rounds - 1` after it; spans that reach over the view's ends are cut."""
    device = [s for s in spans if s.row == "device"]
    begin = max(s.end for s in device if s.round < first)
    end = max(s.end for s in device if s.round < first + rounds)
    cut = [
        replace(s, begin=max(s.begin, begin) - begin, end=min(s.end, end) - begin)
        for s in spans
        if s.end > begin and s.begin < end
    ]
    kept: list[Span] = []
    for span in sorted(cut, key=lambda s: (s.row, s.begin, s.end)):
        past = kept[-1].end if kept and kept[-1].row == span.row else 0.0
        assert span.begin - past > -TICK, f"{span.name} of round {span.round} begins before {kept[-1].name} has ended"
        kept.append(replace(span, begin=max(span.begin, past), end=max(span.end, past)))
    return View(name=name, rounds=rounds, seconds=end - begin, spans=tuple(kept), slack=slack)


ROWS = ("host", "device", "device idle")


def chrome_trace(views: Sequence[View], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Trace Event format, as Perfetto and chrome://tracing read it: a process a view, a thread a row, microseconds."""
    events: list[dict[str, Any]] = []
    for pid, view in enumerate(views, start=1):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": view.name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        for tid, row in enumerate(ROWS, start=1):
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": row}})
            events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
        for s in view.spans:
            events.append(_event(s.name, pid, s.row, s.begin, s.end) | {"args": {"round": s.round}})
        for begin, end in view.gaps:
            events.append(_event("idle", pid, ROWS[-1], begin, end))
    numbers = {view.name: numbers_of(view) for view in views}
    return {"displayTimeUnit": "ms", "otherData": {**facts, "views": numbers}, "traceEvents": events}


def _event(name: str, pid: int, row: str, begin: float, end: float) -> dict[str, Any]:
    """Both ends are rounded, so that neighbours still touch."""
    ts = round(begin * 1e6, 3)
    dur = round(max(0.0, round(end * 1e6, 3) - ts), 3)
    return {"ph": "X", "name": name, "cat": row, "pid": pid, "tid": ROWS.index(row) + 1, "ts": ts, "dur": dur}


def numbers_of(view: View) -> dict[str, float]:
    """What the view comes to: seconds, and the idle share of its rounds."""
    return {
        "rounds": view.rounds,
        "seconds": view.seconds,
        "busy_seconds": view.busy,
        "idle_seconds": view.idle,
        "idle_seconds_a_round": view.idle_a_round,
        "idle_share": view.idle_share,
        "compiles": view.compiles,
        "clock_slack_seconds": view.slack,
    }


def write_trace(views: Sequence[View], facts: Mapping[str, Any], path: Path) -> None:
    write_atomically(path, json.dumps(chrome_trace(views, facts), indent=1) + "\n")
