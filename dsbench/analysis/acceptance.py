"""Accepted length and conditional acceptance by depth from full-block rounds, and what one drafter has over another.

The unit is the prompt: each leaves its sums (`PromptCounts`), and intervals resample prompts. No torch. Legend: `G`
block size; depth k = 1..G is entry k - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.profiles.calibration import EventKey
from dsbench.runtime.records import RoundRecord
from dsbench.stats.intervals import Interval, difference_of_ratios, ratio_of_sums

ALL = "all"  # every workload of an event together


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCounts:
    """Sums over one prompt's rounds. Raises ValueError where they cannot be counts of rounds."""

    workload: str
    name: str
    rounds: int
    delivered: int  # tokens, bonus included
    accepted: int  # drafts
    repetition: float  # share of the output's 4-grams that occurred before in it
    trials: tuple[int, ...]  # [G] rounds that tested depth k
    passed: tuple[int, ...]  # [G] of those, accepted

    def __post_init__(self) -> None:
        if len(self.trials) != len(self.passed):
            raise ValueError(f"{self.name}: trials at {len(self.trials)} depths, passed at {len(self.passed)}")
        if any(not 0 <= hit <= tried <= self.rounds for hit, tried in zip(self.passed, self.trials, strict=True)):
            raise ValueError(f"{self.name}: need 0 <= passed <= trials <= rounds at every depth")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """One drafter on one workload (or all) under one event, the full block verified."""

    workload: str
    event: EventKey
    tau: Interval  # tokens a round, bonus included
    drafts: Interval  # drafts accepted a round
    rounds: int
    repetition: float  # mean over prompts
    trials: tuple[int, ...]  # [G]
    conditional: tuple[Interval | None, ...]  # [G] acceptance given that the drafts before passed; None: never tested


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first drafter less another one, over the prompts of both; as many depths as both have."""

    workload: str
    event: EventKey
    tau: Interval
    drafts: Interval
    conditional: tuple[Interval | None, ...]


def depth_counts(rounds: Sequence[RoundRecord], block: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rounds that tested depth 1..G, and those that passed it.

    A round that ends its text on an accepted draft tests nothing past that draft: the drafts after it may be right, but
    nobody is to emit them.
    """
    trials, passed = [0] * block, [0] * block
    for r in rounds:
        cut = r.delivered <= r.accepted
        for k in range(min(r.accepted + (not cut), r.window)):
            trials[k] += 1
            passed[k] += r.accepted > k
    return tuple(trials), tuple(passed)


def acceptance(workload: str, event: EventKey, prompts: Sequence[PromptCounts], seed: int) -> Acceptance:
    """Over the prompts that made a round. Raises ValueError where none did."""
    own = [p for p in prompts if p.rounds]
    if not own:
        raise ValueError(f"no request of {workload} made a round")
    counts = [p.rounds for p in own]
    tau, drafts = (ratio_of_sums([get(p) for p in own], counts, seed=seed) for get in (_delivered, _accepted))
    assert tau is not None and drafts is not None
    trials, passed = _by_depth(own)
    return Acceptance(
        workload=workload,
        event=event,
        tau=tau,
        drafts=drafts,
        rounds=sum(counts),
        repetition=float(np.mean([p.repetition for p in own])),
        trials=tuple(int(n) for n in trials.sum(0)),
        conditional=tuple(ratio_of_sums(passed[:, k], trials[:, k], seed=seed) for k in range(trials.shape[1])),
    )


def difference(
    workload: str, event: EventKey, first: Sequence[PromptCounts], other: Sequence[PromptCounts], seed: int
) -> Difference | None:
    """First less other, paired by prompt; None without a prompt that made a round under both."""
    theirs = {(p.workload, p.name): p for p in other if p.rounds}
    pairs = [(p, theirs[p.workload, p.name]) for p in first if p.rounds and (p.workload, p.name) in theirs]
    if not pairs:
        return None
    mine, base = [a for a, _ in pairs], [b for _, b in pairs]

    def of(get: Callable[[PromptCounts], int]) -> Interval:
        sums = ([get(p) for p in mine], [p.rounds for p in mine], [get(p) for p in base], [p.rounds for p in base])
        found = difference_of_ratios(*sums, seed=seed)
        assert found is not None
        return found

    (tried, passed), (base_tried, base_passed) = _by_depth(mine), _by_depth(base)
    depths = range(min(tried.shape[1], base_tried.shape[1]))
    conditional = tuple(
        difference_of_ratios(passed[:, k], tried[:, k], base_passed[:, k], base_tried[:, k], seed=seed) for k in depths
    )
    return Difference(workload=workload, event=event, tau=of(_delivered), drafts=of(_accepted), conditional=conditional)


def with_all(cells: Mapping[str, Sequence[PromptCounts]]) -> dict[str, list[PromptCounts]]:
    """The prompts by workload, and `all` of them."""
    return {name: list(own) for name, own in cells.items()} | {ALL: [p for own in cells.values() for p in own]}


def _by_depth(prompts: Sequence[PromptCounts]) -> tuple[np.ndarray, np.ndarray]:
    """Trials and passes, [prompts, G] each."""
    return np.array([p.trials for p in prompts]), np.array([p.passed for p in prompts])


def _delivered(prompt: PromptCounts) -> int:
    return prompt.delivered


def _accepted(prompt: PromptCounts) -> int:
    return prompt.accepted
