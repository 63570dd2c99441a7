"""Queues of requests, and the pinned text: each request's canonical output, recorded once in arm none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from dsbench.deploy.deployment import Deployment
from dsbench.deploy.engines import Engines
from dsbench.errors import UsageError
from dsbench.results.store import write_atomically
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.request import Request, SamplingParams, request_seed
from dsbench.settings import RunConfig
from dsbench.workloads.workload import Prompt, Workload
from dsbench.writing import note

RECORDING_BATCH = {"cpu": 16, "cuda": 128}


def build_queue(
    workload: Workload, config: RunConfig, deployment: Deployment, size: int, notice: Callable[[str], None] = note
) -> list[Request]:
    """The first `size` requests of (workload, seed): prompts in order, then again with another replica's noise.

    Prompts that leave no room for `max_tokens` in the context are left out, which is said; raises UsageError if none is
    left.
    """
    tokenizer = deployment.target.tokenizer
    if tokenizer is None:
        raise UsageError(f"target {deployment.target.name} has no tokenizer, so it cannot run text")
    room = deployment.target.model.shape.context - config.max_tokens
    encoded: list[tuple[Prompt, list[int]]] = []
    long = 0
    for prompt in workload.prompts:
        if len(encoded) == size:
            break
        ids = tokenizer.encode_chat(prompt.messages)
        if len(ids) <= room:
            encoded.append((prompt, ids))
        else:
            long += 1
    if not encoded:
        raise UsageError(
            f"no prompt of {workload.name} fits the context of {deployment.target.model.shape.context} tokens"
        )
    if long:
        notice(
            f"{long} of the first {long + len(encoded)} prompts of {workload.name} are left out: with answers of"
            f" {config.max_tokens} tokens they exceed the context"
        )
    queue = []
    for index in range(size):
        replica, at = divmod(index, len(encoded))
        prompt, ids = encoded[at]
        sampling = SamplingParams(
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            max_tokens=config.max_tokens,
            seed=request_seed(config.seed, prompt.workload, prompt.id, replica),
        )
        name = prompt.id if replica == 0 else f"{prompt.id}#{replica}"
        queue.append(Request(id=index, name=name, workload=prompt.workload, prompt_ids=list(ids), sampling=sampling))
    return queue


def text_key(workload: Workload, config: RunConfig, deployment: Deployment, lengths: Sequence[str] = ()) -> str:
    """Hash of what the canonical text depends on: target, dtype, numerics, prompts, template, seed, sampling, ..."""
    facts = [
        *(deployment.contract[name] for name in ("target", "dtype", "numerics", "device")),
        *deployment.encoding.values(),
        workload.digest,
        workload.name,
        config.seed,
        config.temperature,
        config.top_k,
        config.top_p,
        config.max_tokens,
        *(lengths if any(lengths) else ()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def pinned_texts(
    folder: Path,
    workload: Workload,
    queue: Sequence[Request],
    config: RunConfig,
    engines: Engines,
    notice: Callable[[str], None],
    lengths: Sequence[str] = (),
) -> list[list[int]]:
    """Canonical output tokens of each request of the queue, read from the run's folder and recorded where absent."""
    path = folder / f"{text_key(workload, config, engines.deployment, lengths)}.parquet"
    kept: dict[str, list[int]] = {}
    if path.exists():
        try:
            frame = pd.read_parquet(path)
            kept = {n: list(map(int, t)) for n, t in zip(frame["name"], frame["output"], strict=True)}
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise UsageError(
                f"{path} is damaged: {problem}", hint="remove it, and --resume records these texts again"
            ) from None
    missing = [r for r in queue if r.name not in kept]
    if missing:
        notice(f"recording the text of {len(missing)} requests of {workload.name}")
        recorded = record_texts(missing, engines)
        kept |= {request.name: list(request.output) for request in recorded}
        cut = sum(request.finish_reason == "length" for request in recorded)
        notice(
            f"{cut} of {len(recorded)} answers of {workload.name} are cut at their limit, the others end by themselves"
        )
        frame = pd.DataFrame({"name": list(kept), "output": list(kept.values())})
        write_atomically(path, frame.to_parquet(index=False))
    return [kept[r.name] for r in queue]


def record_texts(requests: Sequence[Request], engines: Engines) -> list[Request]:
    """Runs copies of the requests to their end in arm none, many at a time."""
    batch = min(len(requests), RECORDING_BATCH[engines.deployment.device.type])
    copies = [
        Request(id=r.id, name=r.name, workload=r.workload, prompt_ids=list(r.prompt_ids), sampling=r.sampling)
        for r in requests
    ]
    engine = engines.make(parse_arm("none"), EngineConfig(rule="coupled", record_rounds=False), None, copies, batch)
    run_closed_loop(engine, copies, concurrency=batch)
    engine.close()
    return copies
