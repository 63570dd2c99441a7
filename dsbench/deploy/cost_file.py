"""Finds the cost table of a run: named, cached for this machine, shipped, or measured now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsbench.deploy.deployment import SHIPPED, Deployment
from dsbench.deploy.profile_cost import profile_cost
from dsbench.profiles.cost import CostTable, load_cost_table
from dsbench.profiles.fit import FitReport
from dsbench.profiles.samples import save_samples
from dsbench.ranges import parse_batches
from dsbench.settings import RunConfig
from dsbench.writing import check_writable, note

QUICK_PASSES = 2
STANDING_ROOM = 48  # positions past its context that a profiled request reserves


def cost_file(config: RunConfig, deployment: Deployment) -> Path:
    """The table that fits and covers the batch sizes, or one measured now and kept for this machine."""
    found = _found_file(config, deployment)
    asked = parse_batches(config.batch, on_gpu=deployment.device.type == "cuda")
    if found is not None and (config.cost or load_cost_table(found).box.requests[1] >= asked[-1]):
        return found
    note("no cost table covers this: measuring a short one (`dsbench profile-cost` makes a better one)")
    usual = (1, 4, 8, 16) if deployment.device.type == "cpu" else (1, 4, 16, 64, 256)
    path = cost_path(deployment)
    check_writable(path.parent)
    _, report = measure_table(deployment, config, sorted({*usual, *asked}), _contexts(deployment), QUICK_PASSES, path)
    if report.verify.heldout_median is not None:
        note(f"kept in {path}; error on held-out shapes {100 * report.verify.heldout_median:.1f}%")
    return path


def _found_file(config: RunConfig, deployment: Deployment) -> Path | None:
    """The named table, else this machine's cached one, else one that ships and fits; None if there is none.

    Raises EnvironmentRefused, naming what differs, if the named table belongs to another deployment.
    """
    if config.cost:
        load_cost_table(Path(config.cost)).require(deployment.contract)
        return Path(config.cost)
    if cost_path(deployment).exists():
        return cost_path(deployment)
    shipped = [p for p in sorted(SHIPPED.glob("*/cost/*.json")) if not p.name.endswith(".samples.json")]
    return next((p for p in shipped if load_cost_table(p).contract == deployment.contract), None)


def cost_path(deployment: Deployment) -> Path:
    """Where this machine's cost table for this deployment is cached."""
    key = hashlib.sha256(json.dumps(deployment.contract, sort_keys=True).encode()).hexdigest()[:12]
    return deployment.home / "costs" / f"{key}.json"


def longest_context(deployment: Deployment) -> int:
    """The largest mean context whose spread (half as much again) and a block still fit the model's context."""
    return (deployment.target.model.shape.context - STANDING_ROOM) * 2 // 3


def measure_table(
    deployment: Deployment, config: RunConfig, batches: Sequence[int], contexts: Sequence[int], passes: int, path: Path
) -> tuple[CostTable, FitReport]:
    """Profiles with a progress line on stderr; the table goes to `path`, its raw samples beside it."""
    with _progress() as bar:
        task = bar.add_task("profiling step shapes", total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        table, report, samples = profile_cost(
            deployment,
            batches=batches,
            contexts=contexts,
            passes=passes,
            seed=config.seed,
            temperature=config.temperature,
            notice=advance,
        )
    save_samples(path, samples)
    table.save(path)
    return table, report


def _contexts(deployment: Deployment) -> tuple[int, ...]:
    """Mean contexts of a short profile, as far as the model's own context reaches."""
    longest = longest_context(deployment)
    return tuple(c for c in (64, 256) if c <= longest) or (longest,)


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
