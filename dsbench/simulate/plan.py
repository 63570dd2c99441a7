"""`simulate`: the frontier that a cost table and a recorded trace predict, written as a run of its own. No torch.

Everything in the run is labelled SIMULATED. Acceptance is the trace's, plans are the real planner's, times the table's.
"""

from __future__ import annotations

import datetime
import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsbench.deploy.replay import matching_trace, refuse_chains, replay_request, trace_workload
from dsbench.errors import UsageError
from dsbench.profiles.samples import samples_path
from dsbench.ranges import parse_modes, parse_range, split_workloads
from dsbench.results.acceptance_trace import Trace, TraceRow
from dsbench.results.metrics import DRIFTS, cell_summary
from dsbench.results.store import Cell, RunStore
from dsbench.results.tables import tables_of
from dsbench.runtime.arm import CAPTURED, Arm, parse_arm
from dsbench.runtime.config import LAG, EngineConfig
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.loop.scheduler import CAPTURED_PROMPTS, CHUNKS, eager_prompts
from dsbench.runtime.loop.virtual import VirtualDevice
from dsbench.runtime.policy.calibrated import Calibrated
from dsbench.runtime.policy.make import depths_of, make_policy
from dsbench.runtime.policy.prices import Prices
from dsbench.runtime.request import SamplingParams
from dsbench.settings import RunConfig
from dsbench.simulate.costs import Costs, load_costs
from dsbench.workloads.lengths import under_way
from dsbench.workloads.workload import Workload

FAR = 2**31  # tokens of context and ids of the vocabulary: a simulation is bound by neither
CODE = "simulated"  # instead of the sources that were measured
UNTIMED_HOST = "every phase is waited for, and this table does not hold the host's time"
UNTIMED_SLOTS = "short drafts are priced as whole blocks: this table does not time slots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What to play, checked. `prior`: survival [G] of a request without history."""

    config: RunConfig
    arms: tuple[Arm, ...]
    batches: tuple[int, ...]
    workloads: tuple[Workload, ...]
    trace: Trace
    costs: Costs
    target: str  # whose step times the table holds

    def captured(self, arm: Arm) -> bool:
        """Whether the deployment that was profiled runs the arm's rounds as captured graphs."""
        return self.costs.table.contract.get("executor") in ("overlap", "graphs") and arm.policy in CAPTURED

    def lag(self, arm: Arm) -> int:
        """Rounds between the confidences behind a budget and the round that uses them, as that deployment has them."""
        overlaps = self.captured(arm) and self.costs.table.contract["executor"] == "overlap"
        return self.config.budget_lag or (LAG if overlaps else 1)

    def engine(self, arm: Arm, batch: int) -> Engine:
        """An engine of the arm on a virtual device for `batch` requests at a time."""
        block, captured, config = self.trace.block if arm.drafter != "none" else 0, self.captured(arm), self.config
        calibrated = Calibrated(self.trace.calibrations(), "coupled", block)
        device = VirtualDevice(
            self.costs,
            arm,
            block,
            slots=batch,
            context=FAR,
            maps=calibrated.maps,
            prompts=CAPTURED_PROMPTS if captured else eager_prompts(EngineConfig().prefill_chunk),
            chunks=CHUNKS,
            exact=not captured,
        )
        prices = Prices(self.costs.table, block, depths_of(arm, block, full=config.draft == "full"))
        engine = EngineConfig(lag=self.lag(arm), draft=config.draft)
        return Engine(device, arm, make_policy(arm, prices, "coupled"), prices, calibrated, engine)

    def cell(self, arm: Arm, batch: int, workload: Workload) -> Cell:
        config = self.config
        return Cell(
            mode=arm.name,
            batch=batch,
            workload=workload.name,
            prompts=workload.digest,
            accept="coupled",
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            text="pinned",
            seed=config.seed,
            max_tokens=config.max_tokens,
            measured=max(config.requests, batch),
            lag=config.budget_lag,
            start=config.start,
            draft=config.draft,
            cost=_digest(self.costs.table),
            acceptance=self.trace.label,
        )


def plan_simulation(config: RunConfig, *, target: str = "") -> Simulation:
    """Checks everything before anything is played. Raises UsageError for the first that is wrong."""
    if not config.trace:
        raise UsageError("no trace given", hint="--trace FILE, made by `dsbench record-trace`")
    if not config.cost:
        raise UsageError("no cost table given", hint="--cost FILE, made by `dsbench profile-cost`")
    if config.accept != "coupled" or config.text != "pinned":
        raise UsageError("a trace holds matches of the coupled rule on its own text", hint="leave the rule out")
    SamplingParams(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, max_tokens=config.max_tokens)
    EngineConfig(draft=config.draft)
    arms = tuple(map(parse_arm, parse_modes(config.mode)))
    if not arms:
        raise UsageError("no mode given", hint="e.g. --mode none,static,compact")
    refuse_chains(arms)
    batches = parse_range(config.batch or "1:256:x2", what="batch")
    costs, trace = load_costs(Path(config.cost)), matching_trace(config)
    block = costs.table.contract.get("block", str(trace.block))
    if block != str(trace.block):
        raise UsageError(
            f"the trace was drafted in blocks of {trace.block}, the cost table is of blocks of {block}",
            hint="record a trace with that drafter",
        )
    for arm in arms:
        arm.check_block(trace.block)
    workloads = tuple(trace_workload(trace, name) for name in dict.fromkeys(split_workloads(config.workload)))
    digest = costs.table.contract.get("target", "unknown")
    return Simulation(
        config=config,
        arms=arms,
        batches=batches,
        workloads=workloads,
        trace=trace,
        costs=costs,
        target=target or target_name(digest, trace.provenance),
    )


def target_name(digest: str, traced: Mapping[str, str]) -> str:
    """As a sweep names the target with this digest: a shape by its own, a model by the trace where that is of it."""
    if digest.startswith("random-"):
        return f"shape:{digest.removeprefix('random-').rpartition('-')[0]}"
    same = digest == traced.get("target_digest") and traced.get("target")
    return same or f"target {digest}"


def simulate(plan: Simulation, store: RunStore, sources: Mapping[str, str], notice: Callable[[str], None]) -> None:
    """Plays every cell and writes the run."""
    store.write_run(run_body(plan, store.folder, sources))
    table = Path(plan.config.cost)
    for source in (table, samples_path(table)):
        if source.exists():
            shutil.copy(source, store.folder / source.name.replace(table.stem, "cost"))
    for workload in plan.workloads:
        rows = {(row.workload, row.name): row for row in plan.trace.rows}
        texts = [rows[p.workload, p.id] for p in workload.prompts]
        for batch in plan.batches:
            for arm in plan.arms:
                _play_cell(plan, store, arm, batch, workload, texts)
            notice(f"{workload.name:>10}  batch {batch:<4} {', '.join(a.name for a in plan.arms)}")


def _play_cell(
    plan: Simulation, store: RunStore, arm: Arm, batch: int, workload: Workload, texts: Sequence[TraceRow]
) -> None:
    cell = plan.cell(arm, batch, workload)
    size = 2 * batch + cell.measured + batch // 2
    queue = [replay_request(i, *divmod(i, len(texts)), texts, plan.config, FAR) for i in range(size)]
    if cell.start == "spread":
        queue[:batch] = [under_way(request, i, batch) for i, request in enumerate(queue[:batch])]
    wanted, engine = frozenset(range(batch, batch + cell.measured)), plan.engine(arm, batch)
    run_closed_loop(engine, queue, concurrency=batch, until=wanted)
    tables = tables_of(engine, queue, wanted, "coupled", None)
    key = cell.key(plan.costs.table.contract, CODE)
    store.write_repeat(key, tables)
    summary = cell_summary(*tables.values(), batch=batch, block=engine.device.block)
    steady = [flag for flag in summary["flags"] if not flag.startswith(DRIFTS)]  # its clock is the table's
    flags = steady + doubts(plan, arm)
    store.write_cell(key, cell, summary | {"flags": flags}, flags, code=CODE)


def doubts(plan: Simulation, arm: Arm) -> list[str]:
    """What the table does not hold of this arm, in words."""
    table, captured = plan.costs.table, plan.costs.table.contract.get("executor", "eager") != "eager"
    found = []
    if table.contract.get("executor") == "overlap" and not plan.captured(arm):
        found.append(UNTIMED_HOST)
    if captured and 0 < arm.depth(plan.trace.block) < plan.trace.block and table.depth_bias == 0:
        found.append(UNTIMED_SLOTS)
    return found


def _digest(table: Any) -> str:
    """As a sweep names its cost table."""
    return hashlib.sha256(repr(table).encode()).hexdigest()[:12]


def run_body(plan: Simulation, folder: Path, sources: Mapping[str, str]) -> dict[str, Any]:
    """What run.json says of the run in `folder`; the target is whatever the cost table is of."""
    contract, provenance, trace = plan.costs.table.contract, plan.costs.table.provenance, plan.trace
    device = contract.get("device") or provenance.get("device", "unknown device")
    kept = {key: value for key, value in provenance.items() if not key.startswith("fit_")}
    return {
        "config": asdict(plan.config) | {"target": plan.target, "out": str(folder)},
        "sources": dict(sources) | {"target": "the cost table", "out": "simulate"},
        "environment": kept | {"device": f"{device}, simulated"},
        "contract": {**contract, "clock": "simulated"},
        "code": CODE,
        "labels": {
            "simulated": True,
            "target": plan.target,
            "rule": "coupled",
            "temperature": plan.config.temperature,
            "text": "pinned",
            "replayed": trace.label,
            "calibrated": trace.calibrated,
            "executor": contract.get("executor", ""),
        },
        "workloads": [
            {"name": w.name, "source": w.source, "licence": w.licence, "digest": w.digest} for w in plan.workloads
        ],
        "cost_table": {"digest": _digest(plan.costs.table), "provenance": provenance},
        "trace": {"digest": trace.digest, "provenance": trace.provenance},
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
