"""Counter-based random numbers: Philox4x32-10, the same bits on every device, batch size and arm.

A number is a pure function of (request seed, position, stream, vocabulary id). Nothing here holds a state.
Source of the generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

Counter layout: word 0 = vocabulary id // 4, word 1 = absolute position, word 2 = round, word 3 = purpose;
key = the request's 64-bit seed; output lane = vocabulary id % 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUND_A, ROUND_B = 0xD2511F53, 0xCD9E8D57
WEYL_A, WEYL_B = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF
UNIFORM_BITS = 24
GUMBEL_MAX = 17.3287  # -log(2**-25), the largest noise that 24 bits can make
GUMBEL_MIN = -2.8116  # -log(-log(2**-24)), the smallest


def philox(key: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox4x32. All tensors int64 and broadcastable; `key` is the whole 64-bit seed.

    Returns four tensors of 32-bit numbers held in int64.
    """
    c0, c1, c2, c3 = torch.broadcast_tensors(*counter)  # type: ignore[no-untyped-call]
    k0, k1 = key & MASK, (key >> 32) & MASK
    for _ in range(10):
        a, b = c0 * ROUND_A, c2 * ROUND_B  # wraps modulo 2**64; the masks below take the right 32 bits
        c0, c1, c2, c3 = ((b >> 32) & MASK) ^ c1 ^ k0, b & MASK, ((a >> 32) & MASK) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + WEYL_A) & MASK, (k1 + WEYL_B) & MASK
    return c0, c1, c2, c3


def lower_uniform(bits: Tensor) -> Tensor:
    """w in (0, 1) from 32 random bits, fp32: (top 24 bits + 1/2) / 2**24, kept below 1 where fp32 would round to it."""
    w = ((bits >> 8).float() + 0.5) * (1.0 / (1 << UNIFORM_BITS))
    return w.clamp(max=1.0 - 1.0 / (1 << UNIFORM_BITS))


def gumbel_from_bits(bits: Tensor) -> Tensor:
    """Standard Gumbel noise from 32 random bits, fp32.

    -log(-log1p(-w)) keeps the upper tail, where w is small; -log(-log(u)) with u near 1 would lose it.
    """
    return -torch.log(-torch.log1p(-lower_uniform(bits)))


def uniforms(seeds: Tensor, positions: Tensor, rounds: Tensor, purpose: int) -> Tensor:
    """One uniform in (0, 1) per element, fp64: 53 bits from two Philox words. seeds, positions, rounds: int64 [n]."""
    word = torch.full_like(positions, purpose)
    hi, lo, _, _ = philox(seeds, (torch.zeros_like(positions), positions, rounds, word))
    return ((hi >> 5).double() * 67108864.0 + (lo >> 6).double() + 0.5) / 9007199254740992.0


def gumbel_noise(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Rows of the coupled rule's noise table: [n, V'] fp32 for seeds, positions int64 [n] and ids int64 [V']."""
    zero = torch.zeros((), dtype=torch.int64, device=ids.device)
    lanes = philox(seeds[:, None], ((ids // 4)[None, :], positions[:, None], zero, zero))
    stacked = torch.stack(lanes)  # [4, n, V']
    lane = (ids % 4).expand(seeds.shape[0], -1)
    return gumbel_from_bits(stacked.gather(0, lane[None]).squeeze(0))
