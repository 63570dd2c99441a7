"""Which row total a step is to run: throughput, per-user speed, or a weighted sum of both, from the drafts' survival.

Both planners choose here, from what their candidates cost. Shapes: R requests, G block, m candidates.
"""

from __future__ import annotations

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
    """survival [R, G] non-increasing along a request, limits [R] drafts allowed, rows [m] totals of at least R."""
    requests = len(limits)
    legal = bounded(survival, limits)
    if weight == 1:
        ranked = np.sort(legal, axis=None)[::-1]
        ranked = ranked[ranked >= 0]
        granted = np.minimum(rows - requests, len(ranked))
        return Outlook(requests + np.concatenate([[0.0], np.cumsum(ranked)])[granted], None)
    scores = legal.T.reshape(-1)  # position-major: the order in which `allocate` breaks ties
    order = np.argsort(-scores, kind="stable")[: int((scores >= 0).sum())]
    granted = np.minimum(rows - requests, len(order))
    share = 1 / (1 + np.cumsum(np.fmax(legal, 0.0), axis=1))  # of a step, that a token takes
    eased = np.diff(share, axis=1, prepend=1.0).T.reshape(-1)
    return Outlook(
        requests + np.concatenate([[0.0], np.cumsum(scores[order])])[granted],
        1 + np.concatenate([[0.0], np.cumsum(eased[order])])[granted] / requests,
    )


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
    column = np.arange(survival.shape[1])
    return np.where(column < limits[:, None], survival, -1.0)
