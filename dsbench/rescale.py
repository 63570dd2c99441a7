"""A trace rescaled to a published acceptance by depth: its own ups and downs, somebody else's level. No torch.

Each depth's confidences get one offset in logit space, and matches are drawn anew from the confidences that result. So
the confidences of a rescaled trace are perfectly calibrated. Shapes: N anchors of all texts together, G block.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from dsbench.curves import published_curve
from dsbench.profiles.curve import FloatArray
from dsbench.runtime.trace import Array, DraftTrace
from dsbench.trace import Trace

SEED = 0  # of the matches
FAR = 1e3  # beyond any logit
TURNS, CLOSE = 50, 1e-6


def rescaled(trace: Trace, name: str) -> Trace:
    """The trace at the published acceptance `name`, which rounds that verify the whole block then show on average."""
    curve, words = published_curve(name, trace.block)
    drafts = [row.drafts for row in trace.rows]
    logits = np.concatenate([d.logits for d in drafts]).astype(np.float64)
    free = np.concatenate([d.free for d in drafts]).astype(np.float64)
    left = np.concatenate([d.left for d in drafts])
    visited = np.ones(len(left))
    offsets = np.zeros(trace.block)
    for _ in range(TURNS):  # which anchors are visited depends on what is accepted, and the other way round
        last, offsets = offsets, fit_offsets(logits, left, visited, curve)
        if np.abs(offsets - last).max() < CLOSE:
            break
        visited = visits(sigmoid(logits + offsets), left)
    chance = sigmoid(logits + offsets)
    logits, free = logits + offsets, free + fit_offsets(free, left, visited, curve, given=chance)
    match = drawn(chance, left)
    ends = np.cumsum([len(d.match) for d in drafts])[:-1]
    parts = zip(*(np.split(values, ends) for values in (match, logits, free)), strict=True)
    rows = tuple(replace(row, drafts=_drafts(*part)) for row, part in zip(trace.rows, parts, strict=True))
    return replace(trace, rows=rows, rescaled=words)


def _drafts(match: Array, logits: Array, free: Array) -> DraftTrace:
    return DraftTrace(match=match.astype(np.int8), logits=logits.astype(np.float32), free=free.astype(np.float32))


def sigmoid(logits: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logits)))


def fit_offsets(
    logits: FloatArray, left: Array, visited: FloatArray, curve: FloatArray, given: FloatArray | None = None
) -> FloatArray:
    """Offsets [G]: with them the mean confidence at a depth, over the anchors whose drafts get there, is the curve's.

    visited [N]: how often a round starts at an anchor. `given` [N, G]: conditional acceptance, if not the result's own.
    """
    offsets, reached = np.zeros(len(curve)), visited.astype(np.float64)
    for depth, wanted in enumerate(curve):
        z, weight = logits[:, depth], np.where(left > depth, reached, 0.0)
        if weight.sum() > 0:
            offsets[depth] = brentq(lambda o, z=z, w=weight, c=wanted: w @ (sigmoid(z + o) - c), -FAR, FAR)
        reached = reached * (sigmoid(z + offsets[depth]) if given is None else given[:, depth])
    return offsets


def visits(chance: FloatArray, left: Array) -> FloatArray:
    """How often a round starts at each anchor [N], if all drafts are verified: texts start at their first anchor.

    chance [N, G] conditional acceptance; left [N] counts down to 1 along each text.
    """
    survival = np.cumprod(np.pad(chance, ((0, 0), (1, 0)), constant_values=1.0), axis=1)
    lands = survival - np.pad(survival[:, 1:], ((0, 0), (0, 1)))  # [N, G + 1] accepted 0 .. G
    out = np.zeros(len(left))
    for at, remaining in enumerate(left.tolist()):
        if at == 0 or left[at - 1] == 1:
            out[at] = 1.0
        width = min(lands.shape[1], remaining - 1)
        out[at + 1 : at + 1 + width] += out[at] * lands[at, :width]
    return out


def drawn(chance: FloatArray, left: Array) -> Array:
    """Match lengths [N] of independent drafts, as far as the text goes."""
    hits = np.random.default_rng(SEED).random(chance.shape) < chance
    return np.asarray(np.minimum(np.cumprod(hits, axis=1).sum(axis=1), left))
