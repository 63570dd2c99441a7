"""Compares an arm with the best of several arms, without selection bias.

Each half of the data is compared with the arm that was fastest on the other; the sums of a prompt over both halves make
one ratio. So one slow half does not decide alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from dsbench.stats.intervals import Held, Interval, halves, paired_ratio

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstBest(Generic[Key]):
    """Throughput over that of the best: `best` are the arms picked, in the order of the halves, each once."""

    best: tuple[Key, ...]
    ratio: Interval
    basis: str  # what was halved


def against_best(
    held: Mapping[Key, Held], arm: Key, members: Sequence[Key], *, seed: int = 0
) -> AgainstBest[Key] | None:
    """None without a member, where the arm is the best on both halves, or where no prompt is common."""
    if not members:
        return None
    first, second, basis = halves({name: held[name] for name in (arm, *members)})
    picked: list[Key] = []
    sums: dict[str, list[float]] = {}  # by prompt: tokens and seconds of the arm, then of the best
    for choose, compare in ((first, second), (second, first)):
        best = max(members, key=lambda name: choose[name].speed)
        picked.append(best)
        common = sorted(set(compare[arm].names) & set(compare[best].names))
        parts = (*compare[arm].only(common).means(), *compare[best].only(common).means())
        for name, *values in zip(common, *parts, strict=True):
            sums[name] = [a + b for a, b in zip(sums.get(name, [0.0] * 4), values, strict=True)]
    best_of_both = tuple(dict.fromkeys(picked))
    if best_of_both == (arm,):
        return None
    tokens, seconds, best_tokens, best_seconds = np.array([sums[name] for name in sorted(sums)]).reshape(-1, 4).T
    ratio = paired_ratio(tokens, seconds, best_tokens, best_seconds, seed=seed)
    return None if ratio is None else AgainstBest(best=best_of_both, ratio=ratio, basis=basis)
