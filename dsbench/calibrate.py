"""`calibrate`: full-block rollouts on held-out prompts -> STS and Platt maps per (rule, temperature), both heads."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from dsbench.deployment import Deployment, environment
from dsbench.generate import build_requests, run_requests
from dsbench.profiles.calibration import Calibration, CalibrationSet, EventKey
from dsbench.profiles.calibration_fit import Rounds, fit_calibration
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.engine import Engine

Rule = Literal["coupled", "residual"]


def calibrate(
    deployment: Deployment, *, workloads: Sequence[str], prompts: int, max_tokens: int, batch: int, seed: int,
    events: Sequence[tuple[Rule, float]], notice: Callable[[str], None],
) -> tuple[CalibrationSet, list[Calibration]]:  # fmt: skip
    """Fits on even requests, scores on odd ones. Returns the set to ship (Platt) and every fit, for the report.

    `prompts` per workload and event. At temperature 0 both rules are the same event, so one of them is enough.
    """
    everything: list[Calibration] = []
    for rule, temperature in events:
        engines = [
            _rollout(deployment, name, rule, temperature, prompts, max_tokens, batch, seed) for name in workloads
        ]
        event = EventKey(rule=rule, temperature=temperature)
        for head in ("conditioned", "free"):
            fit, test = (_rounds(engines, head, half) for half in (0, 1))
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
    return CalibrationSet(entries=shipped, contract=contract, provenance=facts), everything


def _rollout(
    deployment: Deployment, workload: str, rule: str, temperature: float, prompts: int, max_tokens: int, batch: int,
    seed: int,
) -> Engine:  # fmt: skip
    sampling: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
    requests = build_requests(
        deployment, workload, limit=prompts, seed=seed, sampling=sampling, home=deployment.home
    )
    return run_requests(deployment, parse_arm("no-trim"), EngineConfig(rule=rule), None, requests, batch)


def _rounds(engines: Sequence[Engine], head: str, half: int) -> Rounds:
    records = [r for engine in engines for r in engine.rounds if r.request % 2 == half]
    logits = [r.logits if head == "conditioned" else r.free_logits for r in records]
    return Rounds(
        logits=np.array(logits, np.float64),
        accepted=np.array([r.accepted for r in records]),
        window=np.array([r.window for r in records]),
    )


def _fit(fit: Rounds, test: Rounds, method: Any, event: EventKey, head: Any) -> Calibration:
    return fit_calibration(fit, method=method, event=event, head=head, test=test)
