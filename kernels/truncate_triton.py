"""The CUDA side of truncate.py: a program a row, which returns at once where the row keeps everything.

A first walk keeps the largest logit of each of LANES lanes; `want` of these stand on a floor that at least `want`
logits of the row reach, and seldom many more. A second walk lists which, and sums the row's mass. Both bounds are then
found by bisection over the list. Where it cannot hold them (k above LANES / 2; a law so flat that LANES / 2 tokens lack
the mass p; more than CAPACITY equals) the same bisection walks the row itself, some ten times in bf16, some thirty in
fp32. Each sum has one order, and no other row has a part in it. `p_` pointers, `b_` block of values, `o_` offsets.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.truncate import Kept

LANES = 4096
CAPACITY = 4096  # columns of a list
STAGES = 3  # tiles of a row on their way
SPARE = {torch.bfloat16: 16, torch.float16: 13}  # low bits of fp32 that are 0 in all such numbers


@triton.jit
def _key(x, SPARE: tl.constexpr):
    """int32 in the order of the numbers, without SPARE bits; a key alone is an int64, so that two have a middle."""
    i = x.to(tl.int32, bitcast=True)
    return tl.where(i < 0, i ^ 0x7FFFFFFF, i) >> SPARE


@triton.jit
def _number(key, SPARE: tl.constexpr):
    """The number of a key."""
    i = key.to(tl.int32) << SPARE
    return tl.where(i < 0, (i ^ 0x7FFFFFFF) & (-1 << SPARE), i).to(tl.float32, bitcast=True)


@triton.jit
def _logits(p_row, b_column, there):
    """fp32; NaN, and what is not there, as -inf; one zero."""
    b_x = tl.load(p_row + b_column, mask=there, other=float("-inf")).to(tl.float32)
    return tl.where(b_x == b_x, b_x + 0.0, float("-inf"))


@triton.jit
def _sum(b_mass):
    """In fp64, but of eights, which a thread holds."""
    return tl.sum(tl.sum(b_mass.reshape(b_mass.shape[0] // 8, 8), 1).to(tl.float64), 0)


@triton.jit
def _columns(p_list, listed, first, count, LANES: tl.constexpr):
    """LANES of `count` columns, from the `first`: of those listed, or of all."""
    o_x = first + tl.arange(0, LANES)
    b_listed = tl.load(p_list + o_x, mask=(o_x < count) & listed, other=0)
    return tl.where(listed, b_listed, o_x), o_x < count


@triton.jit
def _above(
    p_row, p_list, listed, count, key, summit, inverse, LANES: tl.constexpr, SPARE: tl.constexpr, MASS: tl.constexpr
):
    """How many of `count` logits have a key above `key`; with MASS the fp64 sum of exp((x - summit) / T) of them."""
    b_count, b_mass = tl.zeros((LANES,), tl.int32), tl.zeros((LANES,), tl.float32)
    for first in tl.range(0, count, LANES):
        b_column, there = _columns(p_list, listed, first, count, LANES)
        b_x = _logits(p_row, b_column, there)
        mine = there & (_key(b_x, SPARE) > key.to(tl.int32))
        b_count += mine.to(tl.int32)
        if MASS:
            b_mass += tl.where(mine, tl.exp((b_x - summit) * inverse), 0.0)
    mass = _sum(b_mass) if MASS else 0.0
    return tl.sum(b_count, 0), mass


@triton.jit
def _column_of(p_row, p_list, listed, count, key, wanted, LANES: tl.constexpr, SPARE: tl.constexpr):
    """The column of the `wanted`-th, from 1, of the logits whose key is `key`, in the order of columns."""
    seen, found = 0, 0
    for first in tl.range(0, count, LANES):
        b_column, there = _columns(p_list, listed, first, count, LANES)
        b_mine = (there & (_key(_logits(p_row, b_column, there), SPARE) == key.to(tl.int32))).to(tl.int32)
        chosen = (b_mine > 0) & (seen + tl.cumsum(b_mine, 0) == wanted)
        found += tl.sum(tl.where(chosen, b_column, 0), 0)
        seen += tl.sum(b_mine, 0)
    return found


@triton.jit
def _floor(p_row, limit, V: tl.constexpr, LANES: tl.constexpr, SPARE: tl.constexpr, STAGES: tl.constexpr):
    """The row's largest key, and the largest that at least min(limit, LANES / 2) of the lanes' largest logits reach."""
    b_top = tl.full((LANES,), float("-inf"), tl.float32)
    for first in tl.range(0, V, LANES, num_stages=STAGES):
        o_x = first + tl.arange(0, LANES)
        b_top = tl.maximum(b_top, _logits(p_row, o_x, o_x < V))
    b_key, want = _key(b_top, SPARE), tl.minimum(limit, LANES // 2)
    low, high = tl.min(b_key, 0).to(tl.int64), tl.max(b_key, 0).to(tl.int64)
    top = high
    while low < high:
        middle = (low + high + 1) >> 1
        enough = tl.sum((b_key >= middle.to(tl.int32)).to(tl.int32), 0) >= want
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
    return top, low


@triton.jit
def _list(
    p_row,
    p_list,
    floor,
    summit,
    inverse,
    V: tl.constexpr,
    LANES: tl.constexpr,
    CAPACITY: tl.constexpr,
    SPARE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Columns whose keys reach the floor, in order, as far as there is room; how many, and the mass of all logits."""
    count, b_mass = 0, tl.zeros((LANES,), tl.float32)
    for first in tl.range(0, V, LANES, num_stages=STAGES):
        o_x = first + tl.arange(0, LANES)
        b_x = _logits(p_row, o_x, o_x < V)
        b_mass += tl.exp((b_x - summit) * inverse)
        b_mine = ((o_x < V) & (_key(b_x, SPARE) >= floor.to(tl.int32))).to(tl.int32)
        here = tl.sum(b_mine, 0)
        if here > 0:
            b_at = count + tl.cumsum(b_mine, 0) - 1
            tl.store(p_list + b_at, o_x, mask=(b_mine > 0) & (b_at < CAPACITY))
        count += here
    tl.debug_barrier()  # the list is read by threads that did not write it
    return count, _sum(b_mass)


@triton.jit
def _nucleus(
    p_row,
    p_list,
    listed,
    count,
    low,
    top,
    goal,
    summit,
    inverse,
    V: tl.constexpr,
    LANES: tl.constexpr,
    SPARE: tl.constexpr,
):
    """The smallest key from `low` on above which there is less mass than `goal`, and the last column of it that stays.

    Of `top` one stays in any case.
    """
    high = top
    while low < high:
        middle = (low + high) >> 1
        _, mass = _above(p_row, p_list, listed, count, middle, summit, inverse, LANES, SPARE, True)
        low, high = tl.where(mass < goal, low, middle + 1), tl.where(mass < goal, middle, high)
    larger, mass = _above(p_row, p_list, listed, count, low, summit, inverse, LANES, SPARE, True)
    least, _ = _above(p_row, p_list, listed, count, low - 1, summit, inverse, LANES, SPARE, False)
    each = tl.exp((_number(low, SPARE) - summit) * inverse).to(tl.float64)
    ties, last = least - larger, V - 1
    room = (goal - mass) / each
    if room <= ties - 1:  # false for the NaN of an impossible row
        wanted = tl.maximum(tl.ceil(room).to(tl.int32), 1)
        last = _column_of(p_row, p_list, listed, count, low, wanted, LANES, SPARE)
    return low, last


@triton.jit
def _truncate_kernel(
    p_logits,
    p_temperature,
    p_k,
    p_p,
    p_list,
    p_cut,
    p_last,
    stride,
    V: tl.constexpr,
    LANES: tl.constexpr,
    CAPACITY: tl.constexpr,
    SPARE: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    temperature, k, p = tl.load(p_temperature + row), tl.load(p_k + row), tl.load(p_p + row)
    limited, nucleus = (temperature > 0) & (k > 0) & (k < V), (temperature > 0) & (p < 1)
    cut, last = float("-inf"), V - 1
    if limited | nucleus:
        p_row, p_list = p_logits + row * stride, p_list + row * CAPACITY
        limit = tl.where(limited, k, V).to(tl.int32)
        top, low = _floor(p_row, limit, V, LANES, SPARE, STAGES)
        summit, inverse = tl.maximum(_number(top, SPARE), -3.0e38), tl.minimum(1.0 / temperature, 3.0e38)
        count, total = _list(p_row, p_list, low, summit, inverse, V, LANES, CAPACITY, SPARE, STAGES)
        listed = (count <= CAPACITY) & ((limit <= count) | (limit == V))
        if listed & (limit == V):
            _, mass = _above(p_row, p_list, True, count, low - 1, summit, inverse, LANES, SPARE, True)
            listed = tl.where(mass < p.to(tl.float64) * total, 0, 1) > 0
        count = tl.where(listed, count, V)
        low = tl.where(listed, low, _key(tl.full((), float("-inf"), tl.float32), SPARE).to(tl.int64))
        if limited:
            high = top
            while low < high:
                middle = (low + high + 1) >> 1
                least, _ = _above(p_row, p_list, listed, count, middle - 1, summit, inverse, LANES, SPARE, False)
                low, high = tl.where(least >= limit, middle, low), tl.where(least >= limit, high, middle - 1)
            _, total = _above(p_row, p_list, listed, count, low - 1, summit, inverse, LANES, SPARE, True)
        if nucleus:
            goal = p.to(tl.float64) * total
            low, last = _nucleus(p_row, p_list, listed, count, low, top, goal, summit, inverse, V, LANES, SPARE)
        cut = _number(low, SPARE)
    tl.store(p_cut + row, cut)
    tl.store(p_last + row, last)


def truncate(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Kept:
    """As truncate.truncate_reference, for logits [n, V] of any float dtype and row stride."""
    x = logits if logits.stride(-1) == 1 else logits.contiguous()
    n, vocab = x.shape
    cut = torch.empty(n, dtype=torch.float32, device=x.device)
    last = torch.empty(n, dtype=torch.int32, device=x.device)
    held = torch.empty(n, CAPACITY, dtype=torch.int32, device=x.device)
    if n:
        _truncate_kernel[(n,)](
            x,
            temperature.float().contiguous(),
            top_k.contiguous(),
            top_p.float().contiguous(),
            held,
            cut,
            last,
            x.stride(0),
            V=vocab,
            LANES=LANES,
            CAPACITY=CAPACITY,
            SPARE=SPARE.get(x.dtype, 0),
            STAGES=STAGES,
            num_warps=16,
        )
    return Kept(cut, last)
