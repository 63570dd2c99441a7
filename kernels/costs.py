"""What an op cannot do without, of its inputs: bytes moved, each operand once, and floating-point operations.

An exponential, logarithm or division counts as one operation; integer work (counters of the noise) is not counted.
"""

from __future__ import annotations

from torch import Tensor

Cost = tuple[float, float]
NOISE = 8  # two numbers of a word, two logs, a scaling, a sum, a comparison, a sign
STATS = 6  # difference, exponential, product, two sums, a comparison


def argmax_cost(logits: Tensor, **rest: Tensor) -> Cost:
    return _bytes(logits, *rest.values()) + 8 * len(logits), NOISE * logits.numel()


def coupled_stats_cost(logits: Tensor, **rest: Tensor) -> Cost:
    return _bytes(logits, *rest.values()) + (8 + 24) * len(logits), (NOISE + STATS) * logits.numel()


def law_stats_cost(logits: Tensor, temperature: Tensor, **_: Tensor) -> Cost:
    return _bytes(logits, temperature) + 24 * len(logits), STATS * logits.numel()


def projection_cost(x: Tensor, weight: Tensor) -> Cost:
    rows, (outputs, inner) = x.numel() // x.shape[-1], weight.shape
    return _bytes(x, weight) + rows * outputs * x.element_size(), 2 * rows * outputs * inner


def _bytes(*tensors: Tensor) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
