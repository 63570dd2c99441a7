"""Inputs of the fused products, by case, on the generator's device. Weights as large as those of a model are small."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dsbench.kernels.check.inputs import Inputs, rotate_inputs

QKV_CASES = (  # rows, hidden, then as ROTATE_CASES
    (1, 40, 1, 1, 8, 16, False, False),
    (1, 130, 1, 1, 24, 16, False, False),
    (3, 72, 4, 2, 20, 4, True, True),
    (17, 48, 2, 1, 16, 16, False, True),
    (20, 130, 3, 1, 12, 16, False, False),
    (70, 40, 2, 2, 8, 3, True, False),
)
GATE_CASES = ((1, 40, 24), (1, 300, 20), (5, 72, 33), (70, 130, 20))  # rows, hidden, width of the MLP
PRODUCT_CASES = (  # rows, inner, outputs
    (1, 40, 24),
    (1, 4200, 5),
    (7, 33, 50),
    (5, 4200, 18),
    (16, 576, 48),
    (70, 130, 20),
)
EMBED_CASES = ((1, 50, 40), (7, 30, 63), (0, 5, 40))  # rows (0: all of the table), vocabulary, hidden
SUMMED = 5  # parts of a row's squares


def embed_inputs(generator: torch.Generator, case: tuple[int, int, int]) -> Inputs:
    m, vocab, hidden = case
    with generator.device:
        return {
            "ids": torch.randint(0, vocab, (m,), generator=generator) if m else None,
            "table": torch.randn(vocab, hidden, generator=generator),
            "gain": torch.randn(hidden, generator=generator),
        }


def product_add_inputs(generator: torch.Generator, case: tuple[int, int, int]) -> Inputs:
    m, inner, outputs = case
    with generator.device:
        return {
            "a": torch.randn(m, inner, generator=generator),
            "weight": _weight(generator, outputs, inner),
            "x": torch.randn(m, outputs, generator=generator),
            "gain": torch.randn(outputs, generator=generator),
        }


def small_product_inputs(generator: torch.Generator, case: tuple[int, int, int], *, normed: bool = True) -> Inputs:
    m, inner, outputs = case
    rows = _normed_rows(generator, m, inner) if normed else {}
    with generator.device:
        a = rows.get("gained", torch.randn(m, inner, generator=generator))
        return {"a": a, "weight": _weight(generator, outputs, inner)} | (
            {"squares": rows["squares"], "eps": 1e-5} if normed else {}
        )


def gate_inputs(generator: torch.Generator, case: tuple[int, int, int]) -> Inputs:
    m, hidden, width = case
    rows = _normed_rows(generator, m, hidden)
    with generator.device:
        return rows | {"weight": _weight(generator, 2 * width, hidden), "eps": 1e-5}


def qkv_inputs(generator: torch.Generator, case: tuple[Any, ...], *, odd: bool = True) -> Inputs:
    m, hidden, *turned = case
    rest = rotate_inputs(generator, (m, *turned), odd=odd)
    outputs = rest.pop("qkv").shape[1]
    rows = _normed_rows(generator, m, hidden)
    with generator.device:
        return rows | rest | {"weight": _weight(generator, outputs, hidden)}


def _weight(generator: torch.Generator, outputs: int, inner: int) -> Tensor:
    weight: Tensor = torch.randn(outputs, inner, generator=generator)
    return weight / math.sqrt(inner)


def _normed_rows(generator: torch.Generator, m: int, hidden: int) -> Inputs:
    """Rows times a gain, and the squares of them without it in parts."""
    with generator.device:
        x, gain = torch.randn(m, hidden, generator=generator) * 3, torch.randn(hidden, generator=generator)
        parts = [part.square().sum(-1) for part in torch.tensor_split(x, SUMMED, dim=1)]
        return {"gained": x * gain, "squares": torch.stack(parts, dim=1)}
