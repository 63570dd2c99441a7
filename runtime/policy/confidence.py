"""From raw confidence logits to calibrated survival, now and some steps ago. Knows requests by id, nothing of cost.

The budget of a step may use confidences `lag` steps old, so that a host never waits for them; a request without such
history stands in with its calibrated prior, and the event is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsbench.profiles.calibration import Calibration, CalibrationSet, Head
from dsbench.profiles.calibration import conditional as apply_map
from dsbench.runtime.request import Request, SamplingParams

Array = np.ndarray[Any, np.dtype[Any]]


class ConfidenceRelay:
    """Calibrates by each request's sampling setting and remembers the last `lag` steps' survival per request."""

    def __init__(self, calibrations: CalibrationSet | None, rule: str, block: int, lag: int) -> None:
        self.calibrations = calibrations if block else None
        self.rule, self.block, self.lag = rule, block, lag
        self.notes: set[str] = set()
        self._chosen: dict[tuple[float, int, float, Head], Calibration] = {}
        self._ring: deque[dict[int, Array]] = deque(maxlen=lag + 1)

    def conditional(self, requests: Sequence[Request], logits: Array, head: Head = "conditioned") -> Array:
        """Calibrated P(draft j passes | those before it did), [R, G], of a head's raw logits [R, G]."""
        if self.calibrations is None:
            return apply_map(logits, np.ones(self.block), np.zeros(self.block))
        maps = [self._map(r.sampling, head) for r in requests]
        scale = np.array([m.scale for m in maps])
        offset = np.array([m.offset for m in maps])
        return np.asarray(1.0 / (1.0 + np.exp(-(scale * logits + offset))))

    def remember(self, requests: Sequence[Request], survival: Array) -> None:
        """Files this step's survival [R, G]; call once a step, before `recall`."""
        self._ring.append({r.id: row for r, row in zip(requests, survival, strict=True)})

    def recall(self, requests: Sequence[Request]) -> tuple[Array, int]:
        """Survival [R, G] of `lag` steps ago, and how many requests had none and stand in with their prior."""
        past = self._ring[0] if len(self._ring) > self.lag else {}
        rows = [past[r.id] if r.id in past else self.prior(r.sampling) for r in requests]
        return np.array(rows).reshape(len(requests), self.block), sum(r.id not in past for r in requests)

    def map_of(self, sampling: SamplingParams, head: Head) -> tuple[Array, Array]:
        """Scale and offset [G] each, of a head's raw logits; (1, 0) without a calibration."""
        if self.calibrations is None:
            return np.ones(self.block), np.zeros(self.block)
        chosen = self._map(sampling, head)
        return np.array(chosen.scale)[: self.block], np.array(chosen.offset)[: self.block]

    def prior(self, sampling: SamplingParams) -> Array:
        """Survival [G] of a request nothing is known about; even odds per draft without a calibration."""
        if self.calibrations is None:
            return np.asarray(0.5 ** np.arange(1, self.block + 1))
        return self._map(sampling, "conditioned").prior_survival[: self.block]

    def _map(self, sampling: SamplingParams, head: Head) -> Calibration:
        key = (sampling.temperature, sampling.top_k, sampling.top_p, head)
        if key not in self._chosen:
            assert self.calibrations is not None
            rule: Any = self.rule
            choice = self.calibrations.choose(rule, *key[:3], head=head)
            if choice.note:
                self.notes.add(choice.note)
            self._chosen[key] = choice.calibration
        return self._chosen[key]
