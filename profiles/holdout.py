"""Chooses cells of a profile to hold out for testing a fit, such that the rest still determines its values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dsbench.profiles.curve import IntArray


def choose_holdout(
    axes: Sequence[IntArray], context: IntArray, *, share: float, seed: int, keep_levels: bool
) -> NDArray[np.bool_]:
    """A random mask [n] of at most a share of the n cells; True means spared.

    axes: one or two integer levels [n] each. What is left keeps the lowest and the highest level of each axis and the
    widest set of contexts at one point, and falls into no more unconnected parts than before (see `confounded`). With
    `keep_levels` the last axis keeps every level: a staircase cannot be interpolated.
    """
    nodes, first = [], 0
    for axis in axes:
        levels, index = np.unique(axis, return_inverse=True)
        nodes.append(first + index.astype(np.int64))
        first += len(levels)
    left = nodes[0]
    right = nodes[1] if len(nodes) > 1 else np.full(len(left), first, np.int64)
    total = first + (len(nodes) == 1)
    required = {int(end) for node in nodes for end in (node.min(), node.max())}
    if keep_levels:
        required |= {int(node) for node in nodes[-1]}
    pinned = _widest(left, right, context)

    kept = np.ones(len(left), bool)
    parts = _parts(left, right, total)
    wanted = int(share * len(left))
    for cell in np.random.default_rng(seed).permutation(len(left)):
        if (~kept).sum() >= wanted:
            break
        if pinned[cell]:
            continue
        kept[cell] = False
        present = set(left[kept].tolist()) | set(right[kept].tolist())
        if not required <= present or _parts(left[kept], right[kept], total) > parts:
            kept[cell] = True
    return ~kept


def _parts(left: IntArray, right: IntArray, total: int) -> int:
    """Connected parts of the graph with an edge left[i] - right[i] per cell, lone nodes not counted."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(left)), (left, right)), shape=(total, total))
    count, _ = connected_components(graph, directed=False)
    return int(count) - (total - len(np.union1d(left, right)))


def _widest(left: IntArray, right: IntArray, context: IntArray) -> NDArray[np.bool_]:
    """The two cells [n] that pin kappa: least and most context at the point where these are furthest apart."""
    best, pair = 0, (0, 0)
    for point in sorted(set(zip(left.tolist(), right.tolist(), strict=True))):
        index = np.flatnonzero((left == point[0]) & (right == point[1]))
        low, high = index[context[index].argmin()], index[context[index].argmax()]
        width = int(context[high] - context[low])
        if width > best:
            best, pair = width, (int(low), int(high))
    mask = np.zeros(len(left), bool)
    if best:
        mask[list(pair)] = True
    return mask
