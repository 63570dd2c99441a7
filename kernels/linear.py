"""y = x W^T (+ b) with weights that do not change: on a CPU in fp32 they are laid out once for oneDNN's kernels.

Plain `F.linear` packs the weights anew at every call there, which costs more than the product itself at few rows: on a
2-core AVX2 machine, [M, 576] x [1536, 576] takes 412 us plain and 228 us prepacked at M = 8. Matrix products of a GPU
and of bf16 stay with the library.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

PACKED_FOR_ROWS = 128  # the layout is chosen for a row count, and serves all


class Projection:
    """A linear map. `weight` [N, K] and `bias` [N] stay readable; calling it maps [..., K] to [..., N]."""

    __slots__ = ("_packed", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self._packed: Any = prepack(weight)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is None:
            return F.linear(x, self.weight, self.bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return out

    def rows(self, first: int) -> Projection:
        """The map to outputs `first`..N only."""
        bias = None if self.bias is None else self.bias[first:].contiguous()
        return Projection(self.weight[first:].contiguous(), bias)


def prepack(weight: Tensor) -> Any:
    """The weight in oneDNN's own layout, or None where plain `F.linear` is to be used."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not torch._C._has_mkldnn:
        return None
    try:
        with torch.inference_mode(False), torch.no_grad():
            plain = weight.clone() if weight.is_inference() else weight
            return torch.ops.mkldnn._reorder_linear_weight(plain.contiguous(), PACKED_FOR_ROWS)
    except (AttributeError, NotImplementedError, RuntimeError):  # a torch built without these ops
        return None
