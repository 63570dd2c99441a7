"""Run by test_draft_loss_triton.py with TRITON_INTERPRET=1: the loss kernel on CPU tensors against its reference."""

from __future__ import annotations

import sys

import torch

from dsbench.kernels.draft import loss_triton as draft_loss_triton
from dsbench.kernels.draft.loss import Shares, draft_loss_rows_reference

CASES = (  # rows, draft vocabulary, whole (widest row that is one block), block, coupled share
    (3, 1, 16384, 4096, 0.0),
    (4, 2, 16384, 4096, 0.5),
    (7, 63, 16384, 4096, 0.5),
    (7, 128, 16384, 4096, 0.0),
    (4, 200, 64, 64, 0.5),
    (4, 1000, 512, 256, 0.0),
)


def check(
    rows: int,
    vocab: int,
    whole: int,
    block: int,
    coupled: float,
    dtype: torch.dtype,
    device: torch.device = torch.device("cpu"),
) -> None:
    draft_loss_triton.WHOLE, draft_loss_triton.BLOCK = whole, block
    g = torch.Generator().manual_seed(vocab)
    z, zp = (torch.randn(rows, vocab, generator=g).mul(s).to(dtype) for s in (2, 3))
    z[1, -1] = z[1].max()  # ties, across blocks too
    z[2:3] *= 30
    lse = zp.float().logsumexp(-1) + torch.rand(rows, generator=g)
    label = torch.randint(-1, vocab, (rows,), generator=g)
    greedy, weight = torch.arange(rows) % 3 == 0, torch.rand(rows, generator=g)
    weight[-1] = 0
    z, zp, lse, greedy, label, weight = (t.to(device) for t in (z, zp, lse, greedy, label, weight))
    shares = Shares(l1=0.6, coupled=coupled, tau=0.7)
    arguments = {"seed": torch.tensor([2**33 + 5], device=device), "first": 1000, "shares": shares}
    made = draft_loss_triton.launch(z, zp, lse, greedy, label, weight, **arguments)
    wanted = draft_loss_rows_reference(z, zp, lse, greedy, label, weight, **arguments)
    assert made.gradient.dtype == dtype and made.gradient.shape == (rows, vocab)
    for name in ("ce", "accept", "soft", "match", "features", "gradient"):
        one, other = getattr(made, name).float(), getattr(wanted, name).float()
        # log(1 - w) of a w near 1e-3 is good to 6e-5, and log(margin + 0.1) magnifies it tenfold
        size = 1e-3 if name == "features" else 2e-4 if dtype == torch.float32 else 4e-3
        assert torch.isfinite(one).all(), name
        assert (one - other).abs().max() <= size, (name, rows, vocab, block, coupled, dtype, (one - other).abs().max())


if __name__ == "__main__":
    for case in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            check(*case, dtype)
    sys.stdout.write(f"{2 * len(CASES)} agree")
