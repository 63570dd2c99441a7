"""SwiGLU of a fused gate and up projection, and its kin with another activation. Shapes: M rows, I width of the MLP."""

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


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up [M, I] of [M, 2 I]; activation is "silu" or "gelu_tanh". No gradients."""
    if activation == "silu":
        return swiglu(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
