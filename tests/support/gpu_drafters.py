"""Shared by tests: what gpu tests and others run on."""

from __future__ import annotations

import torch
from tiny import tiny_drafter, tiny_mtp, tiny_target

from dsbench.runtime.request import Request, SamplingParams
from dsbench.runtime.sampling import sampling_of
from dsbench.runtime.state import PoolShape, StatePool


def standing_drafter(kind, events, requests=5):
    """A tiny drafter on the device, a pool filled at random, requests in mid-decode and their sampling."""
    target = tiny_target(torch.device("cuda"))
    drafter = tiny_mtp(target, vocab=32) if kind == "mtp" else tiny_drafter(target, head=kind, vocab=32, events=events)
    layers = ((2, 8),) * target.shape.layers + drafter.pool_layers()
    pool = StatePool(PoolShape(layers=layers, page=4, pages=200, table=60), target.device, target.dtype, shuffle_seed=1)
    for kept in (*pool.keys, *pool.values):
        kept.copy_(torch.randn(kept.shape, generator=torch.Generator().manual_seed(kept.numel())))
    asked = [
        Request(
            id=i,
            name=str(i),
            workload="tiny",
            prompt_ids=[1 + i] * (3 + 9 * i),
            output=[2],
            sampling=SamplingParams(temperature=(i % 3) / 2, seed=i),
        )
        for i in range(requests)
    ]
    for request in asked:
        assert pool.open(request.id, request.committed + 60)
        pool.grow(request.id, request.committed + 40)
    return drafter, pool, asked, sampling_of(asked, target.device)
