"""What an op cannot do without, of its inputs: bytes moved, each operand once, and floating-point operations.

An exponential, logarithm or division counts as one operation; integer work (counters of the noise) is not counted.
"""

from __future__ import annotations

from typing import Any

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
    """W2 once for all slots, though each waits for the one before; e of each drawn token; what the draws need."""
    (requests, slots), weights = base.shape[:2], {name: x for name, x in rest.items() if "." in name}
    w2, w1 = weights["markov_w2.weight"], weights["markov_w1.weight"]
    steps = [weights[name] for name in ("state_proj.weight", "feature_proj.weight") if name in weights]
    turns = requests * slots
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


def rotate_cost(qkv: Tensor, cos: Tensor, slots: Tensor, keys: Tensor, **rest: Any) -> Cost:
    """The rows once in and once out; three operations a rotated number, four before that where it is normed."""
    kept = len(qkv) * keys.shape[1] * keys.shape[3]
    queries = qkv.numel() - 2 * kept
    normed = (rest["q_norm"] is not None) * queries + (rest["k_norm"] is not None) * kept
    read = _bytes(qkv, slots, rest["positions"]) + 2 * len(qkv) * cos.shape[1] * cos.element_size()
    written = queries * qkv.element_size() + 2 * kept * keys.element_size()
    return read + written, 3 * (queries + kept) + 4 * normed


def swiglu_cost(gate_up: Tensor) -> Cost:
    return 1.5 * _bytes(gate_up), 5 * gate_up.numel() / 2


def _bytes(*tensors: Tensor | None) -> int:
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)
