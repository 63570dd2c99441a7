"""`calibrate`: full-block rollouts on held-out prompts -> accepted lengths, STS and Platt maps per event."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

import numpy as np
import pandas as pd

from dsbench.analysis.acceptance import ALL, Acceptance, acceptance, with_all
from dsbench.deploy.deployment import Deployment, environment
from dsbench.drafting.rollouts import Rollout, prompt_counts, roll_out, rollout_requests, rounds_frame
from dsbench.errors import UsageError
from dsbench.profiles.calibration import Calibration, CalibrationSet, EventKey, Head, Method
from dsbench.profiles.calibration_fit import Rounds, fit_calibration
from dsbench.profiles.calibration_report import CalibrationReport, Row, report_rows

METHODS: tuple[Method, ...] = ("sts", "platt")
FIT, TEST = 0, 1  # requests by parity


def calibrate(
    deployment: Deployment,
    *,
    workloads: Sequence[str],
    prompts: int,
    max_tokens: int,
    batch: int,
    seed: int,
    events: Sequence[EventKey],
    notice: Callable[[str], None],
) -> tuple[CalibrationSet, CalibrationReport, list[Acceptance], pd.DataFrame]:
    """Fits on even requests, scores on odd ones. Returns the set to ship (Platt), the report, the accepted lengths and
    the rounds that all of it came from.

    `prompts` per workload and event. At temperature 0 all rules are the same event, so one of them is enough.
    """
    shipped: list[Calibration] = []
    rows: list[Row] = []
    lengths: list[Acceptance] = []
    rounds: list[pd.DataFrame] = []
    block = deployment.drafter.block
    for event in events:
        requests = {
            name: rollout_requests(deployment, name, event, prompts=prompts, max_tokens=max_tokens, seed=seed)
            for name in workloads
        }
        rollouts = roll_out(deployment, requests, event, batch)
        _check_rounds(rollouts, event)
        rounds.append(rounds_frame(event, rollouts))
        counts = {name: [prompt_counts(r, name, block) for r in own] for name, own in rollouts.items()}
        ran = {name: own for name, own in with_all(counts).items() if any(p.rounds for p in own)}
        lengths += [acceptance(name, event, own, seed) for name, own in ran.items()]
        for head in get_args(Head):
            maps, scored = fit_and_score(rollouts, event, head)
            shipped.append(maps[-1])
            rows += scored
        last = shipped[-1]
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
    calibrations = CalibrationSet(entries=tuple(shipped), contract=contract, provenance=facts)
    report = CalibrationReport(rows=tuple(rows), contract=contract, provenance=facts)
    return calibrations, report, lengths, pd.concat(rounds, ignore_index=True)


def _check_rounds(rollouts: Mapping[str, Sequence[Rollout]], event: EventKey) -> None:
    """Raises UsageError where a half of the requests made no round: nothing could be fitted, or scored."""
    for half, use in ((FIT, "fit to"), (TEST, "score")):
        if not any(r.rounds for own in rollouts.values() for r in own[half::2]):
            raise UsageError(f"{event}: no round to {use}", hint="give more --prompts or --max-tokens")


def fit_and_score(
    rollouts: Mapping[str, Sequence[Rollout]], event: EventKey, head: Head
) -> tuple[list[Calibration], list[Row]]:
    """The maps (Platt last), fitted on every workload's even requests; report rows from the odd ones."""
    test = {name: rounds_of(own[TEST::2], head) for name, own in rollouts.items()}
    test |= {ALL: rounds_of((r for own in rollouts.values() for r in own[TEST::2]), head)}
    fit = rounds_of((r for own in rollouts.values() for r in own[FIT::2]), head)
    maps = [fit_calibration(fit, method=method, event=event, head=head, test=test[ALL]) for method in METHODS]
    return maps, list(report_rows({name: own for name, own in test.items() if len(own.accepted)}, maps))


def rounds_of(rollouts: Iterable[Rollout], head: Head) -> Rounds:
    """The rollouts' rounds with the logits of one head, as the fit takes them; windows end where the text does."""
    records = [(rollout, r) for rollout in rollouts for r in rollout.rounds]
    logits = [r.logits if head == "conditioned" else r.token_free_logits for _, r in records]
    return Rounds(
        logits=np.array(logits, np.float64).reshape(len(records), -1 if records else 0),
        accepted=np.array([r.accepted for _, r in records], np.int64),
        window=np.array([rollout.judged(r) for rollout, r in records], np.int64),
    )
