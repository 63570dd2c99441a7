"""`profile-cost`: times every (requests, rows, context) shape over shuffled pages, in shuffled order, several passes.

What a round costs is split so that it can be planned with: the draft of the full block, of its first depth alone, and
all that follows. Eager: rounds as they run. Captured: replays of the draft and the verify graph alone (phases draft and
pass) beside whole rounds (phase step) that wait after each phase; what these take beyond their passes is the host's, a
median for each R, and is added to the verify part unless rounds are to overlap.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from dsbench.deploy.deployment import Deployment, environment
from dsbench.deploy.profile_passes import PassTimer, pool_of, profile_device
from dsbench.deploy.visits import Timed, Visits, shapes, visit_all
from dsbench.profiles.cost import CostTable
from dsbench.profiles.fit import CostSample, FitReport, fit_cost_table
from dsbench.within import Deadline

PLAIN_SHARE = 0.15  # of a deadline's seconds, kept for decoding without a drafter where passes are graphs


def profile_cost(
    deployment: Deployment,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    passes: int,
    seed: int,
    temperature: float,
    notice: Callable[[int, int], None],
    deadline: Deadline | None = None,
) -> tuple[CostTable, FitReport, list[CostSample]]:
    """Times each cell `passes` times (a warm-up step before each), fits the table; tiers are those of the graphs."""
    block, until = deployment.drafter.block, deadline or Deadline()
    device = profile_device(deployment, pool_of(batches, contexts, seed), max(batches), graphs=deployment.graphs)
    timer = PassTimer(device, temperature=temperature, seed=seed)
    tiers, cells = timer.tiers, shapes(batches, contexts, block, timer.tiers)
    plain = shapes(batches, contexts, 0) if deployment.graphs else []
    part = until.share(1 - PLAIN_SHARE) if deployment.graphs else until
    later = passes * len(plain)
    visits = visit_all(
        timer, cells, passes=passes, seed=seed, notice=lambda n, total: notice(n, total + later), deadline=part
    )
    samples = samples_of(visits, block, graphs=deployment.graphs, overlap=deployment.overlap)
    if deployment.graphs:
        del device, timer  # their pages make room
        alone = replace(deployment, drafter=deployment.none, calibrations=None)
        device = profile_device(alone, pool_of(batches, contexts, seed), max(batches), graphs=True)
        timer = PassTimer(device, temperature=temperature, seed=seed)
        made = len(visits.timed)
        more = visit_all(
            timer,
            plain,
            passes=passes,
            seed=seed,
            notice=lambda n, total: notice(made + n, made + total),
            deadline=until,
        )
        samples += plain_samples(more.timed)
    facts = environment(deployment.device) | {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "passes": str(passes),
        "temperature": str(temperature),
        "seed": str(seed),
        "executor": deployment.contract["executor"],
        "random_weights": str(deployment.target.random).lower(),
    }
    facts |= visit_facts(visits)
    table, report = fit_cost_table(samples, tiers=tiers, contract=deployment.contract, provenance=facts, seed=seed)
    return table, report, samples


def visit_facts(visits: Visits) -> dict[str, str]:
    """What a table's provenance says of how it was timed."""
    cell, seconds = visits.reference, visits.reference_seconds
    slowest = max((t.slowdown for t in visits.timed), default=1.0)
    return {
        "reference": f"R = {cell.requests}, {cell.rows} rows, context {cell.mean_context}: {len(seconds)} times",
        "slowest": f"{slowest:.2f}",  # of the machine's usual speed, by the reference
        "timed_again": f"{visits.again} visits, {len(visits.apart)} shapes still apart",
        "left_out": "; ".join(visits.left_out) or "nothing",
    }


def samples_of(visits: Visits, block: int, *, graphs: bool, overlap: bool) -> list[CostSample]:
    """The samples of a profile, those of the reference among them."""
    samples = pass_samples(visits.timed, block, overlap=overlap or not graphs)
    cell = visits.reference
    at = (cell.requests, cell.rows, cell.requests * cell.mean_context)
    return samples + [CostSample(*at, s, "reference", i) for i, s in enumerate(visits.reference_seconds)]


def plain_samples(timed: Sequence[Timed]) -> list[CostSample]:
    """What decoding without a drafter costs: phases plain, a pass alone, and plain step; raw, in no fit."""
    samples = []
    for t in timed:
        at = (t.cell.requests, t.cell.rows, t.context)
        samples += [CostSample(*at, seconds, "no-draft", t.number, t.slowdown) for seconds in t.verify]
        samples.append(CostSample(*at, t.step, "no-draft step", t.number, t.slowdown))
    return samples


def pass_samples(timed: Sequence[Timed], block: int, *, overlap: bool) -> list[CostSample]:
    """Draft and verify samples of replays, the host's share of a step with the latter; and raw: phases pass, step."""
    beyond: dict[int, list[float]] = {}
    for t in timed:
        beyond.setdefault(t.cell.requests, []).append(t.step - t.passes)
    host = {n: 0.0 if overlap else max(0.0, statistics.median(seconds)) for n, seconds in beyond.items()}
    samples = []
    for t in timed:
        at, kept = (t.cell.requests, t.cell.rows, t.context), (t.number, t.slowdown)
        samples += [CostSample(*at, seconds + host[at[0]], "verify", *kept) for seconds in t.verify]
        samples += [CostSample(*at, seconds, "pass", *kept) for seconds in t.verify]
        samples.append(CostSample(*at, t.step, "step", *kept))
        if t.cell.rows == t.cell.requests:
            samples += [CostSample(at[0], 0, at[2], seconds, "draft", *kept) for seconds in t.draft]
            samples += [CostSample(at[0], block, at[2], seconds, "shallow", *kept) for seconds in t.shallow]
    return samples
