"""Prompts that wait for a seat: they run in chunks between rounds, and sit down when they are done.

Pages are given to a request as a whole before its prompt runs, so that no round ever asks the pool for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsbench.runtime.config import PATIENCE, PROMPTS, SHARE
from dsbench.runtime.objective import Array
from dsbench.runtime.request import Request, SamplingParams
from dsbench.runtime.steady import Steady

Maps = tuple[Array, Array, Array, Array]  # scale and offset [G] of the calibration, and of the token-free head's


@dataclass(slots=True, kw_only=True, eq=False)
class Sitting:
    """One stay of a request: rounds under way hold it, so that they know a stay that is over from a later one."""

    request: Request
    admitted: float  # seconds since the engine was made
    first: float = 0.0  # when its first token was read
    prefilled: int = 0  # prompt tokens run
    room: int = 0  # tokens it may emit in all
    line: int = -1  # of the book, once it sits
    left: bool = False


class Prompts:
    """Waiting requests in order, and the passes that run their prompts."""

    def __init__(self, steady: Steady, maps: Callable[[SamplingParams], Maps]) -> None:
        self.steady, self.maps = steady, maps
        self.pool = steady.models.pool
        self.waiting: deque[Sitting] = deque()
        self.waited = 0  # rounds without a pass

    def due(self, sitting: int) -> bool:
        """Whether prompts are to run before this round of `sitting` requests; asked once a round, and after a pass."""
        if not self.waiting:
            return False
        left = sum(len(s.request.prompt_ids) - s.prefilled for s in self.waiting)
        full = len(self.waiting) >= PROMPTS or left >= max(self.steady.prefill_graphs) or self.waiting[0].prefilled > 0
        if full or len(self.waiting) * SHARE >= sitting or self.waited >= PATIENCE:
            self.waited = 0
            return True
        self.waited += 1
        return False

    def run_chunk(self) -> tuple[list[Sitting], Tensor]:
        """Runs the next prompt rows; the requests that are done with theirs, and their first tokens on the device."""
        part: list[tuple[Sitting, int]] = []
        left = max(self.steady.prefill_graphs)
        for sitting in self.waiting:
            count = min(left, len(sitting.request.prompt_ids) - sitting.prefilled)
            if count == 0 or len(part) == PROMPTS:
                break
            part.append((sitting, count))
            left -= count
        rows = self.steady.prompt_rows(sum(count for _, count in part))
        values: dict[str, list[int]] = {"cu_rows": [0]}
        for index, (sitting, count) in enumerate(part):
            self._add_rows(values, index, sitting, count)
        rows.load(values, self.tables([s for s, _ in part]), [s.request.sampling.temperature for s, _ in part])
        self.steady.prefill(rows)
        done = []
        for sitting, count in part:
            sitting.prefilled += count
            if sitting.prefilled == len(sitting.request.prompt_ids):
                done.append(self.waiting.popleft())
        return done, rows.first[: len(done)].clone()

    def _add_rows(self, values: dict[str, list[int]], index: int, sitting: Sitting, count: int) -> None:
        request, begin, page = sitting.request, sitting.prefilled, self.pool.shape.page
        at = np.arange(begin, begin + count)
        slots = np.array(self.pool.pages_of(request.id))[at // page] * page + at % page
        for name, mine in (
            ("ids", request.prompt_ids[begin : begin + count]), ("positions", at.tolist()), ("slots", slots.tolist()),
            ("request", [index] * count), ("cu_rows", [values["cu_rows"][-1] + count]), ("context", [begin]),
            ("last", [values["cu_rows"][-1] + count - 1]), ("end", [begin + count]), ("seed", [request.sampling.seed]),
        ):  # fmt: skip
            values.setdefault(name, []).extend(mine)

    def sit(self, at: Sequence[int], done: Sequence[Sitting], first: Tensor, rooms: Sequence[int]) -> None:
        """Their seats, first tokens and calibrations, in the order of the passes."""
        requests = [s.request for s in done]
        maps = torch.tensor(np.array([self.maps(r.sampling) for r in requests]), dtype=torch.float32).unbind(1)
        self.steady.seats.sit(at, requests, first, rooms, self.tables(done), maps)

    def tables(self, sittings: Sequence[Sitting]) -> Tensor:
        """Page tables [k, N] int32 on the host; what a request does not need is nobody's page."""
        out = np.full((len(sittings), self.pool.shape.table), self.pool.shape.pages, np.int32)
        for row, sitting in zip(out, sittings, strict=True):
            pages = self.pool.pages_of(sitting.request.id)
            row[: len(pages)] = pages
        return torch.from_numpy(out)
