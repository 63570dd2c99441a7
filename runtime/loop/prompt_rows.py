"""The fixed buffers of a prefill pass: prompt rows, and what requests that are done with theirs take to their slots.

Shapes: M rows, P requests of a pass, N pages a request, G block, L recorded tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsbench.runtime.batch import Batch
from dsbench.runtime.loop.scheduler import Residence
from dsbench.runtime.loop.slots import MAPS, Slots
from dsbench.runtime.policy.calibrated import Maps
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.request import SamplingParams
from dsbench.runtime.sampling import Sampling
from dsbench.runtime.state import StatePool

NOTHING = np.zeros(0)


class PromptRows:
    """Named parts of three tensors, each of which is sent as a whole. Rows and requests that are not loaded: filler."""

    def __init__(self, slots: Slots, rows: int, requests: int) -> None:
        device, shape, text = slots.device, slots.shape, slots.text.shape[1]
        per_row = ("ids", "positions", "indices", "request")
        per_request = ("context", "last", "end", "seed", "at", "start", "room", "stops_at_eos", "top_k")
        self.int_sizes = dict.fromkeys(per_row, rows) | dict.fromkeys(per_request, requests)
        self.int_sizes |= {"cu_rows": requests + 1, "text": requests * text}
        self.real_sizes = {"temperature": requests, "top_p": requests, "maps": requests * 4 * shape.block}
        self.real_sizes["trace"] = requests * slots.trace[0].numel()
        self.ints = torch.zeros(sum(self.int_sizes.values()), dtype=torch.int64, device=device)
        self.reals = torch.zeros(sum(self.real_sizes.values()), device=device)
        self.pages = torch.full((requests, shape.table), slots.filler, dtype=torch.int32, device=device)
        split: Any = torch.split
        self.part: dict[str, Tensor] = {
            **dict(zip(self.int_sizes, split(self.ints, list(self.int_sizes.values())), strict=True)),
            **dict(zip(self.real_sizes, split(self.reals, list(self.real_sizes.values())), strict=True)),
        }
        self.rows, self.requests, self.slots = rows, requests, slots
        self.part["indices"].fill_(-1)
        self.part["at"].fill_(shape.slots)
        self.part["room"].fill_(1)

    @property
    def batch(self) -> Batch:
        """Called within a pass, where a cast is part of it."""
        part = self.part
        return Batch(
            ids=part["ids"],
            positions=part["positions"],
            cu_rows=part["cu_rows"].int(),
            context=part["context"].int(),
            pages=self.pages,
            request=part["request"],
            logit_rows=part["last"],
            cache_indices=part["indices"],
        )

    @property
    def sampling(self) -> Sampling:
        part = self.part
        return Sampling(
            temperature=part["temperature"],
            top_k=part["top_k"],
            top_p=part["top_p"],
            seed=part["seed"],
            round=torch.zeros_like(part["seed"]),
            unfiltered=not self.slots.shape.truncates,
        )

    @property
    def values(self) -> dict[str, Tensor]:
        """What `Slots.admit` takes of the pass's requests."""
        part, n, shape = self.part, self.requests, self.slots.shape
        maps = part["maps"].view(n, 4, shape.block).unbind(1)
        return {
            **{name: part[name] for name in ("start", "room", "seed", "stops_at_eos", "top_k", "temperature", "top_p")},
            **dict(zip(MAPS, maps, strict=True)),
            "table": self.pages,
            "text": part["text"].view(n, self.slots.text.shape[1]),
            "trace": part["trace"].view(n, *self.slots.trace.shape[1:]),
        }

    def load(
        self,
        part: Sequence[tuple[Residence, int]],
        at: Sequence[int],
        pool: StatePool,
        maps: Callable[[SamplingParams], Maps],
    ) -> None:
        """Sends a chunk's numbers: requests and prompt rows of each, of whom the first len(at) are done with theirs."""
        slots, who = self.slots, [residence.request for residence, _ in part]
        counts = np.array([count for _, count in part])
        end = np.array([residence.prefilled for residence, _ in part])
        pages, cu_rows = page_tables(pool, [r.id for r in who]), np.concatenate([[0], np.cumsum(counts)])
        request = np.repeat(np.arange(len(part)), counts)
        positions = np.arange(cu_rows[-1]) - np.repeat(cu_rows[:-1] - (end - counts), counts)
        page, done = pool.shape.page, who[: len(at)]
        ints = {
            "ids": np.concatenate([r.prompt_ids[e - n : e] for r, n, e in zip(who, counts, end, strict=True)]),
            "positions": positions,
            "indices": pages[request, positions // page] * page + positions % page,
            "request": request,
            "cu_rows": cu_rows,
            "context": end - counts,
            "last": cu_rows[1:] - 1,
            "end": end,
            "seed": np.array([r.sampling.seed for r in who]),
            "top_k": np.array([r.sampling.top_k for r in who]),
            "at": np.array(at, np.int64),
            "start": end[: len(at)],
            "room": np.array([residence.room for residence, _ in part[: len(at)]], np.int64),
            "stops_at_eos": np.array([not r.sampling.ignore_eos for r in done], np.int64),
            "text": slots.texts_of(done),
        }
        reals = {
            "temperature": np.array([r.sampling.temperature for r in who]),
            "top_p": np.array([r.sampling.top_p for r in who]),
            "maps": np.array([maps(r.sampling) for r in done]),
        }
        if slots.trace.numel():
            reals["trace"] = slots.traces_of(done)
        self._send(ints, reals, pages)

    def _send(self, ints: Mapping[str, Array], reals: Mapping[str, Array], pages: Array) -> None:
        """Fills what is not given with filler. Nothing is waited for."""
        filler = {"indices": -1, "text": -1, "room": 1, "at": self.slots.shape.slots, "top_p": 1}
        filler["cu_rows"] = int(ints["cu_rows"][-1])
        for mine, sizes, given in ((self.ints, self.int_sizes, ints), (self.reals, self.real_sizes, reals)):
            host = _staged(mine)
            for name, part in zip(sizes, np.split(host.numpy(), np.cumsum(list(sizes.values()))[:-1]), strict=True):
                values = given.get(name, NOTHING).reshape(-1)
                part[: len(values)], part[len(values) :] = values, filler.get(name, 0)
            mine.copy_(host, non_blocking=True)
        host = _staged(self.pages)
        host.fill_(self.slots.filler)
        host[: len(pages), : pages.shape[1]] = torch.from_numpy(pages)
        self.pages.copy_(host, non_blocking=True)


def page_tables(pool: StatePool, owners: Sequence[int]) -> Array:
    """Page tables [k, N] int32; unused entries name the filler page."""
    out = np.full((len(owners), pool.shape.table), pool.shape.pages, np.int32)
    for row, owner in zip(out, owners, strict=True):
        pages = pool.pages_of(owner)
        row[: len(pages)] = pages
    return out


def _staged(x: Tensor) -> Tensor:
    """Memory on the host that is sent to x without a wait."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda")
