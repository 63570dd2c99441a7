"""Ragged attention over paged keys and values: one read of a request's pages serves all of its rows.

Shapes: q [M, H, E] packed rows; keys, values [P, K, B, E] (P pages of B tokens, K key-value heads, E head width);
pages [R, N] int32 page table; cu_rows [R+1] int32, rows of request r are cu_rows[r]:cu_rows[r+1];
context [R] int32, tokens in the pages before the first row. The rows' own keys and values are already in the pages.
Causal: row i of a request sees context + i + 1 tokens. Block: every row sees context + all of its request's rows.
A window W (Hugging Face's sliding_window) leaves of those the keys nearer than W to the row, W >= 1: the row itself
and the W - 1 before it; of a block also the W - 1 after it, as flash attention's symmetric window.
A cap C (Gemma 2's attn_logit_softcapping) turns a score s into C tanh(s / C) before the softmax.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

FAR = 1 << 40  # past any key: no window
WHOLE_FROM = 192  # (tile, key-value head) pairs that fill a GPU: from there on a program walks a whole context


def tile_lanes(group: int, rows: int, half: bool) -> int:
    """Lanes of a GPU's tile for requests of about `rows` rows, each with the `group` query heads of its key-value head.

    The group decides the kind of instruction: 16 or 32 lanes (mma.sync) up to four heads, 64 (wgmma) above.
    """
    wide = 1 << (group - 1).bit_length()
    if half and group > 4:
        return max(64, wide)
    return 16 if group * rows <= 16 else max(32, wide)


def split_requests(heads: int, kv_heads: int, most_rows: int, half: bool) -> int:
    """Requests of at most `most_rows` rows whose contexts a GPU splits over programs; more requests fill the GPU
    unsplit.
    """
    rows = tile_lanes(heads // kv_heads, most_rows, half) // (heads // kv_heads)
    return (WHOLE_FROM - 1) // (kv_heads * -(-most_rows // rows))


def paged_attention_reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    cu_rows: Tensor,
    context: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    cap: float | None = None,
) -> Tensor:
    """[M, H, E] in q's dtype; softmax and sums in fp32. Pads rows and context per request, so it is slow."""
    m, heads, width = q.shape
    requests, kv_heads, page = pages.shape[0], keys.shape[1], keys.shape[2]
    counts = (cu_rows[1:] - cu_rows[:-1]).long()
    most, longest = int(counts.max()), int((context.long() + counts).max())
    table = pages[:, : -(-longest // page)].long()
    k = keys[table].permute(0, 2, 1, 3, 4).reshape(requests, kv_heads, -1, width)[:, :, :longest].float()
    v = values[table].permute(0, 2, 1, 3, 4).reshape(requests, kv_heads, -1, width)[:, :, :longest].float()
    written = torch.arange(longest, device=q.device) < (context.long() + counts)[:, None]
    v = v.masked_fill(~written[:, None, :, None], 0)  # unwritten pages may hold NaN, and 0 * NaN is NaN
    row = torch.arange(most, device=q.device)
    real = row[None] < counts[:, None]  # [R, most]
    padded = q.new_zeros(requests, most, heads, width, dtype=torch.float32)
    padded[real] = q.float()
    seen = row[None] + 1 if causal else counts[:, None].expand(-1, most)
    limit = context.long()[:, None] + seen  # [R, most]
    key = torch.arange(longest, device=q.device)
    mask = key < limit[..., None]
    if window is not None:
        at = context.long()[:, None] + row  # [R, most] positions of the rows
        mask = mask & ((at[..., None] - key).abs() < window)
        mask = mask | ~real[..., None]  # padding must see something, or its softmax is NaN
    x = padded.view(requests, most, kv_heads, heads // kv_heads, width)
    scores = torch.einsum("rmkge,rkse->rkgms", x, k) * width**-0.5
    scores = scores if cap is None else torch.tanh(scores / cap) * cap
    scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    out = torch.einsum("rkgms,rkse->rmkge", scores.softmax(dim=-1), v).reshape(requests, most, heads, width)
    return out[real].to(q.dtype)


def attention_cost(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    cu_rows: Tensor,
    context: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    cap: float | None = None,
) -> tuple[int, int]:
    """Least (bytes moved, flops): each request's visible keys and values once, q and the result; the two products."""
    behind = FAR if window is None else window
    start, counts = context.long(), cu_rows.diff().long()
    index = torch.arange(counts.numel(), device=counts.device).repeat_interleave(counts)
    at = start[index] + torch.arange(index.numel(), device=index.device) - cu_rows.long()[index]
    seen = torch.minimum(at + (1 if causal else behind), (start + counts)[index]) - (at - behind + 1).clamp(min=0)
    read = (start + counts - (start - behind + 1).clamp(min=0))[counts > 0]
    row, token = q.shape[1] * q.shape[2], keys.shape[1] * keys.shape[3]
    moved = 2 * index.numel() * row * q.element_size() + 2 * int(read.sum()) * token * keys.element_size()
    return moved, 4 * int(seen.sum()) * row


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    cu_rows: Tensor,
    context: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    cap: float | None = None,
    most_rows: int | None = None,
) -> Tensor:
    """As the reference. A row's result depends on nothing but its own request; on CUDA a Triton kernel.

    `most_rows` promises that no request has more rows; the CUDA grid follows from it.
    """
    if q.device.type == "cuda":
        from dsbench.kernels.attention_triton import paged_attention as attend

        return attend(
            q, keys, values, pages, cu_rows, context, causal=causal, window=window, cap=cap, most_rows=most_rows
        )
    behind = FAR if window is None else window
    out = torch.empty(q.shape, dtype=torch.float32)
    _attend(
        q.float().contiguous().numpy(),
        keys.numpy(),
        values.numpy(),
        pages.numpy(),
        cu_rows.numpy(),
        context.numpy(),
        behind,
        1 if causal else behind,
        np.float32(q.shape[2] ** -0.5),
        np.float32(cap or 0.0),
        out.numpy(),
    )
    return out.to(q.dtype)


@numba.njit(parallel=True, fastmath=True, cache=True, nogil=True)
def _attend(
    q: Any,
    keys: Any,
    values: Any,
    pages: Any,
    cu_rows: Any,
    context: Any,
    behind: int,
    ahead: int,
    scale: Any,
    cap: Any,
    out: Any,
) -> None:
    """fp32 only. The row at position s sees the keys s - behind < key < s + ahead that are there. cap 0: no cap.

    One task per (request, key-value head): it computes the scores of all its rows, then reads the values. Pages that no
    row sees are skipped.
    """
    requests, kv_heads, page, width = pages.shape[0], keys.shape[1], keys.shape[2], keys.shape[3]
    group = q.shape[1] // kv_heads
    for task in numba.prange(requests * kv_heads):
        r, head = task // kv_heads, task % kv_heads
        first = cu_rows[r]
        rows = cu_rows[r + 1] - first
        start = context[r]
        total = start + rows
        skipped = max(0, start - behind + 1) // page  # pages before the first row's first key
        lanes = rows * group
        x = np.empty((lanes, width), np.float32)
        for a in range(lanes):
            for e in range(width):
                x[a, e] = q[first + a // group, head * group + a % group, e] * scale
        scores = np.empty((lanes, total), np.float32)
        for p in range(skipped, (total + page - 1) // page):
            block = keys[pages[r, p], head]
            for t in range(min(page, total - p * page)):
                for a in range(lanes):
                    dot = np.float32(0)
                    for e in range(width):
                        dot += x[a, e] * block[t, e]
                    scores[a, p * page + t] = dot
        mass = np.empty(lanes, np.float32)
        for a in range(lanes):
            at = start + a // group
            low, high = max(0, at - behind + 1), min(total, at + ahead)
            if cap > 0:
                for t in range(low, high):
                    scores[a, t] = cap * np.tanh(scores[a, t] / cap)
            mass[a] = _exponentials(scores[a], skipped * page, low, high)
        acc = np.zeros((lanes, width), np.float32)
        for p in range(skipped, (total + page - 1) // page):
            block = values[pages[r, p], head]
            for a in range(lanes):
                for t in range(min(page, total - p * page)):
                    weight = scores[a, p * page + t]
                    for e in range(width):
                        acc[a, e] += weight * block[t, e]
        for a in range(lanes):
            for e in range(width):
                out[first + a // group, head * group + a % group, e] = acc[a, e] / mass[a]


@numba.njit(fastmath=True)
def _exponentials(scores: Any, start: int, low: int, high: int) -> Any:
    """scores[low:high] -> exp(score - max) in place, zeros around them from `start` on; returns their sum.

    exp is a degree-6 polynomial on [-ln2/2, ln2/2] with the exponent set by bits, so that the loop vectorises; its
    relative error is below 2e-7. libm's scalar exp would take most of the kernel's time.
    """
    for t in range(start, low):
        scores[t] = 0
    for t in range(high, scores.shape[0]):
        scores[t] = 0
    seen = scores[low:high]
    top = np.float32(-3.0e38)
    for t in range(seen.shape[0]):
        top = max(top, seen[t])
    powers = np.empty(seen.shape[0], np.int32)
    for t in range(seen.shape[0]):
        y = max((seen[t] - top) * np.float32(1.4426950408889634), np.float32(-126.0))
        n = np.floor(y + np.float32(0.5))
        f = (y - n) * np.float32(0.6931471805599453)
        z = np.float32(1.0 / 720) * f + np.float32(1.0 / 120)
        z = z * f + np.float32(1.0 / 24)
        z = z * f + np.float32(1.0 / 6)
        z = z * f + np.float32(0.5)
        seen[t] = (z * f + np.float32(1)) * f + np.float32(1)
        powers[t] = (np.int32(n) + np.int32(127)) << np.int32(23)
    scale = powers.view(np.float32)
    mass = np.float32(0)
    for t in range(seen.shape[0]):
        seen[t] *= scale[t]
        mass += seen[t]
    return mass
