"""The residual law is the target's own, exactly, whatever a planner that does not anticipate does (law_tools.py)."""

from __future__ import annotations

from functools import cache

import pytest
from law_tools import SETTINGS, Toy, all_or_nothing, bias, output_law


@cache
def toy_at(setting):
    """Its laws depend on no policy."""
    return Toy(*SETTINGS[setting])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("policy", ["full", "threshold", "early-stop", "argmax", "free"])
def test_emitted_law_is_the_targets(policy, setting):
    toy = toy_at(setting)
    found, rounds = output_law(toy, policy, lag=2 if policy == "argmax" else 0)
    assert rounds >= 4
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert bias(toy, found) < 1e-6


@pytest.mark.parametrize("policy", ["anticipating", "peeking"])
def test_an_anticipating_planner_fails_it(policy):
    """Also one that goes by the policy of token-free confidences, which are not."""
    toy = toy_at("T=1")
    found, _ = output_law(toy, policy, lag=0)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert bias(toy, found) > 1e-3


@cache
def flat_toy():
    return Toy(2, (7, 1), 1.0, 0, 1.0, block=4, table=all_or_nothing(10, 1.1), flat_draft=True)


@pytest.mark.parametrize("keyed_by_round", [True, False])
def test_noise_keyed_without_the_round_fails_it(keyed_by_round):
    """A budget two steps old saw the draft at a position that comes again only in blocks of four: s + 3."""
    toy = flat_toy()
    found, _ = output_law(toy, "argmax", lag=2, keyed_by_round=keyed_by_round)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert (bias(toy, found) < 1e-6) == keyed_by_round
    if not keyed_by_round:
        assert bias(toy, found) > 1e-3
