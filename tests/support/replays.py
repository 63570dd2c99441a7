"""Shared by tests: what replay tests and others run on."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from command import dsbench, write_drafter
from engine_runs import make_requests, run
from tiny import tiny_shape, tiny_target
from toys import ToyDrafter, ToyTarget

from dsbench.deploy.replay import replay_queue, trace_workload
from dsbench.drafting.record_trace import drafts_along
from dsbench.profiles.calibration import EventKey
from dsbench.results.acceptance_trace import Trace, TraceRow
from dsbench.runtime.arm import RECORDER
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.draft_trace import DraftTrace
from dsbench.runtime.targets.load import LoadedTarget
from dsbench.settings import RunConfig

VOCAB, BLOCK = 16, 4

EVENT = EventKey(rule="coupled", temperature=1.0)


@cache
def toy_trace(tokens=20) -> Trace:
    """Of no calibrations; its arrays, which tests share, are read-only."""
    trace = recorded(tokens=tokens)
    for drafts in (row.drafts for row in trace.rows):
        for numbers in (drafts.match, drafts.logits, drafts.token_free):
            numbers.setflags(write=False)
    return trace


def recorded(*, calibrations=None, tokens=20) -> Trace:
    """Recorded on the toy target, whose drafter is right about half the time."""
    requests = make_requests(8, vocab=VOCAB, max_tokens=tokens)
    drafter = ToyDrafter(VOCAB, BLOCK)
    config = EngineConfig(page=4, prefill_chunk=7, draft="full")
    engine = run(RECORDER, requests, batch=8, target=ToyTarget(VOCAB), drafter=drafter, config=config)
    deployment = SimpleNamespace(drafter=drafter, calibrations=calibrations)
    rows = tuple(
        TraceRow(
            name=r.name,
            workload=r.workload,
            prompt=tuple(r.prompt_ids),
            output=tuple(r.output),
            drafts=drafts_along(r, [x for x in engine.rounds if x.request == r.id], deployment, EVENT),
        )
        for r in requests
    )
    return Trace(block=BLOCK, event=EVENT, provenance={"target": "toy", "calibrated": "no"}, rows=rows)


def wide(trace: Trace, block: int = 7) -> Trace:
    """With blocks as long as random_drafter's: what was not recorded never matches."""

    def filled(d):
        return DraftTrace(match=d.match, logits=fill(d.logits), token_free=fill(d.token_free))

    def fill(logits):
        return np.pad(logits, ((0, 0), (0, block - BLOCK)), constant_values=-2.0)

    return replace(trace, block=block, rows=tuple(replace(r, drafts=filled(r.drafts)) for r in trace.rows))


def replayed(trace, target, *, tokens=20, size=None):
    deployment = SimpleNamespace(target=SimpleNamespace(model=target))
    config = RunConfig(max_tokens=tokens)
    return replay_queue(trace, trace_workload(trace, "tiny"), config, deployment, size or len(trace.rows))


@pytest.fixture
def shape(monkeypatch):
    """A target `shape:tiny` of random weights."""

    def load(spec, *, home, device, dtype, seed=0, exact=False):
        return LoadedTarget(name=spec, model=tiny_target(seed=3), tokenizer=None, eos=frozenset(), random=True)

    monkeypatch.setattr("dsbench.deploy.deployment.load_target", load)
    return tiny_shape()


def record(model, tmp_path, **changes):  # noqa: F811
    drafter = str(write_drafter(tmp_path / "drafter"))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i} + {i}"}) + "\n" for i in range(6)))
    flags = {"target": str(model), "drafter": drafter, "workload": str(prompts), "max-tokens": "12", "out": "t.parquet"}
    return dsbench("record-trace", *(p for k, v in (flags | changes).items() for p in (f"--{k}", v)), home=tmp_path)
