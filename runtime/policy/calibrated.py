"""Calibrations by sampling setting: maps of the raw confidences, and the prior of a new request. No torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsbench.profiles.calibration import Calibration, CalibrationSet, Head
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.request import SamplingParams

Maps = tuple[Array, Array, Array, Array]  # scale and offset [G] of the confidence head, and of the token-free head


class Calibrated:
    """Looks calibrations up by rule, temperature, top-k and top-p. `notes`: which ones stood in for another."""

    def __init__(self, calibrations: CalibrationSet | None, rule: str, block: int) -> None:
        self.calibrations = calibrations if block else None
        self.rule, self.block = rule, block
        self.notes: set[str] = set()
        self._chosen: dict[tuple[float, int, float, Head], Calibration] = {}

    def maps(self, sampling: SamplingParams) -> Maps:
        """(1, 0) for a head without a calibration: not every drafter has a token-free one."""
        if self.calibrations is None:
            return np.ones(self.block), np.zeros(self.block), np.ones(self.block), np.zeros(self.block)
        maps: list[Array] = []
        for head in ("conditioned", "free"):
            if head == "free" and not any(entry.head == head for entry in self.calibrations.entries):
                maps += [np.ones(self.block), np.zeros(self.block)]
            else:
                found = self._map(sampling, head)
                maps += [np.array(found.scale)[: self.block], np.array(found.offset)[: self.block]]
        return maps[0], maps[1], maps[2], maps[3]

    def prior(self, sampling: SamplingParams) -> Array:
        """Survival [G] of a request nothing is known about; even odds per draft without a calibration."""
        if self.calibrations is None:
            return np.asarray(0.5 ** np.arange(1, self.block + 1))
        return self._map(sampling, "conditioned").prior_survival[: self.block]

    def _map(self, sampling: SamplingParams, head: Any) -> Calibration:
        key = (sampling.temperature, sampling.top_k, sampling.top_p, head)
        if key not in self._chosen:
            assert self.calibrations is not None
            rule: Any = self.rule
            choice = self.calibrations.choose(rule, *key[:3], head=head)
            if choice.note:
                self.notes.add(choice.note)
            self._chosen[key] = choice.calibration
        return self._chosen[key]
