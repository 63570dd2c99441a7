"""The fixed buffers of a prefill pass: prompt rows, and what requests that are done with theirs take to their seats.

Shapes: M rows, P = PROMPTS requests, N pages a request, G block, L recorded tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsbench.runtime.batch import Batch
from dsbench.runtime.config import PROMPTS
from dsbench.runtime.loop.seats import Newcomers, Seats
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.sampling import Sampling

NOTHING = np.zeros(0)


class PromptRows:
    """Named parts of three tensors, each of which is sent as a whole."""

    def __init__(self, seats: Seats, rows: int) -> None:
        device, shape, text = seats.device, seats.shape, seats.recorded.shape[1]
        per_row = ("ids", "positions", "slots", "request")
        per_request = ("context", "last", "end", "seed", "at", "start", "room", "heeds")
        sizes = dict.fromkeys(per_row, rows) | dict.fromkeys(per_request, PROMPTS)
        self.whole_sizes = sizes | {"cu_rows": PROMPTS + 1, "texts": PROMPTS * text}
        self.real_sizes = {
            "temperature": PROMPTS,
            "maps": PROMPTS * 4 * shape.block,
            "script": PROMPTS * seats.script[0].numel(),
        }
        self.whole = torch.zeros(sum(self.whole_sizes.values()), dtype=torch.int64, device=device)
        self.real = torch.zeros(sum(self.real_sizes.values()), device=device)
        self.pages = torch.full((PROMPTS, shape.table), seats.nobody, dtype=torch.int32, device=device)
        split: Any = torch.split
        self.part: dict[str, Tensor] = {
            **dict(zip(self.whole_sizes, split(self.whole, list(self.whole_sizes.values())), strict=True)),
            **dict(zip(self.real_sizes, split(self.real, list(self.real_sizes.values())), strict=True)),
        }
        self.rows, self.seats = rows, seats
        self.part["slots"].fill_(-1)
        self.part["at"].fill_(shape.seats)
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
            cache_indices=part["slots"],
        )

    @property
    def sampling(self) -> Sampling:
        nothing, heat = torch.zeros_like(self.part["seed"]), self.part["temperature"]
        return Sampling(
            temperature=heat,
            top_k=nothing,
            top_p=torch.ones_like(heat),
            seed=self.part["seed"],
            round=nothing,
            unfiltered=True,
        )

    def newcomers(self, first: Tensor) -> Newcomers:
        """Those of the pass, with their first tokens [P]; who is not done goes to the seat that is nobody's."""
        part, seats = self.part, self.seats
        return Newcomers(
            at=part["at"],
            first=first,
            start=part["start"],
            room=part["room"],
            seed=part["seed"],
            heeds=part["heeds"],
            temperature=part["temperature"],
            table=self.pages,
            texts=part["texts"].view(PROMPTS, seats.recorded.shape[1]),
            maps=part["maps"].view(PROMPTS, 4, seats.shape.block),
            script=part["script"].view(PROMPTS, *seats.script.shape[1:]),
        )

    def load(self, whole: Mapping[str, Array], real: Mapping[str, Array], pages: Array) -> None:
        """A chunk's numbers by the buffers' names, each as long as there are; pages [k, N]. Nothing is waited for."""
        filler = {
            "slots": -1,
            "texts": -1,
            "room": 1,
            "at": self.seats.shape.seats,
            "cu_rows": int(whole["cu_rows"][-1]),
        }
        for mine, sizes, given in ((self.whole, self.whole_sizes, whole), (self.real, self.real_sizes, real)):
            host = _staged(mine)
            for name, part in zip(sizes, np.split(host.numpy(), np.cumsum(list(sizes.values()))[:-1]), strict=True):
                values = given.get(name, NOTHING).reshape(-1)
                part[: len(values)], part[len(values) :] = values, filler.get(name, 0)
            mine.copy_(host, non_blocking=True)
        host = _staged(self.pages)
        host.fill_(self.seats.nobody)
        host[: len(pages), : pages.shape[1]] = torch.from_numpy(pages)
        self.pages.copy_(host, non_blocking=True)


def _staged(x: Tensor) -> Tensor:
    """Memory on the host that is sent to x without a wait."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda")
