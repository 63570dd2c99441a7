"""argmax over a row of logits / temperature + Gumbel noise: the coupled rule's only sampling step.

`gumbel_argmax_reference` builds the whole noise table; `gumbel_argmax_cpu` (numba) makes a number only where it
could win. Both name the same token. Temperature 0 is plain argmax. Lowest id wins an exact tie.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from dsbench.kernels.philox import GUMBEL_MAX, gumbel_noise

THRESHOLD_STEP = 8  # thresholds per unit of gap
THRESHOLDS = 18 * THRESHOLD_STEP


def gumbel_argmax_reference(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor
) -> Tensor:
    """Index into each row [n, V'] of the winner. temperature fp32 [n]; seeds, positions int64 [n]; ids int64 [V']."""
    scores = logits.float()
    hot = temperature > 0
    scale = torch.where(hot, temperature, torch.ones_like(temperature))
    noise = gumbel_noise(seeds, positions, ids)
    noisy = scores / scale[:, None] + noise
    return torch.where(hot[:, None], noisy, scores).argmax(dim=-1)


def gumbel_argmax(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """As the reference; int64 [n]. On the CPU through the compiled kernel, on CUDA through Triton's."""
    if logits.device.type == "cuda":
        from dsbench.kernels import draft_stats_triton

        return draft_stats_triton.gumbel_argmax(logits, temperature, seeds, positions, ids)
    out = np.empty(logits.shape[0], np.int64)
    _argmax_rows(
        logits.float().contiguous().numpy(),
        temperature.numpy().astype(np.float32),
        seeds.numpy(),
        positions.numpy(),
        ids.numpy(),
        winning_words(),
        out,
    )
    return torch.from_numpy(out)


def winning_words() -> np.ndarray[Any, np.dtype[np.int64]]:
    """For a gap d >= i / THRESHOLD_STEP, words w (24 bits) above entry i cannot give noise > d.

    Noise exceeds d iff the lower uniform is below 1 - exp(-exp(-d)); one word of slack covers fp32 rounding.
    """
    gaps = np.arange(THRESHOLDS) / THRESHOLD_STEP
    limit = -np.expm1(-np.exp(-gaps))
    return np.ceil(limit * 2**24 * (1 + 1e-5)).astype(np.int64) + 2


@numba.njit(inline="always")
def philox_word(seed: Any, position: Any, vocab_id: Any) -> Any:
    mask = np.uint64(0xFFFFFFFF)
    c0, c1 = np.uint64(vocab_id // 4), np.uint64(position)
    c2, c3 = np.uint64(0), np.uint64(0)
    k0, k1 = np.uint64(seed) & mask, (np.uint64(seed) >> np.uint64(32)) & mask
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & mask, (a >> np.uint64(32)) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    lane = vocab_id % 4
    if lane == 0:
        return c0
    if lane == 1:
        return c1
    if lane == 2:
        return c2
    return c3


@numba.njit(inline="always")
def gumbel_of_word(word24: Any) -> Any:
    w = min((np.float32(word24) + np.float32(0.5)) * np.float32(1.0 / (1 << 24)), np.float32(1.0 - 1.0 / (1 << 24)))
    return np.float32(-math.log(np.float32(-math.log1p(-w))))


@numba.njit(parallel=True, cache=True, nogil=True)
def _argmax_rows(logits: Any, temperature: Any, seeds: Any, positions: Any, ids: Any, winning: Any, out: Any) -> None:
    n, vocab = logits.shape
    for row in numba.prange(n):
        x = logits[row]
        top = 0
        for v in range(1, vocab):
            if x[v] > x[top]:
                top = v
        temp = temperature[row]
        if temp > 0:
            word = np.int64(philox_word(seeds[row], positions[row], ids[top]) >> np.uint64(8))
            best, best_at = x[top] / temp + gumbel_of_word(word), top
            # a token below this line cannot win whatever its noise
            floor = (best - np.float32(GUMBEL_MAX)) * temp
            for v in range(vocab):
                if x[v] < floor or v == top:
                    continue
                gap = best - x[v] / temp
                word = np.int64(philox_word(seeds[row], positions[row], ids[v]) >> np.uint64(8))
                if gap > 0 and word > winning[min(int(gap * THRESHOLD_STEP), THRESHOLDS - 1)]:
                    continue
                score = x[v] / temp + gumbel_of_word(word)
                if score > best or (score == best and v < best_at):
                    best, best_at = score, v
                    floor = (best - np.float32(GUMBEL_MAX)) * temp
            top = best_at
        out[row] = top
