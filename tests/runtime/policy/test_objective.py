"""What the planner maximises: throughput, per-user speed, or a weighted sum of both, by brute force on small cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_runs import make_requests, plain_texts, run
from overlapped_runs import finish, overlapped
from toys import staircase_table

from dsbench.errors import UsageError
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.policy.budget import Budgets, want_tier
from dsbench.runtime.policy.planner import allocate

WEIGHTS = (0.0, 0.3, 0.8, 1.0)


def speeds(survival, limits, budget, seconds):
    """Throughput and 1 / mean time a token, from the windows that the budget buys."""
    windows = allocate(torch.from_numpy(survival), torch.from_numpy(limits), budget).tolist()
    tokens = [1 + sum(row[:window]) for row, window in zip(survival, windows, strict=True)]
    return sum(tokens) / seconds, 1 / np.mean([seconds / n for n in tokens])


def utilities(options, weight):
    """Of (throughput, per-user speed) pairs, each over the best of its kind."""
    best = [max(kind) for kind in zip(*options, strict=True)]
    return [weight * rate / best[0] + (1 - weight) * speed / best[1] for rate, speed in options]


def cases(count, block=4, most=5):
    dice = np.random.default_rng(7)
    for _ in range(count):
        n = int(dice.integers(1, most))
        survival = np.cumprod(dice.choice([0.05, 0.3, 0.6, 0.9, 1.0], (n, block)), 1)
        yield survival, dice.integers(0, block + 1, n), int(dice.integers(1, 200))


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_row_total_has_the_best_utility_of_all(weight):
    table, chosen = staircase_table(5, 4), set()
    for survival, limits, context in cases(80):
        n = len(limits)
        rows = table.candidates(n, 4).tolist()
        seconds = table.verify_curve(n, np.array(rows), context) + table.draft_seconds(n, context)
        options = [speeds(survival, limits, m - n, s) for m, s in zip(rows, seconds, strict=True)]
        found = want_tier(survival, limits, table, context, weight)
        values = utilities(options, weight)
        assert values[rows.index(found.rows)] == pytest.approx(max(values), rel=1e-12)
        chosen.add((n, found.rows))
    assert len({rows - n for n, rows in chosen}) > 3


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_overlapped_budget_has_the_best_utility_of_all_depths_and_row_totals(weight):
    table = replace(staircase_table(5, 4), slot_bias=3e-2)
    budgets, depths = Budgets(table, 4, (1, 2, 4), weight), set()
    for survival, limits, context in cases(80):
        n = len(limits)
        rows = table.candidates(n, 4)
        places, options = [], []
        for depth in (1, 2, 4):
            seconds = table.verify_curve(n, rows, context) + table.draft_seconds(n, context, 4 - depth)
            for m, s in zip(rows.tolist(), seconds, strict=True):
                places.append((depth, m))
                options.append(speeds(survival[:, :depth].copy(), np.minimum(limits, depth), m - n, s))
        found, values = budgets.choose(survival, limits, context), utilities(options, weight)
        assert values[places.index((found.depth, found.rows))] == pytest.approx(max(values), rel=1e-12)
        depths.add(found.depth)
    assert len(depths) > 1


def test_per_user_speed_serves_the_slow_where_throughput_serves_the_sure():
    """One sure request, one doubtful; a second row costs next to nothing, a third costs a lot.

    By hand: drafts 1, 1 | .5; seconds 1, 1.3, 1.95 for budgets 0, 1, 2 (2, 3, 4 rows). Throughput 2/1, 3/1.3 = 2.31,
    4/1.95 = 2.05. Mean time a token: 1; 1.3 x (1/2 + 1)/2 = .975; 1.95 x (1/3 + 1)/2 = 1.3. With seconds 1.6 at a
    budget of 2, throughput takes it (4/1.6 = 2.5) and per-user speed does not (1.6 x 2/3 = 1.07).
    """
    survival, limits = np.array([[1.0, 1.0], [0.5, 0.25]]), np.array([2, 2])

    class Table:
        def candidates(self, requests, block):
            return np.array([2, 3, 4])

        def verify_curve(self, requests, rows, context):
            return self.seconds

        def draft_seconds(self, requests, context, skipped=0):
            return 0.0

    table = Table()
    table.seconds = np.array([1, 1.3, 1.95])
    assert [want_tier(survival, limits, table, 0, w).rows for w in (1.0, 0.0)] == [3, 3]
    table.seconds = np.array([1, 1.3, 1.6])
    assert [want_tier(survival, limits, table, 0, w).rows for w in (1.0, 0.0)] == [4, 3]


def test_modes_name_the_weight():
    assert parse_arm("compact").weight == parse_arm("compact:utility=1").weight == 1
    assert parse_arm("compact:latency").weight == parse_arm("cap-accept:utility=0").weight == 0
    assert parse_arm("cap-accept:utility=.25").weight == 0.25 and parse_arm("compact:utility=.25").policy == "argmax"
    for bad in ("compact:utility", "compact:utility=", "compact:latency=1", "compact:utilty=1"):
        with pytest.raises(UsageError, match="unknown mode"):
            parse_arm(bad)
    for bad in ("-0.1", "1.1", "nan", "half"):
        with pytest.raises(UsageError, match=r"must lie in 0\.\.1"):
            parse_arm(f"compact:utility={bad}")


@pytest.mark.parametrize("mode", ["compact:latency", "compact:utility=0.5"])
def test_both_loops_write_the_plain_text_and_weigh_alike(mode):
    texts = plain_texts(9, 0.8, 14)
    requests = make_requests(9, temperature=0.8, max_tokens=14)
    run(mode, requests, batch=3)
    assert [r.output for r in requests] == texts
    requests = make_requests(9, temperature=0.8, max_tokens=14)
    engine = overlapped(mode, 3)
    assert engine.steering.budgets.weight == parse_arm(mode).weight
    assert finish(engine, requests, 3) == texts


@pytest.mark.parametrize("slot", [0.0, 0.004, 0.05])
def test_an_oracle_drafts_as_deep_as_what_it_knows_pays(slot):
    """By hand: of each depth the tokens that are sure to come, in the cheapest pass that holds so many of them."""
    table = replace(staircase_table(6, 4), slot_bias=slot, draft_bias=0.3)
    budgets, dice, chosen = Budgets(table, 4, (0, 1, 2, 4)), np.random.default_rng(3), set()
    for requests in (1, 2, 3, 5, 6) * 8:
        match = dice.integers(0, 5, requests)
        taken = np.array([np.minimum(match, depth).sum() for depth in (1, 2, 3, 4)])

        def rate(depth, rows, n=requests, match=match):
            sure = n + np.minimum(match, depth).sum()
            draft = table.draft_seconds(n, 90, 4 - depth) if depth else 0.0
            return min(rows, sure) / (table.verify_curve(n, np.array([rows]), 90)[0] + draft)

        best = budgets.certain(taken, requests, 90)
        depths = budgets.depths
        wanted = max(rate(d, m) for d in depths for m in table.candidates(requests, 4))
        assert max(rate(best.depth, m) for m in table.candidates(requests, 4)) == pytest.approx(wanted, rel=1e-12)
        assert best.rows <= requests + np.minimum(match, best.depth).sum()
        assert best.rows == requests or best.depth
        chosen.add(best.depth)
    assert 0 in chosen and (chosen <= {0, 4}) == (slot == 0.0)
