"""The CUDA side of draft_loss.py: one program a row, three sweeps over its logits, the gradient written once.

Imported only where a CUDA device runs it. `i_` program index, `o_` offsets, `b_` block of values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.draft.loss import LossRows, Shares
from dsbench.kernels.draft.stats import CLIP, FEATURES, SHIFT

WHOLE = 16384  # widest row of one block: at 16 warps it stays in registers, 0.68 ms against 0.98 in blocks
BLOCK = 4096


@triton.jit
def _mixed(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _noise(key, column):
    bits = _mixed(key ^ (column.to(tl.uint32) * 0x85EBCA6B))
    w = ((bits >> 8).to(tl.float32) + 0.5) * (1.0 / (1 << 24))
    w = tl.minimum(w, 1.0 - 1.0 / (1 << 24))
    e = tl.where(w < 1e-3, w * (1.0 + w * (0.5 + w * (1.0 / 3))), -tl.log(1.0 - w))
    return -tl.log(e)


@triton.jit
def _second(first, second, top, runner):
    """The best two of (first, second) and (top, runner)."""
    return tl.where(top > first, tl.maximum(first, runner), tl.maximum(second, top))


@triton.jit(do_not_specialize=["first"])
def _rows_kernel(
    p_z,
    p_zp,
    p_lse,
    p_greedy,
    p_label,
    p_weight,
    p_stats,
    p_grad,
    p_seed,
    first,
    CE,
    L1,
    COUPLED: tl.constexpr,
    TAU,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    STATS: tl.constexpr,
    CLIP: tl.constexpr,
    SHIFT: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    lse = tl.load(p_lse + i_row)
    greedy, label = tl.load(p_greedy + i_row) != 0, tl.load(p_label + i_row).to(tl.int32)
    weight = tl.load(p_weight + i_row)
    hot = tl.where(greedy, 0.0, 1.0)
    key = _mixed((i_row + first).to(tl.uint32) + tl.load(p_seed).to(tl.uint32) * 0x9E3779B1)
    LOW: tl.constexpr = -3.0e38
    top, runner, n_top, n_runner, y_best = LOW, LOW, LOW, LOW, LOW
    n_at, y, at_top = -2, -2, -2
    mass, inside = 0.0, 0.0
    for start in range(0, V, BLOCK):
        o_v = start + tl.arange(0, BLOCK)
        real = o_v < V
        b_x = tl.load(p_z + i_row * V + o_v, mask=real, other=LOW).to(tl.float32)
        b_x = tl.where(real, b_x, LOW)
        b_logp = tl.load(p_zp + i_row * V + o_v, mask=real, other=0.0).to(tl.float32) - lse
        b_logp = tl.where(real, b_logp, LOW)
        b_g = _noise(key, o_v) * hot
        inside += tl.sum(tl.exp(b_logp), 0)
        b_top, b_at = tl.max(b_x, 0, return_indices=True)
        b_next = tl.max(tl.where(tl.arange(0, BLOCK) == b_at, LOW, b_x), 0)
        higher = tl.maximum(top, b_top)
        mass = mass * tl.exp(top - higher) + tl.sum(tl.exp(b_x - higher), 0)
        runner = _second(top, runner, b_top, b_next)
        at_top = tl.where(b_top > top, start + b_at, at_top)
        top = higher
        b_n = tl.where(real, b_x + b_g, LOW)
        b_top, b_at = tl.max(b_n, 0, return_indices=True)
        b_next = tl.max(tl.where(tl.arange(0, BLOCK) == b_at, LOW, b_n), 0)
        n_runner = _second(n_top, n_runner, b_top, b_next)
        n_at = tl.where(b_top > n_top, start + b_at, n_at)
        n_top = tl.maximum(n_top, b_top)
        b_y = tl.where(real, b_logp + b_g, LOW)
        b_top, b_at = tl.max(b_y, 0, return_indices=True)
        y = tl.where(b_top > y_best, start + b_at, y)
        y_best = tl.maximum(y_best, b_top)
    lq = top + tl.log(mass)
    rest = tl.log(tl.maximum(1.0 - inside, 1e-30)) + tl.sum(_noise(key, V + tl.arange(0, 1)), 0)
    y = tl.where(greedy, label, tl.where(rest > y_best, -1, y))
    accept, under, entropy, r_mass = 0.0, 0.0, 0.0, 0.0
    for start in range(0, V, BLOCK):
        o_v = start + tl.arange(0, BLOCK)
        real = o_v < V
        b_x = tl.load(p_z + i_row * V + o_v, mask=real, other=0.0).to(tl.float32)
        b_logq = tl.where(real, b_x - lq, -80.0)
        b_q = tl.where(real, tl.exp(b_logq), 0.0)
        b_logp = tl.load(p_zp + i_row * V + o_v, mask=real, other=0.0).to(tl.float32) - lse
        b_p = tl.where(real, tl.exp(b_logp), 0.0)
        below = b_q < b_p
        accept += tl.sum(tl.where(below, b_q, b_p), 0)
        under += tl.sum(tl.where(below, b_q, 0.0), 0)
        entropy -= tl.sum(b_q * b_logq, 0)
        if COUPLED > 0:
            r_mass += tl.sum(tl.where(real, tl.exp((b_x + _noise(key, o_v) * hot - n_top) / TAU), 0.0), 0)
    known = label >= 0
    x_label = tl.load(p_z + i_row * V + tl.maximum(label, 0)).to(tl.float32)
    ry = 0.0
    if COUPLED > 0:
        x_y = tl.load(p_z + i_row * V + tl.maximum(y, 0)).to(tl.float32)
        noise_y = tl.sum(_noise(key, tl.maximum(y, 0) + tl.arange(0, 1)), 0) * hot
        ry = tl.where(y >= 0, tl.exp((x_y + noise_y - n_top) / TAU) / r_mass, 0.0)
    ce_weight = tl.where(known, CE, 0.0)
    pull = 2.0 * COUPLED / TAU * ry
    for start in range(0, V, BLOCK):
        o_v = start + tl.arange(0, BLOCK)
        real = o_v < V
        b_x = tl.load(p_z + i_row * V + o_v, mask=real, other=0.0).to(tl.float32)
        b_q = tl.exp(b_x - lq)
        b_logp = tl.load(p_zp + i_row * V + o_v, mask=real, other=0.0).to(tl.float32) - lse
        b_p = tl.exp(b_logp)
        b_d = b_q * (ce_weight + 2.0 * L1 * (under - tl.where(b_q < b_p, 1.0, 0.0)))
        b_d -= tl.where(o_v == label, CE, 0.0)
        if COUPLED > 0:
            b_r = tl.exp((b_x + _noise(key, o_v) * hot - n_top) / TAU) / r_mass
            b_d += pull * (b_r - tl.where(o_v == y, 1.0, 0.0))
        tl.store(p_grad + i_row * V + o_v, (b_d * weight).to(p_grad.dtype.element_ty), mask=real)
    p_row = p_stats + i_row * STATS
    tl.store(p_row, tl.where(known, lq - x_label, 0.0))
    tl.store(p_row + 1, accept)
    tl.store(p_row + 2, ry)
    tl.store(p_row + 3, tl.where(tl.where(greedy, at_top, n_at) == y, 1.0, 0.0))
    margin, n_margin = tl.minimum(top - runner, CLIP), tl.minimum(n_top - n_runner, CLIP)
    tl.store(p_row + 4, entropy)
    tl.store(p_row + 5, top - lq)
    tl.store(p_row + 6, margin)
    tl.store(p_row + 7, tl.log(margin + SHIFT))
    tl.store(p_row + 8, n_margin)
    tl.store(p_row + 9, tl.log(n_margin + SHIFT))


def launch(
    z: Tensor,
    zp: Tensor,
    lse: Tensor,
    greedy: Tensor,
    label: Tensor,
    weight: Tensor,
    *,
    seed: Tensor,
    first: int,
    shares: Shares,
) -> LossRows:
    """Of [n, V'] only the gradient is made: probabilities, noise and features never leave the kernel."""
    n, vocab = z.shape
    assert z.is_contiguous() and zp.is_contiguous(), "rows are read at a stride of V'"
    whole = vocab <= WHOLE
    block = triton.next_power_of_2(vocab) if whole else BLOCK
    stats = torch.empty(n, 4 + FEATURES, dtype=torch.float32, device=z.device)
    gradient = torch.empty_like(z)
    _rows_kernel[(n,)](
        z,
        zp,
        lse,
        greedy.to(torch.int8),
        label,
        weight,
        stats,
        gradient,
        seed,
        first,
        shares.ce,
        shares.l1,
        shares.coupled,
        shares.tau,
        V=vocab,
        BLOCK=block,
        STATS=4 + FEATURES,
        CLIP=CLIP,
        SHIFT=SHIFT,
        num_warps=16 if whole else 8,
    )
    ce, accept, soft, match = stats[:, :4].unbind(-1)
    return LossRows(ce=ce, accept=accept, soft=soft, match=match, features=stats[:, 4:], gradient=gradient)
