"""Where requests stand from step to step, on the device, and what the passes of the last round left of them.

A seat holds one request until the host gives it away. The first `live` seats are taken, the last one is nobody's. The
passes read and move a seat on; the host writes it when a request sits down, and otherwise only reads copies of what a
round left, later. Shapes: S seats, one of them nobody's; G block, W = G + 1, N pages a request, L recorded tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.runtime.drafters.draft import Standing
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
        self._told = dict.fromkeys(("live", "cap", "budget"), 0)
        # left by a round: counts, then W tokens and G drafts; and confidence, free, survival
        self.whole_left = whole(s, len(COUNTS) + 2 * block + 1)
        self.real_left = real(s, 3, block)
        self.drafts = whole(s, block)

    @property
    def moves(self) -> tuple[Tensor, ...]:
        return (
            self.anchor, self.start, self.emitted, self.room, self.round, self.ended, self.heeds, self.seed,
            self.temperature, self.scale, self.offset, self.free_scale, self.free_offset, self.table, self.recorded,
            self.script,
        )  # fmt: skip

    def standing(self, n: int) -> Standing:
        return Standing(anchor=self.anchor[:n], start=self.start[:n], table=self.table[:n])

    def sampling(self, n: int) -> Sampling:
        return Sampling(
            temperature=self.temperature[:n], top_k=self.top_k[:n], top_p=self.top_p[:n], seed=self.seed[:n],
            round=self.round[:n], plain=True,
        )  # fmt: skip

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

    def sit(
        self, at: Sequence[int], requests: Sequence[Request], first: Tensor, rooms: Sequence[int], tables: Tensor,
        maps: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """Requests whose prompts are done, with their first tokens `first` [k] on the device, into seats `at`.

        rooms: tokens each may emit in all; tables [k, N] int32; maps: scale and offset of the calibration, and of
        the token-free head's, [k, G] fp32 each.
        Copies are ordered with the passes and nothing is waited for.
        """
        where = self._sent(torch.tensor(at))
        numbers = [
            [len(r.prompt_ids), room, r.sampling.seed, int(not r.sampling.ignore_eos)]
            for r, room in zip(requests, rooms, strict=True)
        ]
        start, room, seed, heeds = self._sent(torch.tensor(numbers)).unbind(1)
        if self.shape.recorded:
            texts = self._sent(torch.tensor([self._text(r) for r in requests]))
            self.recorded[where] = texts
            first = torch.where(texts[:, 0] >= 0, texts[:, 0], first)
        if self.shape.scripted and self.shape.block:
            self.script[where] = self._sent(torch.stack([self._trace(r) for r in requests]))
        stops = (first[:, None] == self.eos).any(1) & (heeds > 0)
        one = torch.ones_like(start)
        for mine, given in (
            (self.anchor, first), (self.start, start), (self.emitted, one), (self.room, room - 1), (self.round, one),
            (self.ended, (stops | (room <= 1)).long()), (self.heeds, heeds), (self.seed, seed),
            (self.table, self._sent(tables)),
            *zip((self.scale, self.offset, self.free_scale, self.free_offset), map(self._sent, maps), strict=True),
            (self.temperature, self._sent(torch.tensor([r.sampling.temperature for r in requests]))),
        ):  # fmt: skip
            mine[where] = given.to(mine.dtype)

    def _sent(self, x: Tensor) -> Tensor:
        return x.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else x

    def _text(self, request: Request) -> list[int]:
        """The pinned text as far as a seat holds it, -1 beyond."""
        wide, text = self.recorded.shape[1], request.canonical or []
        assert len(text) <= self.shape.recorded, "seats are made for the longest text"
        return [*text, *[-1] * (wide - len(text))]

    def _trace(self, request: Request) -> Tensor:
        assert request.trace is not None, "a run replays all of its requests or none"
        rows = torch.from_numpy(request.trace.packed).float()
        out = torch.zeros(self.script.shape[1:])
        out[: min(len(rows), len(out))] = rows[: len(out)]
        return out
