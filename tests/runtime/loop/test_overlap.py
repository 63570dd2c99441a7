"""The captured device, uncaptured on a CPU: the eager one's texts, whoever comes and goes, however late it reads."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from engine_runs import make_requests, plain_texts, run
from overlapped_runs import finish, overlapped, pinned_to, strayed_texts
from replays import replayed, toy_trace, wide
from tiny import tiny_target
from toys import staircase_table

from dsbench.profiles.cost import StepShape
from dsbench.runtime.loop.torch_device import TorchDevice
from dsbench.runtime.policy.compact import LOOK, Compact
from dsbench.runtime.policy.prices import Prices

MODES = ("none", "static", "static:2", "no-trim", "compact", "cap-accept", "mtp:1", "mtp:3")


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("mode", MODES)
def test_every_arm_writes_the_plain_text(mode, lag):
    requests = make_requests(9, temperature=0.8, max_tokens=10)
    engine = overlapped(mode, 3, lag=lag)
    assert finish(engine, requests, 3) == plain_texts(9, 0.8, 10)
    assert {r.finish_reason for r in requests} == {"length"} and len(engine.finished) == 9
    rounds = engine.rounds
    delivered = {r.id: sum(x.delivered for x in rounds if x.request == r.id) for r in requests}
    assert all(delivered[r.id] == len(r.output) - 1 for r in requests)
    for s in engine.steps:
        assert s.rows + s.padding == s.tier if mode != "cap-accept" else s.rows <= s.tier


def test_eos_and_the_token_limit_end_a_request_on_the_device():
    """Also where the first token is one, or all there may be."""
    for limit in (1, 2, 14):
        wanted = make_requests(12, max_tokens=limit)
        eos = frozenset({7, 11, 23})
        run("none", wanted, batch=12, eos=eos)
        for mode in ("none", "static", "compact"):
            requests = make_requests(12, max_tokens=limit)
            engine = overlapped(mode, 4, eos=eos)
            assert finish(engine, requests, 4) == [r.output for r in wanted]
            assert [r.finish_reason for r in requests] == [r.finish_reason for r in wanted]
    assert {r.finish_reason for r in wanted} == {"stop", "length"}


def test_a_stop_string_is_found_late_and_cuts_the_text_all_the_same():
    def decode(ids):
        return "".join(f"<{i}>" for i in ids)

    free = make_requests(6, max_tokens=20)
    run("none", free, batch=6)
    stop = (f"<{free[0].output[5]}><{free[0].output[6]}>", f"<{free[2].output[3]}>")
    wanted = make_requests(6, max_tokens=20, stop=stop)
    run("none", wanted, batch=6, decode=decode)
    for lag in (0, 2, 4):
        requests = make_requests(6, max_tokens=20, stop=stop)
        engine = overlapped("compact", 3, lag=lag, decode=decode)
        assert finish(engine, requests, 3) == [r.output for r in wanted]
        assert [(r.finish_reason, r.text) for r in requests] == [(r.finish_reason, r.text) for r in wanted]
        assert bool(sum(s.zombies for s in engine.steps)) == (lag > 1)


def test_a_pinned_text_is_committed_and_what_the_pass_chose_is_counted():
    texts = strayed_texts(5)
    done = run("static", pinned_to(texts), batch=5)
    requests = pinned_to(texts)
    engine = overlapped("static", 2, recorded=16)
    assert finish(engine, requests, 2) == texts
    by_round = [{(r.request, r.output_index): r for r in e.rounds} for e in (done, engine)]
    assert by_round[0].keys() == by_round[1].keys()
    for key, theirs in by_round[0].items():
        mine = by_round[1][key]
        for name in ("position", "accepted", "delivered", "flips", "ceiling", "drafts"):
            assert getattr(mine, name) == getattr(theirs, name), (key, name)
        assert mine.logits == pytest.approx(theirs.logits, abs=1e-5)
    assert sum(s.flips for s in engine.steps) >= 1


def test_a_request_that_comes_again_meets_nothing_of_its_former_stay():
    wanted = make_requests(1, max_tokens=20)
    run("none", wanted, batch=1)
    engine, request = overlapped("compact", 2, lag=3), make_requests(1, max_tokens=20)[0]
    engine.admit([request])
    for _ in range(6):
        engine.step()
    assert 0 < len(request.output) < 20
    engine.cancel(request)
    while engine.running:
        engine.step()
    request.finish_reason, request.rounds = None, 0
    request.output.clear()
    engine.admit([request])
    while engine.running:
        engine.step()
    assert request.output == wanted[0].output and [r.finish_reason for r in engine.finished] == ["cancelled", "length"]


@pytest.mark.parametrize("mode", ["none", "static", "static:2", "compact", "cap-accept"])
def test_a_trace_is_replayed(mode):
    trace = wide(toy_trace())
    queue = replayed(trace, tiny_target(), tokens=9, size=11)
    engine = overlapped(mode, 3, recorded=20, replayed=True)
    finish(engine, queue, 3)
    assert [r.output for r in queue] == [list(trace.rows[i % 8].output[:9]) for i in range(11)]
    assert sum(s.flips for s in engine.steps) == 0 and engine.rounds
    for record in engine.rounds:
        drafts, at = trace.rows[record.request % 8].drafts, record.output_index - 1
        whole = min(int(drafts.match[at]), record.window)
        assert record.accepted == min(whole, record.delivered)
        if mode != "none":
            assert record.token_free_logits == tuple(drafts.token_free[at].tolist())


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_draft_may_be_shallower_than_the_block_and_changes_no_text(calibrated):
    wanted = make_requests(9, temperature=0.8, max_tokens=24)
    run("none", wanted, batch=9)
    requests = make_requests(9, temperature=0.8, max_tokens=24)
    engine = overlapped("compact", 3, slot=4e-5)
    if calibrated:  # the token-free head speaks for what is not drafted, through the conditioned head's map
        maps = (np.full(4, 2.0), np.full(4, -0.5), np.full(4, 0.5), np.full(4, 0.25))
        engine.device.maps = lambda sampling: maps
    assert finish(engine, requests, 3) == [r.output for r in wanted]
    depths = {one.round.launched.plan.depth for one in engine._completed}
    assert len(depths) > 1 and depths <= {1, 2, 3, 4}
    for record in engine.rounds:
        assert len(record.drafts) == len(record.logits) and record.window <= len(record.drafts) in depths
    for one in engine._completed:
        conditioned, free, survival = one.reals[:, 0], one.reals[:, 1], one.reals[:, 2]
        depth = one.round.launched.plan.depth
        scale, offset = (2.0, -0.5) if calibrated else (1.0, 0.0)
        said = (conditioned * scale + offset)[:, depth:]
        heard = (free * (0.5 if calibrated else 1.0) + (0.25 if calibrated else 0.0))[:, depth:]
        np.testing.assert_allclose(said, heard, atol=1e-5)
        np.testing.assert_allclose(
            survival, np.cumprod(1 / (1 + np.exp(-(conditioned * scale + offset))), 1), rtol=1e-4
        )


def test_prompts_wait_for_each_other_but_not_long_and_who_is_last_moves_up(monkeypatch):
    def some():
        made = [make_requests(3, max_tokens=n)[i] for i in range(3) for n in range(2, 14)]
        for number, request in enumerate(made):
            request.id = number
        return made

    wanted, passes = some(), {}
    run("none", wanted, batch=6)
    for share in (1, 1000):
        requests, engine, ran = some(), overlapped("none", 6), []
        engine.scheduler.limits = replace(engine.scheduler.limits, share=share)
        prefill = engine.device.prefill
        monkeypatch.setattr(
            engine.device, "prefill", lambda part, at, p=prefill, kept=ran: (kept.append(1), p(part, at))[1]
        )
        assert finish(engine, requests, 6) == [r.output for r in wanted]
        running = [s.requests for s in engine.steps]
        assert max(running) == 6 and min(running[:-20]) >= 2, "too long a wait"
        passes[share] = len(ran)
    assert passes[1] < 0.7 * passes[1000]


def test_the_budget_is_the_best_of_all_depths_and_row_totals():
    dice = np.random.default_rng(2)
    table = replace(staircase_table(6, 4), depth_bias=3e-5, walk=2e-6)
    compact = Compact(Prices(table, 4, (1, 2, 4)))
    for _ in range(60):
        n = int(dice.integers(1, 7))
        survival = np.cumprod(dice.uniform(0.2, 1, (n, 4)), 1)
        limits, context = dice.integers(0, 5, n), int(dice.integers(1, 200))
        found, best, priced = compact.best(survival, limits, context), -1.0, compact.prices.of(n)
        for depth in (1, 2, 4):
            ranked = sorted((survival[r, j] for r in range(n) for j in range(min(limits[r], depth))), reverse=True)
            for rows in table.candidates(n, 4).tolist():
                seconds = float(table.verify_curve(n, np.array([rows]), context)[0])
                seconds += table.draft_seconds(n, context, 4 - depth)
                at, of = (compact.prices.depths.index(depth), table.candidates(n, 4).tolist().index(rows)), priced
                assert of.seconds[at] + of.per_token[at[0], 0] * context == pytest.approx(seconds)
                rate = (n + sum(ranked[: rows - n])) / seconds
                if rate > best * (1 + 1e-12):
                    best, wanted = rate, (depth, rows - n)
        assert found == wanted
    assert Prices(staircase_table(6, 4), 4, (1, 2, 4)).depths == (4,), "a table that knows no slot offers no depth"


@pytest.mark.parametrize("mode", ["none", "static", "compact", "cap-accept"])
def test_few_requests_have_graphs_of_their_own(mode, monkeypatch):
    monkeypatch.setattr("dsbench.kernels.attention.WHOLE_FROM", 6)
    wanted = make_requests(9, temperature=0.8, max_tokens=14)
    run("none", wanted, batch=9)
    requests = make_requests(9, temperature=0.8, max_tokens=14)
    engine = overlapped(mode, 5)
    assert engine.device.tiers.few == 1 and {n for _, n in engine.device.verify_graphs} > {1}
    assert finish(engine, requests, 5) == [r.output for r in wanted]


@pytest.mark.parametrize("mode", ["compact:oracle", "cap-accept:oracle"])
def test_an_oracle_verifies_what_its_text_takes_and_nothing_else(mode):
    """Its text is not the model's own everywhere, and it knows that too. Tiers of the table hold rows back."""
    texts = strayed_texts(7)
    requests = pinned_to(texts)
    engine = overlapped(mode, 3, recorded=16)
    assert finish(engine, requests, 3) == texts
    assert all(r.window <= r.accepted for r in engine.rounds)
    assert sum(r.window for r in engine.rounds) > 0 and not any(s.confidence_age for s in engine.steps)
    if mode == "compact:oracle":
        assert all(r.verified == r.window for r in engine.rounds)
        assert {s.rows - s.requests - s.budget for s in engine.steps} == {0}


def test_where_drafts_do_not_pay_rounds_draft_nothing_and_now_and_then_one_looks_again():
    wanted = make_requests(5, temperature=0.8, max_tokens=60)
    run("none", wanted, batch=3)
    requests = make_requests(5, temperature=0.8, max_tokens=60)
    engine = overlapped("compact", 3, slot=0.5, draft=4.0)
    policy = engine.policy.policy
    asked, best = [], policy.best

    def chosen(*args, **kwargs):
        asked.append(engine.history.step)
        return best(*args, **kwargs)

    policy.best = chosen
    assert finish(engine, requests, 3) == [r.output for r in wanted]
    drafted = [one.round.launched.plan.depth > 0 for one in engine._completed]
    looks = np.flatnonzero(drafted)
    assert len(looks) > 2 and np.diff(looks).tolist() == [LOOK + 1] * (len(looks) - 1)
    newest = [max(one.round.residences) for one in engine._completed]
    came = {0, *(np.flatnonzero(np.diff(np.maximum.accumulate(newest))) + 1)}
    read = {i + k for i in looks for k in range(engine.config.lag + 1)}
    assert set(asked) == came | {i for i in read if i < len(drafted)}, "else there is no news"
    depths = {one.step: one.round.launched.plan.depth for one in engine._completed}
    table, block = engine.prices.table, engine.device.block
    for step in engine.steps:
        shape, depth = StepShape(step.occupied, step.rows + step.zombies, step.context), depths[step.step]
        alone = table.verify_seconds(shape)
        whole = alone + table.draft_seconds(step.occupied, step.context, block - depth) if depth else alone
        assert step.predicted_seconds == pytest.approx(whole) and (depth or step.rows == step.requests)
    for record in engine.rounds:
        plain = depths[record.step] == 0
        assert plain == (not record.drafts) and (not plain or (record.window, record.delivered) == (0, 1))
        assert plain == bool(np.isnan(record.token_free_logits).all()) and len(record.token_free_logits) == block


def test_a_whole_draft_that_is_asked_for_is_made_in_every_round():
    engine = overlapped("compact", 3, slot=0.5, draft=4.0, full=True)
    finish(engine, make_requests(5, max_tokens=30), 3)
    assert {one.round.launched.plan.depth for one in engine._completed} == {engine.device.block}


def test_an_oracles_foresight_is_free(monkeypatch):
    """However long its host takes to answer: neither a round nor a request's time knows of it."""
    requests, late = pinned_to(strayed_texts(3)), 0.02
    engine = overlapped("compact:oracle", 3, recorded=16)
    look = TorchDevice.look
    monkeypatch.setattr(TorchDevice, "look", lambda *given: (time.sleep(late), look(*given))[1])
    began = time.perf_counter()
    finish(engine, requests, 3)
    wall, steps = time.perf_counter() - began, engine.steps
    for s in steps:
        assert s.seconds == pytest.approx(s.draft_seconds + s.verify_seconds + s.prefill_seconds + s.idle_seconds)
    assert engine.now() == pytest.approx(sum(s.seconds for s in steps)) and engine.now() < wall - late * len(steps)
    assert max(r.finished for r in engine.finished) == engine.now()
    assert min(r.admitted for r in engine.finished) == 0


def test_an_oracles_clock_skips_the_time_in_which_nobody_is_there():
    engine = overlapped("compact:oracle", 3, recorded=16)
    engine.rest(7.5)
    assert engine.now() == 7.5
    engine.rest(3.0)
    assert engine.now() == 7.5


def test_arms_of_whole_blocks_share_graphs_of_all_depths():
    """Whichever comes first: a planned arm after a fixed one may still draft less."""
    first = overlapped("static", 3)
    assert first.device.depths == overlapped("compact", 3).device.depths and len(first.device.depths) > 1
    assert overlapped("static:2", 3).device.depths == (2,)
