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
from functools import partial

from dsbench.deploy.deployment import Deployment, environment
from dsbench.deploy.profile_passes import PassTimer, pool_of, profile_device
from dsbench.deploy.visits import Shape, Timed, Visits, shapes, visit_all
from dsbench.profiles.cost import CostTable
from dsbench.profiles.fit import CostSample, FitReport, fit_cost_table
from dsbench.within import Deadline

ODD = 0.15  # error of the fit on a shape that is timed again for it
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
    sampled = partial(samples_of, block=block, graphs=deployment.graphs, overlap=deployment.overlap)
    visits = visit_all(
        timer,
        cells,
        passes=passes,
        seed=seed,
        notice=lambda n, total: notice(n, total + later),
        deadline=part,
        odd=lambda timed: odd_shapes(timed, sampled(timed), tiers),
    )
    samples = sampled(visits.timed) + reference_samples(visits)
    if deployment.graphs:
        del device, timer  # their pages make room
        alone = replace(deployment, drafter=deployment.none, calibrations=None)
        device = profile_device(alone, pool_of(batches, contexts, seed), max(batches), graphs=True)
        timer = PassTimer(device, temperature=temperature, seed=seed)
        made = visits.made
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


def samples_of(timed: Sequence[Timed], *, block: int, graphs: bool, overlap: bool) -> list[CostSample]:
    return pass_samples(timed, block, overlap=overlap or not graphs)


def reference_samples(visits: Visits) -> list[CostSample]:
    cell = visits.reference
    at = (cell.requests, cell.rows, cell.requests * cell.mean_context)
    return [CostSample(*at, seconds, "reference", i) for i, seconds in enumerate(visits.reference_seconds)]


def odd_shapes(timed: Sequence[Timed], samples: Sequence[CostSample], tiers: tuple[int, ...] | None) -> list[Shape]:
    """Shapes that a fit of all of them is far from, the furthest first; one of them may have been timed wrong."""
    _, report = fit_cost_table(samples, tiers=tiers, contract={}, provenance={}, holdout=0.0)
    shape_of = {(t.cell.requests, t.cell.rows, t.context): t.cell for t in timed}
    shape_of |= {(t.cell.requests, 0, t.context): t.cell for t in timed if t.cell.rows == t.cell.requests}
    far = [fit for fit in report.cells if abs(fit.residual) > ODD]
    far.sort(key=lambda fit: -abs(fit.residual))
    return [shape_of[fit.cell.requests, fit.cell.rows, fit.cell.context] for fit in far]


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
