"""`calibrate`: full-block rollouts on held-out prompts -> accepted lengths, STS and Platt maps per event."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dsbench.deployment import Deployment, environment
from dsbench.generate import build_requests, run_requests
from dsbench.intervals import Interval, ratio_of_sums
from dsbench.measure import repetition
from dsbench.profiles.calibration import Calibration, CalibrationSet, EventKey
from dsbench.profiles.calibration_fit import Rounds, fit_calibration
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.records import RoundRecord
from dsbench.runtime.request import Request

Rule = Literal["coupled", "residual"]


def calibrate(
    deployment: Deployment, *, workloads: Sequence[str], prompts: int, max_tokens: int, batch: int, seed: int,
    events: Sequence[tuple[Rule, float]], notice: Callable[[str], None],
) -> tuple[CalibrationSet, list[Calibration], list[Accepted]]:  # fmt: skip
    """Fits on even requests, scores on odd ones. Returns the set to ship (Platt), every fit, and the accepted lengths.

    `prompts` per workload and event. At temperature 0 both rules are the same event, so one of them is enough.
    """
    everything: list[Calibration] = []
    lengths: list[Accepted] = []
    for rule, temperature in events:
        rollouts = {
            name: _rollout(deployment, name, rule, temperature, prompts, max_tokens, batch, seed) for name in workloads
        }
        event = EventKey(rule=rule, temperature=temperature)
        lengths += accepted_lengths(rollouts, event, seed)
        for head in ("conditioned", "free"):
            fit, test = (_rounds(rollouts, head, half) for half in (0, 1))
            for method in ("sts", "platt"):
                everything.append(_fit(fit, test, method, event, head))
        last = everything[-1]
        notice(f"{event}: {last.n} rounds, prior acceptance {', '.join(f'{p:.2f}' for p in last.prior)}")
    facts = environment(deployment.device) | {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "workloads": ", ".join(workloads),
        "prompts": str(prompts),
        "max_tokens": str(max_tokens),
        "seed": str(seed),
        "split": "fitted on even requests, scored on odd ones",
    }
    contract = {"drafter": deployment.contract["drafter"], "target": deployment.contract["target"]}
    shipped = tuple(c for c in everything if c.method == "platt")
    return CalibrationSet(entries=shipped, contract=contract, provenance=facts), everything, lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Full-block accepted length of one workload (or all of them) under one event; the interval resamples prompts."""

    workload: str
    event: EventKey
    tau: Interval
    rounds: int
    repetition: float
    conditional: tuple[float, ...]  # acceptance at depth 1..G, given that the drafts before passed


@dataclass(frozen=True, slots=True)
class Rollout:
    """A request that ran with the whole block verified, and its rounds."""

    request: Request
    rounds: tuple[RoundRecord, ...]


def accepted_lengths(rollouts: Mapping[str, Sequence[Rollout]], event: EventKey, seed: int) -> list[Accepted]:
    """One row a workload, and one over all of them."""
    pooled = [rollout for own in rollouts.values() for rollout in own]
    rows = [_accepted(name, event, own, seed) for name, own in rollouts.items()]
    return [*rows, _accepted("all", event, pooled, seed)]


def _accepted(name: str, event: EventKey, rollouts: Sequence[Rollout], seed: int) -> Accepted:
    rollouts = [rollout for rollout in rollouts if rollout.rounds]
    delivered = [sum(r.delivered for r in rollout.rounds) for rollout in rollouts]
    counts = [len(rollout.rounds) for rollout in rollouts]
    tau = ratio_of_sums(delivered, counts, seed=seed)
    assert tau is not None, "no request made a round"
    every = [r for rollout in rollouts for r in rollout.rounds]
    block = max((r.window for r in every), default=0)
    conditional = []
    for k in range(1, block + 1):
        tried = [r.accepted >= k for r in every if r.window >= k and r.accepted >= k - 1]
        conditional.append(float(np.mean(tried)) if tried else float("nan"))
    looping = float(np.mean([repetition(rollout.request.output) for rollout in rollouts]))
    return Accepted(
        workload=name, event=event, tau=tau, rounds=len(every), repetition=looping, conditional=tuple(conditional)
    )


def _rollout(
    deployment: Deployment, workload: str, rule: str, temperature: float, prompts: int, max_tokens: int, batch: int,
    seed: int,
) -> list[Rollout]:  # fmt: skip
    sampling: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
    requests = build_requests(
        deployment, workload, limit=prompts, seed=seed, sampling=sampling, home=deployment.home, skip_long=True
    )
    engine = run_requests(deployment, parse_arm("no-trim"), EngineConfig(rule=rule), None, requests, batch)
    rounds: dict[int, list[RoundRecord]] = {r.id: [] for r in requests}
    for record in engine.rounds:
        rounds[record.request].append(record)
    return [Rollout(request, tuple(rounds[request.id])) for request in requests]


def _rounds(rollouts: Mapping[str, Sequence[Rollout]], head: str, half: int) -> Rounds:
    """The rounds of even (0) or odd (1) requests of every workload, as the fit takes them."""
    records = [r for own in rollouts.values() for rollout in own[half::2] for r in rollout.rounds]
    logits = [r.logits if head == "conditioned" else r.free_logits for r in records]
    return Rounds(
        logits=np.array(logits, np.float64),
        accepted=np.array([r.accepted for r in records]),
        window=np.array([r.window for r in records]),
    )


def _fit(fit: Rounds, test: Rounds, method: Any, event: EventKey, head: Any) -> Calibration:
    return fit_calibration(fit, method=method, event=event, head=head, test=test)
