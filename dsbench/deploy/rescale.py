"""Rescales a trace to a published acceptance by depth; its variation is kept, its level changes. No torch.

Each depth's confidences get one offset in logit space, and matches are redrawn from the shifted confidences. So
the confidences of a rescaled trace are perfectly calibrated. Shapes: N anchors of all texts together, G block.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from dsbench.deploy.curves import published_curve
from dsbench.profiles.curve import FloatArray
from dsbench.results.acceptance_trace import Trace
from dsbench.runtime.draft_trace import Array, DraftTrace

SEED = 0  # of the matches
FAR = 30.0  # a logit whose probability is 0 or 1
TURNS, CLOSE = 50, 1e-6


def rescaled(trace: Trace, name: str) -> Trace:
    """The trace at the published acceptance `name`, which rounds with the full block verified then have on average."""
    curve, words = published_curve(name, trace.block)
    drafts = [row.drafts for row in trace.rows]
    logits = np.concatenate([d.logits for d in drafts]).astype(np.float64)
    free = np.concatenate([d.token_free for d in drafts]).astype(np.float64)
    left = np.concatenate([d.left for d in drafts])
    visited = np.ones(len(left))
    offsets = np.zeros(trace.block)
    for _ in range(TURNS):  # which anchors are visited depends on what is accepted, and the other way round
        last, offsets = offsets, fit_offsets(logits, left, visited, curve)
        if np.abs(offsets - last).max() < CLOSE:
            break
        visited = visits(expit(logits + offsets), left)
    chance = expit(logits + offsets)
    logits, free = logits + offsets, free + fit_offsets(free, left, visited, curve, given=chance)
    match = drawn(chance, left)
    ends = np.cumsum([len(d.match) for d in drafts])[:-1]
    parts = zip(*(np.split(values, ends) for values in (match, logits, free)), strict=True)
    rows = tuple(replace(row, drafts=_drafts(*part)) for row, part in zip(trace.rows, parts, strict=True))
    return replace(trace, rows=rows, rescaled=words)


def _drafts(match: Array, logits: Array, free: Array) -> DraftTrace:
    return DraftTrace(match=match.astype(np.int8), logits=logits.astype(np.float32), token_free=free.astype(np.float32))


def fit_offsets(
    logits: FloatArray, left: Array, visited: FloatArray, curve: FloatArray, given: FloatArray | None = None
) -> FloatArray:
    """Offsets [G]: with them the mean confidence at a depth, over the anchors whose drafts get there, is the curve's.

    visited [N]: how often a round starts at an anchor. `given` [N, G]: conditional acceptance, if not the result's own.
    """
    offsets, reached = np.zeros(len(curve)), visited.astype(np.float64)
    for depth, wanted in enumerate(curve):
        z, weight = logits[:, depth], np.where(left > depth, reached, 0.0)
        if weight.any():
            offsets[depth] = _offset(z[weight > 0], weight[weight > 0], float(wanted))
        reached = reached * (expit(z + offsets[depth]) if given is None else given[:, depth])
    return offsets


def _offset(z: FloatArray, weight: FloatArray, wanted: float) -> float:
    """The offset at which the weighted mean of sigmoid(z + offset) is `wanted`."""

    def excess(offset: float) -> float:
        return float((weight * (expit(z + offset) - wanted)).sum())

    return float(brentq(excess, -FAR - z.max(), FAR - z.min(), xtol=1e-8))


def visits(chance: FloatArray, left: Array) -> FloatArray:
    """How often a round starts at each anchor [N], if all drafts are verified: texts start at their first anchor.

    chance [N, G] conditional acceptance; left [N] counts down to 1 along each text.
    """
    anchors, block = chance.shape
    survival = np.cumprod(np.pad(chance, ((0, 0), (1, 0)), constant_values=1.0), axis=1)
    lands = survival - np.pad(survival[:, 1:], ((0, 0), (0, 1)))  # [N, G + 1] accepted 0 .. G
    starts = np.flatnonzero(np.concatenate([[True], left[:-1] == 1])[:anchors])
    accepted = np.arange(block + 1)
    out = np.zeros(anchors)
    out[starts] = 1.0
    for at in range(1, int(left.max(initial=0))):  # of every text that is so long, from those before
        here = starts[left[starts] > at] + at
        before = here[:, None] - 1 - accepted[:at]
        out[here] = (out[before] * lands[before, accepted[:at]]).sum(axis=1)
    return out


def drawn(chance: FloatArray, left: Array) -> Array:
    """Match lengths [N] of independent drafts, as far as the text goes."""
    hits = np.random.default_rng(SEED).random(chance.shape) < chance
    return np.asarray(np.minimum(np.cumprod(hits, axis=1).sum(axis=1), left))
