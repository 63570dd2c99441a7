"""`coupled_block` on a CPU in fp32: all depths of all requests in one compiled call, whose logits never leave it.

A depth is three parallel regions: the feature of each request; the logits, TILE words at a time, so that their part of
W2 is read once for all requests; the draw, each row in parts. Every sum of a request is made in one order, whoever else
is drafted and however many threads there are. Shapes as in `draft_head`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.draft.stats import (
    CLIP,
    FEATURES,
    LOG2E,
    exponential_sums,
    fill_features,
    leaders,
    margin_of,
    perturbed,
)
from dsbench.kernels.gumbel import BLOCK, column_ids, winning_words

if TYPE_CHECKING:
    from dsbench.kernels.draft.head import Head

KINDS = ("vanilla", "gated", "rnn", "deep")
VANILLA, GATED, RNN = range(3)
TILE = 2 * BLOCK  # words whose weights, at rank 64, stay in a first-level cache of 32 KiB
PART = 32  # blocks of a row that are drawn together
NOTHING = np.zeros((0, 0), np.float32)


def tiles_of(weight: Tensor) -> Tensor | None:
    """W2 [V', r] as [ceil(V' / TILE), r, TILE], zeros past V'; None where the kernel does not run."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    padded = F.pad(weight, (0, 0, 0, -weight.shape[0] % TILE))
    return padded.view(-1, TILE, weight.shape[1]).transpose(1, 2).contiguous()


def coupled_block(
    head: Head,
    base: Tensor,
    part: Tensor,
    anchor: Tensor,
    start: Tensor,
    depth: Tensor,
    most: int,
    temperature: Tensor,
    seeds: Tensor,
    ids: Tensor | None,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    """As draft_head.coupled_block."""
    assert head.tiles is not None
    requests = anchor.shape[0]
    tokens = torch.zeros(requests, most, dtype=torch.int64)
    features = torch.zeros(requests, most if stats else 0, FEATURES)
    _draw_block(
        KINDS.index(head.kind),
        head.w1.numpy(),
        _weight(head.of_token),
        _weight(head.feature),
        head.tiles.numpy(),
        part.contiguous().numpy(),
        base.contiguous().numpy(),
        anchor.contiguous().numpy(),
        start.numpy(),
        depth.numpy(),
        temperature.numpy(),
        seeds.numpy(),
        column_ids(ids, base).numpy(),
        winning_words(),
        tokens.numpy(),
        features.numpy(),
    )
    return tokens, features if stats else None


def _weight(projection: Any) -> Any:
    return NOTHING if projection is None else projection.weight.numpy()


@numba.njit(parallel=True, cache=True, nogil=True)
def _draw_block(
    kind: int,
    table: Any,
    of_token: Any,
    project: Any,
    tiles: Any,
    part: Any,
    base: Any,
    anchor: Any,
    start: Any,
    depth: Any,
    temperature: Any,
    seeds: Any,
    ids: Any,
    winning: Any,
    tokens: Any,
    features: Any,
) -> None:
    (requests, most), (_, rank, _), vocab = tokens.shape, tiles.shape, base.shape[2]
    blocks, stats = (vocab + BLOCK - 1) // BLOCK, features.shape[1] > 0
    parts = (blocks + PART - 1) // PART
    state = np.zeros((requests, table.shape[1]), np.float32)
    feature = np.empty((requests, rank), np.float32)
    logits = np.empty((requests, tiles.shape[0] * TILE), np.float32)
    tops = np.empty((requests, tiles.shape[0] * TILE // BLOCK), np.float32)
    found, words = np.empty((requests, parts, 4)), np.empty((requests, parts), np.int64)
    for j in range(most):
        for r in numba.prange(requests):
            if j < depth[r]:
                e = table[tokens[r, j - 1] if j > 0 else anchor[r]]
                _advance(kind, e, part[r, j], of_token, project, state[r], feature[r])
        for t in numba.prange(tiles.shape[0]):
            first = t * TILE
            for r in range(requests):
                if j < depth[r]:
                    _tile(tiles[t], feature[r], base[r, j, first:], logits[r, first:], tops[r, first // BLOCK :])
        for task in numba.prange(requests * parts):
            r, p = task // parts, task % parts
            if j < depth[r]:
                words[r, p] = _draw_part(
                    logits[r, :vocab],
                    tops[r, :blocks],
                    p * PART,
                    min((p + 1) * PART, blocks),
                    temperature[r],
                    seeds[r],
                    start[r] + j + 1,
                    ids,
                    winning,
                    stats,
                    found[r, p],
                )
        for r in range(requests):
            if j < depth[r]:
                winner, best, other = _join(words[r], found[r])
                tokens[r, j] = ids[winner]
                if stats:
                    _describe(
                        logits[r, :vocab], tops[r, :blocks], temperature[r], found[r], best - other, features[r, j]
                    )


@numba.njit(fastmath={"nsz", "reassoc", "contract"})
def _advance(kind: int, e: Any, part: Any, of_token: Any, project: Any, state: Any, feature: Any) -> None:
    """`Head.advance` of one request, in place."""
    w = e.shape[0]
    if kind == VANILLA:
        feature[:] = e
        return
    z = part.copy()
    if kind == GATED:
        _add_product(of_token, e, z)
        for i in range(w):
            feature[i] = e[i] * _sigmoid(z[i])
    elif kind == RNN:
        _add_product(of_token, np.concatenate((state, e)), z)
        for i in range(w):
            g = _sigmoid(z[i])
            state[i] = g * state[i] + (np.float32(1) - g) * np.tanh(z[w + i])
            feature[i] = np.tanh(z[2 * w + i])
    else:
        _add_product(of_token, state, z)
        for i in range(w):
            u = z[i] + e[i]
            state[i] = u * _sigmoid(u)
        feature[:] = 0
        _add_product(project, state, feature)


@numba.njit(inline="always")
def _sigmoid(x: Any) -> Any:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


@numba.njit(fastmath={"nsz", "reassoc", "contract"})
def _add_product(weight: Any, x: Any, out: Any) -> None:
    """out [N] += weight [N, K] x [K]."""
    for i in range(weight.shape[0]):
        total = np.float32(0)
        for k in range(weight.shape[1]):
            total += weight[i, k] * x[k]
        out[i] += total


@numba.njit(fastmath={"nnan", "nsz", "reassoc", "contract"})
def _tile(tile: Any, feature: Any, base: Any, x: Any, tops: Any) -> None:
    """TILE words of x = base + feature [r] tile [r, TILE], -inf past base, and the maximum of each BLOCK."""
    rank = feature.shape[0]
    for v in range(TILE):
        x[v] = -np.inf
    for v in range(min(base.shape[0], TILE)):
        x[v] = base[v]
    whole = rank - rank % 8
    for k in range(0, whole, 8):
        f0, f1, f2, f3 = feature[k], feature[k + 1], feature[k + 2], feature[k + 3]
        f4, f5, f6, f7 = feature[k + 4], feature[k + 5], feature[k + 6], feature[k + 7]
        for v in range(TILE):
            low = f0 * tile[k, v] + f1 * tile[k + 1, v] + f2 * tile[k + 2, v] + f3 * tile[k + 3, v]
            high = f4 * tile[k + 4, v] + f5 * tile[k + 5, v] + f6 * tile[k + 6, v] + f7 * tile[k + 7, v]
            x[v] += low + high
    for k in range(whole, rank):
        for v in range(TILE):
            x[v] += feature[k] * tile[k, v]
    for b in range(TILE // BLOCK):
        top = np.float32(-np.inf)
        for v in range(b * BLOCK, (b + 1) * BLOCK):
            top = x[v] if x[v] > top else top
        tops[b] = top


@numba.njit
def _draw_part(
    x: Any,
    tops: Any,
    first: int,
    last: int,
    temperature: Any,
    seed: Any,
    position: Any,
    ids: Any,
    winning: Any,
    stats: bool,
    found: Any,
) -> Any:
    """Index of the best score among the two largest logits and blocks first..last.

    found: that score, the best of the others, and the part's sums of exponentials.
    """
    top, second = leaders(x, tops)
    temp = temperature if temperature > 0 else np.float32(1)
    if stats:
        inside = x[first * BLOCK : last * BLOCK]
        found[2], found[3] = exponential_sums(inside, x[top], np.float32(LOG2E) / temp)
    if temperature <= 0:
        found[0], found[1] = x[top], x[second] if second >= 0 else -np.inf
        return top
    winner, best, other = perturbed(x, tops, first, last, top, second, temp, seed, position, ids, winning)
    found[0], found[1] = best, other
    return winner


@numba.njit
def _join(words: Any, found: Any) -> Any:
    """(winner, its score, the best of the others) of a row's parts; lowest index wins a tie."""
    winner, best, other = words[0], found[0, 0], -np.inf
    for p in range(1, words.shape[0]):
        if found[p, 0] > best or (found[p, 0] == best and words[p] < winner):
            winner, best = words[p], found[p, 0]
    for p in range(words.shape[0]):
        other = max(other, found[p, 1] if words[p] == winner else found[p, 0])
    return winner, best, other


@numba.njit
def _describe(x: Any, tops: Any, temperature: Any, found: Any, lead: Any, out: Any) -> None:
    """The features of a row's law, whose draw won by `lead`."""
    temp = temperature if temperature > 0 else np.float32(1)
    margin = margin_of(x, *leaders(x, tops), temp)
    mass, fall = found[:, 2].sum(), found[:, 3].sum()
    gap = np.float32(min(lead, CLIP)) if temperature > 0 else margin
    fill_features(mass, fall, margin, gap, out)
