"""What an op cannot do without, of its inputs: bytes moved, each operand once, and floating-point operations.

An exponential, logarithm or division counts as one operation; integer work (counters of the noise) is not counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Cost = tuple[float, float]
NOISE = 8  # two numbers of a word, two logs, a scaling, a sum, a comparison, a sign
STATS = 6  # difference, exponential, product, two sums, a comparison


def argmax_cost(logits: Tensor, **rest: Tensor | None) -> Cost:
    return _bytes(logits, *rest.values()) + 8 * len(logits), NOISE * logits.numel()


def coupled_stats_cost(logits: Tensor, **rest: Tensor | None) -> Cost:
    return _bytes(logits, *rest.values()) + (8 + 24) * len(logits), (NOISE + STATS) * logits.numel()


def law_stats_cost(logits: Tensor, temperature: Tensor, **_: Tensor) -> Cost:
    return _bytes(logits, temperature) + 24 * len(logits), STATS * logits.numel()


def truncate_cost(logits: Tensor, **rest: Tensor) -> Cost:
    """One walk: an exponential, its product and sum, a comparison."""
    return _bytes(logits, *rest.values()) + (4 + 4) * len(logits), 4 * logits.numel()


def block_cost(base: Tensor, anchor: Tensor, ids: Tensor | None, **rest: Any) -> Cost:
    """W2 once for all depths, though each waits for the one before; e of each drawn token; what the draws need."""
    (requests, block), weights = base.shape[:2], {name: x for name, x in rest.items() if "." in name}
    w2, w1 = weights["markov_w2.weight"], weights["markov_w1.weight"]
    steps = [weights[name] for name in ("state_proj.weight", "feature_proj.weight") if name in weights]
    turns = requests * block
    per_request = _bytes(anchor, *(rest[name] for name in ("start", "depth", "temperature", "seeds")))
    moved = _bytes(base, w2, ids, *steps) + turns * (w1.shape[1] * w1.element_size() + 8 + 24) + per_request
    products = 2 * (w2.numel() + sum(x.numel() for x in steps))
    return moved, turns * (products + (NOISE + STATS) * w2.shape[0])


def projection_cost(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Cost:
    """A bias is a sum more."""
    rows, (outputs, inner) = x.numel() // x.shape[-1], weight.shape
    added = 0 if bias is None else 1
    moved = _bytes(x, weight) + added * outputs * x.element_size() + rows * outputs * x.element_size()
    return moved, rows * outputs * (2 * inner + added)


def add_norm_cost(x: Tensor, delta: Tensor | None, gain: Tensor, eps: float) -> Cost:
    """Square, sum, scale and gain of each number, and the sum before them, which is written too."""
    summed = 0 if delta is None else 2 * _bytes(x)
    return 2 * _bytes(x) + summed + _bytes(gain), (4 if delta is None else 5) * x.numel()


def rotate_cost(qkv: Tensor, cos: Tensor, cache_indices: Tensor, keys: Tensor, **rest: Any) -> Cost:
    """The rows once in and once out; three operations a rotated number, four before that where it is normed."""
    kept = len(qkv) * keys.shape[1] * keys.shape[3]
    queries = qkv.numel() - 2 * kept
    normed = (rest["q_norm"] is not None) * queries + (rest["k_norm"] is not None) * kept
    read = _bytes(qkv, cache_indices, rest["positions"]) + 2 * len(qkv) * cos.shape[1] * cos.element_size()
    written = queries * qkv.element_size() + 2 * kept * keys.element_size()
    return read + written, 3 * (queries + kept) + 4 * normed


def swiglu_cost(gate_up: Tensor) -> Cost:
    return 1.5 * _bytes(gate_up), 5 * gate_up.numel() / 2


def pack_cost(verified: Tensor, live: Tensor, context: Tensor, rows: int, **_: Any) -> Cost:
    """An anchor, count and context a live request; a draft and a page a row; four numbers a row out. No arithmetic."""
    alive = int(live)
    drafts = int(verified[:alive].sum())
    read = alive * (8 + 8 + 4) + drafts * 8 + (alive + drafts) * 4 + 8
    return read + rows * 4 * 8 + (len(context) + 1) * 4, 0


def plan_cost(confidence: Tensor, scale: Tensor, offset: Tensor, limits: Tensor, live: Tensor, **rest: Any) -> Cost:
    """Logits, their maps and limits of the live requests, survival and windows of all, and what rows may need at most.

    A survival is a sum, two products, an exponential and a quotient of a sum. The search is in integers.
    """
    alive, (requests, block) = int(live), confidence.shape
    granted = torch.full_like(limits, min(block, rest["rows"] // alive - 1))
    moved = alive * (block * 3 * 4 + 8) + 8 + requests * (block * 4 + 8)
    return moved + pack_cost(granted, live, rest["context"], rest["rows"])[0], 6 * alive * block


def judge_cost(own: Tensor, drafts: Tensor, recorded: Tensor | None, **rest: Tensor) -> Cost:
    """Each operand once, three numbers a request and its tokens out. No arithmetic."""
    requests, block = drafts.shape
    pinned = () if recorded is None else (recorded,)
    return _bytes(own, drafts, *pinned, *rest.values()) + requests * 8 * (3 + block + 1), 0


def commit_cost(tokens: Tensor, **rest: Tensor) -> Cost:
    """Each operand once, the six that move on once more, and what was delivered. No arithmetic worth the name."""
    return _bytes(tokens, *rest.values()) + tokens.shape[0] * 8 * 7, 0


def embed_cost(ids: Tensor | None, table: Tensor, gain: Tensor) -> Cost:
    """A row in, it and its multiple out, one sum."""
    m = len(table if ids is None else ids)
    named = 0 if ids is None else _bytes(ids)
    return named + _bytes(gain) + 3 * m * table.shape[1] * table.element_size() + 4 * m, 3 * m * table.shape[1]


def small_product_cost(a: Tensor, weight: Tensor, squares: Tensor | None = None, eps: float = 0.0) -> Cost:
    """The parts of the squares are some kernel's choice: a number a row counts."""
    moved, operations = projection_cost(a, weight)
    return moved + (0 if squares is None else 4 * len(a)), operations


def normed_qkv_cost(gained: Tensor, squares: Tensor, weight: Tensor, **rest: Any) -> Cost:
    """The product, of which `rotate_cost` reads no copy and writes what is kept."""
    qkv = gained.new_empty(len(gained), len(weight), device="meta")
    turned, operations = rotate_cost(qkv, **{n: x for n, x in rest.items() if n != "values"})
    moved = turned - _bytes(qkv) + _bytes(gained, weight) + 4 * len(gained)
    return moved, operations + 2 * weight.numel() * len(gained)


def normed_swiglu_cost(gained: Tensor, squares: Tensor, weight: Tensor, eps: float) -> Cost:
    made = len(gained) * len(weight) // 2
    moved = _bytes(gained, weight) + 4 * len(gained) + made * gained.element_size()
    return moved, 2 * weight.numel() * len(gained) + 5 * made


def product_add_cost(a: Tensor, weight: Tensor, x: Tensor, gain: Tensor) -> Cost:
    """The stream in and out, and its multiple."""
    return _bytes(a, weight, gain) + 3 * _bytes(x) + 4 * len(x), 2 * weight.numel() * len(a) + 4 * x.numel()


def _bytes(*tensors: Tensor | None) -> int:
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)
