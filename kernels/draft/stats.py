"""The coupled draw of a draft and six features of the law q it was drawn from, in one walk over the logits.

Features of a row z [V'] at temperature T (T = 0: the features of T = 1), fp32, in this order:
0 entropy of softmax(z / T) in nats; 1 log of its largest probability; 2 m = (largest - second largest z) / T, at most
CLIP; 3 log(m + SHIFT); 4 g = best - second best of z / T + Gumbel noise, at most CLIP (T = 0: m); 5 log(g + SHIFT).
`law_stats` knows no noise and has g = 0 (T = 0: m): where target and draft share no noise a confidence must not
anticipate the drawn token, which only at T = 0 is no secret.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from dsbench.kernels.gumbel import (
    BLOCK,
    block_tops,
    block_words,
    column_ids,
    column_of_top,
    gumbel_of_word,
    most_winning,
    philox_word,
    winning_words,
)
from dsbench.kernels.philox import GUMBEL_MAX, gumbel_noise
from dsbench.kernels.truncate import Kept, kept_logits

FEATURES = 6
CLIP, SHIFT = 10.0, 0.1
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LOWEST = -3.4028235e38


def coupled_stats_reference(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor | None, kept: Kept | None = None
) -> tuple[Tensor, Tensor]:
    """Winner [n] int64 as `gumbel_argmax` names it, features [n, 6]. Arguments as there; logits may hold -inf."""
    z, hot = kept_logits(logits, kept), temperature > 0
    noise = gumbel_noise(seeds, positions, column_ids(ids, logits))
    noisy = torch.where(hot[:, None], z / _scale(temperature) + noise, z)
    features = law_stats_reference(z, temperature)
    gap = torch.where(hot, top_gap(noisy).clamp(max=CLIP), features[:, 2])
    features[:, 4], features[:, 5] = gap, (gap + SHIFT).log()
    return noisy.argmax(dim=-1), features


def law_stats_reference(logits: Tensor, temperature: Tensor, kept: Kept | None = None) -> Tensor:
    """Features [n, 6] of logits [n, V'] at temperature fp32 [n], without noise."""
    z, scale = kept_logits(logits, kept), _scale(temperature)
    log_q = (z / scale).log_softmax(dim=-1)
    margin = (top_gap(z) / scale.squeeze(-1)).clamp(max=CLIP)
    gap = torch.where(temperature > 0, 0.0, margin)
    columns = (
        torch.special.entr(log_q.exp()).sum(-1),
        log_q.amax(-1),
        margin,
        (margin + SHIFT).log(),
        gap,
        (gap + SHIFT).log(),
    )
    return torch.stack(columns, dim=1)


def coupled_stats(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor | None, kept: Kept | None = None
) -> tuple[Tensor, Tensor]:
    """As the reference. On the CPU through the compiled kernel, on CUDA through Triton's."""
    if logits.device.type == "cuda":
        return _triton().coupled_stats(logits, temperature, seeds, positions, ids, kept)  # type: ignore[no-any-return]
    rest = (seeds.numpy(), positions.numpy(), column_ids(ids, logits).numpy())
    return _run(kept_logits(logits, kept), temperature, *rest, True)


def law_stats(logits: Tensor, temperature: Tensor, kept: Kept | None = None) -> Tensor:
    """As the reference. On the CPU through the compiled kernel, on CUDA through Triton's."""
    if logits.device.type == "cuda":
        return _triton().law_stats(logits, temperature, kept)  # type: ignore[no-any-return]
    none = np.empty(0, np.int64)
    return _run(kept_logits(logits, kept), temperature, none, none, none, False)[1]


def _triton() -> Any:
    from dsbench.kernels.draft import (
        stats_triton as draft_stats_triton,  # imports triton, which a machine without a GPU need not have
    )

    return draft_stats_triton


def _run(
    logits: Tensor, temperature: Tensor, seeds: Any, positions: Any, ids: Any, noisy: bool
) -> tuple[Tensor, Tensor]:
    winner = torch.empty(logits.shape[0], dtype=torch.int64)
    features = torch.empty(logits.shape[0], FEATURES)
    _stats_rows(
        logits.contiguous().numpy(),
        temperature.float().numpy(),
        seeds,
        positions,
        ids,
        winning_words(),
        noisy,
        winner.numpy(),
        features.numpy(),
    )
    return winner, features


def _scale(temperature: Tensor) -> Tensor:
    return torch.where(temperature > 0, temperature, torch.ones_like(temperature))[:, None]


def top_gap(x: Tensor) -> Tensor:
    """Largest - second largest of each row; infinite where there is no second."""
    if x.shape[-1] == 1:
        return torch.full_like(x[:, 0], float("inf"))
    top = x.topk(2, dim=-1).values
    return top[:, 0] - top[:, 1]


@numba.njit(parallel=True, cache=True, nogil=True)
def _stats_rows(
    logits: Any,
    temperature: Any,
    seeds: Any,
    positions: Any,
    ids: Any,
    winning: Any,
    noisy: bool,
    winner: Any,
    features: Any,
) -> None:
    for row in numba.prange(logits.shape[0]):
        x = logits[row]
        temp = temperature[row] if temperature[row] > 0 else np.float32(1)
        tops = block_tops(x)
        top, second = leaders(x, tops)
        margin = margin_of(x, top, second, temp)
        mass, fall = exponential_sums(x, x[top], np.float32(LOG2E) / temp)
        gap = margin
        if temperature[row] > 0:
            gap = np.float32(0)
            if noisy:
                top, best, other = perturbed(
                    x, tops, 0, len(tops), top, second, temp, seeds[row], positions[row], ids, winning
                )
                gap = min(best - other, np.float32(CLIP))
        winner[row] = top
        fill_features(mass, fall, margin, gap, features[row])


@numba.njit
def margin_of(x: Any, top: int, second: int, temp: Any) -> Any:
    margin = np.float32(CLIP)
    return min((x[top] - x[second]) / temp, margin) if second >= 0 else margin


@numba.njit
def fill_features(mass: Any, fall: Any, margin: Any, gap: Any, out: Any) -> None:
    """The six features [6] of a law; mass and fall as `exponential_sums` gives them."""
    out[0] = math.log(mass) + fall / mass
    out[1] = -math.log(mass)
    out[2], out[3] = margin, math.log(margin + np.float32(SHIFT))
    out[4], out[5] = gap, math.log(gap + np.float32(SHIFT))


@numba.njit
def leaders(x: Any, tops: Any) -> Any:
    """Indices of the largest logit and of the next; -1 where there is no second."""
    top = _find(x, tops, -1)
    return top, _find(x, tops, top)


@numba.njit
def _find(x: Any, tops: Any, but: int) -> int:
    """Index of the largest logit but `but`, the lowest of equals; -1 where there is none."""
    found, block = -1, but // BLOCK
    if but >= 0:
        for v in range(block * BLOCK, min((block + 1) * BLOCK, x.shape[0])):
            if v != but and (found < 0 or x[v] > x[found]):
                found = v
    best = -1
    for b in range(tops.shape[0]):
        if (but < 0 or b != block) and (best < 0 or tops[b] > tops[best]):
            best = b
    if best >= 0 and (found < 0 or tops[best] > x[found] or (tops[best] == x[found] and best < block)):
        found = column_of_top(x, tops, best)
    return found


@numba.njit(fastmath={"nnan", "nsz", "reassoc", "contract"})
def exponential_sums(x: Any, top: Any, scale: Any) -> Any:
    """(sum of e, sum of e d) for e = exp(-d), d = (top - x) / T, scale = log2(e) / T; fp64 over fp32 parts.

    The polynomial of `attention`: libm's scalar exp would take most of the kernel's time.
    """
    mass, fall = 0.0, 0.0
    parts = np.empty(4 * BLOCK, np.float32)
    powers = np.empty(4 * BLOCK, np.int32)
    for first in range(0, x.shape[0], 4 * BLOCK):
        count = min(4 * BLOCK, x.shape[0] - first)
        for t in range(count):
            y = max((x[first + t] - top) * scale, np.float32(-126.0))
            n = np.floor(y + np.float32(0.5))
            f = (y - n) * np.float32(LN2)
            z = np.float32(1.0 / 720) * f + np.float32(1.0 / 120)
            z = z * f + np.float32(1.0 / 24)
            z = z * f + np.float32(1.0 / 6)
            z = z * f + np.float32(0.5)
            parts[t] = (z * f + np.float32(1)) * f + np.float32(1)
            powers[t] = (np.int32(n) + np.int32(127)) << np.int32(23)
        two = powers.view(np.float32)
        e: Any = np.float32(0)
        d: Any = np.float32(0)
        for t in range(count):
            part = parts[t] * two[t]
            e += part
            d += part * max((x[first + t] - top) * scale, np.float32(-126.0))
        mass += e
        fall -= d * LN2
    return mass, fall


@numba.njit
def perturbed(
    x: Any,
    tops: Any,
    first: int,
    last: int,
    top: int,
    second: int,
    temp: Any,
    seed: Any,
    position: Any,
    ids: Any,
    winning: Any,
) -> Any:
    """(index of the best z / T + noise, that score, the next) of `leaders` and blocks first..last; lowest index wins.

    A number is made only where it could change best - next, at most CLIP: above next, and above best - CLIP.
    """
    word = np.int64(philox_word(seed, position, ids[top]) >> np.uint64(8))
    best, best_at, other = x[top] / temp + gumbel_of_word(word), top, np.float32(-np.inf)
    if second >= 0 and x[second] > np.float32(LOWEST):
        word = np.int64(philox_word(seed, position, ids[second]) >> np.uint64(8))
        other = x[second] / temp + gumbel_of_word(word)
        if other > best or (other == best and second < best_at):
            best, best_at, other = other, second, best
    line = max(other, best - np.float32(CLIP))
    floor = max((line - np.float32(GUMBEL_MAX)) * temp, np.float32(LOWEST))
    words = np.empty(BLOCK, np.int64)
    for b in range(first, last):
        if tops[b] < floor:
            continue
        count = min(BLOCK, x.shape[0] - b * BLOCK)
        lowest = block_words(seed, position, ids, b * BLOCK, count, words)
        if lowest > most_winning(line - tops[b] / temp, winning):
            continue
        for v in range(b * BLOCK, b * BLOCK + count):
            word = words[v - b * BLOCK]
            if x[v] < floor or v in (top, second) or word > most_winning(line - x[v] / temp, winning):
                continue
            score = x[v] / temp + gumbel_of_word(word)
            if score > best or (score == best and v < best_at):
                best, best_at, other = score, v, best
            elif score > other:
                other = score
            line = max(other, best - np.float32(CLIP))
            floor = max((line - np.float32(GUMBEL_MAX)) * temp, np.float32(LOWEST))
    return best_at, best, other
