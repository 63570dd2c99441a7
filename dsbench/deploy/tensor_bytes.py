"""Bytes of tensors: exact sums with shared memory counted once; and the peak of the process."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dsbench.runtime.loop.passes import Models

OURS = "dsbench."  # modules whose objects are looked into


def tensors_in(thing: object) -> list[Tensor]:
    """Every tensor that containers and objects of dsbench below `thing` hold, each object visited once."""
    return list(_walk(thing, set()))


def _walk(thing: object, seen: set[int]) -> Iterator[Tensor]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from _walk(value, seen)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from _walk(value, seen)
    elif type(thing).__module__.startswith(OURS):
        names = [*getattr(thing, "__dict__", ()), *getattr(type(thing), "__slots__", ())]
        for name in names:
            yield from _walk(getattr(thing, name, None), seen)


def bytes_of(*things: object) -> int:
    """Bytes of the tensors below `things`: views and duplicates count once, oneDNN's own layouts are left out."""
    spans = sorted(_extent(x) for x in tensors_in(things) if not x.is_mkldnn and x.numel())
    total, end = 0, 0
    for first, last in spans:
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def packed_bytes(*things: object) -> int:
    """Bytes of the weights' copies in oneDNN's own layout, without its padding; a CPU in fp32 has them."""
    return sum(x.numel() * x.element_size() for x in tensors_in(things) if x.is_mkldnn)


def _extent(x: Tensor) -> tuple[int, int]:
    """First byte and the byte after the last."""
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()


def pool_bytes(models: Models) -> tuple[int, int]:
    """Of the pool's pages, bytes of the target's layers and of the drafter's."""
    pool, first = models.pool, models.target.shape.layers
    target = bytes_of(pool.keys[:first], pool.values[:first])
    return target, bytes_of(pool.keys, pool.values) - target


def graph_bytes(pool: Any) -> int:
    """What torch's allocator holds for the graphs of a memory pool; 0 where nothing was captured."""
    if pool is None:
        return 0
    segments: Any = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sum(s["total_size"] for s in segments if tuple(s.get("segment_pool_id", ())) == tuple(pool))


def peak_bytes(device: torch.device) -> int:
    """The most that torch reserved on a CUDA device, or that the process kept resident, since it began."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
