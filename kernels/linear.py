"""y = x W^T (+ b) with constant weights: on a CPU in fp32 they are laid out once for oneDNN's kernels.

`F.linear` packs the weights anew at every call there, which costs more than the product itself at few rows: on a
2-core AVX2 machine, [M, 576] x [1536, 576] takes 412 us by F.linear and 228 us prepacked at M = 8. Products on a
GPU and in bf16 use the library, whose last bits change with M. An exact projection's do not: on a GPU it uses its own
kernel; on a CPU `rows_hold` checks whether the prepacked product has this property.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.fused.tiles import is_small

PACKED_FOR_ROWS = 128  # the layout is chosen for a row count, and serves all
TRIED = (1, 2, 3, 5, 7, 12, 40)


class Projection:
    """A linear map. `weight` [N, K] and `bias` [N] stay readable; calling it maps [..., K] to [..., N].

    `exact`: the bits of a row do not depend on the number of rows, nor on the others.
    """

    __slots__ = ("_packed", "bias", "exact", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, exact: bool = False) -> None:
        self.weight, self.bias, self.exact = weight, bias, exact
        self._packed: Any = prepack(weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self.exact and x.device.type == "cuda":
            from dsbench.kernels import linear_triton

            return linear_triton.linear(x, self.weight, self.bias)
        if self._is_small(x):
            from dsbench.kernels.fused.products_triton import small_product

            return small_product(x.contiguous(), self.weight)
        if self._packed is None:
            return F.linear(x, self.weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return out

    def _is_small(self, x: Tensor) -> bool:
        half = x.device.type == "cuda" and x.element_size() == 2 and x.dim() == 2 and self.bias is None
        return half and is_small(len(x), self.weight.numel())

    def rows(self, first: int) -> Projection:
        """The map to outputs `first`..N only."""
        bias = None if self.bias is None else self.bias[first:].contiguous()
        return Projection(self.weight[first:].contiguous(), bias, exact=self.exact)


def projection_reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [M, K] and weight [N, K] multiplied in fp64, plus bias [N]; rounded once, to x's dtype."""
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double()).to(x.dtype)


def rows_hold(projection: Projection) -> bool:
    """Whether rows are bitwise equal in passes of other sizes; tries the sizes TRIED with the current threads."""
    generator = torch.Generator(projection.weight.device).manual_seed(0)
    size, device, dtype = projection.weight.shape[1], projection.weight.device, projection.weight.dtype
    x = torch.randn(TRIED[-1], size, generator=generator, device=device).to(dtype)
    together = projection(x)
    return all(torch.equal(torch.cat([projection(part) for part in torch.split(x, m)]), together) for m in TRIED)


def prepack(weight: Tensor) -> Any:
    """The weight in oneDNN's own layout, or None where `F.linear` is to be used."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not torch._C._has_mkldnn:
        return None
    try:
        with torch.inference_mode(False), torch.no_grad():
            owned = weight.clone() if weight.is_inference() else weight
            return torch.ops.mkldnn._reorder_linear_weight(owned.contiguous(), PACKED_FOR_ROWS)
    except (AttributeError, NotImplementedError, RuntimeError):  # a torch built without these ops
        return None
