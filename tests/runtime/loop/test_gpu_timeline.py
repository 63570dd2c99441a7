"""On a CUDA device: one clock, less idle time with overlap, recording that asks nothing, memory within the peak."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from captured_runs import engine_of
from engine_runs import make_requests
from overlapped_runs import overlapped

from dsbench.analysis.timeline import view_rounds
from dsbench.deploy.tensor_bytes import bytes_of, graph_bytes, peak_bytes, pool_bytes
from dsbench.runtime.watch.timeline import Timeline

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")


def test_overlap_idles_less_than_a_wait_after_each_phase():
    views = []
    for engine in (overlapped("static", 2, device=CUDA), engine_of("static", 2, captured=True)):
        queue = make_requests(60, max_tokens=24)
        view = view_rounds(engine, queue, batch=2, rounds=12, name="x", device=CUDA)
        views.append(view)
        for row in ("host", "device"):
            assert all(a.end <= b.begin for a, b in pairwise(view.row(row)))
        assert view.idle + view.busy == pytest.approx(view.seconds) and view.slack < 2e-4
        verifies = [s for s in view.row("device") if s.name == "verify"]
        assert [s.round for s in verifies] == list(range(verifies[0].round, verifies[0].round + 12))
        launched = {s.round: s.begin for s in view.row("host") if s.name == "verify"}
        for s in verifies:  # no work before its launch, as far as the clocks agree
            assert s.begin >= launched.get(s.round, 0.0) - view.slack - 1e-4
    assert views[0].idle_share < views[1].idle_share


def test_recording_waits_for_nothing():
    engine, queue = overlapped("compact", 4, device=CUDA), make_requests(80, max_tokens=24)
    waiting = engine.admit(queue[:4]) + queue[4:]
    for _ in range(5):
        engine.step()
    timeline = Timeline(CUDA)
    engine.record(timeline)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(50):
            room = 4 - len(engine.running)
            waiting = engine.admit(waiting[:room]) + waiting[room:]
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert timeline.spans()
    engine.close()


def test_graphs_and_slots_are_within_the_peak():
    engine = overlapped("static", 4, device=CUDA)
    graphs, state = graph_bytes(engine.device.graph_pool), bytes_of(engine.device.slots)
    assert graphs > 0 and state > 0
    assert graphs + state + sum(pool_bytes(engine.device.passes.models)) <= peak_bytes(CUDA)
    engine.close()
