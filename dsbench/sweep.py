"""`sweep`: arms x batch sizes x loads x workloads, interleaved in random order, stored repeat by repeat, resumable."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dsbench.deployment import Deployment, environment, sources_digest
from dsbench.engines import Engines
from dsbench.errors import UsageError
from dsbench.ledger import ledger
from dsbench.measure import run_repeat
from dsbench.metrics import AFTER_A_FAILURE, cell_summary, fallbacks
from dsbench.profiles.calibration import CalibrationSet
from dsbench.profiles.contract import check_contract
from dsbench.profiles.cost import CostTable
from dsbench.ranges import parse_range, split_workloads
from dsbench.replay import open_trace, replay_queue, trace_workload
from dsbench.runtime.arm import Arm, parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.planner import refuse_anticipation
from dsbench.runtime.request import Request, SamplingParams
from dsbench.settings import RunConfig
from dsbench.store import Cell, RunStore, StoredCell
from dsbench.texts import build_queue, pinned_texts
from dsbench.trace import Trace
from dsbench.traffic import Traffic, measured_of, plan_traffic
from dsbench.workloads.arrivals import Arrivals
from dsbench.workloads.workload import Workload, load_workload

CPU_BATCHES, GPU_BATCHES = "1:16:x2", "1:256:x2"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Everything a sweep will do, resolved and checked before anything runs."""

    config: RunConfig
    arms: tuple[Arm, ...]
    batches: tuple[int, ...]
    workloads: tuple[Workload, ...]
    engine: EngineConfig
    pinned: bool
    traffic: Traffic
    trace: Trace | None = None  # whose acceptance is replayed

    def cell(
        self, arm: Arm, batch: int, load: Arrivals | None, workload: Workload, table: CostTable | None,
        calibrations: CalibrationSet | None,
    ) -> Cell:  # fmt: skip
        config, (prompts, outputs) = self.config, self.traffic.lengths
        return Cell(
            mode=arm.name, batch=batch, workload=workload.name, prompts=workload.digest, accept=config.accept,
            temperature=config.temperature, draft=config.draft,
            top_k=config.top_k, top_p=config.top_p, text="pinned" if self.pinned else "free", seed=config.seed,
            max_tokens=config.max_tokens, lag=self.engine.lag,
            measured=len(measured_of(load, batch, config.requests)[0]),
            cost=digest_of(table) if arm.planned else "",
            calibration=digest_of(calibrations) if arm.policy not in ("full", "fixed") else "",
            acceptance=self.acceptance, arrivals=load.name if load else "", rate=load.rate if load else 0.0,
            prompt_lengths=prompts, output_lengths=outputs,
        )  # fmt: skip

    @property
    def acceptance(self) -> str:
        return "" if self.trace is None else self.trace.label

    @property
    def passes(self) -> int:
        points = len(self.batches) * len(self.traffic.loads) * len(self.workloads)
        return len(self.arms) * points * self.config.repeats


def plan_sweep(config: RunConfig, *, on_gpu: bool, home: Path) -> SweepPlan:
    """Checks arms, ranges and workloads. Raises UsageError for the first that is wrong."""
    arms = tuple(parse_arm(name) for name in dict.fromkeys(n.strip() for n in config.mode.split(",")) if name)
    if not arms:
        raise UsageError("no mode given", hint="e.g. --mode none,static,compact")
    engine = EngineConfig(rule=config.accept, lag=config.budget_lag, draft=config.draft)
    pinned = config.text == "pinned" and config.accept == "coupled"
    if not pinned and any(arm.policy == "oracle" for arm in arms):
        raise UsageError("the oracle needs a recorded text", hint="run it with --accept coupled --text pinned")
    batches = parse_range(config.batch or (GPU_BATCHES if on_gpu else CPU_BATCHES), what="batch")
    SamplingParams(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, max_tokens=config.max_tokens)
    for arm in arms:
        refuse_anticipation(arm, config.accept, config.budget_lag)
    names = list(dict.fromkeys(split_workloads(config.workload)))
    trace = open_trace(config, arms)
    workloads = tuple(
        load_workload(name, seed=config.seed, home=home) if trace is None else trace_workload(trace, name)
        for name in names
    )
    twice = [w.name for w in workloads if sum(w.name == other.name for other in workloads) > 1]
    if twice:
        raise UsageError(f"two workloads are named {twice[0]}", hint="rename one of the files")
    return SweepPlan(
        config=config, arms=arms, batches=batches, workloads=workloads, engine=engine, pinned=pinned, trace=trace,
        traffic=plan_traffic(config),
    )  # fmt: skip


def run_sweep(
    plan: SweepPlan, deployment: Deployment, table: CostTable | None, store: RunStore, sources: dict[str, str],
    notice: Callable[[str], None],
) -> list[StoredCell]:  # fmt: skip
    """Runs what is missing of the plan and returns all its cells."""
    plan.traffic.check_prompts(deployment.target.model.shape.context - plan.config.max_tokens)
    body = run_body(plan, deployment, table, sources)
    if store.exists:
        _go_on_with(store.read_run(), body, f"the run in {store.folder}")
    store.write_run(body)
    counts = f"{len(plan.arms)} arms, {len(plan.batches)} batch sizes, {len(plan.workloads)} workloads"
    counts += f", {len(plan.traffic.loads)} loads" if len(plan.traffic.loads) > 1 else ""
    notice(f"{plan.passes} passes: {counts}")
    engines = Engines(deployment, requests=max(plan.batches))
    for workload in plan.workloads:
        for batch, load in itertools.product(plan.batches, plan.traffic.loads):
            _run_point(plan, engines, table, store, workload, batch, load, notice)
            if engines.models:  # something ran
                store.write_run(body | {"memory": ledger(engines)})
    return store.cells()


def _go_on_with(recorded: dict[str, Any], body: dict[str, Any], what: str) -> None:
    """Refuses a run of another contract or acceptance; chain drafters are compared where both have one, and kept."""
    check_contract(recorded["contract"], body["contract"], what=what, hint="name another --out")
    was, now = ({"acceptance": run["labels"].get("replayed") or "its own"} for run in (recorded, body))
    check_contract(was, now, what=what, hint="name another --out")
    chain = recorded.get("mtp_contract")
    if chain is not None and body["mtp_contract"] is not None:
        check_contract(chain, body["mtp_contract"], what=f"{what} (its mtp arms)", hint="name another --out")
    body["mtp_contract"] = body["mtp_contract"] or chain
    body["memory"] = recorded.get("memory")


def _run_point(
    plan: SweepPlan, engines: Engines, table: CostTable | None, store: RunStore, workload: Workload, batch: int,
    load: Arrivals | None, notice: Callable[[str], None],
) -> None:  # fmt: skip
    """All arms of one (workload, batch, load), repeats interleaved in random order."""
    deployment, code = engines.deployment, sources_digest()
    cells = [(arm, plan.cell(arm, batch, load, workload, table, deployment.calibrations)) for arm in plan.arms]
    keys = {cell.mode: cell.key(deployment.contract_of(arm), code) for arm, cell in cells}
    todo = [
        (arm, cell, number)
        for number in range(plan.config.repeats)
        for arm, cell in _shuffled(cells, f"{plan.config.seed} {workload.name} {batch} {number}")
        if number >= store.repeats(keys[cell.mode])
    ]
    measured, size = measured_of(load, batch, plan.config.requests)

    def finish(arm: Arm, cell: Cell) -> None:
        """Writes the cell, once all its repeats are there."""
        folder = store.cell_folder(keys[cell.mode])
        stored = StoredCell(folder=folder, cell=cell, status="done", summary={}, flags=[])
        tables = (stored.table(name) for name in ("steps", "rounds", "requests"))
        block = deployment.drafter_of(arm).block
        summary = cell_summary(*tables, batch=batch, block=block, open_loop=load is not None)
        store.write_cell(keys[cell.mode], cell, summary, summary.get("flags", []), code=code)

    for arm, cell in cells:
        if cell.mode not in [c.mode for _, c, _ in todo]:
            finish(arm, cell)
    if todo:
        queue, texts = _queue(plan, engines, store, workload, size, notice)
        for arm, cell, number in todo:
            come = None if load is None else load.seconds(size, f"{plan.config.seed} {number}")
            tables = run_repeat(engines, arm, plan.engine, table, queue, batch, measured, texts, come)
            store.write_repeat(keys[cell.mode], tables)
            steps = tables["steps"]
            pace = steps["delivered"].sum() / max(steps["seconds"].sum(), 1e-9)
            place = f"batch {batch:<3}" + (f" {load.rate:.4g}/s" if load else "")
            notice(f"{workload.name:>10}  {place} {arm.name:<12} repeat {number + 1}: {pace:7.1f} tokens/s")
            failed, what = fallbacks(steps)
            if failed:
                notice(f"{failed} of {len(steps)} steps {AFTER_A_FAILURE}: {what}")
            if number + 1 == plan.config.repeats:
                finish(arm, cell)


def _queue(
    plan: SweepPlan, engines: Engines, store: RunStore, workload: Workload, size: int, notice: Callable[[str], None]
) -> tuple[list[Request], list[list[int]] | None]:  # fmt: skip
    """The requests of a point, and their texts where they are pinned."""
    longest = engines.deployment.target.model.shape.context - plan.config.max_tokens
    build = build_queue if plan.trace is None else partial(replay_queue, plan.trace)
    queue = plan.traffic.shaped(build(workload, plan.config, engines.deployment, size), plan.config.seed, longest)
    if plan.trace is not None:
        return queue, [r.canonical or [] for r in queue]
    folder, lengths = store.folder / "texts", plan.traffic.lengths
    return queue, pinned_texts(folder, workload, queue, plan.config, engines, notice, lengths) if plan.pinned else None


def _shuffled(items: list[Any], seed: str) -> list[Any]:
    return random.Random(seed).sample(items, len(items))


def run_body(
    plan: SweepPlan, deployment: Deployment, table: CostTable | None, sources: dict[str, str]
) -> dict[str, Any]:
    """What run.json says: the resolved configuration, where each value came from, machine, contract, labels."""
    trace = plan.trace
    calibrated = deployment.calibrations is not None if trace is None else trace.calibrated
    return {
        "config": asdict(replace(plan.config, cost=plan.config.cost or "")),
        "sources": sources,
        "environment": environment(deployment.device),
        "contract": deployment.contract,
        "mtp_contract": next((deployment.contract_of(a) for a in plan.arms if a.drafter == "mtp"), None),
        "code": sources_digest(),
        "labels": {
            "random_weights": deployment.target.random,
            "target": deployment.target.name,
            "target_note": "quantised weights, dequantised once" if deployment.target.name == "smollm2-135m" else "",
            "rule": plan.config.accept,
            "temperature": plan.config.temperature,
            "text": "pinned" if plan.pinned else "free",
            "replayed": plan.acceptance,
            "calibrated": calibrated,
            "executor": deployment.contract["executor"],
        },
        "workloads": [
            {"name": w.name, "source": w.source, "licence": w.licence, "digest": w.digest} for w in plan.workloads
        ],
        "cost_table": None if table is None else {"digest": digest_of(table), "provenance": table.provenance},
        "trace": None if trace is None else {"digest": trace.digest, "provenance": trace.provenance},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def digest_of(measured: CostTable | CalibrationSet | None) -> str:
    return "" if measured is None else hashlib.sha256(repr(measured).encode()).hexdigest()[:12]
