"""Where requests stand from step to step, on the device, and what the passes of the last round left of them.

A seat holds one request until the host gives it away. The first `live` seats are taken, the last one is nobody's. The
passes read and move a seat on; the host writes it when a request sits down, and otherwise only reads copies of what a
round left, later. Shapes: S seats, one of them nobody's; G block, W = G + 1, N pages a request, L recorded tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsbench.runtime.drafters.draft import Standing
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.request import Request
from dsbench.runtime.sampling import Sampling

# columns of what a round left; then come its tokens and drafts
COUNTS = ("accepted", "ceiling", "flips", "window", "limit", "delivered", "anchor", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatShape:
    """Seats for requests, drafts a block, pages a request, recorded tokens a request (0: none), EOS ids, a trace."""

    seats: int
    block: int
    table: int
    recorded: int
    eos: tuple[int, ...]
    scripted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomers:
    """Requests of a prefill pass [k], those done with their prompts for a seat of their own, others for nobody's.

    start: tokens that the pages hold; room: tokens it may emit in all, 1 for nobody; heeds: 1 where EOS ends it;
    table [k, N] int32; texts [k, L + W]; maps [k, 4, G] scale and offset of the calibration and of the token-free
    head's; script [k, L, 1 + 2 G].
    """

    at: Tensor
    first: Tensor
    start: Tensor
    room: Tensor
    seed: Tensor
    heeds: Tensor
    temperature: Tensor
    table: Tensor
    texts: Tensor
    maps: Tensor
    script: Tensor


class Seats:
    """Tensors of S = seats + 1 rows. `moves`: those that a request takes along when it changes its seat."""

    def __init__(self, shape: SeatShape, nobody: int, device: torch.device) -> None:
        s, block = shape.seats + 1, shape.block
        self.shape, self.nobody, self.device = shape, nobody, device

        def whole(*size: int, value: int = 0) -> Tensor:
            return torch.full(size, value, dtype=torch.int64, device=device)

        def real(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float32, device=device)

        self.anchor, self.start, self.emitted, self.room = whole(s), whole(s), whole(s), whole(s)
        self.round, self.ended, self.heeds, self.seed = whole(s), whole(s), whole(s), whole(s)
        self.temperature, self.scale, self.offset = real(s), real(s, block), real(s, block)
        self.free_scale, self.free_offset = real(s, block), real(s, block)
        self.table = torch.full((s, shape.table), nobody, dtype=torch.int32, device=device)
        self.recorded = whole(s, shape.recorded + block + 1 if shape.recorded else 0, value=-1)
        self.script = real(s, shape.recorded if shape.scripted and block else 0, 1 + 2 * block)
        self.eos = torch.tensor(shape.eos, dtype=torch.int64, device=device)
        self.top_k, self.top_p = whole(s), torch.ones(s, device=device)
        self.live, self.cap, self.budget = whole(1), whole(1), whole(1)
        self.taken, self.certain = whole(block), real(s, block)  # drafts that are sure, by depth; as confidences
        self._told = dict.fromkeys(("live", "cap", "budget"), 0)
        # left by a round: counts, then W tokens and G drafts; and confidence, free, survival
        self.whole_left = whole(s, len(COUNTS) + 2 * block + 1)
        self.real_left = real(s, 3, block)
        self.drafts = whole(s, block)

    @property
    def moves(self) -> tuple[Tensor, ...]:
        return (
            self.anchor,
            self.start,
            self.emitted,
            self.room,
            self.round,
            self.ended,
            self.heeds,
            self.seed,
            self.temperature,
            self.scale,
            self.offset,
            self.free_scale,
            self.free_offset,
            self.table,
            self.recorded,
            self.script,
        )

    def standing(self, n: int) -> Standing:
        return Standing(anchor=self.anchor[:n], start=self.start[:n], table=self.table[:n])

    def sampling(self, n: int) -> Sampling:
        return Sampling(
            temperature=self.temperature[:n],
            top_k=self.top_k[:n],
            top_p=self.top_p[:n],
            seed=self.seed[:n],
            round=self.round[:n],
            unfiltered=True,
        )

    def limits(self, n: int) -> Tensor:
        """Drafts [n] that may be accepted: room for one more token after them, at most `cap`; none once ended."""
        most = torch.minimum(self.room[:n] - 1, self.cap).clamp(min=0)
        return torch.where(self.ended[:n] > 0, 0, most)

    def next_recorded(self, n: int) -> Tensor | None:
        """The pinned text's next W tokens [n, W], -1 where none is recorded."""
        if not self.shape.recorded:
            return None
        at = self.emitted[:n, None] + torch.arange(self.shape.block + 1, device=self.device)
        return self.recorded[:n].gather(1, at.clamp(max=self.recorded.shape[1] - 1))

    def next_script(self, n: int) -> Tensor:
        """The trace's row [n, 1 + 2 G] at each seat's anchor."""
        at = (self.emitted[:n] - 1).clamp(0, self.script.shape[1] - 1)
        return self.script[:n].gather(1, at[:, None, None].expand(-1, 1, self.script.shape[2])).squeeze(1)

    def filled(self, n: int, confidence: Tensor, free: Tensor, depth: int) -> Tensor:
        """Confidence logits [n, G]; past `depth` those that calibrate to what the token-free head says."""
        calibrated = free[:, depth:] * self.free_scale[:n, depth:] + self.free_offset[:n, depth:]
        scale = self.scale[:n, depth:].clamp(min=1e-6)
        return torch.cat([confidence[:, :depth], (calibrated - self.offset[:n, depth:]) / scale], dim=1)

    def tell(self, name: str, value: int) -> None:
        """A word of the host's, `live`, `cap` or `budget`: written only where it is another."""
        if self._told[name] != value:
            getattr(self, name).fill_(value)
            self._told[name] = value

    def reset(self) -> None:
        """Nobody sits anywhere."""
        self.tell("live", 0)
        self.ended.fill_(1)
        self.table.fill_(self.nobody)
        for x in (self.anchor, self.start, self.emitted, self.room):
            x.zero_()

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """The requests of some seats into others, which were empty."""
        source, target = self._sent(torch.tensor([list(sources), list(targets)])).unbind(0)
        for x in self.moves:
            x[target] = x[source]

    def clear(self, seats: Sequence[int]) -> None:
        """Nobody sits there: they hold no pages."""
        where = self._sent(torch.tensor(list(seats)))
        self.table.index_fill_(0, where, self.nobody)
        self.ended.index_fill_(0, where, 1)

    def sit(self, new: Newcomers) -> None:
        """Takes them to their seats: in a pass, with nothing from the host."""
        done, first = new.at < self.shape.seats, new.first
        if self.shape.recorded:
            first = torch.where(new.texts[:, 0] >= 0, new.texts[:, 0], first)
        stops = (first[:, None] == self.eos).any(1) & (new.heeds > 0)
        one = torch.ones_like(new.start)
        kept: list[tuple[Tensor, Tensor]] = [
            (self.anchor, torch.where(done, first, 0)),
            (self.start, new.start),
            (self.emitted, one),
            (self.room, new.room - 1),
            (self.round, one),
            (self.ended, (stops | (new.room <= 1)).long()),
            (self.heeds, new.heeds),
            (self.seed, new.seed),
            (self.temperature, new.temperature),
            (self.table, torch.where(done[:, None], new.table, self.nobody)),
            *zip((self.scale, self.offset, self.free_scale, self.free_offset), new.maps.unbind(1), strict=True),
        ]
        if self.shape.recorded:
            kept.append((self.recorded, new.texts))
        if self.shape.scripted and self.shape.block:
            kept.append((self.script, new.script))
        for mine, given in kept:
            if mine.numel():  # without a drafter there are no maps
                mine.index_copy_(0, new.at, given)

    def _sent(self, x: Tensor) -> Tensor:
        return x.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else x

    def texts(self, requests: Sequence[Request]) -> Array:
        """Their pinned texts [k, L + W] as far as a seat holds them, -1 beyond."""
        out = np.full((len(requests), self.recorded.shape[1]), -1, np.int64)
        for row, text in zip(out, (r.canonical or [] for r in requests), strict=True):
            assert len(text) <= self.shape.recorded, "seats are made for the longest text"
            row[: len(text)] = text
        return out

    def scripts(self, requests: Sequence[Request]) -> Array:
        """Their traces [k, L, 1 + 2 G], as far as a seat holds them."""
        out = np.zeros((len(requests), *self.script.shape[1:]), np.float32)
        for rows, request in zip(out, requests, strict=True):
            assert request.trace is not None, "a run replays all of its requests or none"
            packed = request.trace.packed[: len(rows)]
            rows[: len(packed)] = packed
        return out
