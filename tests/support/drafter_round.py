"""A block drafter over two requests, compared with the dense reference."""

from __future__ import annotations

import torch

from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.drafters.draft import standing_of
from dsbench.runtime.request import Request, SamplingParams
from dsbench.runtime.sampling import sampling_of
from dsbench.runtime.state import PoolShape, StatePool

CPU = torch.device("cpu")


class Round:
    """Two requests whose context is observed chunk by chunk; rows past what is then committed were rejected.

    `embedded`: the target's embedding, where the drafter reads it; ids are positions here.
    """

    def __init__(self, drafter, target, width, embedded=None):
        self.drafter, self.generator = drafter, torch.Generator().manual_seed(4)
        layers = ((1, 1),) * target.shape.layers + drafter.pool_layers()
        self.pool = StatePool(PoolShape(layers=layers, page=4, pages=40, table=16), CPU, torch.float32, shuffle_seed=8)
        assert self.pool.open(0, 64) and self.pool.open(1, 64)
        self.width = width
        self.embedded = embedded
        known = width + (0 if embedded is None else embedded.shape[1])
        self.taps = [torch.empty(0, known), torch.empty(0, known)]  # of committed tokens

    def observe(self, counts, rejected):
        start = torch.tensor([t.shape[0] for t in self.taps], dtype=torch.int32)
        cu_rows, request, positions = ragged_positions(start, torch.tensor(counts, dtype=torch.int32))
        for r, count in enumerate(counts):
            self.pool.grow(r, int(start[r]) + count + self.drafter.block)
        rows = torch.randn(sum(counts), self.width, generator=self.generator)
        known = rows if self.embedded is None else torch.cat([self.embedded[positions], rows], dim=-1)
        batch = Batch(
            ids=positions,
            positions=positions,
            cu_rows=cu_rows,
            context=start,
            pages=self.pool.table([0, 1]),
            request=request,
        )
        self.drafter.observe(batch, rows, self.pool)
        for r, new in enumerate(known.split(counts)):
            self.taps[r] = torch.cat([self.taps[r], new[: counts[r] - rejected[r]]])
            self.pool.truncate(r, self.taps[r].shape[0])
            self.pool.grow(r, self.taps[r].shape[0] + self.drafter.block)

    def check(self, reference):
        block, seeds = self.drafter.block, (3, 8)
        requests = [
            Request(
                id=r,
                name=str(r),
                workload="x",
                prompt_ids=[1] * t.shape[0],
                output=[7 + 20 * r],
                sampling=SamplingParams(temperature=1.0, seed=seeds[r]),
            )
            for r, t in enumerate(self.taps)
        ]
        anchor, start = (torch.tensor([getattr(r, n) for r in requests]) for n in ("anchor", "committed"))
        hidden = self.drafter.backbone(anchor, start.int(), self.pool.table([0, 1]), self.pool)
        draft = self.drafter.propose(
            standing_of(requests, self.pool, CPU),
            sampling_of(requests, CPU),
            self.pool,
            rule="residual",
            depth=lambda free: torch.full((2,), block),
        )
        for r in (0, 1):
            wanted = reference.hidden(self.taps[r], int(anchor[r]))[-block:]
            close(hidden[r], wanted)
            previous = [int(anchor[r]), *draft.tokens[r, :-1].tolist()]
            logits, confidence = reference.slots(wanted, previous)
            close(draft.probabilities[r].log(), logits.log_softmax(-1))  # the law is the logits up to a constant
            close(draft.confidence[r], confidence)


def close(made, wanted):
    torch.testing.assert_close(made, wanted, atol=1e-4, rtol=0)
