"""The training loop. It synchronises only to log and to save its state; the schedule follows wall-clock time."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor, nn

from dsbench.errors import DsbenchError, EnvironmentRefused
from dsbench.runtime.training.evaluate import evaluate
from dsbench.runtime.training.forward import training_attention
from dsbench.runtime.training.generate import Log
from dsbench.runtime.training.keeper import BatchOrder, Keeper, Progress
from dsbench.runtime.training.loss import LossParts
from dsbench.runtime.training.optimise import Optimiser, learning_rate
from dsbench.runtime.training.options import TrainOptions
from dsbench.runtime.training.ranks import Ranks
from dsbench.runtime.training.step import Forward, Setting, compiled, loss_of
from dsbench.runtime.training.token_data import TRAIN, VALIDATION_MIXED, VALIDATION_T1

CLIP = 1.0
QUICK = 128  # validation sequences of a log line, of each set


class Diverged(DsbenchError):
    """A training whose loss or weights are not finite; `what`: "the loss is", "weights are"."""

    def __init__(self, what: str) -> None:
        super().__init__(f"training diverged: {what} not finite", hint="lower --lr")


def fit(
    options: TrainOptions,
    setting: Setting,
    log: Log,
    *,
    most_steps: int | None = None,
    ranks: Ranks | None = None,
    keeper: Keeper | None = None,
) -> Progress:
    """Trains for `options.seconds` of wall clock or `most_steps`. Raises Diverged if it does."""
    ranks, keeper = ranks or Ranks(), keeper or Keeper(None, "", math.inf)
    module, device = setting.module, setting.vocabulary.device
    generator = torch.Generator(device=device).manual_seed(options.seed * ranks.count + ranks.index)
    order = BatchOrder(setting.splits[TRAIN], max(1, options.batch // ranks.count), generator)
    optimiser, sums = Optimiser(module, options), Sums(module.shape.block, device)
    with training_attention(device, setting.heads.head.dtype):
        forward: Forward = module
        if options.compile and device.type == "cuda":
            forward = compiled(setting, setting.maker.make(order.take(), generator), log)
        stepper = Stepper(forward, setting, optimiser, sums, generator, ranks, graph=forward is not module)
        progress = keeper.resume(setting, optimiser, order, log)
        if len(set(ranks.together([progress.step]))) > 1:
            raise EnvironmentRefused("the ranks' kept states are of different steps", hint="delete them all")
        spent, began, logged = progress.seconds, time.perf_counter(), 0.0
        while True:
            now = ranks.agree(time.perf_counter() - began)
            progress.seconds = spent + now
            fraction = max(progress.seconds / options.seconds, progress.step / most_steps if most_steps else 0.0)
            if now - logged >= options.log_every or fraction >= 1:
                logged = now
                progress.final = _report(options, setting, sums, progress, fraction)
                log(progress.final)
                keeper.keep(setting, optimiser, order, progress)
            if fraction >= 1:
                return progress
            stepper.run(order.take(), progress.step * ranks.count + ranks.index, learning_rate(fraction, options.lr))
            progress.step += 1


class Stepper:
    """One optimiser step, all on the device. On CUDA, alone and compiled, it is one captured graph after its first
    runs: launching its kernels one by one takes longer than running them.
    """

    EAGER = 3  # real steps before the capture, which allocate what a capture needs

    def __init__(
        self,
        forward: Forward,
        setting: Setting,
        optimiser: Optimiser,
        sums: Sums,
        generator: torch.Generator,
        ranks: Ranks,
        *,
        graph: bool,
    ) -> None:
        self.forward, self.setting, self.optimiser, self.sums = forward, setting, optimiser, sums
        self.generator, self.ranks, self.left = generator, ranks, self.EAGER if graph and ranks.count == 1 else -1
        self.parameters = [p for p in setting.module.parameters() if p.requires_grad]
        device = setting.vocabulary.device
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.sequences: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        stream: Any = torch.cuda.Stream
        self.stream = stream(device) if self.left > 0 else None  # backward must not have known another one at capture

    def run(self, sequences: Tensor, seed: int, lr: float) -> None:
        """Sequences [B] of the training split; `seed` keys the noise."""
        if self.sequences is None:
            self.sequences = sequences.clone()
        self.sequences.copy_(sequences)
        self.seed.fill_(seed)
        self.optimiser.lr.fill_(lr)
        if self.stream is None:
            self._step()
            return
        if self.left == 0:
            self._capture(self.stream)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self._step()
            torch.cuda.current_stream().wait_stream(self.stream)
        self.left -= 1

    def _capture(self, stream: torch.cuda.Stream) -> None:
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(self.generator)
        with torch.cuda.graph(self.graph, stream=stream):
            self._step()

    def _step(self) -> None:
        assert self.sequences is not None
        blocks = self.setting.maker.make(self.sequences, self.generator)
        parts = loss_of(self.forward, self.setting, blocks, self.seed)
        torch.autograd.backward(parts.total / self.ranks.count)
        self.ranks.add([p.grad for p in self.parameters if p.grad is not None])
        size = torch.nn.utils.clip_grad_norm_(self.parameters, CLIP)
        self.optimiser.step()
        for p in self.parameters:
            p.grad = None
        self.sums.add(parts, blocks.valid, blocks.goals.greedy, size)


class Sums:
    """Running sums of a log period, on the device."""

    NAMES = ("loss", "ce", "l1", "coupled", "confidence", "free", "gradient")

    def __init__(self, block: int, device: torch.device) -> None:
        self.block, self.steps = block, torch.zeros((), device=device)  # on the device: a graph's replays count too
        self.parts = torch.zeros(len(self.NAMES), device=device)
        self.accepted, self.trials = torch.zeros(block, device=device), torch.zeros(block, device=device)

    @torch.no_grad()
    def add(self, parts: LossParts, valid: Tensor, greedy: Tensor, size: Tensor) -> None:
        self.steps += 1
        self.parts += torch.stack([parts.total, parts.ce, parts.l1, parts.coupled, parts.confidence, parts.free, size])
        seen = valid.view(-1, self.block)
        passed = torch.where(greedy, parts.match, parts.accept)
        self.accepted += (passed.view(-1, self.block) * seen).sum(0)
        self.trials += seen.sum(0)

    def take(self) -> dict[str, Any]:
        """Means since the last call; the one place that waits for the device."""
        means = (self.parts / self.steps.clamp(min=1)).tolist()
        acceptance = (self.accepted / self.trials.clamp(min=1)).tolist()
        for total in (self.steps, self.parts, self.accepted, self.trials):
            total.zero_()
        if not all(math.isfinite(m) for m in means):
            raise Diverged("the loss or its gradient is")
        named = {name: round(m, 4) for name, m in zip(self.NAMES, means, strict=True)}
        return {**named, "acceptance": [round(a, 4) for a in acceptance]}


def refuse_infinite(module: nn.Module) -> None:
    """Raises Diverged where a parameter would not be finite in a checkpoint, whose dtype is bf16."""
    with torch.no_grad():
        finite = torch.stack([p.to(torch.bfloat16).isfinite().all() for p in module.parameters()])
    if not bool(finite.all()):
        raise Diverged("weights are")


def _report(options: TrainOptions, setting: Setting, sums: Sums, progress: Progress, fraction: float) -> dict[str, Any]:
    """One line of the log. Raises Diverged where the training has diverged, its last update included."""
    left = progress.seconds * (1 - fraction) / fraction if fraction else math.nan
    record: dict[str, Any] = {
        "stage": "train",
        "step": progress.step,
        "seconds": round(progress.seconds, 2),
        "left": round(left, 1),
        **sums.take(),
    }
    refuse_infinite(setting.module)
    validation = torch.cat([setting.splits[s][:QUICK] for s in (VALIDATION_T1, VALIDATION_MIXED)])
    if validation.numel():
        found = evaluate(setting, validation, batch=options.batch, seed=options.seed)
        record["tau"] = {event: numbers["tau"] for event, numbers in found.items()}
        record["acceptance_val"] = {event: numbers["acceptance"] for event, numbers in found.items()}
    return record
