"""The plan of a sweep, checked before anything is loaded, and the setting it is measured in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dsbench.deploy.replay import open_trace, trace_workload
from dsbench.errors import UsageError
from dsbench.ranges import parse_batches, parse_modes, split_workloads
from dsbench.results.acceptance_trace import Trace
from dsbench.results.store import Cell
from dsbench.runtime.arm import Arm, parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.policy.make import refuse_anticipation
from dsbench.runtime.request import SamplingParams
from dsbench.settings import RunConfig
from dsbench.sweep.traffic import Traffic, measured_of, plan_traffic
from dsbench.workloads.arrivals import Arrivals
from dsbench.workloads.workload import Workload, load_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Digests and names of what a bench measures on, for cells and run.json. Mappings are keyed by mode."""

    contract: dict[str, str]
    contracts: dict[str, dict[str, str]]  # of the arms, with their own drafters
    blocks: dict[str, int]  # draft tokens a round
    code: str  # digest of the measured packages' sources
    environment: dict[str, str]
    target: str
    random_weights: bool
    calibrated: bool
    calibration: str  # digest
    cost: str  # digest
    template: str = ""  # digest, as Cell's
    tokenizer: str = ""  # digest
    provenance: dict[str, str] = field(default_factory=dict)  # of the cost table


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

    def cell(self, arm: Arm, batch: int, load: Arrivals | None, workload: Workload, setting: Setting) -> Cell:
        config, (prompts, outputs) = self.config, self.traffic.lengths
        return Cell(
            mode=arm.name,
            batch=batch,
            workload=workload.name,
            prompts=workload.digest,
            template=setting.template,
            tokenizer=setting.tokenizer,
            accept=config.accept,
            temperature=config.temperature,
            draft=config.draft,
            top_k=config.top_k,
            top_p=config.top_p,
            text="pinned" if self.pinned else "free",
            seed=config.seed,
            max_tokens=config.max_tokens,
            lag=self.engine.lag,
            start="together" if load else config.start,
            measured=len(measured_of(load, batch, config.requests)[0]),
            cost=setting.cost if arm.planned else "",
            calibration=setting.calibration if arm.policy != "fixed" else "",
            acceptance=self.acceptance,
            arrivals=load.name if load else "",
            rate=load.rate if load else 0.0,
            prompt_lengths=prompts,
            output_lengths=outputs,
        )

    @property
    def acceptance(self) -> str:
        return "" if self.trace is None else self.trace.label

    @property
    def modes(self) -> tuple[str, ...]:
        return tuple(arm.name for arm in self.arms)

    @property
    def passes(self) -> int:
        points = len(self.batches) * len(self.traffic.loads) * len(self.workloads)
        return len(self.arms) * points * self.config.repeats


def plan_sweep(config: RunConfig, *, on_gpu: bool, home: Path) -> SweepPlan:
    """Checks arms, ranges and workloads. Raises UsageError for the first that is wrong."""
    arms = tuple(parse_arm(name) for name in parse_modes(config.mode))
    if not arms:
        raise UsageError("no mode given", hint="e.g. --mode none,static,compact")
    engine = EngineConfig(rule=config.accept, lag=config.budget_lag, draft=config.draft)
    pinned = config.text == "pinned" and config.accept == "coupled"
    if not pinned and any(arm.policy == "oracle" for arm in arms):
        raise UsageError("the oracle needs a recorded text", hint="run it with --accept coupled --text pinned")
    batches = parse_batches(config.batch, on_gpu=on_gpu)
    SamplingParams(temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, max_tokens=config.max_tokens)
    for arm in arms:
        refuse_anticipation(arm, config.accept)
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
        config=config,
        arms=arms,
        batches=batches,
        workloads=workloads,
        engine=engine,
        pinned=pinned,
        trace=trace,
        traffic=plan_traffic(config),
    )
