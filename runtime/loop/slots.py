"""Per-request state on the device: where each running request stands, and what the last round left of it.

The first `live` slots belong to requests, the last one to filler rows. The passes read the slots and move them on; the
host writes a slot when a request is admitted, and otherwise only reads copies of what a round left, later.
Shapes: S slots, one of them filler; G block, W = G + 1, N pages a request, L recorded tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsbench.runtime.drafters.draft import Standing
from dsbench.runtime.loop.rounds import COUNTS
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.request import Request
from dsbench.runtime.sampling import Sampling

# what a request takes along when it changes its slot: [S] int64, [S] fp32, [S, G] fp32; then table, text and trace
INTS = ("anchor", "start", "emitted", "room", "round", "ended", "stops_at_eos", "seed", "top_k")
REALS = ("temperature", "top_p")
MAPS = ("scale", "offset", "free_scale", "free_offset")
MOVES = (*INTS, *REALS, *MAPS, "table", "text", "trace")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShape:
    """Sizes of the slots. truncates: whether requests may have top-k or top-p; replayed: a trace's drafts are used."""

    slots: int
    block: int
    table: int  # pages a request
    recorded: int  # tokens of the longest pinned text, 0 where none is pinned
    eos: tuple[int, ...]
    replayed: bool = False
    truncates: bool = False


class Slots:
    """Tensors of S = slots + 1 rows, allocated once. `filler`: the page that filler rows write to."""

    def __init__(self, shape: SlotShape, filler: int, device: torch.device) -> None:
        s, block = shape.slots + 1, shape.block
        self.shape, self.filler, self.device = shape, filler, device

        def ints(*size: int, value: int = 0) -> Tensor:
            return torch.full(size, value, dtype=torch.int64, device=device)

        def reals(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float32, device=device)

        self.anchor, self.start, self.emitted, self.room = ints(s), ints(s), ints(s), ints(s)
        self.round, self.ended, self.stops_at_eos, self.seed = ints(s), ints(s), ints(s), ints(s)
        self.temperature, self.top_k, self.top_p = reals(s), ints(s), reals(s) + 1
        self.scale, self.offset = reals(s, block), reals(s, block)
        self.free_scale, self.free_offset = reals(s, block), reals(s, block)
        self.table = torch.full((s, shape.table), filler, dtype=torch.int32, device=device)
        self.text = ints(s, shape.recorded + block + 1 if shape.recorded else 0, value=-1)
        self.trace = reals(s, shape.recorded if shape.replayed and block else 0, 1 + 2 * block)
        self.eos = torch.tensor(shape.eos, dtype=torch.int64, device=device)
        self.live, self.cap, self.budget = ints(1), ints(1), ints(1)
        self._set = dict.fromkeys(("live", "cap", "budget"), 0)
        # left by a round: counts, then W tokens and G drafts; and confidence, token-free confidence, survival
        self.ints_out = ints(s, len(COUNTS) + 2 * block + 1)
        self.reals_out = reals(s, 3, block)
        self.drafts = ints(s, block)
        self.accepted = reals(s, block)  # 1 for each draft that the text accepts, where an oracle asks

    def standing(self, n: int) -> Standing:
        return Standing(anchor=self.anchor[:n], start=self.start[:n], table=self.table[:n])

    def sampling(self, n: int) -> Sampling:
        return Sampling(
            temperature=self.temperature[:n],
            top_k=self.top_k[:n],
            top_p=self.top_p[:n],
            seed=self.seed[:n],
            round=self.round[:n],
            unfiltered=not self.shape.truncates,
        )

    def limits(self, n: int) -> Tensor:
        """Drafts [n] that may be accepted: room for one more token after them, at most `cap`; none once ended."""
        most = torch.minimum(self.room[:n] - 1, self.cap).clamp(min=0)
        return torch.where(self.ended[:n] > 0, 0, most)

    def next_text(self, n: int) -> Tensor | None:
        """The pinned text's next W tokens [n, W], -1 where none is recorded."""
        if not self.shape.recorded:
            return None
        at = self.emitted[:n, None] + torch.arange(self.shape.block + 1, device=self.device)
        return self.text[:n].gather(1, at.clamp(max=self.text.shape[1] - 1))

    def next_trace(self, n: int) -> Tensor:
        """The trace's row [n, 1 + 2 G] at each anchor: match, confidence and token-free confidence logits."""
        at = (self.emitted[:n] - 1).clamp(0, self.trace.shape[1] - 1)
        return self.trace[:n].gather(1, at[:, None, None].expand(-1, 1, self.trace.shape[2])).squeeze(1)

    def filled(self, n: int, confidence: Tensor, free: Tensor, depth: int) -> Tensor:
        """Confidence logits [n, G]; past `depth` those that calibrate to what the token-free head says."""
        calibrated = free[:, depth:] * self.free_scale[:n, depth:] + self.free_offset[:n, depth:]
        scale = self.scale[:n, depth:].clamp(min=1e-6)
        return torch.cat([confidence[:, :depth], (calibrated - self.offset[:n, depth:]) / scale], dim=1)

    def set(self, name: str, value: int) -> None:
        """Writes a number of the host's, `live`, `cap` or `budget`, where it changes."""
        if self._set[name] != value:
            getattr(self, name).fill_(value)
            self._set[name] = value

    def reset(self) -> None:
        """Frees all slots."""
        self.set("live", 0)
        self.ended.fill_(1)
        self.table.fill_(self.filler)
        for x in (self.anchor, self.start, self.emitted, self.room):
            x.zero_()

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Moves the requests of some slots into others, which were free."""
        source, target = self._sent(torch.tensor([list(sources), list(targets)])).unbind(0)
        for name in MOVES:
            x = getattr(self, name)
            x[target] = x[source]

    def clear(self, slots: Sequence[int]) -> None:
        """Frees some slots: they hold no pages."""
        where = self._sent(torch.tensor(list(slots), dtype=torch.int64))
        self.table.index_fill_(0, where, self.filler)
        self.ended.index_fill_(0, where, 1)

    def admit(self, at: Tensor, first: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """Takes requests [k] into slots `at` [k] with their first tokens, within a pass; returns those tokens.

        Prompts that go on are sent to the filler slot, with room 1. `values` has the rest of what MOVES names.
        """
        done, text = at < self.shape.slots, values["text"]
        if self.shape.recorded:
            first = torch.where(text[:, 0] >= 0, text[:, 0], first)
        stops = (first[:, None] == self.eos).any(1) & (values["stops_at_eos"] > 0)
        one, room = torch.ones_like(at), values["room"]
        made = {
            "anchor": torch.where(done, first, 0),
            "emitted": one,
            "round": one,
            "room": room - 1,
            "ended": (stops | (room <= 1)).long(),
            "table": torch.where(done[:, None], values["table"], self.filler),
        }
        for name in MOVES:
            mine = getattr(self, name)
            if mine.numel():  # without a drafter there are no maps
                mine.index_copy_(0, at, made.get(name, values.get(name)))
        return first

    def _sent(self, x: Tensor) -> Tensor:
        return x.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else x

    def texts_of(self, requests: Sequence[Request]) -> Array:
        """Their pinned texts [k, L + W] as far as a slot holds them, -1 beyond."""
        out = np.full((len(requests), self.text.shape[1]), -1, np.int64)
        for row, text in zip(out, (r.canonical or [] for r in requests), strict=True):
            assert len(text) <= self.shape.recorded, "slots are made for the longest text"
            row[: len(text)] = text
        return out

    def traces_of(self, requests: Sequence[Request]) -> Array:
        """Their traces [k, L, 1 + 2 G], as far as a slot holds them."""
        out = np.zeros((len(requests), *self.trace.shape[1:]), np.float32)
        for rows, request in zip(out, requests, strict=True):
            assert request.trace is not None, "a run replays all of its requests or none"
            packed = request.trace.packed[: len(rows)]
            rows[: len(packed)] = packed
        return out
