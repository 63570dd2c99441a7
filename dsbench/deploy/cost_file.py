"""Finds the cost table of a run: named, cached for this machine, shipped, or measured now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from dsbench.deploy.deployment import SHIPPED, Deployment
from dsbench.deploy.profile_cost import profile_cost
from dsbench.deploy.progress import progress
from dsbench.profiles.cost import CostTable, load_cost_table
from dsbench.profiles.falls import FALLS, NONE
from dsbench.profiles.fit import CostSample, FitReport
from dsbench.profiles.samples import save_samples
from dsbench.profiles.trust import doubt, require_trust
from dsbench.ranges import parse_batches
from dsbench.settings import RunConfig
from dsbench.within import Deadline, deadline_of
from dsbench.writing import check_writable, note

QUICK_PASSES = 2
SHORT = 1 / 3  # of a sweep's --within, at most, for a table that it must measure first
FIRST = 2 / 3  # of a profile's --within for its first try
STANDING_ROOM = 48  # slots past its context that a profiled request holds


def cost_file(config: RunConfig, deployment: Deployment) -> Path:
    """The table that fits and covers the batch sizes, or one measured now and kept for this machine.

    Raises EnvironmentRefused for one that is too far off to plan with.
    """
    found = _found_file(config, deployment)
    asked = parse_batches(config.batch, on_gpu=deployment.device.type == "cuda")
    if found is not None and (config.cost or load_cost_table(found).box.requests[1] >= asked[-1]):
        return found
    note("no cost table covers this: measuring a short one (`dsbench profile-cost` makes a better one)")
    usual = (1, 4, 8, 16) if deployment.device.type == "cpu" else (1, 4, 16, 64, 256)
    path = cost_path(deployment)
    check_writable(path.parent)
    until = deadline_of(config.within).share(SHORT)
    table, report = measure_table(
        deployment, config, sorted({*usual, *asked}), _contexts(deployment), QUICK_PASSES, path, until
    )
    require_trust(table, f"the cost table measured now ({path})", config.cost_error)
    if report.verify.heldout_median is not None:
        note(f"kept in {path}; error on held-out shapes {100 * report.verify.heldout_median:.1f}%")
    return path


def _found_file(config: RunConfig, deployment: Deployment) -> Path | None:
    """The named table, else this machine's cached one, else one that ships and fits; None if there is none.

    One of the cache that is too far off to plan with is passed over. Raises EnvironmentRefused, naming what differs, if
    the named table belongs to another deployment, or is too far off.
    """
    if config.cost:
        table = load_cost_table(Path(config.cost))
        table.require(deployment.contract)
        require_trust(table, f"the cost table {config.cost}", config.cost_error)
        return _noted(Path(config.cost), table)
    if cost_path(deployment).exists():
        table = load_cost_table(cost_path(deployment))
        reason = doubt(table.provenance, config.cost_error)
        if not reason:
            return _noted(cost_path(deployment), table)
        note(f"the cost table {cost_path(deployment)} is too far off to plan with: {reason}")
    shipped = [p for p in sorted(SHIPPED.glob("*/cost/*.json")) if not p.name.endswith(".samples.json")]
    return next((p for p in shipped if load_cost_table(p).contract == deployment.contract), None)


def _noted(path: Path, table: CostTable) -> Path:
    """The path; costs of its table that were measured to fall are said."""
    falls = table.provenance.get(FALLS, NONE)
    if falls != NONE:
        note(f"the cost table {path} is doubtful: more rows took less time at {falls}")
    return path


def cost_path(deployment: Deployment) -> Path:
    """Where this machine's cost table for this deployment is cached."""
    key = hashlib.sha256(json.dumps(deployment.contract, sort_keys=True).encode()).hexdigest()[:12]
    return deployment.home / "costs" / f"{key}.json"


def longest_context(deployment: Deployment) -> int:
    """The largest mean context whose spread (half as much again) and a block still fit the model's context."""
    return (deployment.target.model.shape.context - STANDING_ROOM) * 2 // 3


def measure_table(
    deployment: Deployment,
    config: RunConfig,
    batches: Sequence[int],
    contexts: Sequence[int],
    passes: int,
    path: Path,
    until: Deadline,
) -> tuple[CostTable, FitReport]:
    """Profiles with progress on stderr, once more where the table is too far off to plan with; the better one is kept.

    The table goes to `path`, its raw samples beside it; whether it may be planned with, its provenance says.
    """

    def measured(seed: int, deadline: Deadline) -> tuple[CostTable, FitReport, list[CostSample]]:
        with progress("profiling step shapes") as advance:
            return profile_cost(
                deployment,
                batches=batches,
                contexts=contexts,
                passes=passes,
                seed=seed,
                temperature=config.temperature,
                notice=advance,
                deadline=deadline,
            )

    found = measured(config.seed, until.share(FIRST))
    reason = doubt(found[0].provenance, config.cost_error)
    if reason:
        note(f"too far off to plan with: {reason}; profiling once more")
        again = measured(config.seed + 1, until)
        found = min(
            (again, found),
            key=lambda one: (bool(doubt(one[0].provenance, config.cost_error)), one[1].verify.heldout_median or 0),
        )
    table, report, samples = found
    save_samples(path, samples)
    table.save(path)
    return table, report


def _contexts(deployment: Deployment) -> tuple[int, ...]:
    """Mean contexts of a short profile, as far as the model's own context reaches."""
    longest = longest_context(deployment)
    return tuple(c for c in (64, 256) if c <= longest) or (longest,)
