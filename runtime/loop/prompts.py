"""Prompts that wait for a seat: they run in chunks between rounds, and sit down when they are done.

Pages are given to a request as a whole before its prompt runs, so that no round ever asks the pool for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.runtime.config import PATIENCE, PROMPTS, SHARE
from dsbench.runtime.loop.steady import Steady
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.steering import Maps
from dsbench.runtime.request import Request, SamplingParams


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

    @property
    def done(self) -> bool:
        """With its prompt."""
        return self.prefilled == len(self.request.prompt_ids)


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

    def next_chunk(self) -> list[tuple[Sitting, int]]:
        """Who runs next, and how many prompt rows of each; those done with theirs wait no longer."""
        part: list[tuple[Sitting, int]] = []
        left = max(self.steady.prefill_graphs)
        for sitting in self.waiting:
            count = min(left, len(sitting.request.prompt_ids) - sitting.prefilled)
            if count == 0 or len(part) == PROMPTS:
                break
            part.append((sitting, count))
            left -= count
        for sitting, count in part:
            sitting.prefilled += count
            if sitting.done:
                self.waiting.popleft()
        return part

    def run(self, part: Sequence[tuple[Sitting, int]], at: Sequence[int]) -> None:
        """The pass over a chunk, whose first len(at) requests are done and sit down there."""
        who, seats = [sitting.request for sitting, _ in part], self.steady.seats
        counts = np.array([count for _, count in part])
        end = np.array([sitting.prefilled for sitting, _ in part])
        pages, cu_rows = self.tables(who), np.concatenate([[0], np.cumsum(counts)])
        request = np.repeat(np.arange(len(part)), counts)
        positions = np.arange(cu_rows[-1]) - np.repeat(cu_rows[:-1] - (end - counts), counts)
        page, done = self.pool.shape.page, who[: len(at)]
        whole = {
            "ids": np.concatenate([r.prompt_ids[e - n : e] for r, n, e in zip(who, counts, end, strict=True)]),
            "positions": positions,
            "slots": pages[request, positions // page] * page + positions % page,
            "request": request,
            "cu_rows": cu_rows,
            "context": end - counts,
            "last": cu_rows[1:] - 1,
            "end": end,
            "seed": np.array([r.sampling.seed for r in who]),
            "at": np.array(at, np.int64),
            "start": end[: len(at)],
            "room": np.array([sitting.room for sitting, _ in part[: len(at)]], np.int64),
            "heeds": np.array([not r.sampling.ignore_eos for r in done], np.int64),
            "texts": seats.texts(done),
        }
        real = {
            "temperature": np.array([r.sampling.temperature for r in who]),
            "maps": np.array([self.maps(r.sampling) for r in done]),
        }
        if seats.shape.scripted and seats.shape.block:
            real["script"] = seats.scripts(done)
        rows = self.steady.prompt_rows(int(cu_rows[-1]))
        rows.load(whole, real, pages)
        self.steady.prefill(rows)

    def tables(self, requests: Sequence[Request]) -> Array:
        """Page tables [k, N] int32; what a request does not need is nobody's page."""
        out = np.full((len(requests), self.pool.shape.table), self.pool.shape.pages, np.int32)
        for row, request in zip(out, requests, strict=True):
            pages = self.pool.pages_of(request.id)
            row[: len(pages)] = pages
        return out
