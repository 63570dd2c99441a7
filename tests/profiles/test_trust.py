"""Tables that are too far off are refused, costs that fall are named, and regret is judged by passes not seen."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from cost_tools import BLOCK, TIERS, fit, staircase_samples

from dsbench.errors import EnvironmentRefused
from dsbench.profiles.falls import FALLS, falls
from dsbench.profiles.fit import CostCell
from dsbench.profiles.regret import guessed_survival, heldout_regret
from dsbench.profiles.robust import agree, middle, pass_factors, slowdowns
from dsbench.profiles.trust import HELDOUT, MEDIAN, P95, doubt, require_trust


def cell(rows, seconds, spread=0.0):
    return CostCell(requests=2, rows=rows, context=9, seconds=seconds, repeats=2, spread=spread)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({MEDIAN: "0.12", P95: "0.3"}, "off by more than 12%"),
        ({MEDIAN: "0.02", P95: "0.8"}, "one in twenty"),
        ({MEDIAN: "nan", P95: "0.1"}, "half"),
        ({MEDIAN: "0.01", HELDOUT: "1", "left_out": "batch size 16"}, "so few shapes"),
        ({MEDIAN: "0.09", P95: "0.4"}, ""),
        ({MEDIAN: "none"}, ""),
        ({}, ""),
    ],
)
def test_what_is_too_far_off_is_refused_with_the_reason(facts, says):
    table = dataclasses.replace(fit(staircase_samples(passes=1))[0], provenance=facts)
    if not says:
        require_trust(table, "the table")
        return
    assert says in doubt(facts)
    with pytest.raises(EnvironmentRefused, match="too far off to plan with") as caught:
        require_trust(table, "the table")
    assert "profile-cost" in caught.value.hint


def test_costs_that_fall_with_more_rows_are_named_beyond_noise():
    assert falls([cell(2, 1.0), cell(4, 2.0), cell(8, 1.2)]) == ("R = 2, 4 to 8 rows -40%",)
    assert falls([cell(2, 1.0), cell(4, 0.95), cell(8, 1.2)]) == ()
    assert falls([cell(2, 1.0, spread=0.1), cell(4, 0.8, spread=0.1)]) == ()
    samples = [
        dataclasses.replace(s, seconds=s.seconds / 2) if (s.requests, s.rows) == (8, 32) else s
        for s in staircase_samples(noise=0.01)
        if s.phase == "verify"
    ]
    assert "R = 8" in fit(samples)[0].provenance[FALLS]
    assert fit(staircase_samples(noise=0.01))[0].provenance[FALLS] == "none"


def test_regret_is_small_for_a_law_that_the_table_can_hold_and_not_known_from_one_pass():
    survival = guessed_survival([0.7] * BLOCK)
    assert survival.shape == (200, BLOCK) and (np.diff(survival, axis=1) <= 0).all()
    found = heldout_regret(list(staircase_samples()), TIERS, survival)
    assert found is not None and 0 <= found.low <= found.mean <= found.high and found.mean < 0.02
    wild = heldout_regret(list(staircase_samples(noise=0.2)), TIERS, survival)
    assert wild is not None and wild.mean > found.mean
    assert heldout_regret(list(staircase_samples(passes=1)), TIERS, survival) is None


def test_a_slow_pass_is_told_from_slow_cells():
    cells = [{0: 1.0 + i, 1: 5.0 * (1.0 + i)} for i in range(6)]
    assert pass_factors(cells) == {0: 1.0, 1: pytest.approx(5.0)}
    assert pass_factors(cells[:2]) == {0: 1.0, 1: 1.0}, "two cells do not tell"
    assert pass_factors([{0: 1.0, 1: 1.02} for _ in range(6)]) == {0: 1.0, 1: 1.0}
    assert (middle([1.0, 5.0]), middle([1.0, 1.1]), middle([3.0, 1.0, 2.0])) == (1.0, 1.05, 2.0)
    assert agree([1.0, 1.05]) and not agree([1.0, 2.0]) and agree([1.0, 2.0, 1.02]) and agree([1.0])


def test_the_reference_tells_how_slow_the_machine_was_and_where_it_is_not_known():
    reference = [(float(i), 1.0 if i < 20 else 3.0) for i in range(40)]
    (early, sure), (_, edge), (late, later) = slowdowns(reference, [5.0, 19.6, 35.0])
    assert (early, sure, late, later) == (1.0, True, 3.0, True) and not edge
    one_slow = [(float(i), 4.0 if i == 7 else 1.0) for i in range(20)]
    assert slowdowns(one_slow, [7.0]) == [(1.0, True)]
