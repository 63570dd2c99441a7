"""A toy target with random text, trainings of it, and rows of it run over a pool: what the training tests share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch

from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets.base import DecoderTarget
from dsbench.runtime.targets.dense import random_weights
from dsbench.runtime.targets.load import build_target
from dsbench.runtime.targets.shape import ModelShape
from dsbench.runtime.training.data import Job, assemble
from dsbench.runtime.training.options import TrainOptions
from dsbench.runtime.training.step import Setting
from dsbench.runtime.training.token_data import TRAIN, VALIDATION_MIXED, VALIDATION_T1, TokenData
from dsbench.runtime.training.train import prepare

CPU = torch.device("cpu")
VOCAB = 97
SHAPE = ModelShape(
    name="toy",
    layers=4,
    hidden=32,
    mlp=48,
    heads=4,
    kv_heads=2,
    head_width=8,
    vocab=VOCAB,
    context=256,
    rope_theta=1e4,
    norm_eps=1e-5,
    tied=True,
    qk_norm=False,
)
OPTIONS = TrainOptions(
    seconds=60,
    layers=2,
    taps=(0, 2),
    rank=9,
    block=3,
    draft_vocab=40,
    sequences=40,
    validation=8,
    max_tokens=40,
    width=64,
    decode_batch=16,
    batch=4,
    anchors=6,
    seed=5,
    log_every=60,
)
MTP = replace(OPTIONS, kind="mtp", head="none", layers=1)
EOS = frozenset({2})
TEMPERATURES = (1.0, 0.0, 0.7)


def quiet(record: dict[str, object]) -> None:
    """A log that keeps nothing."""


@cache
def toy_target() -> DecoderTarget:
    weights = random_weights(SHAPE, CPU, torch.float32, seed=1)
    return build_target(SHAPE, {k: w * 6 if w.ndim == 2 else w for k, w in weights.items()}, digest="toy-digest")


def random_data(sequences: int, seed: int = 0) -> TokenData:
    """Text of three temperatures in turn; every eighth sequence goes to each validation set."""
    rng = np.random.default_rng(seed)
    splits = {1: VALIDATION_T1, 2: VALIDATION_MIXED}
    jobs = [
        Job(
            prompt=tuple(rng.integers(0, VOCAB, rng.integers(3, 9))),
            temperature=TEMPERATURES[i % 3],
            split=splits.get(i % 8, TRAIN),
        )
        for i in range(sequences)
    ]
    answers = [(VOCAB * rng.random(rng.integers(8, 40)) ** 2).astype(np.int32) for _ in jobs]
    return assemble(jobs, answers, OPTIONS, "toy-digest")


def setting_of(options: TrainOptions, sequences: int = 24) -> Setting:
    return prepare(options, toy_target(), random_data(sequences), EOS, quiet)


def pool_of(layers: tuple[tuple[int, int], ...] = (), shuffle_seed: int | None = None) -> StatePool:
    """For one request, of the toy target's layers and `layers` after them."""
    shape = PoolShape(layers=((2, 8),) * SHAPE.layers + layers, page=16, pages=8, table=8)
    return StatePool(shape, CPU, torch.float32, shuffle_seed=shuffle_seed)


def run_rows(
    pool: StatePool, ids: list[int], start: int = 0, taps: tuple[int, ...] = ()
) -> tuple[torch.Tensor, torch.Tensor, Batch]:
    """Logits, taps and batch of the toy target's rows `ids` at positions start.. of request 0."""
    if start == 0:
        assert pool.open(0, 120)
    pool.grow(0, start + len(ids))
    context = torch.tensor([start], dtype=torch.int32)
    cu_rows, request, positions = ragged_positions(context, torch.tensor([len(ids)], dtype=torch.int32))
    batch = Batch(
        ids=torch.tensor(ids),
        positions=positions,
        cu_rows=cu_rows,
        context=context,
        pages=pool.table([0]),
        request=request,
    )
    logits, tapped = toy_target().forward(batch, pool, taps)
    return logits, tapped, batch
