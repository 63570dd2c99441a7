"""The CUDA side of draft_stats.py and gumbel.py: a row is split over programs, a second launch joins their parts.

At one row a single program would wait for its own latency: 16k ids are 8 programs here. Imported only where a CUDA
device runs it. `i_` program index, `o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.draft.stats import CLIP, FEATURES, SHIFT
from dsbench.kernels.noise_triton import noise_of_ids, noise_of_run
from dsbench.kernels.truncate import Kept

BLOCK = 2048  # columns a program
PARTS = 6  # fp32 of a program: best and second score, best and second logit, sum of e, sum of e d (see draft_stats)


@triton.jit
def best_two(b_x, AXIS: tl.constexpr):
    """Largest along an axis, its index (the lowest of equals), largest of the rest; NaN counts as -inf.

    Compared as it is, NaN loses to whatever is right of it, also to a column past the row's end. Three
    reductions, because one that carries indices takes longer.
    """
    b_x = tl.where(b_x == b_x, b_x, float("-inf"))
    o_x = tl.arange(0, b_x.shape[AXIS])
    if AXIS == 1:
        o_x = o_x[None, :]
    top = tl.max(b_x, AXIS, keep_dims=True)
    at = tl.min(tl.where(b_x == top, o_x, b_x.shape[AXIS]), AXIS, keep_dims=True)
    second = tl.max(tl.where(o_x == at, float("-inf"), b_x), AXIS)
    return tl.max(top, AXIS), tl.max(at, AXIS), second


@triton.jit
def score_tile(
    b_x,
    b_row,
    live,
    split,
    b_temperature,
    p_seed,
    b_position,
    p_id,
    p_part,
    p_at,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    NOISY: tl.constexpr,
    STATS: tl.constexpr,
):
    """Stores what logits b_x [rows, BLOCK] of columns `split` * BLOCK on give to their rows b_row, those that are live.

    Temperature is 0 where no request is live: a tile of greedy rows generates no noise.
    """
    b_hot = b_temperature > 0
    b_scale = tl.where(b_hot, tl.minimum(1.0 / b_temperature, 3.0e38), 1.0)[:, None]
    p_mine = p_part + b_row * PARTS * SPLITS + split
    if NOISY:
        b_score = b_x
        if tl.max(b_temperature, 0) > 0:
            b_seed = tl.load(p_seed + b_row, mask=live, other=0)
            if p_id is None:
                b_noise = noise_of_run(b_seed, b_position, split * BLOCK, BLOCK)
            else:
                o_v = split * BLOCK + tl.arange(0, BLOCK)
                b_noise = noise_of_ids(b_seed, b_position, tl.load(p_id + o_v, mask=o_v < V, other=0))
            b_noisy = tl.fma(b_x, tl.broadcast_to(b_scale, b_x.shape), b_noise)
            b_score = tl.where(b_hot[:, None], b_noisy, b_x)
        best, at, second = best_two(b_score, 1)
        tl.store(p_mine, best, mask=live)
        tl.store(p_at + b_row * SPLITS + split, split * BLOCK + at, mask=live)
        if STATS:
            tl.store(p_mine + SPLITS, second, mask=live)
    if STATS:
        top, at, second = best_two(b_x, 1)
        b_d = (tl.maximum(top, -3.0e38)[:, None] - b_x) * b_scale  # infinite where the logit is excluded
        b_e = tl.exp(-b_d)
        tl.store(p_mine + 2 * SPLITS, top, mask=live)
        tl.store(p_mine + 3 * SPLITS, second, mask=live)
        tl.store(p_mine + 4 * SPLITS, tl.sum(b_e, 1), mask=live)
        tl.store(p_mine + 5 * SPLITS, tl.sum(tl.where(b_e > 0, b_e * b_d, 0.0), 1), mask=live)


@triton.jit
def _part_kernel(
    p_logits,
    p_temperature,
    p_seed,
    p_position,
    p_id,
    p_cut,
    p_last,
    p_part,
    p_at,
    stride,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    NOISY: tl.constexpr,
    STATS: tl.constexpr,
):
    b_row, split = tl.program_id(0).to(tl.int64) + tl.arange(0, 1), tl.program_id(1)
    o_v = split * BLOCK + tl.arange(0, BLOCK)
    o_x = b_row[:, None] * stride + o_v[None, :]
    b_x = tl.load(p_logits + o_x, mask=(o_v < V)[None, :], other=float("-inf")).to(tl.float32)
    if p_cut is not None:
        cut = tl.load(p_cut + b_row)[:, None]
        b_keeps = (b_x > cut) | ((b_x == cut) & (o_v[None, :] <= tl.load(p_last + b_row)[:, None]))
        b_x = tl.where(b_keeps, b_x, float("-inf"))
    b_position = tl.load(p_position + b_row) if NOISY else b_row
    score_tile(
        b_x,
        b_row,
        b_row >= 0,
        split,
        tl.load(p_temperature + b_row),
        p_seed,
        b_position,
        p_id,
        p_part,
        p_at,
        V,
        BLOCK,
        SPLITS,
        PARTS,
        NOISY,
        STATS,
    )


@triton.jit
def join_row(
    p_part,
    p_at,
    p_temperature,
    p_features,
    row,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    CLIP: tl.constexpr,
    SHIFT: tl.constexpr,
    NOISY: tl.constexpr,
    STATS: tl.constexpr,
):
    """The winner of a row; with STATS its features are stored at `p_features`."""
    o_s = tl.arange(0, WIDTH)
    real = o_s < SPLITS
    p_row = p_part + row * PARTS * SPLITS + o_s
    gap = 0.0
    winner = tl.zeros((), tl.int32)
    if NOISY:
        b_best = tl.load(p_row, mask=real, other=float("-inf"))
        best, split, runner = best_two(b_best, 0)
        b_at = tl.load(p_at + row * SPLITS + o_s, mask=real, other=0)
        winner = tl.sum(tl.where(o_s == split, b_at, 0), 0)
        if STATS:
            b_second = tl.load(p_row + SPLITS, mask=real, other=float("-inf"))
            runner = tl.maximum(runner, tl.max(tl.where(o_s == split, b_second, float("-inf")), 0))
            gap = tl.minimum(best - runner, CLIP)
    if STATS:
        temperature = tl.load(p_temperature + row)
        scale = tl.where(temperature > 0, temperature, 1.0)
        b_top = tl.load(p_row + 2 * SPLITS, mask=real, other=float("-inf"))
        b_second = tl.load(p_row + 3 * SPLITS, mask=real, other=float("-inf"))
        b_mass = tl.load(p_row + 4 * SPLITS, mask=real, other=0.0)
        b_fall = tl.load(p_row + 5 * SPLITS, mask=real, other=0.0)
        top, split, runner = best_two(b_top, 0)
        runner = tl.maximum(runner, tl.max(tl.where(o_s == split, b_second, float("-inf")), 0))
        margin = tl.minimum(tl.div_rn(top - runner, scale), CLIP)
        if not NOISY:
            gap = tl.where(temperature > 0, 0.0, margin)
        b_d = (top - b_top) / scale
        b_e = tl.exp(-b_d)
        mass = tl.sum(tl.where(b_e > 0, b_e * b_mass, 0.0), 0)
        fall = tl.sum(tl.where(b_e > 0, b_e * (b_fall + b_mass * b_d), 0.0), 0)
        tl.store(p_features, tl.log(mass) + fall / mass)
        tl.store(p_features + 1, -tl.log(mass))
        tl.store(p_features + 2, margin)
        tl.store(p_features + 3, tl.log(margin + SHIFT))
        tl.store(p_features + 4, gap)
        tl.store(p_features + 5, tl.log(gap + SHIFT))
    return winner


@triton.jit
def _join_kernel(
    p_part,
    p_at,
    p_temperature,
    p_winner,
    p_features,
    SPLITS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    FEATURES: tl.constexpr,
    CLIP: tl.constexpr,
    SHIFT: tl.constexpr,
    NOISY: tl.constexpr,
    STATS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    p_mine = p_features + row * FEATURES
    winner = join_row(p_part, p_at, p_temperature, p_mine, row, SPLITS, WIDTH, PARTS, CLIP, SHIFT, NOISY, STATS)
    if NOISY:
        tl.store(p_winner + row, winner.to(tl.int64))


def coupled_stats(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor | None, kept: Kept | None = None
) -> tuple[Tensor, Tensor]:
    """As draft_stats.coupled_stats, for logits [n, V'] of any float dtype and row stride."""
    return _launch(logits, temperature, seeds, positions, ids, kept, noisy=True, stats=True)


def law_stats(logits: Tensor, temperature: Tensor, kept: Kept | None = None) -> Tensor:
    """As draft_stats.law_stats."""
    return _launch(logits, temperature, None, None, None, kept, noisy=False, stats=True)[1]


def gumbel_argmax(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, ids: Tensor | None, kept: Kept | None = None
) -> Tensor:
    """As gumbel.gumbel_argmax."""
    return _launch(logits, temperature, seeds, positions, ids, kept, noisy=True, stats=False)[0]


def _launch(
    logits: Tensor,
    temperature: Tensor,
    seeds: Any,
    positions: Any,
    ids: Any,
    kept: Kept | None,
    *,
    noisy: bool,
    stats: bool,
) -> tuple[Tensor, Tensor]:
    """Winner [n] int64 and features [n, FEATURES]; what is not asked for keeps unwritten."""
    x = logits if logits.stride(-1) == 1 else logits.contiguous()
    n, vocab = x.shape
    splits = triton.cdiv(vocab, BLOCK)
    part = torch.empty(n, PARTS, splits, dtype=torch.float32, device=x.device)
    at = torch.empty(n, splits, dtype=torch.int32, device=x.device)
    winner = torch.empty(n, dtype=torch.int64, device=x.device)
    features = torch.empty(n, FEATURES, dtype=torch.float32, device=x.device)
    temperature = temperature.float().contiguous()
    seeds, positions, ids = (None if t is None else t.contiguous() for t in (seeds, positions, ids))
    if n == 0:
        return winner, features
    _part_kernel[(n, splits)](
        x,
        temperature,
        seeds,
        positions,
        ids,
        *(kept or (None, None)),
        part,
        at,
        x.stride(0),
        V=vocab,
        BLOCK=BLOCK,
        SPLITS=splits,
        PARTS=PARTS,
        NOISY=noisy,
        STATS=stats,
        num_warps=4,
    )
    _join_kernel[(n,)](
        part,
        at,
        temperature,
        winner,
        features,
        SPLITS=splits,
        WIDTH=triton.next_power_of_2(splits),
        PARTS=PARTS,
        FEATURES=FEATURES,
        CLIP=CLIP,
        SHIFT=SHIFT,
        NOISY=noisy,
        STATS=stats,
        num_warps=1,
    )
    return winner, features
