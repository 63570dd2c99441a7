"""`generate`: runs prompts in any arm; prints the text, and what each round verified and accepted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsbench.deploy.deployment import Deployment
from dsbench.deploy.engines import Engines
from dsbench.errors import UsageError
from dsbench.kernels.judge import UNSEEN
from dsbench.profiles.cost import CostTable
from dsbench.results.tables import later_ceiling
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.request import Request, SamplingParams, request_seed
from dsbench.workloads.workload import is_file, load_workload


def build_requests(
    deployment: Deployment,
    source: str,
    *,
    limit: int,
    seed: int,
    sampling: dict[str, Any],
    home: Path,
    skip_long: bool = False,
) -> list[Request]:
    """The first `limit` prompts of a workload or file (all of it if 0), in order.

    Raises UsageError for a prompt longer than the context; `skip_long` passes over those that leave no room for
    `max_tokens` instead.
    """
    tokenizer = deployment.target.tokenizer
    if tokenizer is None:
        raise UsageError(f"target {deployment.target.name} has no tokenizer, so it cannot run text")
    workload = load_workload(source, seed=seed, home=home)
    requests: list[Request] = []
    prompts = workload.prompts
    if is_file(source):  # a user's file keeps its order; a workload's shuffle is for sampling from it
        prompts = tuple(sorted(prompts, key=lambda prompt: (len(prompt.id), prompt.id)))
    for prompt in prompts:
        if limit and len(requests) == limit:
            break
        ids = tokenizer.encode_chat(prompt.messages)
        room = deployment.target.model.shape.context - len(ids)
        if skip_long and room < sampling["max_tokens"]:
            continue
        if room < 1:
            raise UsageError(
                f"prompt {prompt.id} has {len(ids)} tokens, the context is {deployment.target.model.shape.context}",
                hint="shorten it, or leave it out",
            )
        params = SamplingParams(seed=request_seed(seed, prompt.workload, prompt.id), **sampling)
        requests.append(
            Request(id=len(requests), name=prompt.id, workload=prompt.workload, prompt_ids=ids, sampling=params)
        )
    return requests


def run_requests(
    engines: Engines, arm: Arm, config: EngineConfig, table: CostTable | None, requests: Sequence[Request], batch: int
) -> Engine:
    """Runs the requests to their end, `batch` at a time; the engine keeps the records."""
    engine = engines.make(arm, config, table, requests, batch)
    run_closed_loop(engine, requests, concurrency=batch)
    return engine


def as_json(deployment: Deployment, engine: Engine, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """One object a request, as `generate --json` prints it; a ceiling that nobody can see is null."""
    tokenizer = deployment.target.tokenizer
    assert tokenizer is not None
    by_id = {r.id: r for r in requests}
    steps: dict[int, list[dict[str, int | None]]] = {r.id: [] for r in requests}
    for record in engine.rounds:
        ceiling = later_ceiling(record, by_id[record.request], engine.config.rule)
        steps[record.request].append(
            {"window": record.window, "accepted": record.accepted, "ceiling": None if ceiling == UNSEEN else ceiling}
        )
    return [
        {
            "id": r.name,
            "prompt_ids": r.prompt_ids,
            "token_ids": r.output,
            "text": r.text if r.text is not None else tokenizer.decode(r.output),
            "finish_reason": r.finish_reason,
            "steps": steps[r.id],
        }
        for r in requests
    ]
