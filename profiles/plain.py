"""What a plain pass costs, one row a request: attention made for one row, and no drafts to weigh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dsbench.profiles.additive import APART


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPass:
    """Linear in the mean context, straight between the R's that were measured; beyond them as the last.

    Raises ValueError for lists that do not belong together.
    """

    requests: tuple[int, ...]
    seconds: tuple[float, ...]  # at no context
    per_token: tuple[float, ...]  # of the mean context

    def __post_init__(self) -> None:
        if not self.requests or list(self.requests) != sorted(set(self.requests)):
            raise ValueError(f"plain.requests must increase, got {self.requests}")
        if {len(self.seconds), len(self.per_token)} != {len(self.requests)}:
            raise ValueError("plain.seconds and plain.per_token must be as many as plain.requests")
        if not all(np.isfinite((*self.seconds, *self.per_token))) or min(self.per_token) < 0:
            raise ValueError("plain.seconds must be numbers, plain.per_token at least 0")

    def parts(self, requests: int) -> tuple[float, float]:
        """Seconds at no context, and of a token more of all requests' context."""
        base, slope = (float(np.interp(requests, self.requests, y)) for y in (self.seconds, self.per_token))
        return base, slope / requests

    def of(self, requests: int, context: int) -> float:
        """`context`: tokens of all requests."""
        base, per_token = self.parts(requests)
        return base + per_token * context

    def json(self) -> dict[str, Any]:
        return {name: list(values) for name, values in asdict(self).items()}


def plain_line(points: Iterable[tuple[int, int, float]]) -> PlainPass | None:
    """A line in the mean context through the (R, S, seconds) of each R; None without any.

    An R whose contexts are all alike has the slope of its neighbours.
    """
    found: dict[int, list[tuple[float, float]]] = {}
    for requests, context, seconds in points:
        found.setdefault(requests, []).append((context / requests, seconds))
    lines, alike = dict[int, tuple[float, float]](), dict[int, tuple[float, float]]()
    for requests, mine in sorted(found.items()):
        mean, seconds_of = np.array(mine).T
        if mean.max() > APART * mean.min():
            slope, base = np.polyfit(mean, seconds_of, 1, w=1 / seconds_of)
            lines[requests] = float(base), max(0.0, float(slope))
        else:
            alike[requests] = float(np.median(seconds_of)), float(np.median(mean))
    known = {r: slope for r, (_, slope) in lines.items()} or {1: 0.0}
    for requests, (time, at) in alike.items():
        per_token = float(np.interp(requests, list(known), list(known.values())))
        lines[requests] = time - per_token * at, per_token
    if not lines:
        return None
    bases, slopes = zip(*(lines[r] for r in sorted(lines)), strict=True)
    return PlainPass(requests=tuple(sorted(lines)), seconds=bases, per_token=slopes)
