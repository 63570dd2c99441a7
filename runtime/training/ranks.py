"""Several training processes, one GPU each: this process's rank, and the collectives. One process is rank 0 of 1.

Started by torchrun (RANK, WORLD_SIZE, LOCAL_RANK). Every rank answers its share of the prompts, keeps features of its
share of the sequences, and adds its gradients to the others'.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


@dataclass(frozen=True, slots=True)
class Ranks:
    """Rank `index` of `count`. Every method is a collective: all ranks call it, in one order."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.index == 0

    def share(self, items: Sequence[Any]) -> list[Any]:
        return list(items[self.index :: self.count])

    def together(self, shared: Sequence[Any]) -> list[Any]:
        """The inverse of `share`: every rank's results, in the original order."""
        if self.count == 1:
            return list(shared)
        parts: list[Any] = [None] * self.count
        dist.all_gather_object(parts, list(shared))
        total: list[Any] = [None] * sum(len(p) for p in parts)
        for index, part in enumerate(parts):
            total[index :: self.count] = part
        return total

    def add(self, values: Sequence[Tensor]) -> None:
        """Sums tensors over the ranks, in place, in one message."""
        if self.count == 1 or not values:
            return
        flat = torch.cat([v.flatten() for v in values])
        dist.all_reduce(flat)
        for value, part in zip(values, torch.split(flat, [v.numel() for v in values]), strict=True):
            value.copy_(part.view_as(value))

    def same(self, values: Sequence[Tensor]) -> None:
        """The first rank's tensors everywhere, in place."""
        if self.count == 1:
            return
        for value in values:
            dist.broadcast(value, src=0)

    def agree(self, number: float) -> float:
        """The first rank's number, broadcast through the host without a device synchronisation."""
        if self.count == 1:
            return number
        box: list[Any] = [number]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return float(box[0])


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Joins the ranks that torchrun started for the block, each on its own GPU; without torchrun, a single rank."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Ranks()
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()
