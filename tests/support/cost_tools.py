"""Samples of a machine whose step cost is a known staircase, with noise; and their fit."""

from __future__ import annotations

import itertools

import numpy as np

from dsbench.profiles.fit import CostSample, fit_cost_table

TIERS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
BLOCK = 7


def law(requests, rows, context, tiers=TIERS, walk=0.0):
    """A staircase with jumps of unequal height, in seconds."""
    tier = min(t for t in tiers if t >= rows)
    jumps = 0.0015 * (tier > 32) + 0.004 * (tier > 96) + 1e-5 * tier
    return 0.006 + 2e-5 * (requests - 1) + jumps + 2e-8 * context + walk * context / requests


def staircase_samples(seed=0, noise=0.02, passes=5, walk=0.0):
    rng = np.random.default_rng(seed)
    for requests in (1, 2, 4, 8, 16, 24, 32):
        rows = [t for t in TIERS if requests <= t <= requests * (BLOCK + 1)]
        for count, tokens, index in itertools.product(rows, (256, 2048), range(passes)):
            context = tokens * requests
            seconds = law(requests, count, context, walk=walk) * (1 + noise * rng.standard_normal())
            slow = 4.0 if rng.random() < 0.02 else 1.0
            yield CostSample(requests, count, context, seconds * slow, "verify", index)
            yield CostSample(requests, 0, context, 0.001 + 1e-5 * requests + 1e-8 * context, "draft", index)


def fit(samples, tiers=TIERS):
    return fit_cost_table(samples, tiers=tiers, contract={}, provenance={"date": "today"})
