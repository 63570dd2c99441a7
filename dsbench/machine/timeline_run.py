"""`trace`: a few rounds of one arm with overlap and without it, written as a Perfetto trace and as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dsbench import __version__
from dsbench.analysis.timeline import COLD, WARM, View, rounds_needed, view_rounds, write_trace
from dsbench.deploy.deployment import Deployment, environment
from dsbench.deploy.engines import Engines
from dsbench.deploy.replay import replay_queue, trace_workload
from dsbench.profiles.cost import CostTable
from dsbench.ranges import split_workloads
from dsbench.results.acceptance_trace import Trace
from dsbench.results.labels import conditions, loud_label
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import LAG, EngineConfig
from dsbench.runtime.loop.build import captures
from dsbench.runtime.request import Request, SamplingParams
from dsbench.settings import RunConfig
from dsbench.sweep.texts import build_queue
from dsbench.views.timeline import draw_timeline
from dsbench.workloads.workload import load_workload

ON, OFF = "overlap on", "overlap off (a wait after each phase)"
EAGER = "eager engine (no captured graphs)"
PROMPT = 64  # tokens of a random prompt


def queue_of(config: RunConfig, deployment: Deployment, trace: Trace | None, batch: int, rounds: int) -> list[Request]:
    """Enough requests for `rounds` rounds at `batch`, even if each lasts one round only.

    Prompts are the first workload's; random ones, with random text to follow, for a shape target without a trace.
    """
    size = batch * (2 + rounds_needed(rounds, max(LAG, config.budget_lag)))
    name = split_workloads(config.workload)[0]
    if trace is not None:
        return replay_queue(trace, trace_workload(trace, name), config, deployment, size)
    if deployment.target.tokenizer is None:
        return random_queue(config, deployment, size)
    return build_queue(load_workload(name, seed=config.seed, home=deployment.home), config, deployment, size)


def random_queue(config: RunConfig, deployment: Deployment, size: int) -> list[Request]:
    shape = deployment.target.model.shape
    tokens = min(config.max_tokens, max(1, shape.context - PROMPT))
    ids = torch.randint(0, shape.vocab, (size, PROMPT), generator=torch.Generator().manual_seed(config.seed)).tolist()
    return [
        Request(
            id=i,
            name=f"random-{i}",
            workload="random",
            prompt_ids=ids[i],
            sampling=SamplingParams(
                temperature=config.temperature,
                top_k=config.top_k,
                top_p=config.top_p,
                max_tokens=tokens,
                seed=config.seed + i,
                ignore_eos=True,
            ),
        )
        for i in range(size)
    ]


def record_views(
    deployment: Deployment,
    arm: Arm,
    config: EngineConfig,
    table: CostTable | None,
    queue: Callable[[], list[Request]],
    *,
    batch: int,
    rounds: int,
    notice: Callable[[str], None],
) -> list[View]:
    """Overlap on, then off, on the same requests; where this arm and this machine support it."""
    engines, views = Engines(deployment, requests=batch), []
    for name, overlap in variants(deployment, arm, config, queue()):
        engines.deployment = replace(deployment, overlap=overlap)
        requests = queue()
        engine = engines.make(arm, config, table, requests, batch)
        place = deployment.device
        views.append(view_rounds(engine, requests, batch=batch, rounds=rounds, name=name, device=place))
        notice(f"{name}: {rounds} rounds in {views[-1].seconds * 1e3:.3f} ms")
    return views


def variants(
    deployment: Deployment, arm: Arm, config: EngineConfig, queue: Sequence[Request]
) -> list[tuple[str, bool]]:
    """Names of the runs, and whether each overlaps."""
    if not deployment.graphs:
        return [(EAGER, False)]
    return [(ON, True), (OFF, False)] if captures(arm, config.rule) else [(OFF, False)]


def run_facts(
    deployment: Deployment, trace: Trace | None, arm: Arm, config: RunConfig, batch: int, rounds: int
) -> dict[str, Any]:
    """Facts of the run for the picture: those of run.json, and versions."""
    machine = environment(deployment.device)
    versions = {"dsbench": __version__, "torch": machine["torch"]}
    versions |= {name: machine[name] for name in ("cuda", "driver") if name in machine}
    if deployment.device.type == "cuda":
        versions["triton"] = metadata.version("triton")
    return {
        "environment": machine,
        "contract": deployment.contract_of(arm),
        "labels": {
            "random_weights": deployment.target.random,
            "target": deployment.target.name,
            "replayed": "" if trace is None else trace.label,
        },
        "arm": arm.name,
        "batch": batch,
        "rounds": rounds,
        "warm_rounds": COLD + WARM,
        "sampling": f"{config.accept}, T={config.temperature:g}, seed {config.seed}",
        "versions": versions,
    }


def write(views: Sequence[View], facts: dict[str, Any], out: Path) -> list[Path]:
    """timeline.json and the pictures, in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    write_trace(views, facts, out / "timeline.json")
    point = f"arm {facts['arm']}, R={facts['batch']}, {facts['sampling']}"
    shown = f"{facts['rounds']} rounds after {facts['warm_rounds']} of warm-up"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    eager = [f"{EAGER}: each phase as it is computed, nothing overlaps"] if views[0].name == EAGER else []
    clock = [f"rows of host and device may be off by {max(v.slack for v in views) * 1e6:.0f} us"]
    clock = clock if max(v.slack for v in views) > 0 else []
    odd = [f"KERNELS WERE COMPILED in {view.name}" for view in views if view.compiles]
    lines = [conditions(facts), "; ".join([point, shown, versions, *eager, *clock, *odd])]
    loud = loud_label(facts)
    if facts["labels"]["random_weights"] and not facts["labels"]["replayed"]:
        loud += "; drafts are random, and seldom accepted"
    return [out / "timeline.json", *draw_timeline(views, out, lines, loud)]


def print_views(views: Sequence[View]) -> None:
    for view in views:
        each = view.seconds / view.rounds * 1e3
        print(
            f"{view.name}: {each:.3f} ms a round, {view.idle_a_round * 1e3:.3f} ms of it idle ({view.idle_share:.1%})"
        )
