"""The time of a no-draft pass: one row a request, with the attention kernel for one row, and no accept phase.

Legend: `R` requests, `S` sum of context tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dsbench.profiles.additive import APART
from dsbench.profiles.curve import FAR


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDraftPass:
    """Linear in the mean context, straight between the R's that were measured; below them as the first.

    Past the last R it rises with the last slope, or the mean one where that is more: requests never come for free.
    Raises ValueError for lists of different lengths or values out of range.
    """

    requests: tuple[int, ...]
    seconds: tuple[float, ...]  # at no context
    per_token: tuple[float, ...]  # of the mean context

    def __post_init__(self) -> None:
        if not self.requests or list(self.requests) != sorted(set(self.requests)):
            raise ValueError(f"no_draft.requests must increase, got {self.requests}")
        if self.requests[0] < 1 or self.requests[-1] > FAR:
            raise ValueError(f"no_draft.requests must lie in 1..{FAR}, got {self.requests}")
        if {len(self.seconds), len(self.per_token)} != {len(self.requests)}:
            raise ValueError("no_draft.seconds and no_draft.per_token must be as many as no_draft.requests")
        if not all(np.isfinite((*self.seconds, *self.per_token))) or min(*self.seconds, *self.per_token) < 0:
            raise ValueError("no_draft.seconds and no_draft.per_token must be numbers of at least 0")
        if min(np.add(self.seconds, self.per_token)) == 0:
            raise ValueError("a no-draft pass takes time: no_draft.seconds and no_draft.per_token are both 0")

    def parts(self, requests: int) -> tuple[float, float]:
        """Seconds at no context, and of a token more of all requests' context."""
        return self._at(requests, self.seconds), self._at(requests, self.per_token) / requests

    def _at(self, requests: int, values: tuple[float, ...]) -> float:
        inside, past = float(np.interp(requests, self.requests, values)), requests - self.requests[-1]
        if past <= 0 or len(values) == 1:
            return inside
        slopes = [(values[-1] - values[i]) / (self.requests[-1] - self.requests[i]) for i in (-2, 0)]
        return inside + past * max(0.0, *slopes)

    def of(self, requests: int, context: int) -> float:
        """`context`: tokens of all requests."""
        base, per_token = self.parts(requests)
        return base + per_token * context

    def json(self) -> dict[str, Any]:
        return {name: list(values) for name, values in asdict(self).items()}


def no_draft_line(points: Iterable[tuple[int, int, float]]) -> NoDraftPass | None:
    """A line in the mean context through the (R, S, seconds) of each R; None without any.

    Neither its slope nor its start is below 0, by relative least squares. An R whose contexts are all alike has the
    slope of its neighbours, if its time allows.
    """
    from scipy.optimize import nnls

    found: dict[int, list[tuple[float, float]]] = {}
    for requests, context, seconds in points:
        found.setdefault(requests, []).append((context / requests, seconds))
    lines, alike = dict[int, tuple[float, float]](), dict[int, tuple[float, float]]()
    for requests, mine in sorted(found.items()):
        mean, seconds_of = np.array(mine).T
        if mean.max() > APART * mean.min():
            (base, slope), _ = nnls(np.stack([1 / seconds_of, mean / seconds_of], axis=1), np.ones(len(mean)))
            lines[requests] = float(base), float(slope)
        else:
            alike[requests] = float(np.median(seconds_of)), float(np.median(mean))
    known = {r: slope for r, (_, slope) in lines.items()} or {1: 0.0}
    for requests, (time, at) in alike.items():
        per_token = float(np.interp(requests, list(known), list(known.values())))
        per_token = min(per_token, time / at) if at else per_token
        lines[requests] = max(0.0, time - per_token * at), per_token
    if not lines:
        return None
    bases, slopes = zip(*(lines[r] for r in sorted(lines)), strict=True)
    return NoDraftPass(requests=tuple(sorted(lines)), seconds=bases, per_token=slopes)
