"""Drafts past a request's end are no misses: in rates by depth, and in what a calibration is fitted to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from dsbench.analysis.acceptance import depth_counts
from dsbench.drafting.calibrate import rounds_of
from dsbench.drafting.rollouts import Rollout
from dsbench.profiles.calibration import EventKey
from dsbench.profiles.calibration_fit import fit_calibration
from dsbench.results.metrics import _by_depth
from dsbench.runtime.records import RoundRecord

BLOCK, CHANCE = 7, 0.7


def rollout(rng, request: int, tokens: int) -> Rollout:
    """A text of `tokens`, its last an eos, whose drafts match with CHANCE each; the whole block is verified."""
    rounds, emitted = [], 1
    while emitted < tokens:
        matched = int(np.cumprod(rng.random(BLOCK) < CHANCE).sum())
        left = tokens - emitted
        accepted = min(matched, left)
        delivered = min(accepted + 1, left)
        rounds.append(
            RoundRecord(
                step=len(rounds),
                request=request,
                workload="w",
                position=10 + emitted,
                output_index=emitted,
                window=BLOCK,
                verified=BLOCK,
                accepted=accepted,
                delivered=delivered,
                ceiling=-1,
                flips=0,
                drafts=(1,) * BLOCK,
                logits=(0.0,) * BLOCK,
                token_free_logits=(0.0,) * BLOCK,
            )
        )
        emitted += delivered
    return Rollout(SimpleNamespace(output=[0] * tokens), tuple(rounds))


@pytest.fixture(scope="module")
def rollouts():
    rng = np.random.default_rng(5)
    return [rollout(rng, number, 8) for number in range(4000)]


def test_a_calibrations_prior_is_the_rate_of_drafts_that_could_be_emitted(rollouts):
    event = EventKey(rule="coupled", temperature=1.0)
    for method in ("platt", "sts"):
        found = fit_calibration(rounds_of(rollouts, "conditioned"), method=method, event=event)
        assert found.prior == pytest.approx([CHANCE] * BLOCK, abs=0.04)
    prefix = rounds_of(rollouts, "conditioned")
    observed, passed = prefix.prefix(5)
    assert passed[observed].mean() == pytest.approx(CHANCE**5, abs=0.02)


def test_rates_by_depth_end_where_the_text_does(rollouts):
    records = [record for one in rollouts for record in one.rounds]
    trials, passed = depth_counts(records, BLOCK)
    rates = np.array(passed) / np.array(trials)
    table = pd.DataFrame([{name: getattr(r, name) for name in RoundRecord.__slots__} for r in records])
    table["name"], table["rep"] = [str(r.request) for r in records], 0
    shown = _by_depth(table, BLOCK, seed=0)
    assert [row["trials"] for row in shown] == list(trials)
    assert [row["rate"]["value"] for row in shown] == pytest.approx(rates.tolist())
    assert rates == pytest.approx([CHANCE] * BLOCK, abs=0.04)


def test_an_end_of_text_inside_a_right_block_leaves_every_rate_at_one():
    ends = [
        RoundRecord(
            **dict.fromkeys(RoundRecord.__slots__, 0)
            | {"workload": "w", "request": k, "window": 4, "verified": 4, "accepted": k, "delivered": k, "ceiling": -1}
            | {"drafts": (1,) * 4, "logits": (0.0,) * 4, "token_free_logits": (0.0,) * 4, "output_index": 1}
        )
        for k in range(1, 5)
    ]
    trials, passed = depth_counts(ends, 4)
    assert trials == passed == (4, 3, 2, 1)
    table = pd.DataFrame([{name: getattr(r, name) for name in RoundRecord.__slots__} for r in ends])
    table["name"], table["rep"] = [str(r.request) for r in ends], 0
    assert [row["rate"]["value"] for row in _by_depth(table, 4, seed=0)] == [1.0] * 4
