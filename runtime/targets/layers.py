"""The pieces that dense targets and block drafters share: norm, rotary embedding, gated MLP. Plain torch, no state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last axis; the mean square in fp32, the result in x's dtype (as Llama does)."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rotary_table(positions: int, width: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, width/2] fp32 of the rotary embedding with base `theta`."""
    inverse = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), inverse)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, half-split layout. x [..., heads, E]; cos, sin [..., E/2] of the rows' positions, fp32."""
    a, b = x.float().chunk(2, dim=-1)
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)


def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """SwiGLU: (silu(gate) * up) projected down; gate_up [2I, D] is gate over up, down [D, I]."""
    return F.linear(swiglu(F.linear(x, gate_up)), down)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of the fused projection's output [..., 2 I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
