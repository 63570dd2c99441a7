"""On a CUDA device: the overlapped loop writes the plain one's texts, and asks the device nothing."""

from __future__ import annotations

import pytest
import torch
from captured_runs import engine_of
from engine_runs import make_requests
from overlapped_runs import finish, overlapped
from tiny_churns import tiny_churn

from dsbench.kernels.compiles import compile_count
from dsbench.runtime.loop.drive import run_closed_loop, run_open_loop

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", ["none", "static", "static:2", "no-trim", "compact", "cap-accept", "mtp:2"])
def test_overlapped_rounds_write_the_eager_text(mode, temperature):
    wanted = make_requests(23, temperature=temperature, max_tokens=24)
    run_closed_loop(engine_of("none", 5), wanted, concurrency=5)
    for lag in (0, 2):
        requests = make_requests(23, temperature=temperature, max_tokens=24)
        engine = overlapped(mode, 5, lag=lag, device=CUDA)
        assert finish(engine, requests, 5) == [r.output for r in wanted]
        assert all(s.seconds > 0 and s.verify_seconds > 0 for s in engine.steps)


@pytest.mark.parametrize("mode", ["compact:oracle", "cap-accept:oracle"])
def test_an_oracle_grants_what_its_text_takes(mode):
    """The text is another in places, and the oracle knows it."""
    texts = make_requests(23, temperature=0.8, max_tokens=24)
    run_closed_loop(engine_of("none", 5), texts, concurrency=5)
    requests = make_requests(23, temperature=0.8, max_tokens=24)
    for request, other in zip(requests, texts, strict=True):
        request.canonical = [t if i % 9 else (t + 1) % 64 for i, t in enumerate(other.output)]
    engine = overlapped(mode, 5, device=CUDA, recorded=24)
    assert finish(engine, requests, 5) == [r.canonical for r in requests]
    assert all(r.window <= r.accepted for r in engine.rounds) and any(r.window for r in engine.rounds)


def test_two_hundred_steady_steps_ask_the_device_nothing_and_compile_nothing():
    """Requests come and go all the while."""
    engine, queue = overlapped("compact", 8, device=CUDA, tokens=64), make_requests(400, max_tokens=24)
    engine.admit(queue[:8])
    for _ in range(5):
        engine.step()
    waiting, before, finished = queue[8:], compile_count().total, len(engine.finished)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(200):
            room = 8 - len(engine.running)
            waiting = engine.admit(waiting[:room]) + waiting[room:]
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert compile_count().total == before and len(engine.finished) > finished + 50 and waiting
    engine.close()
    assert engine.device.pool.free_pages == engine.device.pool.shape.pages


@pytest.mark.parametrize("mode", ["compact", "static", "cap-accept"])
def test_a_thousand_requests_that_come_and_go_at_random_write_their_solo_texts(mode):
    """Here results are truly under way while seats and pages change hands."""
    other, rounds = tiny_churn(mode, 1000, device=CUDA)
    assert other <= rounds // 500, "a few drafts may turn on the last bits"


@pytest.mark.parametrize("mode", ["static", "compact"])
def test_a_pause_between_requests_is_no_rounds_time(mode):
    wanted = make_requests(5, temperature=0.8, max_tokens=24)
    run_closed_loop(engine_of("none", 5), wanted, concurrency=5)
    requests, engine = make_requests(5, temperature=0.8, max_tokens=24), overlapped(mode, 2, device=CUDA)
    came = run_open_loop(engine, requests, [0, 0, 0, 3.0, 3.0], concurrency=2)
    assert [r.output for r in requests] == [r.output for r in wanted]
    assert all(r.admitted >= came[r.request] for r in engine.finished)
    assert max(s.idle_seconds for s in engine.steps) < 1 and min(s.seconds for s in engine.steps) > 0
    assert max(s.seconds for s in engine.steps) < 1
    engine.close()
