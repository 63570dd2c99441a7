"""Shared by tests: runs on the virtual device, and what they are compared by."""

from __future__ import annotations

from dataclasses import replace

from dsbench.results.tables import later_ceiling
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.settings import RunConfig
from dsbench.simulate.costs import Costs
from dsbench.simulate.plan import Simulation

ROUNDS = ("output_index", "window", "verified", "accepted", "delivered")
STEPS = ("requests", "budget", "rows", "zombies", "context", "delivered", "priors", "confidence_age", "occupied")


def rounds_of(engine, queue):
    """What happened to each request of the queue in each round of an engine."""
    by_id = {r.id: r for r in queue}
    return {
        (r.request, r.output_index): (
            r.step,
            *(getattr(r, name) for name in ROUNDS),
            len(r.drafts),
            later_ceiling(r, by_id[r.request], "coupled"),
        )
        for r in engine.rounds
    }


def run_virtual(mode, trace, queue, table, *, concurrency, executor, lag=0):
    """The queue, to its end, on the virtual device that a table of this executor's deployment makes."""
    simulation = Simulation(
        config=RunConfig(lag=lag),
        arms=(),
        batches=(),
        workloads=(),
        trace=trace,
        costs=Costs(table=replace(table, contract={"executor": executor})),
        target="",
    )
    engine = simulation.engine(parse_arm(mode), concurrency)
    run_closed_loop(engine, queue, concurrency=concurrency)
    return engine
