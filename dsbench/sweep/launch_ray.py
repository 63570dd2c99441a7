"""Workers of a Ray cluster: one actor a device, each with its own bench. Needs the extra `ray`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from dsbench.errors import DsbenchError, EnvironmentRefused, UsageError
from dsbench.profiles.contract import check_contract
from dsbench.sweep.order import Measured, Task


def _facts(setting: Any) -> dict[str, str]:
    """Facts that all workers must share."""
    return {**setting.contract, "sources": setting.code}


class BenchActor:
    """The class of an actor: owns a bench, made at the first call so that its errors reach the caller."""

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...], wanted: dict[str, str] | None) -> None:
        self.make, self.arguments, self.wanted = make, arguments, wanted  # wanted: of _facts, if known yet
        self.bench: Any = None

    def describe(self) -> Any:
        return self._ready().describe()

    def repeat(self, task: Task) -> Measured:
        measured: Measured = self._ready().repeat(task)
        return measured

    def _ready(self) -> Any:
        if self.bench is None:
            bench = self.make(*self.arguments)
            if self.wanted is not None:
                check_contract(self.wanted, _facts(bench.describe()), what="a worker", hint="use machines of one kind")
            self.bench = bench
        return self.bench


class RayWorkers:
    """Starts actors on the cluster at RAY_ADDRESS, or on this machine. All must measure under the first's contract.

    make(*arguments): the bench; gpus, cpus: GPUs and CPU cores an actor reserves. Raises UsageError where Ray is not
    installed.
    """

    def __init__(
        self, make: Callable[..., Any], arguments: tuple[Any, ...], *, gpus: int = 0, cpus: int = 1, local: int = 1
    ) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError:
            raise UsageError(
                "the launcher ray needs Ray", hint="pip install 'dspark-bench[ray]', or --launcher local"
            ) from None
        self.ray, self._make, self._arguments = ray, make, arguments
        self._started = not ray.is_initialized()
        if self._started:
            address = os.environ.get("RAY_ADDRESS")
            # By itself Ray counts cores; two workers of a small machine may share one.
            here = {} if address else {"num_cpus": max(os.cpu_count() or 1, cpus * local)}
            ray.init(address=address, include_dashboard=False, logging_level="error", **here)
        self._actor = ray.remote(num_gpus=gpus, num_cpus=cpus, max_restarts=0)(BenchActor)
        self._actors: dict[int, Any] = {}
        self._running: dict[Any, int] = {}
        self._idle = [self._new(None)]
        self._setting: Any = None

    def describe(self) -> Any:
        """The setting of the first worker: contract, blocks, environment. Raises EnvironmentRefused if it died."""
        try:
            self._setting = self._setting or self._get(self._actors[0].describe.remote())
        except self.ray.exceptions.RayActorError:
            raise EnvironmentRefused("the first worker died while it loaded", hint="see Ray's logs") from None
        return self._setting

    def gpus(self) -> int:
        """GPUs of the cluster."""
        return int(self.ray.cluster_resources().get("GPU", 0))

    def add(self) -> int:
        return self._idle.pop() if self._idle else self._new(_facts(self._setting) if self._setting else None)

    def start(self, worker: int, task: Task) -> None:
        self._running[self._actors[worker].repeat.remote(task)] = worker

    def wait(self) -> tuple[int, Measured | None]:
        (ready,), _ = self.ray.wait(list(self._running), num_returns=1)
        worker = self._running.pop(ready)
        try:
            return worker, self._get(ready)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
            del self._actors[worker]
            return worker, None

    def close(self) -> None:
        for actor in self._actors.values():
            self.ray.kill(actor)
        if self._started:
            self.ray.shutdown()

    def _new(self, contract: dict[str, str] | None) -> int:
        number = max(self._actors, default=-1) + 1
        self._actors[number] = self._actor.remote(self._make, self._arguments, contract)
        return number

    def _get(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as problem:
            cause = problem.cause
            raise (cause if isinstance(cause, DsbenchError) else problem) from None
