"""SwiGLU of a fused gate and up projection. Shapes: M rows, I width of the MLP."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [..., I] of the fused projection's output [..., 2 I], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu(gate_up: Tensor) -> Tensor:
    """As the reference, of [M, 2 I]; on CUDA a Triton kernel. No gradients."""
    if gate_up.device.type == "cuda":
        from dsbench.kernels import swiglu_triton

        return swiglu_triton.swiglu(gate_up)
    return swiglu_reference(gate_up)
