"""The CUDA side of head.py: two launches a depth; no logits are written to memory.

`_draw_kernel` multiplies a tile of W2 by the features of up to 32 requests, adds the base logits and scores the result
as stats_triton does. The programs of a tile follow each other in launch order, so that the tile is read from memory
once and from the L2 cache after that; groups of 16 and of 32 are made of the same products, one chain over the rank
each. `_advance_kernel` reduces the draw of the depth before to its winner and computes the next features from it. A row
is split over programs by outputs; each of them repeats the reduction, which costs less than another launch. A request's
logits depend on neither the number of requests nor their order. What a kernel stores is in the drafter's dtype;
intermediate values are fp32, so drafts may differ from those of a path that rounds more often. That is allowed:
verification fixes the text. A deep head comes merged: RANK is its width. `p_` pointers, `b_` block of values, `o_`
offsets.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.draft.head import Head
from dsbench.kernels.draft.stats import CLIP, FEATURES, SHIFT
from dsbench.kernels.draft.stats_triton import PARTS, join_row, score_tile

TILE = 128  # ids a program of the draw
GROUP = 16  # requests that share a tile of W2, or twice as many: the least a tensor core multiplies
FILLS = 512  # programs that fill a device, some on every processor: from there on they may be large
STAGES = 3  # of W2 on their way while one is multiplied
OUTPUTS = 16  # features a program of the head, where they are products
STATEFUL = ("rnn", "deep")
INNER = 64  # products of two half-precision tiles at a time; half as many of wider numbers


@triton.jit
def _tanh(x):
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _rows_dot(p_weight, b_x, b_out, RANK: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows b_out of a weight [., COLUMNS], their first RANK columns, times b_x [WIDTH]; fp32 [OUTPUTS]."""
    o_k = tl.arange(0, WIDTH)
    there = (b_out >= 0)[:, None] & (o_k < RANK)[None, :]
    b_w = tl.load(p_weight + b_out[:, None] * COLUMNS + o_k[None, :], mask=there, other=0.0)
    return tl.sum(b_w.to(tl.float32) * b_x[None, :], 1)


@triton.jit(do_not_specialize=["depth"])
def _advance_kernel(
    p_part,
    p_at,
    p_temperature,
    p_depths,
    p_id,
    p_token,
    p_features,
    p_previous,
    p_w1,
    p_weight,
    p_hidden,
    p_state,
    p_after,
    p_feature,
    depth,
    token_stride,
    features_stride,
    previous_stride,
    hidden_stride,
    state_stride,
    KIND: tl.constexpr,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    JOIN: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    CLIP: tl.constexpr,
    SHIFT: tl.constexpr,
    STATS: tl.constexpr,
):
    """JOIN: writes the token and features of `depth`. STEP: the feature after that token, or after `p_previous`."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * OUTPUTS
    live = True
    if JOIN:
        live = tl.load(p_depths + row) > depth
    if live:
        if JOIN:
            p_mine = p_features + row * features_stride if STATS else p_part
            winner = join_row(
                p_part, p_at, p_temperature, p_mine, row, SPLITS, SPLITS_WIDTH, PARTS, CLIP, SHIFT, True, STATS
            )
            token = winner.to(tl.int64) if p_id is None else tl.load(p_id + winner)
            tl.store(p_token + row * token_stride, token)
        else:
            token = tl.load(p_previous + row * previous_stride)
        if STEP:
            o_k, o_o = tl.arange(0, WIDTH), first + tl.arange(0, OUTPUTS)
            mine = o_o < RANK
            b_out = tl.where(mine, o_o, -1)
            b_mine = tl.load(p_w1 + token * RANK + o_o, mask=mine, other=0.0).to(tl.float32)
            if KIND == "gated" or KIND == "rnn":
                b_e = tl.load(p_w1 + token * RANK + o_k, mask=o_k < RANK, other=0.0).to(tl.float32)
            if KIND != "vanilla":
                p_part_of_hidden = p_hidden + row * hidden_stride + o_o
                b_z = tl.load(p_part_of_hidden, mask=mine, other=0.0).to(tl.float32)
            if KIND == "deep":
                b_s = tl.load(p_state + row * state_stride + o_k, mask=o_k < RANK, other=0.0).to(tl.float32)
                b_z += _rows_dot(p_weight, b_s, b_out, RANK, WIDTH, RANK) + b_mine
                b_mine = b_z * tl.sigmoid(b_z)
                tl.store(p_after + row * RANK + o_o, b_mine.to(p_after.dtype.element_ty), mask=mine)
            if KIND == "gated":
                b_z += _rows_dot(p_weight, b_e, b_out, RANK, WIDTH, RANK)
                b_mine = tl.sigmoid(b_z) * b_mine
            if KIND == "rnn":
                p_old = p_state + row * state_stride
                b_s = tl.load(p_old + o_k, mask=o_k < RANK, other=0.0).to(tl.float32)
                b_c = tl.load(p_part_of_hidden + RANK, mask=mine, other=0.0).to(tl.float32)
                b_o = tl.load(p_part_of_hidden + 2 * RANK, mask=mine, other=0.0).to(tl.float32)
                p_c, p_o = p_weight + 2 * RANK * RANK, p_weight + 4 * RANK * RANK
                b_z += _rows_dot(p_weight, b_s, b_out, RANK, WIDTH, 2 * RANK)
                b_z += _rows_dot(p_weight + RANK, b_e, b_out, RANK, WIDTH, 2 * RANK)
                b_c += _rows_dot(p_c, b_s, b_out, RANK, WIDTH, 2 * RANK)
                b_c += _rows_dot(p_c + RANK, b_e, b_out, RANK, WIDTH, 2 * RANK)
                b_o += _rows_dot(p_o, b_s, b_out, RANK, WIDTH, 2 * RANK)
                b_o += _rows_dot(p_o + RANK, b_e, b_out, RANK, WIDTH, 2 * RANK)
                b_old = tl.load(p_old + o_o, mask=mine, other=0.0).to(tl.float32)
                b_g = tl.sigmoid(b_z)
                b_new = b_g * b_old + (1.0 - b_g) * _tanh(b_c)
                tl.store(p_after + row * RANK + o_o, b_new.to(p_after.dtype.element_ty), mask=mine)
                b_mine = _tanh(b_o)
            tl.store(p_feature + row * RANK + o_o, b_mine.to(p_feature.dtype.element_ty), mask=mine)


@triton.jit(do_not_specialize=["depth"])
def _draw_kernel(
    p_base,
    p_feature,
    p_w2,
    p_depths,
    p_start,
    p_temperature,
    p_seed,
    p_id,
    p_part,
    p_at,
    depth,
    requests,
    stride,
    V: tl.constexpr,
    RANK: tl.constexpr,
    WIDTH: tl.constexpr,
    INNER: tl.constexpr,
    STAGES: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    PARTS: tl.constexpr,
    STATS: tl.constexpr,
):
    first, split = tl.program_id(0).to(tl.int64) * GROUP, tl.program_id(1)
    b_row = first + tl.arange(0, ROWS)
    live = tl.load(p_depths + b_row, mask=b_row < requests, other=0) > depth
    if tl.max(live.to(tl.int32), 0) > 0:
        o_r, o_v = first + tl.arange(0, GROUP), split * TILE + tl.arange(0, TILE)
        b_x = tl.zeros((GROUP, TILE), tl.float32)
        for inner in tl.range(0, WIDTH, INNER, num_stages=STAGES):
            o_k = inner + tl.arange(0, INNER)
            seen = (o_r < requests)[:, None] & (o_k < RANK)[None, :]
            b_feature = tl.load(p_feature + o_r[:, None] * RANK + o_k[None, :], mask=seen, other=0.0)
            there = (o_v < V)[:, None] & (o_k < RANK)[None, :]
            b_w2 = tl.load(p_w2 + o_v[:, None].to(tl.int64) * RANK + o_k[None, :], mask=there, other=0.0)
            b_x = tl.dot(b_feature, tl.trans(b_w2), b_x, input_precision="ieee")
        if ROWS == 1:  # the same sums, and noise for no row that is not there
            b_x = tl.sum(tl.where((tl.arange(0, GROUP) == 0)[:, None], b_x, 0.0), 0)[None, :]
        there = live[:, None] & (o_v < V)[None, :]
        b_base = tl.load(p_base + b_row[:, None] * stride + o_v[None, :], mask=there, other=float("-inf"))
        b_temperature = tl.load(p_temperature + b_row, mask=live, other=0.0)
        b_position = tl.load(p_start + b_row, mask=live, other=0) + depth + 1
        score_tile(
            b_x + b_base.to(tl.float32),
            b_row,
            live,
            split,
            b_temperature,
            p_seed,
            b_position,
            p_id,
            p_part,
            p_at,
            V,
            TILE,
            SPLITS,
            PARTS,
            True,
            STATS,
        )


def advance(head: Head, part: Tensor, previous: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """As draft_head.Head.advance."""
    n, rank = state.shape
    feature = torch.empty(n, rank, dtype=head.w1.dtype, device=state.device)
    after = torch.empty(n, rank, dtype=state.dtype, device=state.device) if head.kind in STATEFUL else state
    if n:
        _advance_kernel[(n, triton.cdiv(rank, _outputs(head)))](
            *(None,) * 7,
            previous,
            head.w1,
            *_inputs(head, part, state),
            after,
            feature,
            0,
            0,
            0,
            previous.stride(0),
            part.stride(0),
            state.stride(0),
            **_sizes(head),
            JOIN=False,
            STEP=True,
            SPLITS=1,
            SPLITS_WIDTH=1,
            STATS=False,
        )
    return feature, after


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
    """As draft_head.coupled_block; rows whose depth is reached end their programs at once."""
    requests, rank, vocab, device = anchor.shape[0], head.w1.shape[1], base.shape[-1], base.device
    tokens = torch.zeros(requests, most, dtype=torch.int64, device=device)
    features = torch.zeros(requests, most, FEATURES, dtype=torch.float32, device=device) if stats else None
    if requests == 0 or most == 0:
        return tokens, features
    splits = triton.cdiv(vocab, TILE)
    parts = torch.empty(requests, PARTS, splits, dtype=torch.float32, device=device)
    at = torch.empty(requests, splits, dtype=torch.int32, device=device)
    feature, state = advance(head, part[:, 0], anchor, head.w1.new_zeros(requests, rank))
    after = torch.empty_like(state)
    inner = min(max(triton.next_power_of_2(rank), 16), INNER if head.w1.element_size() == 2 else INNER // 2)
    large = ids is None and requests > GROUP and triton.cdiv(requests, 2 * GROUP) * splits >= FILLS
    group = 2 * GROUP if large else GROUP
    for j in range(most):
        _draw_kernel[(triton.cdiv(requests, group), splits)](
            base[:, j],
            feature,
            head.w2.weight,
            depth,
            start,
            temperature,
            seeds,
            ids,
            parts,
            at,
            j,
            requests,
            base.stride(0),
            V=vocab,
            RANK=rank,
            WIDTH=max(triton.next_power_of_2(rank), 16),
            INNER=inner,
            STAGES=STAGES,
            GROUP=group,
            ROWS=1 if requests == 1 else group,
            TILE=TILE,
            SPLITS=splits,
            PARTS=PARTS,
            STATS=stats,
        )
        last = j == most - 1
        following = part[:, min(j + 1, most - 1)]
        _advance_kernel[(requests, 1 if last else triton.cdiv(rank, _outputs(head)))](
            parts,
            at,
            temperature,
            depth,
            ids,
            tokens[:, j],
            None if features is None else features[:, j],
            None,
            head.w1,
            *_inputs(head, following, state),
            after,
            feature,
            j,
            most,
            most * FEATURES,
            0,
            following.stride(0),
            rank,
            **_sizes(head),
            JOIN=True,
            STEP=not last,
            SPLITS=splits,
            SPLITS_WIDTH=triton.next_power_of_2(splits),
            STATS=stats,
        )
        state, after = after, state
    return tokens, features


def _inputs(head: Head, part: Tensor, state: Tensor) -> tuple[Any, Any, Tensor]:
    """The weight over [state; e], the part of the hidden states, the state; a vanilla head has only the last."""
    if head.of_token is None:
        return None, None, state
    return head.of_token.weight, part, state


def _outputs(head: Head) -> int:
    """A vanilla head only copies: one program a row, that joins the row's parts once."""
    width = int(triton.next_power_of_2(head.w1.shape[1]))
    return width if head.kind == "vanilla" else min(width, OUTPUTS)


def _sizes(head: Head) -> dict[str, Any]:
    rank = head.w1.shape[1]
    return {
        "KIND": head.kind,
        "RANK": rank,
        "WIDTH": triton.next_power_of_2(rank),
        "OUTPUTS": _outputs(head),
        "PARTS": PARTS,
        "CLIP": CLIP,
        "SHIFT": SHIFT,
    }
