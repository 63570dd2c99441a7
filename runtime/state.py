"""What the target and the drafter keep per request: paged keys and values, shared page tables. Owns allocation.

A page holds `page` tokens of every layer; the drafter's context lives in the same pages (layers after the target's),
so that one table serves both. Slot s of a request is at pages[s // page], offset s % page. The last page of the pool
is nobody's: rows that must leave no trace write there.
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
    """Paged keys and values in fp32 on the CPU (what its kernel reads), in the model's dtype elsewhere."""

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
        self._promised = 0  # pages that owners may still ask for

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.keys, *self.values))

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.shape.page)

    def open(self, owner: int, tokens: int) -> bool:
        """Sets pages for `tokens` aside for a new owner; False, and nothing taken, if the pool cannot promise them."""
        assert owner not in self._owned, f"owner {owner} is here already"
        need = self.pages_for(tokens)
        if need > self.shape.table:
            raise EnvironmentRefused(
                f"a request of {tokens} tokens exceeds the {self.shape.table * self.shape.page} slots"
            )
        if need > len(self._free) - self._promised:
            return False
        self._owned[owner], self._reserved[owner] = [], need
        self._promised += need
        return True

    def grow(self, owner: int, tokens: int) -> None:
        """Pages for the first `tokens` slots of the owner, out of what `open` promised."""
        owned, need = self._owned[owner], self.pages_for(tokens)
        assert need <= self._reserved[owner], f"owner {owner} grows past its promise to {tokens} tokens"
        self._promised -= max(0, need - len(owned))
        while len(owned) < need:
            owned.append(self._free.pop())

    def truncate(self, owner: int, tokens: int) -> None:
        """Gives back the pages past the first `tokens` slots."""
        owned, need = self._owned[owner], self.pages_for(tokens)
        self._promised += max(0, len(owned) - need)
        while len(owned) > need:
            self._free.append(owned.pop())

    def release(self, owner: int) -> None:
        self.truncate(owner, 0)
        self._promised -= self._reserved[owner]
        del self._owned[owner], self._reserved[owner]

    def pages_of(self, owner: int) -> list[int]:
        """The owner's pages in order."""
        return self._owned[owner]

    def table(self, owners: list[int]) -> Tensor:
        """Page table [R, longest] int32; unused entries name the page that is nobody's."""
        longest = max((len(self._owned[o]) for o in owners), default=1)
        rows = [self._owned[o] + [self.shape.pages] * (longest - len(self._owned[o])) for o in owners]
        return torch.tensor(rows, dtype=torch.int32, device=self.device)

    def cache_indices(self, batch: Batch) -> Tensor:
        """Flat slot [M] int64 (page * tokens a page + offset) where each row's key and value live."""
        if batch.cache_indices is not None:
            return batch.cache_indices
        page = batch.pages.long()[batch.request, batch.positions // self.shape.page]
        return page * self.shape.page + batch.positions % self.shape.page

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores keys, values [M, K, E] of rows at flat `slots` [M]; slot -1 lies in the page that is nobody's."""
        write_rows(*self.layer(layer), slots, keys, values)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [M, K, E] that `write` stored at flat `slots` [M]."""
        page, offset = slots // self.shape.page, slots % self.shape.page
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
        assert self._promised == sum(self._reserved.values()) - len(owned), "promises do not add up"
        for owner, pages in self._owned.items():
            assert len(pages) <= self._reserved[owner], f"owner {owner}: {len(pages)} pages > {self._reserved[owner]}"
