"""argmax over a row of logits / temperature + Gumbel noise: the coupled rule's only sampling step.

`gumbel_argmax_reference` builds the whole noise table; `gumbel_argmax_cpu` (numba) makes a number only where it
could win. Both name the same token. Temperature 0 is argmax. Lowest id wins an exact tie. A row of NaN, or of
-inf, has its first column as winner; one with NaN among numbers has some column of its own.
`kept` (truncate.py) leaves out what top-k and top-p do. `ids` None says that column v stands for id v: where the whole
vocabulary is scored, CUDA then shares a counter's four words among the four ids that have it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from dsbench.kernels.philox import GUMBEL_MAX, gumbel_noise
from dsbench.kernels.truncate import Kept, kept_logits

BLOCK = 64  # logits that share one maximum: a block that cannot matter is skipped whole
THRESHOLD_STEP = 8  # thresholds per unit of gap
THRESHOLDS = 18 * THRESHOLD_STEP


def column_ids(ids: Tensor | None, logits: Tensor) -> Tensor:
    """The ids [V'] of the columns of logits [., V']."""
    return torch.arange(logits.shape[-1], device=logits.device) if ids is None else ids


def ids_at(ids: Tensor | None, columns: Tensor) -> Tensor:
    """The ids of some columns."""
    return columns if ids is None else ids[columns]


def gumbel_argmax_reference(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor | None, kept: Kept | None = None
) -> Tensor:
    """Index into each row [n, V'] of the winner. temperature fp32 [n]; seeds, positions int64 [n]; ids int64 [V']."""
    scores = kept_logits(logits, kept)
    hot = temperature > 0
    scale = torch.where(hot, temperature, torch.ones_like(temperature))
    noise = gumbel_noise(seeds, positions, column_ids(ids, logits))
    noisy = scores / scale[:, None] + noise
    return torch.where(hot[:, None], noisy, scores).argmax(dim=-1)


def gumbel_argmax(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor | None, kept: Kept | None = None
) -> Tensor:
    """As the reference; int64 [n]. On the CPU through the compiled kernel, on CUDA through Triton's."""
    if logits.device.type == "cuda":
        from dsbench.kernels.draft import stats_triton as draft_stats_triton

        return draft_stats_triton.gumbel_argmax(logits, temperature, seeds, positions, ids, kept)
    out = np.empty(logits.shape[0], np.int64)
    _argmax_rows(
        kept_logits(logits, kept).contiguous().numpy(),
        temperature.numpy().astype(np.float32),
        seeds.numpy(),
        positions.numpy(),
        column_ids(ids, logits).numpy(),
        winning_words(),
        out,
    )
    return torch.from_numpy(out)


@cache
def winning_words() -> np.ndarray[Any, np.dtype[np.int64]]:
    """For a gap d >= i / THRESHOLD_STEP, words w (24 bits) above entry i cannot give noise > d.

    Noise exceeds d iff the lower uniform is below 1 - exp(-exp(-d)); one word of slack covers fp32 rounding.
    """
    gaps = np.arange(THRESHOLDS) / THRESHOLD_STEP
    limit = -np.expm1(-np.exp(-gaps))
    words = np.ceil(limit * 2**24 * (1 + 1e-5)).astype(np.int64) + 2
    words.flags.writeable = False
    return words


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


@numba.njit(inline="always")
def most_winning(gap: Any, winning: Any) -> Any:
    """The largest word whose noise may exceed `gap`."""
    return winning[min(int(gap * THRESHOLD_STEP), THRESHOLDS - 1)] if gap > 0 else np.int64(1 << 24)


@numba.njit(fastmath={"nnan", "nsz", "reassoc"})
def block_tops(x: Any) -> Any:
    """The maximum of each BLOCK logits, [ceil(V' / BLOCK)]."""
    tops = np.empty((x.shape[0] + BLOCK - 1) // BLOCK, np.float32)
    for b in range(tops.shape[0]):
        top = np.float32(-np.inf)
        for v in range(b * BLOCK, min((b + 1) * BLOCK, x.shape[0])):
            top = x[v] if x[v] > top else top
        tops[b] = top
    return tops


@numba.njit(inline="always")
def column_of_top(x: Any, tops: Any, block: int) -> int:
    """The lowest column of a block that holds its maximum; the block's first where none does: NaN equals nothing."""
    for v in range(block * BLOCK, min((block + 1) * BLOCK, x.shape[0])):
        if x[v] == tops[block]:
            return v
    return block * BLOCK


@numba.njit
def block_words(seed: Any, position: Any, ids: Any, first: int, count: int, words: Any) -> Any:
    """`philox_word` >> 8 of ids[first : first + count] into `words`, and their least; without branches, for SIMD."""
    mask = np.uint64(0xFFFFFFFF)
    low, high, at = np.uint64(seed) & mask, (np.uint64(seed) >> np.uint64(32)) & mask, np.uint64(position)
    least = np.int64(1 << 24)
    for t in range(count):
        c0, c1, c2, c3 = np.uint64(ids[first + t] >> 2) & mask, at, np.uint64(0), np.uint64(0)
        k0, k1 = low, high
        for _ in range(10):
            a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
            c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & mask, (a >> np.uint64(32)) ^ c3 ^ k1, a & mask
            k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
        lane = ids[first + t] & 3
        even, odd = c2 if lane & 2 else c0, c3 if lane & 2 else c1
        words[t] = np.int64((odd if lane & 1 else even) >> np.uint64(8))
    for t in range(count):
        least = min(least, words[t])
    return least


@numba.njit(parallel=True, cache=True, nogil=True)
def _argmax_rows(logits: Any, temperature: Any, seeds: Any, positions: Any, ids: Any, winning: Any, out: Any) -> None:
    for row in numba.prange(logits.shape[0]):
        x = logits[row]
        tops = block_tops(x)
        block = 0
        for b in range(1, tops.shape[0]):
            if tops[b] > tops[block]:
                block = b
        top = column_of_top(x, tops, block)
        if temperature[row] > 0:
            top = _perturbed_top(x, tops, top, temperature[row], seeds[row], positions[row], ids, winning)
        out[row] = top


@numba.njit
def _perturbed_top(x: Any, tops: Any, top: int, temp: Any, seed: Any, position: Any, ids: Any, winning: Any) -> int:
    """Index of the best x / temp + noise. `floor`: a token below it cannot win whatever its noise."""
    word = np.int64(philox_word(seed, position, ids[top]) >> np.uint64(8))
    best, best_at = x[top] / temp + gumbel_of_word(word), top
    floor = (best - np.float32(GUMBEL_MAX)) * temp
    words = np.empty(BLOCK, np.int64)
    for b in range(tops.shape[0]):
        if tops[b] < floor:
            continue
        count = min(BLOCK, x.shape[0] - b * BLOCK)
        if block_words(seed, position, ids, b * BLOCK, count, words) > most_winning(best - tops[b] / temp, winning):
            continue
        for v in range(b * BLOCK, b * BLOCK + count):
            word = words[v - b * BLOCK]
            if x[v] < floor or v == top or word > most_winning(best - x[v] / temp, winning):
                continue
            score = x[v] / temp + gumbel_of_word(word)
            if score > best or (score == best and v < best_at):
                best, best_at = score, v
                floor = (best - np.float32(GUMBEL_MAX)) * temp
    return best_at
