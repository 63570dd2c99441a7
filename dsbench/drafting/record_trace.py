"""`record-trace`: records the canonical text of every prompt, and the drafter's block at every token of it.

Drafts a block in every round and verifies none of it, so that every anchor of the text is visited. Coupled rule: the
text is the one of every arm of a sweep with these seeds.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

import numpy as np

from dsbench.deploy.deployment import Deployment, environment
from dsbench.deploy.engines import Engines
from dsbench.errors import UsageError
from dsbench.profiles.calibration import EventKey, Head
from dsbench.results.acceptance_trace import Trace, TraceRow
from dsbench.runtime.arm import RECORDER
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.draft_trace import Array, DraftTrace
from dsbench.runtime.records import RoundRecord
from dsbench.runtime.request import Request
from dsbench.settings import RunConfig
from dsbench.sweep.generate import build_requests, run_requests


def record_trace(
    deployment: Deployment,
    config: RunConfig,
    *,
    workloads: Sequence[str],
    prompts: int,
    batch: int,
    notice: Callable[[str], None],
) -> Trace:
    """The first `prompts` prompts of each workload (0: all) that leave room for `max_tokens`, `batch` at a time."""
    event = EventKey(rule="coupled", temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
    requests = _requests(deployment, config, workloads, prompts)
    notice(f"recording {len(requests)} texts of at most {config.max_tokens} tokens")
    engine = run_requests(Engines(deployment), RECORDER, EngineConfig(draft="full"), None, requests, batch)
    rounds: dict[int, list[RoundRecord]] = {r.id: [] for r in requests}
    for record in engine.rounds:
        rounds[record.request].append(record)
    rows = tuple(
        TraceRow(
            name=r.name,
            workload=r.workload,
            prompt=tuple(r.prompt_ids),
            output=tuple(r.output),
            drafts=drafts_along(r, rounds[r.id], deployment, event),
        )
        for r in requests
    )
    facts = (
        environment(deployment.device)
        | deployment.encoding
        | {
            "target": deployment.target.name,
            "target_digest": deployment.target.model.digest,
            "drafter": deployment.drafter.digest,
            "dtype": deployment.contract["dtype"],
            "calibrated": "no" if deployment.calibrations is None else "yes",
            "workloads": ", ".join(workloads),
            "max_tokens": str(config.max_tokens),
            "seed": str(config.seed),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
    )
    return Trace(block=deployment.drafter.block, event=event, provenance=facts, rows=rows)


def _requests(deployment: Deployment, config: RunConfig, workloads: Sequence[str], prompts: int) -> list[Request]:
    """The prompts of all workloads, one that two of them hold once, with new ids."""
    sampling = {
        "temperature": config.temperature,
        "top_k": config.top_k,
        "top_p": config.top_p,
        "max_tokens": config.max_tokens,
    }
    found: dict[tuple[str, str], Request] = {}
    for name in workloads:
        for request in build_requests(
            deployment, name, limit=prompts, seed=config.seed, sampling=sampling, home=deployment.home, skip_long=True
        ):
            found.setdefault((request.workload, request.name), request)
    if not found:
        raise UsageError(f"no prompt leaves room for {config.max_tokens} tokens", hint="give a smaller --max-tokens")
    for number, request in enumerate(found.values()):
        request.id = number
    return list(found.values())


def drafts_along(
    request: Request, rounds: Sequence[RoundRecord], deployment: Deployment, event: EventKey
) -> DraftTrace:
    """The drafts of the rounds, one an anchor, matched against the request's full text."""
    block, output = deployment.drafter.block, request.output
    assert [r.output_index for r in rounds] == list(range(1, len(output))), "an anchor was not visited"
    match = [matched(r.drafts, output[r.output_index :]) for r in rounds]
    logits, free = (
        np.array(values, np.float64).reshape(-1, block)
        for values in ([r.logits for r in rounds], [r.token_free_logits for r in rounds])
    )
    return DraftTrace(
        match=np.array(match, np.int8),
        logits=_calibrated(deployment, event, "conditioned", logits),
        token_free=_calibrated(deployment, event, "free", free),
    )


def matched(drafts: Sequence[int], text: Sequence[int]) -> int:
    """Leading drafts that equal the text."""
    return next((i for i, (d, t) in enumerate(zip(drafts, text, strict=False)) if d != t), min(len(drafts), len(text)))


def _calibrated(deployment: Deployment, event: EventKey, head: Head, raw: Array) -> Array:
    """Logits [N, G] of the calibrated probabilities, so that a replay needs no calibration."""
    if deployment.calibrations is not None:
        chosen = deployment.calibrations.choose(event.rule, event.temperature, event.top_k, event.top_p, head=head)
        raw = np.array(chosen.calibration.scale) * raw + np.array(chosen.calibration.offset)
    return raw.astype(np.float32)
