"""Full-block rollouts: a workload's prompts with every draft verified (arm no-trim), and the counts they yield."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dsbench.analysis.acceptance import ALL, PromptCounts, depth_counts
from dsbench.deploy.deployment import Deployment
from dsbench.deploy.engines import Engines
from dsbench.errors import UsageError
from dsbench.profiles.calibration import EventKey
from dsbench.results.tables import repetition
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.records import RoundRecord
from dsbench.runtime.request import Request
from dsbench.sweep.generate import build_requests, run_requests

ARM = "no-trim"


@dataclass(frozen=True, slots=True)
class Rollout:
    """A request that ran with the full block verified, and its rounds."""

    request: Request
    rounds: tuple[RoundRecord, ...]

    def judged(self, record: RoundRecord) -> int:
        """Drafts of a round's window that stand for a token of the text: nobody emits those past its end, so that
        they are no misses."""
        return min(record.window, len(self.request.output) - record.output_index)


def rollout_requests(
    deployment: Deployment, workload: str, event: EventKey, *, prompts: int, max_tokens: int, seed: int
) -> list[Request]:
    """Fresh requests of the workload's first `prompts` prompts that leave room for `max_tokens`.

    Raises UsageError where there is none.
    """
    sampling: dict[str, Any] = {"temperature": event.temperature, "max_tokens": max_tokens}
    requests = build_requests(
        deployment, workload, limit=prompts, seed=seed, sampling=sampling, home=deployment.home, skip_long=True
    )
    if not requests:
        raise UsageError(f"no prompt of {workload} leaves room for {max_tokens} tokens", hint="lower --max-tokens")
    return requests


def check_workloads(workloads: Sequence[str]) -> None:
    """Raises UsageError for a workload that is named twice, or as all of them are together."""
    if ALL in workloads:
        raise UsageError(f"a workload named {ALL!r} would be mistaken for all of them", hint="rename its file")
    for name in workloads:
        if workloads.count(name) > 1:
            raise UsageError(f"workload {name} is named twice", hint="name each once")


def roll_out(
    deployment: Deployment, by_workload: Mapping[str, Sequence[Request]], event: EventKey, batch: int
) -> dict[str, list[Rollout]]:
    """Runs the requests of all workloads in one queue, `batch` at a time; the deployment's drafter drafts.

    Gives the requests new ids, unique in the queue; names and seeds, and so texts, are unchanged.
    """
    queue = [request for own in by_workload.values() for request in own]
    for number, request in enumerate(queue):
        request.id = number
    engine = run_requests(Engines(deployment), parse_arm(ARM), EngineConfig(rule=event.rule), None, queue, batch)
    rounds: dict[int, list[RoundRecord]] = {r.id: [] for r in queue}
    for record in engine.rounds:
        rounds[record.request].append(record)
    return {name: [Rollout(r, tuple(rounds[r.id])) for r in own] for name, own in by_workload.items()}


def rounds_frame(event: EventKey, rollouts: Mapping[str, Sequence[Rollout]]) -> pd.DataFrame:
    """One row a round, with the raw logits of both heads: all that a calibration is fitted to."""
    rows = [
        (str(event), name, number, record.accepted, rollout.judged(record), record.logits, record.token_free_logits)
        for name, own in rollouts.items()
        for number, rollout in enumerate(own)
        for record in rollout.rounds
    ]
    names = ["event", "workload", "request", "accepted", "window", "logits", "token_free_logits"]
    ints = {"request": "int32", "accepted": "int8", "window": "int8"}
    return pd.DataFrame(rows, columns=names).astype(ints)


def prompt_counts(rollout: Rollout, workload: str, block: int) -> PromptCounts:
    """The counts of a rollout for the statistics; `workload` as the user named it."""
    trials, passed = depth_counts(rollout.rounds, block)
    return PromptCounts(
        workload=workload,
        name=rollout.request.name,
        rounds=len(rollout.rounds),
        delivered=sum(r.delivered for r in rollout.rounds),
        accepted=sum(r.accepted for r in rollout.rounds),
        repetition=repetition(rollout.request.output),
        trials=trials,
        passed=passed,
    )


def requests_digest(requests: Sequence[Request]) -> str:
    """Short hash of names, token ids and seeds: what two drafters must share to be paired."""
    text = json.dumps([[r.name, r.prompt_ids, r.sampling.seed] for r in requests])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
