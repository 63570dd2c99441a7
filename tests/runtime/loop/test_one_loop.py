"""One loop: eager, captured and virtual devices have the same rounds, plans and records."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from engine_runs import run
from hypothesis import given, settings
from hypothesis import strategies as st
from overlapped_runs import overlapped
from replays import replayed, toy_trace, wide
from tiny import tiny_target
from toys import staircase_table

import dsbench.runtime
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.random import random_drafter
from dsbench.runtime.loop import engine as engine_module
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.loop.scheduler import CAPTURED_PROMPTS, CHUNKS, eager_prompts
from dsbench.runtime.loop.virtual import VirtualDevice
from dsbench.runtime.policy.calibrated import Calibrated
from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.make import depths_of, make_policy
from dsbench.runtime.policy.prices import Prices
from dsbench.simulate.costs import Costs

CONTEXT = 256  # of tiny_target
CHUNK = 7


def virtual_engine(mode, batch, table, block, *, lag=0, exact=True):
    arm = parse_arm(mode)
    calibrated = Calibrated(None, "coupled", block)
    device = VirtualDevice(
        Costs(table=table),
        arm,
        block,
        slots=batch,
        context=CONTEXT,
        maps=calibrated.maps,
        prompts=eager_prompts(CHUNK) if exact else CAPTURED_PROMPTS,
        chunks=CHUNKS,
        exact=exact,
    )
    prices = Prices(table, block, depths_of(arm, block))
    return Engine(device, arm, make_policy(arm, prices, "coupled"), prices, calibrated, EngineConfig(lag=lag))


def table_of(batch, block, *, slot=2e-3, draft=0.0):
    return replace(staircase_table(batch, block), depth_bias=slot, draft_bias=draft)


def _told(plan):
    return replace(plan, window=None if plan.window is None else plan.window.tolist())


def rounds_of(engine):
    """What was planned for each round, and what came of it: all but times."""
    sure = engine.arm.policy == "oracle"  # a torch device records its certainties, a virtual one the trace
    plans = [
        (_told(one.round.launched.plan), one.round.launched.tier, one.round.context, len(one.round.slots))
        for one in engine._completed
    ]
    assert all(math.isfinite(x) for record in engine.rounds for x in record.logits)
    records = [
        replace(
            r, logits=() if sure else r.logits, token_free_logits=np.float32(r.token_free_logits).astype(str).tolist()
        )
        for r in engine.rounds
    ]  # as text, since nan equals nothing
    steps = [
        (
            s.requests,
            s.occupied,
            s.budget,
            s.rows,
            s.tier,
            s.padding,
            s.delivered,
            s.confidence_age,
            s.priors,
            s.zombies,
        )
        for s in engine.steps
    ]
    return plans, records, steps


@pytest.mark.parametrize("lag", [0, 3])
@pytest.mark.parametrize(
    ("mode", "slot", "draft"),
    [
        ("compact", 2e-3, 0.0),
        ("compact", 0.2, 1.0),
        ("static", 0.0, 0.0),
        ("static:2", 0.0, 0.0),
        ("no-trim", 0.0, 0.0),
        ("compact:latency", 2e-3, 0.0),
        ("compact:free", 2e-3, 0.0),
        ("compact:early-stop", 2e-3, 0.0),
        ("compact:threshold=0.4", 0.0, 0.0),
        ("compact:oracle", 2e-3, 0.0),
        ("cap-accept", 2e-3, 0.0),
        ("cap-accept:oracle", 2e-3, 0.0),
    ],
)
def test_a_virtual_device_has_the_eager_ones_rounds(mode, slot, draft, lag):
    """Plans, windows, tokens and records, round by round, from the text and the trace alone."""
    trace, batch, target = wide(toy_trace()), 3, tiny_target()
    drafter = random_drafter(target)
    table = table_of(batch, drafter.block, slot=slot, draft=draft)
    mine = replayed(trace, target, tokens=17, size=11)
    real = run(mode, mine, batch=batch, lag=lag, target=target, drafter=drafter, table=table)
    again = replayed(trace, target, tokens=17, size=11)
    virtual = virtual_engine(mode, batch, table, drafter.block, lag=lag)
    run_closed_loop(virtual, again, concurrency=batch)
    assert [r.output for r in again] == [r.output for r in mine]
    assert [(r.finish_reason, r.rounds) for r in again] == [(r.finish_reason, r.rounds) for r in mine]
    for theirs, own in zip(rounds_of(real), rounds_of(virtual), strict=True):
        assert len(theirs) == len(own)
        for number, (one, two) in enumerate(zip(theirs, own, strict=True)):
            assert one == two, number
    assert not real.steps[-1].fallback and not virtual.steps[-1].fallback
    depths = {one.round.launched.plan.depth for one in real._completed}
    assert len(depths) > 1 or mode not in ("compact", "compact:free", "compact:oracle"), depths


@pytest.mark.parametrize("mode", ["compact", "static", "no-trim", "compact:oracle", "cap-accept"])
def test_a_virtual_device_has_the_captured_ones_rounds(mode):
    """Of the same tiers, and prompts that wait for each other."""
    trace, batch, target = wide(toy_trace()), 3, tiny_target()
    real = overlapped(mode, batch, lag=3, recorded=20, replayed=True, slot=2e-3)
    block = real.device.block
    table = replace(real.prices.table, tiers=real.device.tiers.rows)
    real.prices.table = table
    mine, again = (replayed(trace, target, tokens=17, size=11) for _ in range(2))
    run_closed_loop(real, mine, concurrency=batch)
    virtual = virtual_engine(mode, batch, table, block, lag=3, exact=False)
    run_closed_loop(virtual, again, concurrency=batch)
    assert [(r.output, r.rounds) for r in again] == [(r.output, r.rounds) for r in mine]
    assert rounds_of(virtual)[1] == rounds_of(real)[1]
    assert [p[0] for p in rounds_of(virtual)[0]] == [p[0] for p in rounds_of(real)[0]]


@cache
def asking():
    """An engine of each device, of the same arm and prices."""
    block, table = 7, table_of(4, 7, slot=2e-2, draft=0.1)
    trace, target = wide(toy_trace()), tiny_target()
    drafter = random_drafter(target)
    eager = run("compact", replayed(trace, target, tokens=3), batch=4, target=target, drafter=drafter, table=table)
    captured = overlapped("compact", 4, replayed=True, recorded=20)
    captured.prices.table = table
    captured.policy.policy.prices = captured.prices = Prices(table, block, captured.prices.depths)
    return eager, captured, virtual_engine("compact", 4, table, block)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_same_history_and_prices_give_the_same_plan_whoever_asks(data):
    """Requests come, are read, and leave; each device's policy is asked after every round."""
    engines = asking()
    block = engines[0].device.block
    policies = [make_policy(e.arm, Prices(e.prices.table, block, depths_of(e.arm, block)), "coupled") for e in engines]
    histories = [History(e.device.capacity, e.device.block) for e in engines]
    running: list[int] = []
    for step in range(data.draw(st.integers(1, 24))):
        for _ in range(data.draw(st.integers(0, 4 - len(running)))):
            prompt, room = data.draw(st.integers(1, 60)), data.draw(st.integers(2, 40))
            rows = [h.enter(prompt, room, e._prior(None)) for e, h in zip(engines, histories, strict=True)]
            running.append(len(running))
            for history, row in zip(histories, rows, strict=True):
                history.emit(row, 1)
                history.rows = np.append(history.rows, row)
        if running and data.draw(st.booleans()):
            for history in histories:
                history.leave(int(history.rows[0]))
                history.rows = history.rows[1:]
            running.pop()
        if not running:
            continue
        read = data.draw(st.integers(0, len(running)))
        odds = [[data.draw(st.floats(0.0, 1.0, width=32)) for _ in range(block)] for _ in range(read)]
        tokens = [data.draw(st.integers(1, 3)) for _ in range(read)]
        for history in histories:
            history.step = step
            if read:
                history.observe(history.rows[:read], np.cumprod(np.array(odds), 1), step - 1)
                history.emit(history.rows[:read], np.array(tokens))
        plans = [policy.choose(history) for policy, history in zip(policies, histories, strict=True)]
        assert plans[0] == plans[1] == plans[2]
        assert plans[0].depth in (0, 1, 2, 3, 5, block) and plans[0].budget <= len(running) * plans[0].depth


def test_there_is_one_decode_step():
    """No device, policy or simulation has a loop of its own."""
    root = Path(dsbench.runtime.__file__).parent
    folders = (root / "loop", root / "policy", root.parent / "simulate", root.parent / "deploy", root.parent / "sweep")
    sources = {p: p.read_text() for folder in folders for p in folder.rglob("*.py")}
    assert [p for p, text in sources.items() if "def step(" in text] == [Path(engine_module.__file__)]
    launches = {p.name for p, text in sources.items() if "device.launch(" in text}
    assert launches == {"engine.py", "profile_passes.py"}, "which times single passes"
