"""Sizes that are captured: requests of a draft, rows of a verify pass. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """Ascending sizes of captured passes.

    A pass over rows has as many request slots as rows may need; and, where attention splits the contexts of a `few`
    requests over a device that more of them would fill, a second graph with slots for these alone.
    """

    requests: tuple[int, ...]
    rows: tuple[int, ...]
    few: int = 0

    @classmethod
    def ladder(cls, requests: int, block: int, few: int = 0) -> Tiers:
        """Fine where a step is short: every 8 rows to 64, 16 to 128, 32 to 256, 64 to 512, 128 beyond."""
        most = requests * (block + 1)
        steps = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 512, 64)]
        rows = [*steps, *range(512, most + 128, 128)]
        slots = [1, 2, 4, *range(8, 32, 8), *range(32, 64, 16), *range(64, requests + 32, 32)]
        return cls(requests=_up_to(slots, requests), rows=_up_to(rows, most), few=few)

    def verify(self) -> list[tuple[int, int]]:
        """(rows, request slots) of each graph of a verify pass, the largest first."""
        return [(m, n) for m in reversed(self.rows) for n in reversed(self.slots(m))]

    def slots(self, rows: int) -> tuple[int, ...]:
        """Requests that the graphs of a row tier hold, ascending."""
        full = min(rows, self.requests[-1])
        return (self.few, full) if 0 < self.few < full else (full,)

    def of(self, requests: int, rows: int) -> tuple[int, int]:
        """The graph that runs `rows` rows of `requests` requests."""
        tier = next_tier(self.rows, rows)
        return tier, next_tier(self.slots(tier), requests)


def next_tier(tiers: tuple[int, ...], size: int) -> int:
    """The smallest tier that holds `size`."""
    return next(t for t in tiers if t >= size)


def _up_to(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """The sizes below `most` and the next one, so that a smaller run's tiers are among a larger one's."""
    return tuple(s for i, s in enumerate(sizes) if i == 0 or sizes[i - 1] < most)
