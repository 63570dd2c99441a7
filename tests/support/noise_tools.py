"""A machine whose speed drifts: log step time is AR(1) across the time of a whole sweep, arms interleaved as in one.

Passes of a sweep follow each other on one time line, in random order within a repeat. A request holds its slot for
SPAN slices of the time line; requests of one pass overlap, so that what is slow then is slow for all of them.
"""

from __future__ import annotations

import numpy as np

from dsbench.stats.block_noise import measure, prior_of, weigh
from dsbench.stats.intervals import Held, verdict

SLICES, SPAN, PROMPTS = 40, 10, 16


def drift(rng, slices, *, sd, memory, tails):
    """Log slowness of each slice of the time line: stationary, deviation `sd`, correlation e^-1 after `memory` slices.

    `tails`: degrees of freedom of its innovations; 0 is normal.
    """
    keep = np.exp(-1 / memory)
    push = rng.standard_normal(slices) if not tails else rng.standard_t(tails, slices) / np.sqrt(tails / (tails - 2))
    push *= sd * np.sqrt(1 - keep**2)
    found = np.empty(slices)
    level = sd * rng.standard_normal()
    for i, step in enumerate(push):
        level = keep * level + step
        found[i] = level
    return found


def sweep(rng, cells, slow, *, repeats=2, sd=0.003, memory=40.0, own=0.01, tails=0, spread=()):
    """[cells][arms] of Held: arm i takes exp(slow[i]) times as long. `own`: noise of each request alone.

    `spread`: factors on `sd`, taken by the cells in turn, for machines that are noisier at some batch sizes.
    """
    arms = len(slow)
    tokens = rng.integers(30, 60, (cells, PROMPTS)).astype(float)
    seconds = np.empty((cells, arms, PROMPTS, repeats))
    line = drift(rng, cells * repeats * arms * SLICES, sd=sd, memory=memory, tails=tails)
    starts = np.linspace(0, SLICES - SPAN, PROMPTS).astype(int)
    at = 0
    for cell in range(cells):
        factor = spread[cell % len(spread)] if spread else 1.0
        for repeat in range(repeats):
            for arm in rng.permutation(arms):
                now = line[at : at + SLICES] * factor
                held = np.array([np.exp(now[s : s + SPAN]).mean() for s in starts])
                alone = np.exp(own * rng.standard_normal(PROMPTS))
                seconds[cell, arm, :, repeat] = tokens[cell] * held * alone * np.exp(slow[arm])
                at += SLICES
    names = tuple(f"p{i:02d}" for i in range(PROMPTS))
    wrote = [np.repeat(t[:, None], repeats, 1) for t in tokens]
    return [
        [Held(names=names, tokens=wrote[cell], seconds=seconds[cell, arm]) for arm in range(arms)]
        for cell in range(cells)
    ]


def verdicts(pairs, *, band, together=True, prior=None, draws=1000):
    """The words of a comparison's cells, as `dsbench compare` finds them, and what was measured of each."""
    sides = [weigh(a, b, together=together, paired=True, draws=draws) for a, b in pairs]
    shared = prior_of([s.spread for s in sides]) or prior
    found = [measure(s, shared, band=band) for s in sides]
    return [verdict(m.ratio, band=band) for m in found], found
