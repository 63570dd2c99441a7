"""On a CUDA device: replays of captured graphs do what the eager passes do, whatever tier ran before."""

from __future__ import annotations

import random

import pytest
import torch
from captured_runs import engine_of
from engine_runs import make_requests

from dsbench.kernels.compiles import compile_count
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.policy.plan import Blind, VerifyPlan

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", ["none", "static", "static:2", "no-trim", "compact", "cap-accept", "mtp:2"])
def test_graphs_write_the_eager_text(mode, temperature):
    texts = []
    for captured in (False, True):
        requests = make_requests(11, temperature=temperature, max_tokens=24)
        engine = engine_of(mode, 5, captured=captured)
        run_closed_loop(engine, requests, concurrency=5)
        texts.append([r.output for r in requests])
        engine.device.pool.check()
    assert texts[0] == texts[1]


@pytest.mark.parametrize("mode", ["none", "static", "compact", "mtp:2"])
def test_graphs_that_truncate_write_the_eager_text(mode):
    """Of requests with both bounds, with one and with none, some of them greedy."""

    def mixed():
        kinds = [{"top_k": 5, "top_p": 0.8}, {}, {"top_p": 0.6}, {"top_k": 3}, {"top_k": 4, "temperature": 0.0}]
        made = [make_requests(11, **({"temperature": 0.9, "max_tokens": 24} | kind)) for kind in kinds]
        return [made[i % len(kinds)][i] for i in range(11)]

    texts = []
    for captured in (False, True):
        requests = mixed()
        engine = engine_of(mode, 5, captured=captured, truncates=True)
        run_closed_loop(engine, requests, concurrency=5)
        texts.append([r.output for r in requests])
    assert texts[0] == texts[1]


class Dice(Blind):
    """Budgets and depths at random."""

    def __init__(self, block):
        self.dice, self.block = random.Random(0), block

    def choose(self, history):
        depth = self.dice.choice([0, 1, 2, 3, self.block])
        return VerifyPlan(depth=depth, budget=self.dice.randint(0, depth * len(history.rows)), reason="dice")


def test_alternating_tiers_changes_nothing_and_compiles_nothing():
    """Random depths and budgets, tiers in random order, requests coming and going."""
    wanted = make_requests(1300, temperature=0.8, max_tokens=20)
    plain = engine_of("none", 16)
    run_closed_loop(plain, wanted, concurrency=16)
    dice = random.Random(0)
    requests, steps = make_requests(1300, temperature=0.8, max_tokens=20), []
    first = engine_of("compact", 16, captured=True)
    first.policy.policy = Dice(first.device.block)
    before = compile_count().total
    run_closed_loop(first, requests, concurrency=16, on_step=steps.append)
    assert [r.output for r in requests] == [r.output for r in wanted]
    assert compile_count().total == before and sum(s.compiles for s in steps) == 0
    assert len({s.tier for s in steps}) > 5 and len(steps) >= 1000 and not first.policy.failure
    first.close()
    again = make_requests(300, temperature=0.8, max_tokens=20)
    for _ in range(3):
        engine = engine_of("static", 16, made=first.device)
        run_closed_loop(engine, again, concurrency=dice.choice([1, 3, 16]))
        assert [r.output for r in again] == [r.output for r in wanted[:300]]
        engine.close()
        again = make_requests(300, temperature=0.8, max_tokens=20)


def test_graphs_share_one_memory_pool():
    """All tiers together take little more than the largest one alone."""
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    engine = engine_of("compact", 64, captured=True)
    all_tiers = free - torch.cuda.mem_get_info()[0]
    assert len(engine.device.verify_graphs) > 15 and all_tiers < 2 << 30


def test_nobodys_page_may_hold_anything():
    wanted = make_requests(6, max_tokens=20)
    run_closed_loop(engine_of("none", 6), wanted, concurrency=6)
    engine = engine_of("compact", 4, captured=True)
    for kept in (*engine.device.pool.keys, *engine.device.pool.values):
        kept[-1] = float("nan")
    requests = make_requests(6, max_tokens=20)
    run_closed_loop(engine, requests, concurrency=4)
    assert [r.output for r in requests] == [r.output for r in wanted]
