"""What is recorded, where rounds overlap, of rounds and requests that came to nothing, and of what budgets knew."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from engine_runs import make_requests
from overlapped_runs import finish, overlapped

from dsbench.profiles.cost import StepShape


@pytest.mark.parametrize("lag", [0, 1, 2, 4])
def test_the_recorded_age_is_that_of_the_confidences_behind_the_budget(lag):
    engine, used = overlapped("compact", 1, lag=lag), []
    policy = engine.policy.policy
    best = policy.best

    def watched(survival, limits, context, **given):
        used.append(survival[-1, 0].copy())  # the newest set
        return best(survival, limits, context, **given)

    policy.best = watched
    finish(engine, make_requests(1, max_tokens=40), 1)
    drafted = {one.step: one.reals[0, 2] for one in engine._completed if one.round.launched.plan.depth}
    assert len(drafted) > 6 and len({tuple(s) for s in drafted.values()}) == len(drafted)
    for record, survival in zip(engine.steps, used, strict=False):
        found = [j for j, s in drafted.items() if j < record.step and np.array_equal(s, survival)]
        assert record.confidence_age == (record.step - found[0] if found else 0)
        assert record.priors == (not found)
    assert min(s.confidence_age for s in engine.steps[-4:]) >= max(lag, 1)


@pytest.mark.parametrize("mode", ["none", "static", "no-trim"])
def test_windows_that_look_at_no_confidence_have_none_of_any_age(mode):
    engine = overlapped(mode, 2)
    finish(engine, make_requests(4, max_tokens=9), 2)
    assert {s.confidence_age for s in engine.steps} == {0}


def test_a_cancelled_requests_rounds_under_way_are_zombie_rows_drafts_included():
    engine, requests = overlapped("static", 2, lag=3), make_requests(2, max_tokens=40)
    engine.admit(requests)
    for _ in range(6):
        engine.step()
    under_way, tokens = len(engine._pending), len(requests[0].output)
    assert under_way == 2 and tokens
    engine.cancel(requests[0])
    while engine.running:
        engine.step()
    assert sum(s.zombies for s in engine.steps) == under_way * 5
    assert [s.rows + s.padding for s in engine.steps] == [s.tier for s in engine.steps]
    assert len(requests[0].output) == tokens and requests[0].finish_reason == "cancelled"


def test_a_cancelled_request_gives_up_pages_and_slot_at_once_and_may_come_again():
    wanted = make_requests(3, max_tokens=20)
    for request in wanted:
        finish(overlapped("none", 1), [request], 1)
    engine, (first, second, third) = overlapped("compact", 2, lag=4), make_requests(3, max_tokens=20)
    engine.admit([first, second])
    for _ in range(5):
        engine.step()
    engine.cancel(first)
    first.output.clear()
    first.finish_reason, first.rounds = None, 0
    assert engine.running == [second] and engine.admit([third, first]) == [first], "one slot is free"
    engine.step()
    engine.cancel(second)
    second.output.clear()
    second.finish_reason, second.rounds = None, 0
    assert engine.admit([first, second]) == [second]
    while engine.running:
        engine.step()
        if len(engine.running) < 2 and not second.output and second not in engine.running:
            assert engine.admit([second]) == []
    assert [r.output for r in (first, second, third)] == [r.output for r in wanted]
    engine.close()
    engine.device.pool.check()
    assert engine.device.pool.free_pages == engine.device.pool.shape.pages


def test_a_request_cancelled_before_its_first_token_has_no_time_of_one():
    engine, requests = overlapped("static", 2), make_requests(3, max_tokens=9)
    engine.admit(requests[:2])
    engine.cancel(requests[0])
    engine.step()
    engine.cancel(requests[1])
    engine.cancel(requests[2])  # nobody the loop knows
    assert requests[2].finish_reason is None
    assert [r.request for r in engine.finished] == [0, 1] and not engine.running
    assert all(math.isnan(r.first_token) and r.admitted <= r.finished for r in engine.finished)


def test_a_slot_that_an_ended_request_still_holds_is_told_apart_from_an_empty_one():
    """A step whose slots are all taken is one of that batch size, whoever of them had ended; the last ones are not."""
    engine = overlapped("static", 3, lag=4)
    finish(engine, make_requests(12, max_tokens=9), 3)
    for one, step in zip(engine._completed, engine.steps, strict=True):
        taken = len(one.round.slots)
        assert step.occupied == taken == step.requests + sum(i not in one.counted for i in range(taken))
    full = [s for s in engine.steps if s.occupied == 3]
    assert any(s.requests < 3 for s in full) and engine.steps[-1].occupied < 3


def test_a_slot_that_waits_for_a_prompt_has_no_say_in_the_budget():
    """Neither what its former request might still have written, nor the age of what was read of it."""
    engine, requests = overlapped("compact", 4), make_requests(4, max_tokens=60)
    engine.admit(requests)
    for _ in range(6):
        engine.step()
    engine.cancel(requests[1])
    engine.cancel(requests[3])
    seen, policy, history = [], engine.policy.policy, engine.history
    best = policy.best
    policy.best = lambda *given, **more: (seen.append(given), best(*given, **more))[1]
    history.step, newest = 40, history.seen.max()
    history.rows = engine.scheduler._rows[:4].copy()
    plan = policy.choose(history)
    ((survival, limits, _),) = seen
    assert survival.shape[1:] == (4, 4) and [bool(n) for n in limits] == [True, False, True, False]
    assert plan.age == 40 - newest and plan.priors == 0
    history.seen[history.rows[0]], history.survival[history.rows[0]] = -1, 0.5
    assert policy.choose(history).priors == 1


def test_a_round_is_predicted_by_the_tier_that_was_launched():
    """Near the end of a text fewer rows count than were run: the tier is what they cost."""
    engine = overlapped("static", 3)
    table = replace(engine.prices.table, tiers=engine.device.tiers.rows)
    engine.prices.table = table
    finish(engine, make_requests(5, max_tokens=9), 3)
    assert any(table.tier(s.rows + s.zombies) < s.tier for s in engine.steps)
    for s in engine.steps:
        wanted = table.verify_seconds(StepShape(s.occupied, s.tier, s.context)) + table.draft_seconds(
            s.occupied, s.context
        )
        assert s.predicted_seconds == pytest.approx(wanted)
