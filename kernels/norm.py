"""RMS norm, and the residual sum before it fused into one pass over the rows.

Shapes: M rows, D hidden.
"""

from __future__ import annotations

from torch import Tensor, float32
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last axis; the mean square in fp32, the result in x's dtype (as Llama does).

    An fp32 weight acts before the result is rounded (as Gemma does), one of x's dtype after it.
    """
    if x.dtype == float32:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    y = x.float()
    y = y * (y.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (y * weight).to(x.dtype) if weight.dtype == float32 else y.to(x.dtype) * weight


def add_norm_reference(x: Tensor, delta: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x [M, D] + delta [M, D] (none: x itself) in x's dtype, and the norm of that sum times gain [D]."""
    x = x if delta is None else x + delta
    return x, rms_norm(x, gain, eps)


def add_norm(x: Tensor, delta: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As the reference; on CUDA a Triton kernel. A row's result does not depend on the other rows. No gradients."""
    if x.device.type == "cuda":
        from dsbench.kernels import norm_triton

        return norm_triton.add_norm(x, delta, gain, eps)
    return add_norm_reference(x, delta, gain, eps)
