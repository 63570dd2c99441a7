"""Which row total a step is to run: throughput, per-user speed, or a weighted sum of both, from the drafts' survival.

Both planners choose here, from what their candidates cost. Shapes: R requests, G block, m candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is expected of each row total [m] of a step if its rows go to the likeliest drafts.

    waits: mean over requests of 1 / its expected tokens, so that waits x seconds is a user's mean time a token;
    None where nobody asks for it.
    """

    tokens: Array
    waits: Array | None


def outlook(survival: Array, limits: Array, rows: Array, weight: float = 1.0) -> Outlook:
    """The mean over sets of survivals [..., R, G]; limits [R] drafts allowed, rows [m] totals of at least R."""
    requests = len(limits)
    legal = bounded(survival, limits)
    worth = np.fmax(legal, 0.0)
    granted = np.minimum(rows - requests, worth.shape[-1] * requests)
    if weight == 1:
        ranked = -np.sort(-worth.reshape(*worth.shape[:-2], -1), axis=-1)
        return Outlook(requests + _sums(ranked)[granted], None)
    by_position = [np.swapaxes(x, -1, -2).reshape(*x.shape[:-2], -1) for x in (legal, worth, _eased(worth))]
    order = np.argsort(-by_position[0], axis=-1, kind="stable")  # in which `allocate` breaks ties
    gained, eased = (_sums(np.take_along_axis(x, order, axis=-1)) for x in by_position[1:])
    return Outlook(requests + gained[granted], 1 + eased[granted] / requests)


def _eased(worth: Array) -> Array:
    """What each draft adds to 1 / its request's expected tokens, the share of a step that a token takes."""
    return np.diff(1 / (1 + np.cumsum(worth, axis=-1)), axis=-1, prepend=1.0)


def _sums(parts: Array) -> Array:
    """0, the first, the first two and so on, along the last axis; the mean over all others."""
    if not parts.size:
        return np.zeros(1)
    sums = np.cumsum(parts, axis=-1).reshape(-1, parts.shape[-1]).mean(axis=0)
    return np.concatenate([[0.0], sums])


def best_of(found: Outlook, seconds: Array, weight: float = 1.0) -> int:
    """Index of the best row total [m]; seconds [m] of whole steps.

    It maximises weight x throughput + (1 - weight) x per-user speed, each over its best among the candidates.
    Throughput: expected tokens a second of all. Per-user speed: 1 / the mean over requests of the expected time a
    token; unlike throughput it counts the second draft of a request for less than the first. A global argmax: cost is a
    staircase, so neither is unimodal.
    """
    rate = found.tokens / seconds
    if weight == 1 or found.waits is None:
        return int(np.argmax(rate))
    speed = 1 / (found.waits * seconds)
    return int(np.argmax(weight * rate / rate.max() + (1 - weight) * speed / speed.max()))


def bounded(survival: Array, limits: Array) -> Array:
    """Survival with what may not be verified (past the request's limit) at -1, so that it sorts last."""
    column = np.arange(survival.shape[-1])
    return np.where(column < limits[:, None], survival, -1.0)


def joined(found: Sequence[Outlook]) -> Outlook:
    """Candidates of several outlooks, one after the other."""
    waits = [one.waits for one in found if one.waits is not None]
    return Outlook(np.concatenate([one.tokens for one in found]), np.concatenate(waits) if waits else None)


def allocate(survival: Array, limits: Array, budget: int) -> Array:
    """window [R]: the `budget` best drafts by (survival descending, position ascending, request ascending).

    Survival [R, G] does not increase along a request, so the order is prefix-safe; the same on every rank and device.
    """
    requests = len(limits)
    score = bounded(np.minimum.accumulate(survival, axis=1), limits).T.ravel()
    best = np.argsort(-score, kind="stable")[:budget]
    return np.bincount(best[score[best] >= 0] % max(requests, 1), minlength=requests)
