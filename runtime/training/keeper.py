"""Resuming a training: the order of its batches, its progress, and the file that stores both."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsbench.errors import EnvironmentRefused
from dsbench.runtime.training.atomic import atomic_file
from dsbench.runtime.training.generate import Log
from dsbench.runtime.training.optimise import Optimiser
from dsbench.runtime.training.step import Setting


class BatchOrder:
    """Batches of sequences, epoch by epoch in random order; an incomplete batch at an epoch's end is skipped."""

    def __init__(self, sequences: Tensor, batch: int, generator: torch.Generator) -> None:
        self.sequences, self.batch, self.generator = sequences, batch, generator
        self.order, self.next = sequences, sequences.shape[0]

    def take(self) -> Tensor:
        n = self.sequences.shape[0]
        if self.next + self.batch > n:
            self.order = self.sequences[torch.randperm(n, generator=self.generator, device=self.sequences.device)]
            self.next = 0
        self.next += self.batch
        return self.order[self.next - self.batch : self.next]


@dataclass(slots=True)
class Progress:
    """Progress of a training."""

    step: int = 0
    seconds: float = 0.0  # of optimisation so far
    final: dict[str, Any] = field(default_factory=dict)  # the last line of the log


class Keeper:
    """Saves a training's state beside its output every `every` seconds, so that a stop loses no more."""

    def __init__(self, path: Path | None, key: str, every: float) -> None:
        self.path, self.key, self.every, self.kept = path, key, every, 0.0

    def resume(self, setting: Setting, optimiser: Optimiser, order: BatchOrder, log: Log) -> Progress:
        """Loads a saved state. Raises EnvironmentRefused where it is damaged or of another training."""
        if self.path is None or not self.path.exists():
            return Progress()
        state = read_state(self.path, order.sequences.device)
        if state["key"] != self.key:
            raise EnvironmentRefused(
                f"{self.path} keeps a training with other options or data", hint="delete it, or give another --out"
            )
        try:
            progress = _take_up(state, setting, optimiser, order)
        except Exception as problem:  # a missing part, a wrong type, a wrong shape: no common type
            raise _damaged(self.path, problem) from None
        self.kept = progress.seconds
        log({"stage": "resume", "step": progress.step, "seconds": round(progress.seconds, 1)})
        return progress

    def keep(self, setting: Setting, optimiser: Optimiser, order: BatchOrder, progress: Progress) -> None:
        if self.path is None or progress.seconds - self.kept < self.every:
            return
        state = {
            "key": self.key,
            "module": setting.module.state_dict(),
            "optimiser": optimiser.state(),
            "order": order.order,
            "next": order.next,
            "generator": order.generator.get_state(),
            "step": progress.step,
            "seconds": progress.seconds,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.path) as partial:
            torch.save(state, partial)
        self.kept = progress.seconds

    def done(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def read_state(path: Path, device: torch.device) -> dict[str, Any]:
    """Reads a saved state. Raises EnvironmentRefused for a file that holds none, OSError for no file."""
    with path.open("rb") as stream:
        try:
            state = torch.load(stream, map_location=device, weights_only=True)
        except torch.OutOfMemoryError:
            raise
        except Exception as problem:  # what zip and pickle raise has no common type
            raise _damaged(path, problem) from None
    if not isinstance(state, dict) or not isinstance(state.get("key"), str):
        raise _damaged(path, "it names no training")
    return state


def _take_up(state: dict[str, Any], setting: Setting, optimiser: Optimiser, order: BatchOrder) -> Progress:
    if not torch.equal(state["order"].sort().values, order.sequences.sort().values):
        raise ValueError("its order is not of these sequences")
    setting.module.load_state_dict(state["module"])
    optimiser.load(state["optimiser"])
    order.order, order.next = state["order"], int(state["next"])
    order.generator.set_state(state["generator"].cpu())
    return Progress(step=int(state["step"]), seconds=float(state["seconds"]))


def _damaged(path: Path, problem: object) -> EnvironmentRefused:
    return EnvironmentRefused(f"{path} is damaged: {str(problem)[:200] or type(problem).__name__}", hint="delete it")
