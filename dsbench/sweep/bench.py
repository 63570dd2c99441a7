"""Measures the repeats of a sweep on one device: holds the deployment, its cost table and its engines."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dsbench.deploy.cost_file import cost_file
from dsbench.deploy.deployment import Deployment, deploy, environment, has_drafter, sources_digest
from dsbench.deploy.engines import Engines
from dsbench.deploy.memory import memory_of
from dsbench.deploy.replay import replay_queue, replaying, say_short
from dsbench.errors import UsageError
from dsbench.profiles.calibration import CalibrationSet
from dsbench.profiles.contract import differences
from dsbench.profiles.cost import CostTable, load_cost_table
from dsbench.profiles.samples import samples_path
from dsbench.results.store import write_atomically
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.request import Request
from dsbench.sweep.conditions import Machine
from dsbench.sweep.measure import run_repeat
from dsbench.sweep.order import Measured, Task
from dsbench.sweep.plan import Setting, SweepPlan
from dsbench.sweep.texts import build_queue, pinned_texts
from dsbench.sweep.traffic import measured_of
from dsbench.workloads.workload import Workload


class EngineBench:
    """Loads what the plan names and measures its repeats, on this machine's device.

    Texts and the cost table lie in the run's `folder`, for every bench of the run. Raises UsageError or
    EnvironmentRefused for what does not exist or does not fit.
    """

    def __init__(self, plan: SweepPlan, folder: Path, notice: Callable[[str], None]) -> None:
        self.plan, self.folder, self.notice = plan, folder, notice
        drafters = {arm.drafter for arm in plan.arms}
        deployment = deploy(
            plan.config, need_drafter=has_drafter(plan.config) or "dspark" in drafters, need_chain="mtp" in drafters
        )
        self.deployment = deployment if plan.trace is None else replaying(plan.trace, deployment)
        for arm in plan.arms:
            self.deployment.drafter_of(arm)
        self._longest = deployment.target.model.shape.context - plan.config.max_tokens
        plan.traffic.check_prompts(self._longest)
        planned = any(arm.planned for arm in plan.arms)
        with _alone(folder / "texts" / ".lock"):
            self.table = _run_table(plan, self.deployment, folder) if planned else None
        if self.deployment.calibrations is None and planned:
            notice("this drafter has no calibration (`dsbench calibrate` fits it): its confidences are used raw")
        if plan.trace is not None:
            say_short(plan.trace, plan.config)
        self.engines = Engines(self.deployment, requests=max(plan.batches))
        self.machine = Machine(_gpu(self.deployment.device))
        self._queue: tuple[tuple[str, int], list[Request], list[list[int]] | None] | None = None

    def describe(self) -> Setting:
        deployment, plan, table = self.deployment, self.plan, self.table
        return Setting(
            contract=deployment.contract,
            contracts={arm.name: deployment.contract_of(arm) for arm in plan.arms},
            blocks={arm.name: deployment.drafter_of(arm).block for arm in plan.arms},
            code=sources_digest(),
            environment=environment(deployment.device),
            target=deployment.target.name,
            random_weights=deployment.target.random,
            calibrated=deployment.calibrations is not None if plan.trace is None else plan.trace.calibrated,
            calibration=digest_of(deployment.calibrations),
            cost=digest_of(table),
            **({} if plan.trace is not None else deployment.encoding),
            provenance={} if table is None else table.provenance,
        )

    def repeat(self, task: Task) -> Measured:
        cell = task.cell
        workload = next(w for w in self.plan.workloads if w.name == cell.workload)
        load = next((x for x in self.plan.traffic.loads if x and (x.name, x.rate) == (cell.arrivals, cell.rate)), None)
        measured, size = measured_of(load, cell.batch, self.plan.config.requests)
        queue, texts = self._point(workload, size)
        come = None if load is None else load.seconds(size, f"{self.plan.config.seed} {task.number}")
        arm, facts = parse_arm(cell.mode), dict[str, Any]()
        with self.machine.watched(facts):
            tables, warm = run_repeat(
                self.engines,
                arm,
                self.plan.engine,
                self.table,
                queue,
                cell.batch,
                measured,
                texts,
                come,
                spread=cell.start == "spread",
            )
        worker = f"{socket.gethostname()} {os.getpid()}"
        return Measured(
            tables=tables, facts={**warm, "machine": facts, "worker": worker}, memory=memory_of(self.engines)
        )

    def close(self) -> None:
        self.machine.close()

    def _point(self, workload: Workload, size: int) -> tuple[list[Request], list[list[int]] | None]:
        """The requests of a point, and their texts where they are pinned."""
        if self._queue is None or self._queue[0] != (workload.name, size):
            self._queue = ((workload.name, size), *self._made(workload, size))
        return self._queue[1:]

    def _say_cuts(self, workload: Workload, size: int) -> None:
        config = self.plan.config
        prompts, answers = self.plan.traffic.cut(size, config.seed, self._longest, config.max_tokens)
        if prompts:
            self.notice(f"{prompts} of {size} prompts of {workload.name} are cut to {self._longest} tokens")
        if answers:
            self.notice(f"{answers} of {size} answers of {workload.name} are cut to --max-tokens {config.max_tokens}")

    def _made(self, workload: Workload, size: int) -> tuple[list[Request], list[list[int]] | None]:
        plan, deployment = self.plan, self.deployment
        build = build_queue if plan.trace is None else partial(replay_queue, plan.trace)
        self._say_cuts(workload, size)
        queue = plan.traffic.shaped(build(workload, plan.config, deployment, size), plan.config.seed, self._longest)
        if plan.trace is not None:
            return queue, [r.canonical or [] for r in queue]
        if not plan.pinned:
            return queue, None
        with _alone(self.folder / "texts" / ".lock"):
            texts = pinned_texts(
                self.folder / "texts", workload, queue, plan.config, self.engines, self.notice, plan.traffic.lengths
            )
        return queue, texts


def _run_table(plan: SweepPlan, deployment: Deployment, folder: Path) -> CostTable:
    """The table that the run was planned with, if it fits; else the one to be found, kept in the run's folder."""
    kept = folder / "cost.json"
    if kept.exists() and not plan.config.cost:
        table = load_cost_table(kept)
        if not differences(table.contract, deployment.contract) and table.box.requests[1] >= max(plan.batches):
            return table
    file = cost_file(plan.config, deployment)
    for source in (samples_path(file), file):
        if source.exists():
            write_atomically(folder / source.name.replace(file.stem, "cost"), source.read_bytes())
    return load_cost_table(file)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """A lock between the benches of a run."""
    try:
        stream = path.open("a")
    except OSError as problem:
        raise UsageError(f"cannot write to {path.parent}: {problem.strerror}", hint="name another --out") from None
    with stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _gpu(device: torch.device) -> str | None:
    """The device's UUID or index for nvidia-smi."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return str(device.index or 0) if uuid is None else f"GPU-{uuid}"


def digest_of(measured: CostTable | CalibrationSet | None) -> str:
    return "" if measured is None else hashlib.sha256(repr(measured).encode()).hexdigest()[:12]
