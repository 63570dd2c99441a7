"""What the target and the drafter keep per request: paged keys and values, page tables, and page allocation.

A page holds `page` tokens of every layer; the drafter's context lives in the same pages (layers after the target's),
so that one table serves both. Position s of a request is at pages[s // page], offset s % page; its cache index is
page number * page + offset. The last page of the pool belongs to no request: filler rows write there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.errors import EnvironmentRefused
from dsbench.kernels.rope import write_rows
from dsbench.runtime.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShape:
    """Layers of target and drafter (each [kv heads, head width]), tokens a page, pages, pages a request at most."""

    layers: tuple[tuple[int, int], ...]
    page: int
    pages: int
    table: int


class StatePool:
    """Paged keys and values: fp32 on the CPU, as its kernel reads them, the model's dtype elsewhere."""

    def __init__(self, shape: PoolShape, device: torch.device, dtype: torch.dtype, *, shuffle_seed: int | None) -> None:
        kept = torch.float32 if device.type == "cpu" else dtype
        self.shape, self.device = shape, device
        size = shape.pages + 1
        self.keys = [torch.zeros(size, k, shape.page, e, device=device, dtype=kept) for k, e in shape.layers]
        self.values = [torch.zeros(size, k, shape.page, e, device=device, dtype=kept) for k, e in shape.layers]
        self._free = list(range(shape.pages))[::-1]
        if shuffle_seed is not None:
            random.Random(shuffle_seed).shuffle(self._free)
        self._owned: dict[int, list[int]] = {}
        self._reserved: dict[int, int] = {}
        self._pending = 0  # reserved pages that are not allocated yet

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def owners(self) -> tuple[int, ...]:
        return tuple(self._owned)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.shape.page)

    def open(self, owner: int, tokens: int) -> bool:
        """Reserves pages for `tokens` for a new owner; False, without reserving any, if too few are left.

        Raises EnvironmentRefused where one request may never hold that many.
        """
        assert owner not in self._owned, f"owner {owner} is open already"
        need = self.pages_for(tokens)
        if need > self.shape.table:
            raise EnvironmentRefused(
                f"a request of {tokens} tokens exceeds the {self.shape.table * self.shape.page} of its pages"
            )
        if need > len(self._free) - self._pending:
            return False
        self._owned[owner], self._reserved[owner] = [], need
        self._pending += need
        return True

    def grow(self, owner: int, tokens: int) -> None:
        """Allocates pages for the owner's first `tokens` positions, out of what `open` reserved."""
        owned, need = self._owned[owner], self.pages_for(tokens)
        assert need <= self._reserved[owner], f"owner {owner} grows past its reservation to {tokens} tokens"
        self._pending -= max(0, need - len(owned))
        while len(owned) < need:
            owned.append(self._free.pop())

    def truncate(self, owner: int, tokens: int) -> None:
        """Frees the pages past the owner's first `tokens` positions; they stay reserved."""
        owned, need = self._owned[owner], self.pages_for(tokens)
        self._pending += max(0, len(owned) - need)
        while len(owned) > need:
            self._free.append(owned.pop())

    def release(self, owner: int) -> None:
        self.truncate(owner, 0)
        self._pending -= self._reserved[owner]
        del self._owned[owner], self._reserved[owner]

    def pages_of(self, owner: int) -> list[int]:
        """The owner's pages in order."""
        return self._owned[owner]

    def table(self, owners: list[int]) -> Tensor:
        """Page table [R, longest] int32; unused entries name the page of no request."""
        longest = max((len(self._owned[o]) for o in owners), default=1)
        rows = [self._owned[o] + [self.shape.pages] * (longest - len(self._owned[o])) for o in owners]
        return torch.tensor(rows, dtype=torch.int32, device=self.device)

    def cache_indices(self, batch: Batch) -> Tensor:
        """Cache index [M] int64 (page number * page + offset) of each row's key and value."""
        if batch.cache_indices is not None:
            return batch.cache_indices
        page = batch.pages.long()[batch.request, batch.positions // self.shape.page]
        return page * self.shape.page + batch.positions % self.shape.page

    def write(self, layer: int, cache_indices: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores keys, values [M, K, E] of rows at `cache_indices` [M]; index -1 lies in the page of no request."""
        write_rows(*self.layer(layer), cache_indices, keys, values)

    def read(self, layer: int, cache_indices: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [M, K, E] that `write` stored at `cache_indices` [M]."""
        page, offset = cache_indices // self.shape.page, cache_indices % self.shape.page
        return self.keys[layer][page, :, offset], self.values[layer][page, :, offset]

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self.keys[index], self.values[index]

    def check(self) -> None:
        """Conservation: every page is free or owned, exactly once. Raises AssertionError with both sides."""
        owned = [p for pages in self._owned.values() for p in pages]
        everyone = sorted(owned + self._free)
        assert everyone == list(range(self.shape.pages)), (
            f"{len(owned)} owned + {len(self._free)} free pages are not the {self.shape.pages} of the pool"
        )
        assert self._pending == sum(self._reserved.values()) - len(owned), "reservations do not add up"
        for owner, pages in self._owned.items():
            assert len(pages) <= self._reserved[owner], f"owner {owner}: {len(pages)} pages > {self._reserved[owner]}"
